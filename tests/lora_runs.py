"""Action scripts for generators with LoRA adapters, and onnxruntime-genai's results."""

from __future__ import annotations

from typing import Any

from tests import oracle
from tests.lora_models import LORA

__all__ = ["PROMPT", "PROMPTS", "RUNS", "expected"]

PROMPT = [5, 6, 7, 8, 9]
PROMPTS = [PROMPT, [100, 200, 300, 400, 50]]

RUNS: dict[str, list[tuple[str, Any]]] = {
    "none": [("append", PROMPT), ("generate", 16)],
    "first": [("adapter", "first"), ("append", PROMPT), ("generate", 16)],
    "second": [("adapter", "second"), ("append", PROMPT), ("generate", 16)],
    "another of the same rank": [
        *(("adapter", "first"), ("append", PROMPT), ("generate", 4), ("adapter", "queries"), ("generate", 8))
    ],
    "after some tokens": [("append", PROMPT), ("generate", 4), ("adapter", "first"), ("generate", 8)],
    "after the prompt": [("append", PROMPT), ("adapter", "first"), ("generate", 12)],
    "of two ranks in turn": [
        *(("adapter", "second"), ("append", PROMPT), ("generate", 4), ("adapter", "first"), ("generate", 8))
    ],
    "before more tokens": [
        *(("adapter", "first"), ("append", PROMPT), ("generate", 4), ("rewind", 7), ("append", [40, 41])),
        *(("adapter", "second"), ("append", [42]), ("generate", 6)),
    ],
}
"""Actions as tests/oracle.py has them."""


def expected(name: str) -> list[int]:
    """The final sequence of onnxruntime-genai."""
    return oracle.drive(LORA, RUNS[name]).sequence
