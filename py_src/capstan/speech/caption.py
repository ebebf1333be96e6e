"""Defines live captions and their options."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import OptionError

__all__ = ["Caption", "LiveOptions"]

LEAST_SILENCE, MOST_SILENCE = 0.1, 10.0


@dataclass(frozen=True)
class Caption:
    """The text of an utterance, so far or in full."""

    text: str
    start: float
    """Seconds from the first sample."""
    end: float
    final: bool
    """Whether the utterance has ended. Until then later captions replace this one."""


@dataclass(frozen=True)
class LiveOptions:
    """How captions are made."""

    language: str | None = None
    task: str = "transcribe"
    silence: float = 0.5
    """Seconds of silence that end an utterance."""
    threshold: float = 0.5
    """The smallest probability of speech, from 0 to 1."""
    interval: float = 1.0
    """Seconds between the partial texts of an utterance; 0 for none."""

    def __post_init__(self) -> None:
        if not LEAST_SILENCE <= self.silence <= MOST_SILENCE:
            raise OptionError(f"silence is {self.silence}; it must be from {LEAST_SILENCE} to {MOST_SILENCE:g} seconds")
        if not 0 < self.threshold < 1:
            raise OptionError(f"threshold is {self.threshold}; it must be between 0 and 1")
        if not 0 <= self.interval < math.inf:
            raise OptionError(f"interval is {self.interval}; it must be a number of seconds, 0 for no partial texts")
