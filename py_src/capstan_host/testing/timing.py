"""Compares two durations in one run, as a ratio with an interval, and says when a difference counts.

`compare(run, baseline)` calls both in turn, and reverses their order from round to round, so that the machine's clock,
heat and load affect both alike. A round gives one ratio; the result is their median and an interval of order statistics
that holds the true median with at least `CONFIDENCE`, whatever the distribution (H. A. David and H. N. Nagaraja, Order
Statistics, 3rd edition, 7.1): for n rounds it goes from the k-th smallest ratio to the k-th largest, with the largest k
for which 2 P(B < k) <= 1 - CONFIDENCE, B binomial with n and 1/2.

A difference counts if the whole interval is farther from 1 than the tolerance: above 1 + tolerance the run is slower,
below 1 / (1 + tolerance) it is faster. An interval that contains such a bound shows nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import comb
from statistics import median

from capstan.errors import OptionError

__all__ = ["CONFIDENCE", "ROUNDS", "TOLERANCE", "Ratio", "compare", "ratio_of"]

CONFIDENCE = 0.95
ROUNDS = 9
"""The interval then goes from the second smallest ratio to the second largest, so that one disturbed round has no
effect.
"""
FEWEST_ROUNDS = 6
"""Fewer rounds have no interval of that confidence."""
TOLERANCE = 0.1


@dataclass(frozen=True)
class Ratio:
    """How many times as long as the baseline the run took: the median of the rounds, and the interval around it."""

    median: float
    low: float
    high: float
    tolerance: float
    seconds: tuple[float, float]
    """The medians of the run and of the baseline."""
    rounds: int

    @property
    def slower(self) -> bool:
        """Whether the run is slower by more than the tolerance."""
        return self.low > 1 + self.tolerance

    @property
    def faster(self) -> bool:
        """Whether the run is faster by more than the tolerance."""
        return self.high < 1 / (1 + self.tolerance)

    def __str__(self) -> str:
        run, baseline = (f"{1000 * value:.4g} ms" for value in self.seconds)
        return (
            f"{self.median:.3f} times the baseline, {self.low:.3f} to {self.high:.3f} (at {CONFIDENCE:.0%}, "
            f"{self.rounds} rounds; {run} against {baseline}; more than {1 + self.tolerance:.3g} counts)"
        )


def compare(
    run: Callable[[], float | None],
    baseline: Callable[[], float | None],
    *,
    rounds: int = ROUNDS,
    tolerance: float = TOLERANCE,
    warm_up: int = 1,
) -> Ratio:
    """Measure both `rounds` times in turn, after `warm_up` rounds that do not count.

    Each returns the seconds that it took, by whatever clock; if it returns None, the duration of the call counts.
    Raises OptionError for fewer than 6 rounds.
    """
    if rounds < FEWEST_ROUNDS:
        raise OptionError(f"rounds is {rounds}; an interval of {CONFIDENCE:.0%} needs {FEWEST_ROUNDS} or more")
    if not tolerance > 0:
        raise OptionError(f"tolerance is {tolerance}; it must be above 0, such as 0.1 for differences of up to 10%")
    for _ in range(warm_up):
        _seconds(run)
        _seconds(baseline)
    taken: list[tuple[float, float]] = []
    for number in range(rounds):
        if number % 2:
            other = _seconds(baseline)
            taken.append((_seconds(run), other))
        else:
            taken.append((_seconds(run), _seconds(baseline)))
    return ratio_of(taken, tolerance)


def ratio_of(taken: Sequence[tuple[float, float]], tolerance: float = TOLERANCE) -> Ratio:
    """The ratio from the durations (run, baseline) of each round."""
    ratios = sorted(run / baseline for run, baseline in taken)
    rank = _rank(len(ratios))
    return Ratio(
        median=median(ratios),
        low=ratios[rank - 1],
        high=ratios[-rank],
        tolerance=tolerance,
        seconds=(median(run for run, _ in taken), median(baseline for _, baseline in taken)),
        rounds=len(ratios),
    )


def _rank(count: int) -> int:
    """The k of this module's docstring for a number of rounds."""
    rank, below = 0, 0
    while 2 * (below := below + comb(count, rank)) <= (1 - CONFIDENCE) * 2**count:
        rank += 1
    if rank == 0:
        raise OptionError(f"{count} rounds have no interval of {CONFIDENCE:.0%}: measure {FEWEST_ROUNDS} or more")
    return rank


def _seconds(run: Callable[[], float | None]) -> float:
    begun = time.perf_counter()
    told = run()
    return time.perf_counter() - begun if told is None else told
