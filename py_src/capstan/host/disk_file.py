"""Reads files of this interpreter's own file system. Only regular files are read, up to a size limit."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from ..errors import ModelFileError

__all__ = ["open_file", "read_file"]

KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
    stat.S_IFSOCK: "a socket",
}


def open_file(path: Path) -> BinaryIO:
    """Open a regular file for reading, without waiting for another process. Raises ModelFileError."""
    try:
        opened = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ModelFileError(f"{path}: cannot be read ({why}); check the model folder") from error
    kind = stat.S_IFMT(os.fstat(opened).st_mode)
    if kind != stat.S_IFREG:
        os.close(opened)
        raise ModelFileError(f"{path}: is {KINDS.get(kind, 'no file')}; put the file itself into the model folder")
    return os.fdopen(opened, "rb")


def read_file(path: Path, most: int) -> bytes:
    """Read the bytes of a regular file. Raises ModelFileError if it cannot be read, or has more than `most` bytes."""
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        data = b""
        if size <= most:
            try:
                # A read allocates memory for every requested byte, so the file's size is the most.
                data = file.read(size + 1)
                if len(data) > size:
                    data += file.read(most + 1 - len(data))
            except OSError as error:
                raise ModelFileError(f"{path}: cannot be read ({error.strerror}); check the disk") from error
    if max(size, len(data)) > most:
        raise ModelFileError(
            f"{path} has {max(size, len(data))} bytes; at most {most} are read of such a file: check that it belongs "
            "to the model, or use a smaller model"
        )
    return data
