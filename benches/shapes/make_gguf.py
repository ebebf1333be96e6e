"""Write a GGUF file of a well-known shape with random weights, for timing on a GPU host.

usage: PYTHONPATH=py_src python3 -m benches.shapes.make_gguf SHAPE TYPE OUT.gguf          needs numpy and gguf

SHAPE is smollm2-135m or llama-3.2-1b, as in make_shape.py, with the context cut to 4096 tokens. TYPE is Q4_0, Q4_1,
Q8_0 or, for rows of whole blocks of 256, Q4_K_M, where half of the layers have `attn_v` and `ffn_down` in Q6_K, as in
llama.cpp's mix. The table of tokens is the output's, too, in Q6_K, or in Q8_0 where rows have no whole blocks of it.
Each word of the bench's prompts is a token.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benches.runner.subjects import WORDS
from capstan.model_files.gguf.header import GgmlType
from tests.gguf_files import gguf_file
from tests.gguf_tensors import weights

SHAPES: dict[str, dict[str, int]] = {
    "smollm2-135m": {
        "embedding_length": 576,
        "feed_forward_length": 1536,
        "block_count": 30,
        "attention.head_count": 9,
        "attention.head_count_kv": 3,
        "vocab_size": 49152,
    },
    "llama-3.2-1b": {
        "embedding_length": 2048,
        "feed_forward_length": 8192,
        "block_count": 16,
        "attention.head_count": 32,
        "attention.head_count_kv": 8,
        "vocab_size": 128256,
    },
}

CONTEXT = 4096
TYPES = ("Q4_0", "Q4_1", "Q8_0", "Q4_K_M")


def main() -> int:
    if len(sys.argv) != 4 or sys.argv[1] not in SHAPES or sys.argv[2] not in TYPES:
        print(__doc__, file=sys.stderr)
        return 2
    shape, kind, out = SHAPES[sys.argv[1]], sys.argv[2], Path(sys.argv[3])
    if kind == "Q4_K_M" and shape["embedding_length"] % 256:
        print(f"rows of {shape['embedding_length']} elements have no whole blocks of 256: take Q4_1", file=sys.stderr)
        return 2
    tensors: dict[str, tuple[Sequence[int], int, bytes]] = {}
    for seed, (name, dims, of) in enumerate(matrices(shape, kind)):
        tensors[name] = (dims, int(of), repeated(of, dims, seed))
    hidden = shape["embedding_length"]
    ones = np.ones(hidden, np.float32).tobytes()
    norms = [f"blk.{i}.{name}.weight" for i in range(shape["block_count"]) for name in ("attn_norm", "ffn_norm")]
    tensors |= {name: ((hidden,), int(GgmlType.F32), ones) for name in (*norms, "output_norm.weight")}
    out.write_bytes(gguf_file(metadata(shape), tensors))
    return 0


def matrices(shape: dict[str, int], kind: str) -> Iterator[tuple[str, tuple[int, int], GgmlType]]:
    """Name, (rows, elements of a row) and type of each matrix."""
    hidden, inner, layers = (shape[name] for name in ("embedding_length", "feed_forward_length", "block_count"))
    kv = hidden // shape["attention.head_count"] * shape["attention.head_count_kv"]
    large = GgmlType.Q8_0 if hidden % 256 or kind == "Q8_0" else GgmlType.Q6_K
    usual = GgmlType.Q4_K if kind == "Q4_K_M" else GgmlType[kind]
    yield "token_embd.weight", (shape["vocab_size"], hidden), large
    for i in range(layers):
        # use_more_bits of llama.cpp's quantization.
        more = i < layers // 8 or i >= 7 * layers // 8 or (i - layers // 8) % 3 == 2
        finer = GgmlType.Q6_K if kind == "Q4_K_M" and more else usual
        yield f"blk.{i}.attn_q.weight", (hidden, hidden), usual
        yield f"blk.{i}.attn_k.weight", (kv, hidden), usual
        yield f"blk.{i}.attn_v.weight", (kv, hidden), finer
        yield f"blk.{i}.attn_output.weight", (hidden, hidden), usual
        yield f"blk.{i}.ffn_gate.weight", (inner, hidden), usual
        yield f"blk.{i}.ffn_up.weight", (inner, hidden), usual
        yield f"blk.{i}.ffn_down.weight", (hidden, inner), finer


ROWS = 64
"""Rows that are made at random; a tensor repeats them."""


def repeated(kind: GgmlType, dims: tuple[int, int], seed: int) -> bytes:
    """The bytes of a matrix whose values have the size of a trained one's."""
    rows = weights(kind, (min(ROWS, dims[0]), dims[1]), seed)
    size = dims[0] * dims[1] // kind.block[0] * kind.block[1]
    return (rows * -(-dims[0] // ROWS))[:size]


def metadata(shape: dict[str, int]) -> dict[str, Any]:
    """The keys of a llama with a byte-level tokenizer, whose merges make the words of the bench's prompts."""
    merges: dict[str, None] = {}
    words = [f"\u0120{word}" for word in WORDS]
    for word in words:
        merges |= {f"{word[:end]} {word[end]}": None for end in range(1, len(word))}
    # The symbols of GPT-2's bytes: those that can be printed stand for themselves, the others follow 255.
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    symbols = [chr(code) for code in (*printed, *range(256, 256 + 256 - len(printed)))]
    known = [*symbols, *dict.fromkeys(merge.replace(" ", "") for merge in merges)]
    tokens = ["<end>", *known, *(f"<{place}>" for place in range(1 + len(known), shape["vocab_size"]))]
    return {
        "general.architecture": "llama",
        **{f"llama.{key}": value for key, value in shape.items()},
        "llama.context_length": CONTEXT,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 500000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, *([1] * (len(tokens) - 1))],
        "tokenizer.ggml.merges": list(merges),
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
    }


if __name__ == "__main__":
    sys.exit(main())
