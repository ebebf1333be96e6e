"""Cuts a sound in progress where there is no speech, by the probability of speech in each window.

The definition is that of Silero's `get_speech_timestamps`, which knows the whole sound: the cuts are the same, and each
is made as soon as no later sound can move it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["RATE", "WINDOW", "Utterance", "Utterances"]

RATE = 16_000
"""Samples a second."""
WINDOW = 512
"""The number of samples for each probability."""
SHORTEST = RATE // 4
"""Shorter utterances count as noise."""
PAUSE = RATE * 98 // 1000
"""Silence longer than this is a place to cut an utterance that grows too long."""
HYSTERESIS = 0.15
"""The threshold for the end of speech is lower by this than that for its beginning."""


@dataclass
class Utterance:
    """Samples from `start` to before `end`."""

    start: int
    end: int


class Utterances:
    """Cuts a sound into utterances."""

    def __init__(self, threshold: float, silence: int, padding: int, longest: int) -> None:
        """Speech begins where its probability reaches `threshold`, and ends before `silence` samples without speech.
        `padding` samples of silence are kept at both ends; with them an utterance has at most about `longest` samples.
        """
        self._begins, self._ends = threshold, max(threshold - HYSTERESIS, 0.01)
        self._silence, self._padding = silence, padding
        self._longest = longest - WINDOW - 2 * padding
        self._heard = 0
        """The number of samples up to the end of the last window."""
        self._start: int | None = None
        """The first sample of the utterance that has not ended."""
        self._quiet: int | None = None
        """The first sample of silence that may end it."""
        self._pauses: list[tuple[int, int]] = []
        """The silences within it: their starts and lengths."""
        self._before: Utterance | None = None
        """The last utterance that ended, while its padding is not complete."""
        self._last = -(1 << 60)
        """The end of the utterance before the open one, without padding."""

    @property
    def open(self) -> int | None:
        """The first sample of the open utterance, if this is too long to be noise; None if there is none."""
        if self._start is None or self._quiet is not None or self._heard - self._start <= SHORTEST:
            return None
        return self._padded(self._start)

    @property
    def ending(self) -> Utterance | None:
        """The utterance that has ended unless speech continues; None until its padding was heard."""
        if self._start is None or self._quiet is None or self._quiet - self._start <= SHORTEST:
            return None
        end = self._quiet + self._padding
        return Utterance(self._padded(self._start), end) if end <= self._heard else None

    @property
    def needed(self) -> int:
        """The first sample that a later utterance may need."""
        open_from = self._heard if self._start is None else self._start
        return min(self._before.start if self._before else open_from, max(0, open_from - self._padding))

    def push(self, probability: float) -> Iterator[Utterance]:
        """The utterances whose end the next window shows."""
        here, self._heard = self._heard, self._heard + WINDOW
        yield from self._hear(here, probability)
        yield from self._settle()

    def end(self, length: int) -> Iterator[Utterance]:
        """The utterances that are open at the end of the sound, after `length` samples."""
        if self._start is not None and length - self._start > SHORTEST:
            yield from self._close(length)
        if self._before is not None:
            self._before.end = min(length, self._before.end + self._padding)
            yield self._before
        self._start = self._before = None

    def _hear(self, here: int, probability: float) -> Iterator[Utterance]:
        if probability >= self._begins:
            if self._quiet is not None and here - self._quiet > PAUSE:
                self._pauses.append((self._quiet, here - self._quiet))
            self._quiet = None
            if self._start is None:
                self._start = here
                return
        if self._start is None:
            return
        if here - self._start > self._longest:
            if not self._pauses:
                yield from self._close(here)
                return
            pause, length = max(self._pauses, key=lambda each: each[1])
            yield from self._close(pause)
            self._start = pause + length
        if probability < self._ends:
            self._quiet = here if self._quiet is None else self._quiet
            if here - self._quiet < self._silence:
                return
            if self._quiet - self._start > SHORTEST:
                yield from self._close(self._quiet)
            self._start, self._quiet, self._pauses = None, None, []

    def _close(self, end: int) -> Iterator[Utterance]:
        """End the open utterance; a waiting one before it gets half of the silence between them."""
        assert self._start is not None
        if self._before is not None:
            yield self._released(self._start)
        self._before = Utterance(self._padded(self._start), end)
        self._last = end
        self._start, self._quiet, self._pauses = None, None, []

    def _settle(self) -> Iterator[Utterance]:
        """The waiting utterance, if no later one can come near it."""
        follows = self._heard if self._start is None else self._start
        if self._before is not None and follows - self._before.end >= 2 * self._padding:
            yield self._released(follows)

    def _released(self, follows: int) -> Utterance:
        found, self._before = self._before, None
        assert found is not None
        found.end += min(self._padding, (follows - found.end) // 2)
        return found

    def _padded(self, start: int) -> int:
        gap = start - self._last
        return max(0, start - (gap // 2 if gap < 2 * self._padding else self._padding))
