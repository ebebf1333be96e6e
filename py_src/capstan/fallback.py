"""Steps down: something slower is used because a capability is missing. Each is warned of once and counted."""

from __future__ import annotations

import warnings
from collections import Counter

__all__ = ["FallbackWarning", "count_fallback", "fall_back", "fallbacks"]

counted: Counter[tuple[str, str]] = Counter()


class FallbackWarning(UserWarning):
    """A capability is missing; the message says which, why, and what is used instead."""


def fall_back(missing: str, reason: str, instead: str) -> None:
    """Count a step down, and warn the first time: `missing` names the missing capability, `instead` its replacement."""
    counted[missing, reason] += 1
    if counted[missing, reason] == 1:
        warnings.warn(f"{missing}: {reason}; {instead}", FallbackWarning, stacklevel=2)


def count_fallback(missing: str, reason: str) -> None:
    """Count a step down without a warning, where the user can do nothing about it."""
    counted[missing, reason] += 1


def fallbacks() -> dict[str, int]:
    """How often each step down was taken since the start, by 'what is missing: the reason'."""
    return {f"{missing}: {reason}": times for (missing, reason), times in counted.items()}
