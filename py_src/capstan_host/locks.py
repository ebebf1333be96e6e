"""Locks that one command holds while others wait: files in the cache folder."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from capstan.local.file_lock import try_lock

from .places import CACHE
from .terminal import say

__all__ = ["locked"]


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold the lock of this name; a second process waits and says so."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("a+b") as file:
        if not try_lock(file.fileno()):
            say(f"waiting for another command to finish its {name} ...")
            while not try_lock(file.fileno()):
                time.sleep(0.2)
        yield
