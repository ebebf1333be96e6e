"""Rerankers of random weights, and the scores that tests/fixtures/make_rerankers.py had of their judges."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RERANKERS = Path(__file__).parent / "fixtures/rerankers"
KINDS = ("bert", "xlm-roberta", "modernbert", "qwen3", "qwen3-plain", "qwen3-classifier")
JUDGED: dict[str, Any] = json.loads((RERANKERS / "scores.json").read_text(encoding="utf-8"))
CASES: list[tuple[str, list[str]]] = [(case["query"], case["documents"]) for case in JUDGED["cases"]]
SCORES: dict[str, list[list[float]]] = JUDGED["scores"]
"""For each kind and each case, the score of each document."""


def ranked(kind: str, case: int) -> list[tuple[int, float]]:
    """The documents' places and scores, the best first."""
    return sorted(enumerate(SCORES[kind][case]), key=lambda each: -each[1])
