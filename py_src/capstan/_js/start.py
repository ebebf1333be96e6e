"""Starts an interpreter in a page. A memory snapshot contains most of it, and some modules are loaded later."""

from __future__ import annotations

import importlib
import importlib.util
import io
import json
import random
import sys
import time
import zipfile
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from sysconfig import get_path
from types import ModuleType

from ..errors import ModelFileError
from ..fallback import fall_back
from ..signatures import read_annotations
from . import host_calls
from .files import Input

__all__ = ["Vendored", "before_snapshot", "begin"]


def before_snapshot() -> None:
    """Run the work of a page's first calls once, before the snapshot is taken."""
    read_annotations()


def begin(refused: str | None, vendored: str) -> None:
    """Make this interpreter independent of its snapshot. `refused` is the reason why it did not start from the expected
    snapshot. `vendored` is JSON: it maps modules to the URLs of wheels, which are installed when the module is first
    imported.

    Every start from a snapshot would repeat its random numbers, so `random` is seeded again; `secrets`, `uuid` and
    `os.urandom` ask the browser each time. The seed of `hash` stays, since dicts already depend on it. The zone's name
    in `time.localtime().tm_zone` also stays, since the C library reads it only once; the offset is right.
    """
    random.seed()
    take_time_zone()
    sys.stdin = Input()
    sys.meta_path.append(Vendored(json.loads(vendored)))
    if refused is not None:
        fall_back("the memory snapshot", refused, "Python started without it, which takes longer")


def take_time_zone() -> None:
    """Update the time zone of the module `time` from a freshly imported copy."""
    spec = importlib.util.find_spec("time")
    assert spec is not None
    assert spec.loader is not None
    fresh = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fresh)
    for name in ("timezone", "altzone", "daylight"):
        setattr(time, name, getattr(fresh, name))


class Vendored:
    """Finds modules in the page's wheels. It is the last entry of `sys.meta_path`, so it gets only modules that no
    other finder found.
    """

    def __init__(self, wheels: Mapping[str, str]) -> None:
        """`wheels` maps names of modules to URLs of wheels."""
        self._wheels = dict(wheels)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Install the module's wheel in site-packages, and return the module's spec. Raises ImportError if the wheel
        cannot be read.
        """
        if name not in self._wheels:
            return None
        folder = Path(get_path("purelib"))
        try:
            content = host_calls.read_now(self._wheels[name])
        except ModelFileError as error:
            raise ImportError(f"{name} is part of the page, but {error}", name=name) from error
        with zipfile.ZipFile(io.BytesIO(content)) as wheel:
            wheel.extractall(folder)
        del self._wheels[name]
        importlib.invalidate_caches()
        return PathFinder.find_spec(name, [str(folder)])
