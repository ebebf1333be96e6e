"""Texts and small tokenizers on which Capstan must encode as llama.cpp does, and llama.cpp's answers.

    python3 -m tests.gguf_tokenizers FOLDER

writes the answers again; FOLDER is one in which `npm install node-llama-cpp @node-llama-cpp/linux-x64` was run.
"""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from .gguf_files import gguf_file, tokenizer_metadata

ROOT = Path(__file__).parents[1]
ANSWERS = ROOT / "tests" / "fixtures" / "gguf_tokens.json"
ALIKE = {
    **dict.fromkeys(("llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"), "llama-bpe"),
    **dict.fromkeys(("megrez", "hunyuan", "grok-2", "deepseek-r1-qwen", "stablelm2"), "qwen2"),
    **dict.fromkeys(("starcoder", "refact", "codeshell", "exaone", "command-r", "minerva-7b"), "smollm"),
    **dict.fromkeys(("phi-2", "mpt", "olmo", "jais", "exaone4", "a.x-4.0", "mellum", "gigachat"), "gpt-2"),
    "granite-docling": "gpt-2",
    "llama4": "gpt-4o",
    "hunyuan-dense": "deepseek-v3",
    **dict.fromkeys(("smaug-bpe", "chatglm-bpe", "glm4"), "dbrx"),
}
"""Pre-tokenizers of other names that llama.cpp treats alike."""
COUNT = 2400
"""Texts for each tokenizer."""
PAIRED = (
    *("dbrx", "gpt-4o", "tekken", "seed-coder", "qwen35", "deepseek-v3", "deepseek-llm", "deepseek-coder"),
    *("smollm of pairs", "default of pairs", "llama-bpe of pairs", "qwen2 of pairs"),
)
PRE = ("smollm", "default", "gpt-2", "llama-bpe", "qwen2", *PAIRED)
KINDS = (*PRE, "llama", "llama without a space in front", "gemma4")

WORDS = (  # noqa: SIM905
    "the quick Brown fox don't I'M we'LL they've it's HELLO hello world tokenization antidisestablishmentarianism "
    "foo_bar camelCase x86_64 naïve café Zürich größer 你好世界 こんにちは 안녕하세요 привет мир שלום مرحبا नमस्ते "
    "ไทย Ελληνικά 🙂 👩‍👩‍👧 🇩🇪 é e\u0301 ﬁ ½ Ⅷ ² ١٢٣ ﷽ 0 1 12 123 1234 12345 3.14 1,000,000 2024-11-24 0xFF def "
    "return if( ){ }; // /* */ -> => != == <b> </b> &amp; $100 50% #tag @me a@b.c http://x.y/z?q=1 ... !!! ??? — "
    "“quoted” 's 'S 'Re '' \"\"\" ``` ~~ ^^ || <= >= \\n \\"
).split(" ")
SPACES = (
    *(" ",) * 12,
    *("  ", "   ", "    ", "        ", "\n", "\n\n", "\n\n\n", "\t", "\t\t", " \n", "\n ", "\r\n", "\r", "\u00a0"),
    *("\u3000", "\u200b", "\u2028", "\u0085", "\ufeff", "\v", "\x0c", "", " " * 16, "\n" * 8, "\u1680", "\u2003"),
)
RANGES = (
    *((32, 126), (160, 0x2FF), (0x370, 0x1FFF), (0x2000, 0x2BFF), (0x3040, 0x9FFF), (0xAC00, 0xD7A3)),
    (0x1F300, 0x1FAFF),
)


def corpus(specials: Sequence[str], count: int = COUNT) -> list[str]:
    """Texts of words, white space, digits, any characters and special tokens."""
    rng = random.Random(28)
    found = ["", " ", "  ", "\n", " a", "a ", " a ", "▁", "▁▁a", "<0x0A>", "\x00", "\x7f", "\u00ad", "\U0010ffff"]
    found += ["aaaa", "a" * 100, " " * 70, "\n" * 70, "1" * 50]
    while len(found) < count:
        kind = rng.random()
        if kind < 0.55:
            made = "".join(rng.choice(WORDS) + rng.choice(SPACES) for _ in range(rng.randint(1, 14)))
            made = rng.choice(SPACES) + made if rng.random() < 0.3 else made
        elif kind < 0.65:
            made = "".join(rng.choice(WORDS) for _ in range(rng.randint(1, 8)))
        elif kind < 0.75:
            made = "".join(chr(rng.randint(*rng.choice(RANGES))) for _ in range(rng.randint(1, 20)))
        elif kind < 0.85:
            made = "".join(rng.choice("0123456789 .,-+a\n") for _ in range(rng.randint(1, 40)))
        else:
            parts = (specials, WORDS, SPACES)
            made = "".join(rng.choice(rng.choice(parts)) for _ in range(rng.randint(2, 14)))
        found.append(made)
    return found


PLAIN = [*range(33, 127), *range(161, 173), *range(174, 256)]
OTHERS = [byte for byte in range(256) if byte not in PLAIN]
CODES = {chr(byte): byte for byte in PLAIN} | {chr(256 + place): byte for place, byte in enumerate(OTHERS)}


def bytes_of(token: str) -> bytes:
    """The bytes of a byte-level token."""
    return bytes(CODES[character] for character in token)


def sentence_piece(prefix: bool) -> dict[str, Any]:
    """A tokenizer of SentencePiece's kind: the bundled model's tokens of whole characters, by rank."""
    bundled = tokenizer_metadata(ROOT / "models" / "bundled", "default")
    pieces = dict.fromkeys("▁" + character for character in "abcdefghijklmnopqrstuvwxyz")
    for token, kind in zip(bundled["tokenizer.ggml.tokens"], bundled["tokenizer.ggml.token_type"], strict=True):
        if kind == 1:
            text = bytes_of(token).decode(errors="replace")
            if not {"\ufffd", "\0"} & {*text}:  # llama.cpp takes NUL for the end of a token
                pieces[text.replace(" ", "▁")] = None
    tokens = ["<unk>", "<s>", "</s>", "[tool]", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    types = [2, 3, 3, 4, *[6] * 256, *[1] * len(pieces)]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": [0.0] * 260 + [-float(place) for place in range(len(pieces))],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **({} if prefix else {"tokenizer.ggml.add_space_prefix": False}),
    }


@cache
def within_lines() -> dict[str, Any]:
    """Gemma 4's kind: the tokens of SentencePiece's, runs of line breaks, and merges that make them all."""
    found = sentence_piece(prefix=False)
    tokens: list[str] = found["tokenizer.ggml.tokens"]
    # llama.cpp cuts a merge at its first space.
    pieces = [token for token in tokens[260:] if "\n" not in token]
    breaks = ["\n" * count for count in (1, 2, 3, 4, 5, 6, 8)]
    held = {*pieces, *breaks}
    merges = [
        f"{token[:cut]} {token[cut:]}"
        for token in [*pieces, *breaks]
        for cut in range(1, len(token))
        if {token[:cut], token[cut:]} <= held
    ]
    return {
        **{name: value for name, value in found.items() if not name.endswith(("scores", "add_space_prefix"))},
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": [*tokens[:260], *pieces, *breaks],
        "tokenizer.ggml.token_type": [2, 3, 3, 4, *[6] * 256, *[1] * (len(pieces) + len(breaks))],
        "tokenizer.ggml.merges": merges,
    }


@cache
def paired() -> dict[str, Any]:
    """A byte-level vocabulary with pairs of the bytes that are frequent in the texts: each word's cut moves them."""
    seen = Counter(byte for text in corpus(["<|endoftext|>"]) for byte in text.encode())
    frequent = [character for character, byte in CODES.items() if byte in dict(seen.most_common(90))]
    pairs = [(left, right) for left in frequent for right in frequent]
    random.Random(7).shuffle(pairs)
    tokens = ["<|endoftext|>", *CODES, *(left + right for left, right in pairs)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] + [1] * (len(tokens) - 1),
        "tokenizer.ggml.merges": [f"{left} {right}" for left, right in pairs],
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
    }


def metadata(kind: str) -> dict[str, Any]:
    """The metadata of one of KINDS."""
    if kind in PAIRED:
        return paired() | {"tokenizer.ggml.pre": kind.removesuffix(" of pairs")}
    if kind in PRE:
        return tokenizer_metadata(ROOT / "models" / "bundled", kind) | {"tokenizer.ggml.eos_token_id": 0}
    return within_lines() if kind == "gemma4" else sentence_piece(kind == "llama")


def texts(kind: str) -> list[str]:
    """The texts for a tokenizer, with its special tokens among them."""
    return corpus(["<|endoftext|>"] if kind in PRE else ["<s>", "</s>", "<unk>", "[tool]"])


def digest(ids: Sequence[int]) -> str:
    """Four hex digits that stand for the ids of a text: the answers would be megabytes."""
    return hashlib.sha256(json.dumps(list(ids)).encode()).hexdigest()[:4]


def answers(kind: str) -> list[str]:
    """The digests of llama.cpp's ids, one for each text."""
    found: str = json.loads(ANSWERS.read_text())[kind]
    return [found[at : at + 4] for at in range(0, len(found), 4)]


ASK = """
import {getLlama} from "node-llama-cpp";
import fs from "fs";
const llama = await getLlama({gpu: false, build: "never", logLevel: "error"});
const model = await llama.loadModel({modelPath: process.argv[2], vocabOnly: true});
const texts = JSON.parse(fs.readFileSync(process.argv[3], "utf8"));
const ids = texts.map((text) => Array.from(model._model.tokenize(text, true)));
fs.writeFileSync(process.argv[4], JSON.stringify(ids));
process.exit(0);
"""

SHAPE = {
    "general.architecture": "llama",
    "llama.block_count": 1,
    "llama.feed_forward_length": 1,
    "llama.attention.head_count": 1,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.context_length": 64,
    "llama.embedding_length": 8,
}


def main(folder: Path) -> None:
    found = {}
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        script, model, asked, told = (Path(scratch) / name for name in ("ask.mjs", "a.gguf", "in.json", "out.json"))
        script.write_text(ASK)

        def ask(pairs: dict[str, Any]) -> str:
            model.write_bytes(gguf_file({**SHAPE, **pairs}))
            asked.write_text(json.dumps(texts("smollm" if pairs["tokenizer.ggml.model"] == "gpt2" else "llama")))
            subprocess.run(["node", *map(str, (script, model, asked, told))], check=True)
            return "".join(map(digest, json.loads(told.read_text())))

        for kind in KINDS:
            found[kind] = ask(metadata(kind))
        for name, kind in ALIKE.items():
            assert ask(metadata(kind) | {"tokenizer.ggml.pre": name}) == found[kind], f"{name} is not {kind}"
    ANSWERS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
