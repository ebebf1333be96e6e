"""Runs work of a page while no request runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

__all__ = ["UnusedTime"]


class UnusedTime:
    """Runs `work` between `begin` and `stop`."""

    def __init__(self, others: Callable[[], Awaitable[object]], work: Callable[[], Awaitable[None]]) -> None:
        """`others` returns when no other work between two requests, such as a load, is left."""
        self.working = False
        """Whether `work` runs."""
        self._others, self._work = others, work
        self.task: asyncio.Task[None] | None = None
        """The wait and the work, from `begin` to `stop`."""

    def begin(self, after: float) -> None:
        """Begin after this number of seconds without a request."""
        if self.task is None:
            self.task = asyncio.ensure_future(self._run(after))

    async def stop(self, *, cancel: bool) -> None:
        """Stop for a request, and return when nothing runs. Work that is not cancelled ends by itself."""
        task, self.task = self.task, None
        if task is None or task.done():
            return
        if cancel:
            task.cancel()
        await asyncio.wait([task])

    async def _run(self, after: float) -> None:
        await asyncio.sleep(after)
        await self._others()
        self.working = True
        try:
            await self._work()
        finally:
            self.working = False
