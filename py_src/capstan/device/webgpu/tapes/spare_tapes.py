"""Makes tapes of prompt runs while the device is unused, so that no prompt waits for a recording."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Protocol

from ....errors import CapstanError, OutOfMemoryError
from ....fallback import fall_back
from ..gpu_engine import GpuAdapter

__all__ = ["Spare", "SpareTapes"]

UNUSED = 0.25
"""Seconds without a submit after which the device counts as unused."""


class Spare(Protocol):
    """A decoder without a sequence, over whose buffers tapes are made."""

    async def make_prompt_tape(self, length: int) -> None: ...


class SpareTapes:
    """The tapes of prompt runs that sequences of one model requested.

    A tape is made over the buffers of a decoder without a sequence, since its check overwrites them, and stored. The
    next prompt with a run of its length restores it.
    """

    def __init__(
        self,
        engine: GpuAdapter,
        spare: Callable[[int], AbstractAsyncContextManager[Spare]],
    ) -> None:
        """`spare` lends a decoder of a capacity, and raises OutOfMemoryError."""
        self._engine = engine
        self._spare = spare
        self._requested: list[tuple[int, int]] = []
        """Capacities and lengths, in order; each is tried once."""
        self._next = 0
        self._working: asyncio.Task[None] | None = None
        self._making = asyncio.Lock()
        """Held while a tape is made."""

    def request(self, capacity: int, length: int) -> None:
        """Have a tape made later for runs of `length` tokens in sequences of `capacity` positions."""
        if (capacity, length) not in self._requested:
            self._requested.append((capacity, length))
            if self._working is None or self._working.done():
                self._working = asyncio.ensure_future(self._work())

    async def paused(self) -> None:
        """Wait for the end of a tape that is being made, so that its decoder is free."""
        async with self._making:
            pass

    async def settled(self) -> None:
        """Wait until all requested tapes are made."""
        if self._working is not None:
            await asyncio.wait([self._working])

    async def close(self) -> None:
        """Make no further tapes; wait for the one that is being made."""
        await self.paused()
        if self._working is not None:
            self._working.cancel()
            await asyncio.wait([self._working])

    async def _work(self) -> None:
        while self._next < len(self._requested):
            submits = self._engine.counters()["submits"]
            await asyncio.sleep(UNUSED)
            if self._engine.counters()["submits"] == submits:
                async with self._making:
                    # The next use of a lost device raises its error.
                    with suppress(CapstanError):
                        await self._make(*self._requested[self._next])
                self._next += 1

    async def _make(self, capacity: int, length: int) -> None:
        try:
            async with self._spare(capacity) as spare:
                await spare.make_prompt_tape(length)
        except OutOfMemoryError as error:
            fall_back(f"a tape of prompt runs of {length} positions", str(error), "onnxruntime-web runs them")
