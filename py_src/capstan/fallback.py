"""Counts fallbacks: a slower way is used because a capability is missing. The first one warns."""

from __future__ import annotations

import warnings
from collections import Counter

__all__ = ["FallbackWarning", "count_fallback", "fall_back", "fallbacks"]

counted: Counter[tuple[str, str]] = Counter()


class FallbackWarning(UserWarning):
    """A capability is missing; the message gives it, the reason, and the replacement."""


def fall_back(missing: str, reason: str, instead: str) -> None:
    """Count a fallback, and warn the first time: `missing` names the missing capability, `instead` its replacement."""
    counted[missing, reason] += 1
    if counted[missing, reason] == 1:
        warnings.warn(f"{missing}: {reason}; {instead}", FallbackWarning, stacklevel=2)


def count_fallback(missing: str, reason: str) -> None:
    """Count a fallback without a warning, if the user can do nothing about it."""
    counted[missing, reason] += 1


def fallbacks() -> dict[str, int]:
    """The number of times that each fallback was taken since the start, by 'missing capability: reason'."""
    return {f"{missing}: {reason}": times for (missing, reason), times in counted.items()}
