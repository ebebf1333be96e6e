"""Implements locks that are files. One process holds such a file, and other processes get an error. A process that has
ended holds no lock.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from pathlib import Path
from typing import BinaryIO

__all__ = ["FileLock", "HeldError", "try_lock"]

MOST_NAME = 200
"""The most bytes of a holder's name."""
FAR = 1 << 30
"""The byte that is locked on Windows, where other processes cannot read locked bytes."""


class HeldError(Exception):
    """Another process holds the lock; the message names it."""


class FileLock:
    """Holds the lock file `path`, which is removed with the lock. Raises HeldError, OSError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = held(path)
        self._file.truncate(0)
        self._file.write(f"process {os.getpid()} on {socket.gethostname()}".encode(errors="replace"))
        self._file.flush()

    def close(self) -> None:
        """Release the lock; a second call does nothing."""
        if not self._file.closed:
            # Windows does not remove open files: the file stays, without a holder.
            with contextlib.suppress(OSError):
                self._path.unlink()
            self._file.close()


def held(path: Path) -> BinaryIO:
    """Open the file and lock it. Raises HeldError, OSError."""
    while True:
        with contextlib.ExitStack() as undo:
            file = undo.enter_context(path.open("a+b"))
            if not try_lock(file.fileno()):
                file.seek(0)
                raise HeldError(file.read(MOST_NAME).decode(errors="replace") or "another process")
            # The last holder may have removed the file since it was opened.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    undo.pop_all()
                    return file


if sys.platform == "win32":
    import msvcrt

    def try_lock(descriptor: int) -> bool:
        """Lock an open file; False if another process has it."""
        os.lseek(descriptor, FAR, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def try_lock(descriptor: int) -> bool:
        """Lock an open file; False if another process has it. Raises OSError if the file system has no locks."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
