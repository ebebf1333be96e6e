"""Train the byte-level BPE tokenizer: a run of newlines with the indentation after it is one piece.

usage: train_tokenizer.py DATA_DIR --out DIR [--vocabulary 2048] [--megabytes 24]
"""

import argparse
import json
import random
import subprocess
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

END = "<|endoftext|>"
PATTERN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\n+ *|[ \t\r]+|\s"
CONTEXT = 1024


def build(texts: list[str], vocabulary: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[AddedToken(END, special=True, normalized=False)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save(tokenizer: Tokenizer, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": {
            "0": {
                "content": END,
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": True,
            }
        },
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": END,
        "eos_token": END,
        "pad_token": END,
        "unk_token": None,
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONTEXT,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--vocabulary", type=int, default=2048)
    parser.add_argument("--megabytes", type=float, default=24)
    args = parser.parse_args()
    raw = subprocess.run(["zstd", "-dcq", str(args.data / "train.txt.zst")], capture_output=True, check=True).stdout
    texts = raw.decode().split("\x00")
    random.Random(0).shuffle(texts)
    sample, size = [], 0
    for text in texts:
        if size > args.megabytes * 1e6:
            break
        sample.append(text)
        size += len(text)
    tokenizer = build(sample, args.vocabulary)
    save(tokenizer, args.out)
    probe = "\n".join(texts[-200:])
    ratio = len(probe.encode()) / len(tokenizer.encode(probe).ids)
    print(f"{tokenizer.get_vocab_size()} tokens, {ratio:.3f} bytes a token")


if __name__ == "__main__":
    main()
