"""Files and parts of them that a server may send, by the paths and headers of requests."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path, PureWindowsPath
from urllib.parse import quote

from capstan.model_files.file_names import is_gguf

__all__ = ["FilePart", "accepted", "byte_range", "is_refused", "model_path", "open_below"]


@dataclass(frozen=True)
class FilePart:
    """A part of an open file that is served as a separate file, and always as a whole."""

    file: BufferedReader
    start: int
    length: int


def open_below(base: Path, parts: Sequence[str] = ()) -> BufferedReader | None:
    """Open the file of that path below a folder; None if there is none, or a link leads out of the folder. Without
    parts `base` is the file, and may be a link, since it was named directly. Every file that is served is opened here.
    """
    try:
        file = base.joinpath(*parts).resolve(strict=True)
        return file.open("rb") if file.is_file() and file.is_relative_to(base.resolve()) else None
    except (OSError, RuntimeError, ValueError):
        return None  # Links in a circle, a file without permission, or a name that file systems refuse.


def is_refused(part: str) -> bool:
    """Whether a part of a path could lead to another place than a file below the folder: up, or to anything that
    Windows reads as a drive, a host or several parts.
    """
    windows = PureWindowsPath(part)
    return part == ".." or bool(windows.drive or windows.root) or windows.parts != (part,)


def accepted(header: str) -> set[str]:
    """The encodings of an `Accept-Encoding` header; those with a weight of 0 are refused."""
    found = set()
    for entry in header.lower().split(","):
        name, _, weight = entry.partition(";")
        if not re.fullmatch(r"\s*q\s*=\s*0(\.0*)?\s*", weight):
            found.add(name.strip())
    return found


def byte_range(header: str | None, size: int) -> tuple[int, int] | None:
    """(start, length) of a `Range` header over `size` bytes; None: send it all; (0, 0): not satisfiable."""
    match = re.fullmatch(r"bytes=([0-9]{0,18})-([0-9]{0,18})", header.strip()) if header else None
    if match is None or match[0] == "bytes=-":
        return None
    if not match[1]:
        length = min(int(match[2]), size)
        return (size - length, length) if length else (0, 0)
    start, end = int(match[1]), min(int(match[2] or size - 1), size - 1)
    if match[2] and int(match[2]) < start:
        return None
    return (start, end - start + 1) if start < size else (0, 0)


def model_path(name: str) -> str:
    """The URL path of a model that is served by this name."""
    return f"/models/{quote(name)}" + ("" if is_gguf(name) else "/")
