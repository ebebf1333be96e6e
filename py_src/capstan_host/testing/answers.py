"""A model's answers, their cost, and the place at which their ids begin to differ from an oracle's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "TIE",
    "TOP",
    "Agreement",
    "Answer",
    "MismatchError",
    "Counters",
    "NearTie",
    "NearTieWarning",
    "margin",
    "parting",
    "reported_margin",
]

TIE = 2.0**-5
"""Neighbours among float16 logits from 16 to 32 differ by 2**-6; two such logits may change places by twice that."""
TOP = 20
"""Tokens whose log probabilities are requested where ids differ; the public API gives no more."""


@dataclass(frozen=True)
class Answer:
    """Greedy ids after a prompt, an end-of-sequence id included, with the page's report of the run."""

    ids: list[int]
    text: str
    seconds_to_first_token: float | None
    tokens_per_second: float | None
    counters: Mapping[str, int]
    log_probabilities: list[dict[int, float]] = field(default_factory=list)
    """For each id, the log probabilities of the most probable tokens at its place, including its own; empty if none
    were requested.
    """

    @classmethod
    def of(cls, told: Mapping[str, Any], log_probabilities: list[dict[int, float]]) -> Answer:
        """The answer in a page's result, which has the names of the page's requests."""
        first = told["time_to_first_token_ms"]
        return cls(
            ids=told["token_ids"],
            text=told["text"],
            seconds_to_first_token=None if first is None else first / 1000,
            tokens_per_second=told["tokens_per_second"],
            counters=told["counters"],
            log_probabilities=log_probabilities,
        )


@dataclass(frozen=True)
class Counters:
    """The cost of decode steps after their recording."""

    totals: Mapping[str, int]
    """By the names of capstan.Generator.counters: steps, submits, readbacks, readback_bytes, create_buffer ..."""
    tokens: int

    @property
    def per_token(self) -> dict[str, float]:
        """Each total divided by the number of tokens that the run picked."""
        return {name: value / self.tokens for name, value in self.totals.items()}

    @property
    def submits(self) -> int:
        """GPU submits; a burst of tokens is one."""
        return self.totals["submits"]

    @property
    def buffers(self) -> int:
        """Buffers that were created."""
        return self.totals["create_buffer"]

    @property
    def bytes_per_token(self) -> float:
        """Bytes read back for a token; 4 are its id."""
        return self.totals["readback_bytes"] / self.tokens


class MismatchError(AssertionError):
    """The page's ids are not the oracle's, or the page is slower than its baseline."""


class NearTieWarning(UserWarning):
    """The page and the oracle picked different tokens whose log probabilities differ by less than `tie`."""


@dataclass(frozen=True)
class NearTie:
    """A place where the page and the oracle picked different tokens that are about equally probable."""

    place: int
    page: int
    oracle: int
    margin: float


@dataclass(frozen=True)
class Agreement:
    """The result of comparing ids: the ids of the oracle, and the near ties that were excused."""

    ids: list[int]
    ties: list[NearTie]


def parting(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The first place where two answers differ, or where one goes on without the other; None for equal ones."""
    for place, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return place
    return None if len(one) == len(other) else min(len(one), len(other))


def margin(log_probabilities: Mapping[int, float], picked: int, other: int) -> tuple[float, bool]:
    """By how much `picked` is more probable than `other`, in natural logarithms, and whether that is exact: if `other`
    was not reported, the margin to the least probable reported token is a lower bound.
    """
    least = min(log_probabilities.values())
    return log_probabilities[picked] - log_probabilities.get(other, least), other in log_probabilities


def reported_margin(value: float, exact: bool) -> str:
    return f"{value:.4f}" if exact else f"{value:.4f} or more"
