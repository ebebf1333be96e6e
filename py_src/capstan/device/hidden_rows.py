"""Keeps the hidden states of a sequence's last positions, which a multi-token-prediction head reads."""

from __future__ import annotations

__all__ = ["HiddenRows"]

KEPT = 512
"""The least number of last positions that are kept: 4 MB in float32 with a hidden size of 2048."""


class HiddenRows:
    """The hidden states of positions `first` to `end`, each of `size` bytes."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._rows = bytearray()
        self.first = 0

    @property
    def end(self) -> int:
        return self.first + len(self._rows) // self._size

    def ran(self, past: int, rows: bytes) -> None:
        """Take the hidden states of a run after `past` positions. Those of later positions are dropped, and those of
        positions that no run has continued.
        """
        if not self.first <= past <= self.end:
            self.forget(past)
        del self._rows[(past - self.first) * self._size :]
        self._rows += rows
        if self.end - self.first > 2 * KEPT:
            first = self.end - KEPT
            del self._rows[: (first - self.first) * self._size]
            self.first = first

    def between(self, start: int, end: int) -> bytes:
        """Those of positions `start` to `end`, which must be kept."""
        return bytes(self._rows[(start - self.first) * self._size : (end - self.first) * self._size])

    def forget(self, past: int) -> None:
        """Drop all; the next run is after `past` positions."""
        self.first = past
        self._rows.clear()
