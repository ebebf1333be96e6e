"""Chooses the number of decode steps in one submit."""

from __future__ import annotations

from ..device.row_interface import Burst

__all__ = ["BURST_MS", "RunAhead"]

BURST_MS = 6.0
"""The intended time of a burst. With a step in flight one synchronization costs 4 to 6 ms (docs/design_token.md), which
the three or four bursts under way hide; and a reader still sees a token's text within that time.
"""

RESTART = 3
"""Most steps of the burst after a pause: the GPU waits while it is encoded."""

GROWTH = 1.5
"""The most by which a burst may be longer than the burst before it, as a factor. The browser's GPU process takes more
than half of the GPU's time to accept a step of many small kernels; so the GPU would wait for a burst that grew more.

Measured on an NVIDIA H200 with SmolLM2-135M (0.58 ms of GPU time a step): after a prompt 16 tokens came at 1.33 ms each
with a growth of 4, and at 0.84 to 0.90 with these numbers.
"""

LEAP = 4
"""The largest factor by which one measurement lengthens bursts."""

LARGEST = 16
"""Most steps of an adaptive burst: steps past a stop are wasted."""


class RunAhead:
    """Chooses the picks of each burst; `fixed` (>= 1) switches the adaptation off, `first` is its initial number.

    After a pause the first pick is a burst of its own, which does not call `next`. Then come a burst of at most RESTART
    picks, one of at most GROWTH times that number, and so on up to the adapted number.

    The time of a step is measured between the times when two bursts became readable, which is the GPU's pace while
    bursts follow each other without a gap. An adapted burst takes about `burst_ms`.
    """

    def __init__(self, fixed: int | None, largest: int, first: int = 1, burst_ms: float = BURST_MS) -> None:
        self._fixed = fixed
        self._burst_ms = burst_ms
        self._largest = min(LARGEST, largest)
        self._limit = largest
        self._steps = min(first, self._largest)
        self._last_readable: float | None = None
        self._most = RESTART
        """Most picks of the next burst, given the bursts submitted since the pause."""

    def next(self) -> int:
        """The number of picks in the next burst."""
        if self._fixed is not None:
            return min(self._fixed, self._limit)
        picks = min(self._steps, self._most)
        self._most = grown(picks)
        return picks

    def after_first(self, most: int) -> int:
        """The number of picks in a burst right after the first one of a sequence, for a device that takes `most`; 0 if
        the device's pace is unknown.
        """
        if self._fixed is not None:
            return self.next() if self._fixed <= most else 0
        if not most or self._steps == 1:
            return 0
        self._most = min(self._most, most)
        return self.next()

    @property
    def usual(self) -> int:
        """The adapted number of picks."""
        return self._steps

    def observe(self, burst: Burst) -> None:
        """Learn from a burst that was read."""
        last, self._last_readable = self._last_readable, burst.readable
        if last is None or burst.submitted > last:
            # The queue ran empty before this burst: the interval includes a gap caused by the reader, not the GPU's
            # pace.
            return
        step = max(1e-3, (burst.readable - last) / burst.picks)
        wanted = max(1, round(self._burst_ms / step))
        # At most LEAP times the present number, so that one odd measurement does not make a long burst.
        self._steps = min(wanted, LEAP * self._steps, self._largest)

    def passed(self, burst: Burst) -> None:
        """Note that a burst of other steps was read: the time of the next burst counts from now."""
        self._last_readable = burst.readable

    def pause(self) -> None:
        """Note that the next interval is not a step's time, since a prefill or a rewind comes between."""
        self._last_readable = None
        self._most = RESTART


def grown(picks: int) -> int:
    """The most picks of the burst that follows a burst of `picks` picks."""
    return max(picks + 1, int(GROWTH * picks))
