"""Frees resources when their owner is dropped."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

from . import Host

__all__ = ["Leaving", "when_dropped"]


def when_dropped(
    owner: object, host: Host, free: Callable[[], Coroutine[Any, Any, None] | None]
) -> weakref.finalize[Any, Any]:
    """When `owner` is dropped, call `free` and let `host` run the coroutine that it returns; `free` must not refer to
    `owner`. It returns None if `owner` was closed already. At the end of the program nothing is done.
    """

    def dropped() -> None:
        work = free()
        if work is not None:
            host.begin(work)

    finalizer = weakref.finalize(owner, dropped)
    finalizer.atexit = False
    return finalizer


class Leaving:
    """Keeps track of a model's dropped generators whose decoders are still being released; the next generator waits for
    them.
    """

    def __init__(self) -> None:
        self._under_way: set[asyncio.Event] = set()

    def give_back(self, work: Coroutine[Any, Any, None]) -> Coroutine[Any, Any, None]:
        """Return the same work. From now on `settled` waits for it."""
        done = asyncio.Event()
        self._under_way.add(done)

        async def noted() -> None:
            try:
                await work
            finally:
                self._under_way.discard(done)
                done.set()

        return noted()

    async def settled(self) -> None:
        """Wait until the releases under way have ended."""
        for done in tuple(self._under_way):
            await done.wait()
