"""The start of an interpreter in a page: what a memory snapshot brings from the machine that made it."""

from __future__ import annotations

import importlib.util
import json
import random
import sys
import time

from ..fallback import fall_back
from ..signatures import read_annotations
from .files import Input
from .vendored import Vendored

__all__ = ["before_snapshot", "begin"]


def before_snapshot() -> None:
    """Do once, before the snapshot is taken, what every page would do at its first calls."""
    read_annotations()


def begin(refused: str | None, vendored: str) -> None:
    """Make this interpreter one of its own; `refused` is why it did not start from a memory snapshot that should be,
    `vendored` the wheels that are installed when they are first imported: URLs by module, as JSON.

    Every start from a snapshot would repeat its random numbers, so `random` is seeded anew; `secrets`, `uuid` and
    `os.urandom` ask the browser each time. The seed of `hash` stays, since dicts hold strings by it already. The zone's
    name in `time.localtime().tm_zone` stays too, as the C library asks for it once; the offset beside it is right.
    """
    random.seed()
    take_time_zone()
    sys.stdin = Input()
    sys.meta_path.append(Vendored(json.loads(vendored)))
    if refused is not None:
        fall_back("the memory snapshot", refused, "Python started without it, which takes longer")


def take_time_zone() -> None:
    """Update the time zone of the module `time` to that of a freshly imported one."""
    spec = importlib.util.find_spec("time")
    assert spec is not None
    assert spec.loader is not None
    fresh = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fresh)
    for name in ("timezone", "altzone", "daylight"):
        setattr(time, name, getattr(fresh, name))
