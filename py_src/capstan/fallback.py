"""Steps down: something slower is used because a capability is missing. Each is warned of once and counted."""

from __future__ import annotations

import warnings
from collections import Counter

__all__ = ["FallbackWarning", "fall_back", "fallbacks"]

counted: Counter[tuple[str, str]] = Counter()


class FallbackWarning(UserWarning):
    """A capability is missing; the message says which, why, and what is used instead."""


def fall_back(missing: str, reason: str, instead: str) -> None:
    """Count a step down, and warn the first time: `missing` names the missing capability, `instead` its replacement."""
    counted[missing, reason] += 1
    if counted[missing, reason] == 1:
        warnings.warn(f"{missing}: {reason}; {instead}", FallbackWarning, stacklevel=2)


def fallbacks() -> dict[str, int]:
    """How often each step down was taken since the start, by 'what is missing: the reason'."""
    return {f"{missing}: {reason}": times for (missing, reason), times in counted.items()}
