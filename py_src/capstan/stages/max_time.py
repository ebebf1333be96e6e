"""max_time: generation ends after this number of seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..errors import OptionError
from .option import Option, real
from .stage import StageOptions

__all__ = ["MaxTime"]


def _read(value: object) -> float | None:
    if value is None:
        return None
    seconds = real("max_time", value)
    if seconds <= 0:
        raise OptionError(f"max_time is {seconds}; it must be greater than 0 seconds; None turns it off")
    return seconds


@dataclass(frozen=True)
class MaxTime(StageOptions):
    """`max_time` (seconds; None = off): the first token after this time is the last one. The time starts at the first
    request for a token since the caller last changed the sequence.
    """

    max_time: float | None = None

    options: ClassVar[tuple[Option, ...]] = (
        Option("max_time", _read, help="stop after S seconds", metavar="S", stated=True),
    )
