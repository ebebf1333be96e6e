"""Keeps the bursts of one loop that were submitted and are not read yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from ..device.row_interface import Burst
from ..errors import CapstanError
from .row import Row

__all__ = ["Flight", "Submitted"]


@dataclass(frozen=True)
class Submitted:
    """A burst, and the rows for which it picks."""

    burst: Awaitable[Burst]
    picks: int
    rows: Sequence[tuple[int, Row, int]]
    """For each row its number, the row, and its number of changes at the time of submission."""

    @property
    def fresh(self) -> list[int]:
        """The rows that have not changed since the burst was submitted."""
        return [number for number, row, changes in self.rows if row.changes == changes]


class Flight:
    """Bursts under way, which are read in the order in which they were submitted."""

    def __init__(self) -> None:
        self._bursts: deque[Submitted] = deque()

    def __len__(self) -> int:
        return len(self._bursts)

    def add(self, picks: int, burst: Awaitable[Burst], rows: Sequence[Row], numbers: Sequence[int]) -> None:
        """Note a submitted burst that picks at most `picks` tokens for the rows of these numbers."""
        asked = [(number, rows[number], rows[number].changes) for number in numbers]
        self._bursts.append(Submitted(burst, picks, asked))
        for _, row, _ in asked:
            row.ahead += picks

    def oldest(self) -> Submitted:
        """Remove and return the burst to read next."""
        found = self._bursts.popleft()
        for _, row, changes in found.rows:
            if row.changes == changes:
                row.ahead -= found.picks
        return found

    async def drain(self) -> None:
        """Let the bursts finish, and drop their ids; the next use of the device reports a fault."""
        while self._bursts:
            with suppress(CapstanError):
                await self.oldest().burst
