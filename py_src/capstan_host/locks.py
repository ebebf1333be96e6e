"""Locks that one command holds while others wait: files in the cache folder."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator

from .places import CACHE
from .terminal import say

__all__ = ["locked"]


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold the lock of this name; a second process waits and says so."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("a+b") as file:
        if not _try_lock(file.fileno()):
            say(f"waiting for another command to finish its {name} ...")
            while not _try_lock(file.fileno()):
                time.sleep(0.2)
        yield


if sys.platform == "win32":
    import msvcrt

    def _try_lock(descriptor: int) -> bool:
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _try_lock(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True
