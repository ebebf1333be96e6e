"""Finds the best tokens of a row, and the sum that turns their logits into probabilities."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["LARGEST", "ScoredToken", "Shortlist"]

LARGEST = 3.4028234663852886e38
"""Float32's largest number, in place of infinity, since differences of infinities are NaN."""


@dataclass(frozen=True)
class Shortlist:
    """The best tokens of one row of logits."""

    best: tuple[tuple[float, int], ...]
    """Logits and tokens, largest first, the lowest token first among equals; all finite."""
    total: float
    """The logarithm of the sum of exp(logit - largest) over the whole row."""

    @classmethod
    def of(cls, logits: Sequence[float], count: int) -> Shortlist:
        """The best `count` tokens of a row of finite logits."""
        best = heapq.nlargest(count, range(len(logits)), key=logits.__getitem__)
        top = logits[best[0]]
        total = math.log(math.fsum(map(math.exp, [logit - top for logit in logits])))
        return cls(tuple((logits[token], token) for token in best), total)

    @classmethod
    def read(cls, numbers: Sequence[float]) -> Shortlist:
        """Reads the GPU's numbers: the sum, then a logit and a token in turn."""
        logits = [max(-LARGEST, min(LARGEST, logit)) for logit in numbers[1::2]]
        best = tuple((logit, int(token)) for logit, token in zip(logits, numbers[2::2], strict=True))
        return cls(best, math.log(numbers[0]))


@dataclass(frozen=True)
class ScoredToken:
    """The score of a given token in one row of logits; all numbers are finite."""

    logit: float
    found: Shortlist
    """The best token of that row."""

    @classmethod
    def of(cls, logits: Sequence[float], token: int) -> ScoredToken:
        """The score of a given token in a row of finite logits."""
        return cls(logits[token], Shortlist.of(logits, 1))
