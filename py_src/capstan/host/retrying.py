"""Retries a request that broke off, stalled or was rejected temporarily, with pauses between the tries."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ..errors import ModelFileError, OptionError
from .storage_interface import BrokenDownloadError

__all__ = ["LONGEST_WAIT_SECONDS", "TRIES", "pause", "require_stall_timeout", "retried", "times"]

T = TypeVar("T")

TRIES = 3
"""The number of times that a request is made before its failure fails the load."""
PAUSE_SECONDS = 0.2
"""The pause before the second try. It is doubled each time, with up to half of it added at random, so that pages that
failed together do not return together.
"""
LONGEST_WAIT_SECONDS = 30.0
"""If a server requests a longer pause (Retry-After), its error is reported immediately."""


async def pause(tried: int, error: BrokenDownloadError | None) -> bool:
    """Wait before the next try. Returns False if no try is left; `tried` is the number of tries so far."""
    asked = error.wait if error is not None and error.wait is not None else 0.0
    if tried >= TRIES or asked > LONGEST_WAIT_SECONDS:
        return False
    usual = PAUSE_SECONDS * 2 ** (tried - 1)
    await asyncio.sleep(max(asked, usual * random.uniform(1, 1.5)))
    return True


async def retried(work: Callable[[], Awaitable[T]]) -> T:
    """Send a request, with retries, and return its result. Raises ModelFileError with the last failure after the last
    try.
    """
    tried = 0
    while True:
        try:
            return await work()
        except BrokenDownloadError as error:
            tried += 1
            if not await pause(tried, error):
                raise ModelFileError(f"{error} (tried {times(tried, error)})") from error


def times(tried: int, error: BrokenDownloadError | None) -> str:
    """The number of tries, as words for a message."""
    asked = f"; the server requests a wait of {error.wait:.0f} s" if error is not None and error.wait else ""
    return f"{tried} time{'' if tried == 1 else 's'}{asked}"


def require_stall_timeout(seconds: float) -> float:
    """Raise OptionError unless `seconds` is a valid time after which to abort a request that receives no byte."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0.1 <= seconds <= 3600:
        raise OptionError(f"stall_timeout is {seconds!r}; it must be from 0.1 to 3600 seconds")
    return float(seconds)
