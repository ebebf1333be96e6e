"""The bursts of one generator that were submitted and not read yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable
from contextlib import suppress

from ..device.row_decoder import RowBurst
from ..errors import CapstanError

__all__ = ["Flight"]


class Flight:
    """Bursts under way, which are read in the order in which they were submitted."""

    def __init__(self) -> None:
        self._bursts: deque[tuple[int, Awaitable[RowBurst]]] = deque()

    def __len__(self) -> int:
        return len(self._bursts)

    @property
    def picks(self) -> int:
        """Tokens that they bring for each row."""
        return sum(picks for picks, _ in self._bursts)

    def add(self, picks: int, burst: Awaitable[RowBurst]) -> None:
        self._bursts.append((picks, burst))

    def oldest(self) -> Awaitable[RowBurst]:
        """The burst to read next, which is under way no longer."""
        return self._bursts.popleft()[1]

    async def drain(self) -> None:
        """Let them finish; their ids are void, and the next use of the device reports a fault."""
        while self._bursts:
            with suppress(CapstanError):
                await self.oldest()
