"""Counts a device's work during the decode steps of one generator."""

from __future__ import annotations

from ..device.row_interface import COUNTER_NAMES, DISK_COUNTS, Counters, RowDecoder

__all__ = ["StepCounts"]


class StepCounts:
    """Totals by COUNTER_NAMES, also by DISK_COUNTS for a model with tables on disk, and how often JavaScript entered
    Python with results. Work between `end` and the next `begin` is left out: prefills, recordings and measurements.
    """

    def __init__(self) -> None:
        self._totals: Counters = dict.fromkeys((*COUNTER_NAMES, "python_crossings"), 0)
        self._start: Counters | None = None

    def begin(self, decoder: RowDecoder) -> None:
        """Count from here."""
        self._start = decoder.counters()

    def add(self, decoder: RowDecoder | None) -> None:
        """Add the device's work since the decode steps began; counting continues from here."""
        if self._start is None or decoder is None:
            return
        now = decoder.counters()
        for name in (*COUNTER_NAMES, *(name for name in DISK_COUNTS if name in now)):
            self._totals[name] = self._totals.get(name, 0) + now.get(name, 0) - self._start.get(name, 0)
        self._start = now

    def end(self, decoder: RowDecoder | None) -> None:
        """Add the device's work since the decode steps began; nothing more is counted until the next `begin`."""
        self.add(decoder)
        self._start = None

    def step(self) -> None:
        """Count a decode step that ran outside of the counted work."""
        self._totals["steps"] += 1

    def cross(self, times: int) -> None:
        """Count an entry of JavaScript into Python with a burst's ids."""
        self._totals["python_crossings"] += times

    def totals(self) -> Counters:
        return dict(self._totals)
