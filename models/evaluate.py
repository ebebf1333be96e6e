"""Bits per byte of exported model folders on the held-out files, and of xz and zstd on the same files.

usage: evaluate.py DATA_DIR MODEL_DIR ... [--one-in N]

A file is scored from <|endoftext|> on, in windows of 1024 tokens that overlap by half, so a token sees at least 512
earlier ones where the file has them. The compressors get the files joined as one stream, which favours them: they
keep all of it in view. Runs on onnxruntime's CPU provider; prints one JSON line for each folder and one for the
baselines.
"""

import argparse
import json
import subprocess
import time
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

WINDOW = 1024


class Scorer:
    def __init__(self, folder: Path) -> None:
        config = json.loads((folder / "genai_config.json").read_text())["model"]["decoder"]
        self.layers, self.kv_heads, self.head_size = (
            config["num_hidden_layers"],
            config["num_key_value_heads"],
            config["head_size"],
        )
        self.session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def nats(self, ids: np.ndarray, first: int) -> float:
        """-log p(ids[first + 1:] | what comes before), the first `first` predictions left out."""
        feeds = {"input_ids": ids[None, :-1], "attention_mask": np.ones((1, len(ids) - 1), np.int64)}
        empty = np.zeros((1, self.kv_heads, 0, self.head_size), np.float32)
        for layer in range(self.layers):
            feeds[f"past_key_values.{layer}.key"] = feeds[f"past_key_values.{layer}.value"] = empty
        logits = self.session.run(["logits"], feeds)[0][0, first:]
        top = logits.max(-1, keepdims=True)
        norm = np.log(np.exp(logits - top).sum(-1)) + top[:, 0]
        return float((norm - logits[np.arange(len(logits)), ids[first + 1 :]]).sum(dtype=np.float64))

    def file(self, text: str) -> tuple[float, int]:
        ids = np.array([0, *self.tokenizer.encode(text).ids], np.int64)
        total, at = 0.0, 0
        while at < len(ids) - 1:
            left = max(0, at - WINDOW // 2)
            chunk = ids[left : left + WINDOW + 1]
            total += self.nats(chunk, at - left)
            at = left + len(chunk) - 1
        return total, len(ids) - 1


def compressed(command: list[str], data: bytes) -> float:
    return 8 * len(subprocess.run(command, input=data, capture_output=True, check=True).stdout) / len(data)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("models", type=Path, nargs="*")
    parser.add_argument("--one-in", type=int, default=1, help="only every Nth file")
    args = parser.parse_args()
    raw = subprocess.run(["zstd", "-dcq", str(args.data / "heldout.txt.zst")], capture_output=True, check=True).stdout
    texts = raw.decode().split("\x00")[:: args.one_in]
    data = "".join(texts).encode()
    xz, zstd = compressed(["xz", "-9e", "-c"], data), compressed(["zstd", "-19", "--ultra", "-c"], data)
    print(
        json.dumps(
            {"files": len(texts), "bytes": len(data), "xz -9e": round(xz, 4), "zstd -19 --ultra": round(zstd, 4)}
        ),
        flush=True,
    )
    for folder in args.models:
        start, scorer, total, tokens = time.monotonic(), Scorer(folder), 0.0, 0
        for text in texts:
            nats, count = scorer.file(text)
            total, tokens = total + nats, tokens + count
        print(
            json.dumps(
                {
                    "model": folder.name,
                    "bits_per_byte": round(total / np.log(2) / len(data), 4),
                    "bytes_per_token": round(len(data) / tokens, 3),
                    "weights_bytes": (folder / "model.onnx.data").stat().st_size,
                    "seconds": round(time.monotonic() - start),
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
