"""Encode the collected text: uint16 ids, <|endoftext|> (0) before each file.

usage: pack_tokens.py DATA_DIR TOKENIZER_DIR --out DIR      -> train.bin.xz, heldout.bin.xz, tokens.json
"""

import argparse
import json
import subprocess
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(args.tokenizer / "tokenizer.json"))
    about = {}
    for part in ("heldout", "train"):
        raw = subprocess.run(["zstd", "-dcq", str(args.data / f"{part}.txt.zst")], capture_output=True, check=True).stdout
        texts = raw.decode().split("\x00")
        pieces = []
        for i in range(0, len(texts), 500):
            for encoding in tokenizer.encode_batch_fast(texts[i : i + 500]):
                pieces.append(np.array([0, *encoding.ids], np.uint16))
        ids = np.concatenate(pieces)
        subprocess.run(["xz", "-4", "-T2", "-c"], input=ids.tobytes(), stdout=(args.out / f"{part}.bin.xz").open("wb"), check=True)
        about[f"{part}_bytes"] = sum(len(t.encode()) for t in texts)
        about[f"{part}_tokens"] = len(ids)
        about[f"{part}_files"] = len(texts)
    (args.out / "tokens.json").write_text(json.dumps(about))
    print(about)


if __name__ == "__main__":
    main()
