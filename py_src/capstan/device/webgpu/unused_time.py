"""Does a model's work while its device is unused, so that no prompt waits for it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress

from ...errors import CapstanError, OutOfMemoryError
from ...fallback import fall_back
from .gpu_engine import GpuAdapter

__all__ = ["UnusedTime"]

UNUSED, BETWEEN = 1.0, 0.25
"""Seconds without a submit after which the device counts as unused: before the first piece of work, since a request may
follow a load immediately, and between two pieces.
"""


class UnusedTime:
    """Work that a model requested for the time when its device is unused, in order; each piece is done once.

    Sequences need what the work makes only for speed. So too little memory is a fallback, and the next use of a lost
    device raises its error.
    """

    def __init__(self, engine: GpuAdapter, recording: Callable[[], bool]) -> None:
        """`recording` returns whether a tape is being recorded for a sequence, which takes long between submits."""
        self._engine = engine
        self._recording = recording
        self._known: set[Hashable] = set()
        self._waiting: deque[tuple[Hashable, Callable[[], Awaitable[None]]]] = deque()
        self._working: asyncio.Task[None] | None = None
        self._busy = asyncio.Lock()
        """Held by a piece of work."""

    def request(self, what: Hashable, work: Callable[[], Awaitable[None]]) -> None:
        """Have a piece of work done, unless `what` was requested before."""
        if what in self._known:
            return
        self._known.add(what)
        self._waiting.append((what, work))
        if self._working is None or self._working.done():
            self._working = asyncio.ensure_future(self._work())

    async def paused(self) -> None:
        """Wait for the end of the piece that is being done."""
        async with self._busy:
            pass

    async def settled(self) -> None:
        """Wait until all requested pieces are done."""
        if self._working is not None:
            await asyncio.wait([self._working])

    async def close(self) -> None:
        """Begin no further piece; wait for the one that is being done."""
        await self.paused()
        if self._working is not None:
            self._working.cancel()
            await asyncio.wait([self._working])

    async def _work(self) -> None:
        wait = UNUSED
        while self._waiting:
            submits = self._engine.counters()["submits"]
            await asyncio.sleep(wait)
            if self._engine.counters()["submits"] != submits or self._recording():
                wait = UNUSED
                continue
            wait = BETWEEN
            async with self._busy:
                await self._do(*self._waiting.popleft())

    async def _do(self, what: Hashable, work: Callable[[], Awaitable[None]]) -> None:
        with suppress(CapstanError):
            try:
                await work()
            except OutOfMemoryError as error:
                fall_back(str(what), str(error), "onnxruntime-web runs what it would serve")
