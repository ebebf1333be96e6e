"""Gives scripts the files of the page's server and a standard input."""

from __future__ import annotations

import io
import posixpath
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..errors import AsyncRequiredError
from ..model_files.file_names import address_of, is_gguf
from . import host_calls

__all__ = ["Input", "adopt_files", "model_folder", "mount"]

MODEL_FILES = ("genai_config.json", "config.json")
"""The files by which a folder is recognised as a model's."""

mounted: dict[str, str] = {}
"""URLs of files of the server by their absolute paths."""


def absolute(path: str) -> str:
    return posixpath.normpath(posixpath.join(Path.cwd().as_posix(), path))


def mount(files: Mapping[str, str]) -> None:
    """Make files of the server appear in Python's file system. `files` maps each path to a URL; a file is read when it
    is opened.
    """
    for path, url in files.items():
        place = absolute(path)
        if mounted.get(place) == url:
            continue
        Path(place).parent.mkdir(parents=True, exist_ok=True)
        Path(place).unlink(missing_ok=True)
        host_calls.mount_file(posixpath.dirname(place), posixpath.basename(place), url)
        mounted[place] = url


async def model_folder(path: str) -> str | None:
    """The address of the model folder at a path of Python's file system; None if the path has no model folder."""
    folder = absolute(path)
    for name in MODEL_FILES:
        url = mounted.get(posixpath.join(folder, name))
        if url is not None:
            return url.removesuffix(name)
    for place, url in mounted.items():
        if is_gguf(place) and posixpath.dirname(place) == folder:
            return url.removesuffix(address_of("", posixpath.basename(place)))
    stored = stored_files(Path(folder))
    return await host_calls.adopt_files([*stored], [*stored.values()]) if stored else None


async def adopt_files(folder: str, names: Sequence[str]) -> str:
    """Register these files of a folder in Python's file system with the page, and return the address of the folder."""
    place = absolute(folder)
    for name in names[:1]:
        url, ending = mounted.get(posixpath.join(place, name)), address_of("", name)
        if url is not None and url.endswith(ending):
            return url.removesuffix(ending)
    files = files_of(Path(place), names)
    return await host_calls.adopt_files([*files], [*files.values()])


def files_of(folder: Path, names: Sequence[str]) -> dict[str, bytes]:
    """The contents, by name, of the files among `names` that exist in the folder."""
    return {name: (folder / name).read_bytes() for name in names if (folder / name).is_file()}


def stored_files(folder: Path) -> dict[str, bytes]:
    """The contents of all files below a folder of Python's file system, by their paths in the folder. The result is
    empty unless the folder holds a model.
    """
    if not any((folder / name).is_file() for name in MODEL_FILES):
        return {}
    found = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in found}


class Input(io.TextIOBase):
    """The standard input of a script: each line is requested from the page."""

    def readable(self) -> bool:
        return True

    def readline(self, size: int | None = -1, /) -> str:  # type: ignore[override]
        """The whole next line, regardless of `size`. Raises AsyncRequiredError if this call cannot wait."""
        if not host_calls.can_wait():
            raise AsyncRequiredError("input() would have to wait here, and this browser cannot; give argv instead")
        return host_calls.wait(host_calls.read_line())

    def read(self, size: int | None = -1, /) -> str:
        """Read all remaining lines."""
        return "".join(self)

    def __next__(self) -> str:  # type: ignore[override]
        line = self.readline()
        if not line:
            raise StopIteration
        return line
