"""Write a Gemma 4 with random weights as repositories for Transformers.js have it, for timing on a GPU host.

usage: make_gemma4.py SHAPE OUT [DTYPE]     needs numpy and onnx; no network

SHAPE is e2b, e4b or nano, DTYPE q4f16 (the default) or q4. E2B takes 3.1 GB. Then

    python3 build.py exec benches/small_adapter.py --model OUT -- whole     (or disk)

prints times to the first token and milliseconds a token.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.gemma4_export import BLOCK, Gemma4, Packed, write_repository  # noqa: E402

NANO = ROOT / "tests/fixtures/repositories/nano-gemma4"
LOCAL, FULL = "sliding_attention", "full_attention"
E2B: dict[str, Any] = {
    "vocabulary": 262144,
    "hidden": 1536,
    "inner": 6144,
    "kinds": [FULL if layer % 5 == 4 else LOCAL for layer in range(35)],
    "shared": 20,
    "heads": 8,
    "kv_heads": 1,
    "head": 256,
    "full_head": 512,
    "layer_input": 256,
    "window": 512,
    "context": 131072,
    "cap": 30.0,
    "others": (258880, 258881),
}
SHAPES: dict[str, dict[str, Any]] = {
    "e2b": E2B,
    "e4b": {
        **E2B,
        "hidden": 2560,
        "inner": 10240,
        "wide": False,
        "kinds": [FULL if layer % 6 == 5 else LOCAL for layer in range(42)],
        "shared": 18,
        "kv_heads": 2,
    },
    "nano": {
        **E2B,
        "vocabulary": 512,
        "hidden": 256,
        "inner": 256,
        "kinds": [LOCAL, FULL, LOCAL, FULL],
        "shared": 2,
        "head": 64,
        "full_head": 128,
        "layer_input": 64,
        "context": 2048,
        "others": (300, 301),
    },
}
FIELDS = {
    "vocab_size": "vocabulary",
    "hidden_size": "hidden",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "head_dim": "head",
    "num_kv_shared_layers": "shared",
    "max_position_embeddings": "context",
}
RANDOM = np.random.Generator(np.random.SFC64(0))
SPREAD = 4.6
"""The standard deviation of the sixteen numbers."""


def matrix(name: str, rows: int, columns: int) -> Packed:
    numbers = np.frombuffer(RANDOM.bytes(rows * columns // 2), np.uint8).reshape(rows, -1)
    blocks = columns // BLOCK
    spread = 0.02 if "embed" in name else columns**-0.5
    return numbers, np.full((rows, blocks), spread / SPREAD, np.float32), np.full((rows, blocks // 2), 0x88, np.uint8)


def vector(name: str, count: int) -> Any:
    return np.ones(count, np.float32)


def main() -> int:
    shape, target, dtype = [*sys.argv[1:4], "q4f16"][:3]
    sizes, out = Gemma4(**SHAPES[shape]), Path(target)
    write_repository(out, sizes, matrix, vector, half=dtype == "q4f16")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(NANO / name, out / name)
    fields = {key: getattr(sizes, name) for key, name in FIELDS.items()}
    text = {"model_type": "gemma4_text", "num_hidden_layers": len(sizes.kinds), **fields}
    (out / "config.json").write_text(json.dumps({"model_type": "gemma4", "text_config": text}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
