"""Modules that come with the page, and are installed when they are first imported."""

from __future__ import annotations

import importlib
import io
import zipfile
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from sysconfig import get_path
from types import ModuleType

from ..errors import ModelFileError
from . import host_calls

__all__ = ["Vendored"]


class Vendored:
    """Finds what no other finder found, in a wheel of the page's; a last entry of `sys.meta_path`."""

    def __init__(self, wheels: Mapping[str, str]) -> None:
        """`wheels` are URLs by the name of a module."""
        self._wheels = dict(wheels)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's spec, once its wheel is in site-packages. ImportError if the wheel cannot be read."""
        if name not in self._wheels:
            return None
        folder = Path(get_path("purelib"))
        try:
            content = host_calls.read_now(self._wheels[name])
        except ModelFileError as error:
            raise ImportError(f"{name} comes with the page, but {error}", name=name) from error
        with zipfile.ZipFile(io.BytesIO(content)) as wheel:
            wheel.extractall(folder)
        del self._wheels[name]
        importlib.invalidate_caches()
        return PathFinder.find_spec(name, [str(folder)])
