"""min_p: tokens that are far less likely than the likeliest are dropped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Protocol

from .option import Option
from .stage import Stage, StageOptions

__all__ = ["MinP"]


class _Options(Protocol):
    @property
    def min_p(self) -> float: ...


def _least_weight(options: _Options) -> int:
    """`min_p` in units of a weight, 2**-30 of the largest; rounded up."""
    return -int(-(Fraction(options.min_p) * 2**30) // 1)


def _weigh(weights: Sequence[int], options: _Options) -> list[int]:
    least = _least_weight(options)
    return [weight if weight >= least else 0 for weight in weights]


@dataclass(frozen=True)
class MinP(StageOptions):
    """`min_p` (0 to 1; 0 = off): of the tokens that top_k and top_p left, those stay whose probability (after
    temperature) is at least `min_p` times the largest one. Greedy search ignores it.
    """

    min_p: float = 0.0

    options: ClassVar[tuple[Option, ...]] = (
        Option.real(
            "min_p",
            "from 0 to 1",
            lambda p: 0 <= p <= 1,
            "0 turns it off",
            help="sample from tokens at least P times as likely as the likeliest",
            metavar="P",
            drawing=True,
            stated=True,
            page=True,
        ),
    )
    stage: ClassVar[Stage | None] = Stage(
        "min_p",
        active=lambda options: options.min_p > 0 and not options.greedy,
        words={"least_weight": _least_weight},
        weigh=_weigh,
        weigh_wgsl="""
fn weigh_min_p(weight: u32) -> u32 {
  return select(0u, weight, weight >= params.least_weight);
}
""",
    )
