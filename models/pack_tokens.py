"""Encode the collected text: uint16 ids, <|endoftext|> (0) before each file.

usage: pack_tokens.py DATA_DIR TOKENIZER_DIR --out DIR      -> train.bin.xz, heldout.bin.xz, broken.bin.xz, tokens.json

broken.bin.xz holds every eighth training file with one line break in twelve encoded as a prompt that ends there
would be: the newline and the indentation after it are then separate tokens. The second stage of training uses it.
"""

import argparse
import json
import random
import subprocess
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

STATEMENTS = ["def", "class", "import", "from", "async", "@", "for", "while", "if", "try", "with", "print", "assert"]


def decompress(path: Path) -> list[str]:
    return subprocess.run(["zstd", "-dcq", str(path)], capture_output=True, check=True).stdout.decode().split("\x00")


def write(path: Path, pieces: list[np.ndarray]) -> int:
    ids = np.concatenate(pieces)
    with path.open("wb") as file:
        subprocess.run(["xz", "-4", "-T2", "-c"], input=ids.tobytes(), stdout=file, check=True)
    return len(ids)


def broken(text: str, chance: random.Random) -> list[str]:
    parts, at = [], 0
    for i, c in enumerate(text):
        if c == "\n" and chance.random() < 1 / 12:
            parts.append(text[at : i + 1])
            at = i + 1
    return [*parts, text[at:]]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(args.tokenizer / "tokenizer.json"))
    about: dict[str, object] = {}
    for part in ("heldout", "train"):
        texts = decompress(args.data / f"{part}.txt.zst")
        pieces = []
        for i in range(0, len(texts), 500):
            for encoding in tokenizer.encode_batch_fast(texts[i : i + 500]):
                pieces.append(np.array([0, *encoding.ids], np.uint16))
        about[f"{part}_tokens"] = write(args.out / f"{part}.bin.xz", pieces)
        about[f"{part}_bytes"] = sum(len(t.encode()) for t in texts)
        about[f"{part}_files"] = len(texts)
    chance, pieces = random.Random(0), []
    for text in texts[::8]:
        ids = [i for encoding in tokenizer.encode_batch_fast(broken(text, chance)) for i in encoding.ids]
        pieces.append(np.array([0, *ids], np.uint16))
    about["broken_tokens"] = write(args.out / "broken.bin.xz", pieces)
    # where a top-level statement starts: after a token of newlines alone, at one of these
    about["newline_ids"] = [i for t, i in tokenizer.get_vocab().items() if set(t) == {"\u010a"}]
    about["statement_ids"] = sorted({tokenizer.encode(word).ids[0] for word in STATEMENTS})
    (args.out / "tokens.json").write_text(json.dumps(about))
    print(about)


if __name__ == "__main__":
    main()
