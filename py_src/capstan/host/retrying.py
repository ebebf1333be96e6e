"""How often and after which pauses a request is made again that broke off, stalled, or was refused for the moment."""

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
"""How often a request is made before its failure is the load's."""
PAUSE_SECONDS = 0.2
"""Before the second try; doubled each time, and up to half of it more, so that pages that failed together do not come
back together."""
LONGEST_WAIT_SECONDS = 30.0
"""A server that asks for a longer pause (Retry-After) has its error told at once."""


async def pause(tried: int, error: BrokenDownloadError | None) -> bool:
    """Wait before the next try; False if there is to be none. `tried` is the number of tries before."""
    asked = error.wait if error is not None and error.wait is not None else 0.0
    if tried >= TRIES or asked > LONGEST_WAIT_SECONDS:
        return False
    usual = PAUSE_SECONDS * 2 ** (tried - 1)
    await asyncio.sleep(max(asked, usual * random.uniform(1, 1.5)))
    return True


async def retried(work: Callable[[], Awaitable[T]]) -> T:
    """The result of a request. Raises ModelFileError with the last failure once there are to be no more tries."""
    tried = 0
    while True:
        try:
            return await work()
        except BrokenDownloadError as error:
            tried += 1
            if not await pause(tried, error):
                raise ModelFileError(f"{error} (tried {times(tried, error)})") from error


def times(tried: int, error: BrokenDownloadError | None) -> str:
    """How often something was tried, as messages say it."""
    asked = f"; the server asks to wait {error.wait:.0f} s" if error is not None and error.wait else ""
    return f"{tried} time{'' if tried == 1 else 's'}{asked}"


def require_stall_timeout(seconds: float) -> float:
    """Raise OptionError unless these are seconds after which a request without a byte may be aborted."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0.1 <= seconds <= 3600:
        raise OptionError(f"stall_timeout is {seconds!r}; it must be from 0.1 to 3600 seconds")
    return float(seconds)
