"""Cuts the tokens of a window into segments of speech at timestamps, and finds the start of the next window.

The definition is that of long sounds in openai's `transcribe`, and transformers' `generate(return_timestamps=True)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["SECONDS", "Cut", "cuts"]

SECONDS = 0.02
"""Seconds between two timestamps."""
COLUMNS = 2
"""Columns of the features between two timestamps."""


@dataclass(frozen=True)
class Cut:
    """A part of a window's tokens, with its start and end times."""

    start: float
    end: float
    tokens: tuple[int, ...]


def cuts(picked: Sequence[int], begin: int, first: int, columns: int) -> tuple[list[Cut], int]:
    """The segments of a window's tokens, and the columns to the next window. `begin` is the id of the timestamp 0.00;
    the window begins at the column `first` and has `columns` of the sound."""
    stamped = [token >= begin for token in picked]
    ends = [place + 1 for place in range(len(picked) - 1) if stamped[place] and stamped[place + 1]]

    def time(steps: int) -> float:
        # Without rounding, 1.12 would be 1.1199999999999999.
        return round((first / COLUMNS + steps) * SECONDS, 2)

    if not ends:
        last = next((token for token in reversed(picked) if token >= begin), begin)
        return [Cut(time(0), time(last - begin or columns // COLUMNS), tuple(picked))], columns
    complete = stamped[-2:] == [False, True]
    if complete:
        # There is no speech after the last timestamp.
        ends.append(len(picked))
    starts = [0, *ends[:-1]]
    found = [
        Cut(time(picked[start] - begin), time(picked[end - 1] - begin), tuple(picked[start:end]))
        for start, end in zip(starts, ends, strict=True)
    ]
    # Speech after the last pair of timestamps is heard again.
    return found, columns if complete else (picked[ends[-1] - 1] - begin) * COLUMNS
