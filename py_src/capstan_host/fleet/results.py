"""The file of results: JSON lines, each whole or not there. A later run continues it."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from capstan.errors import CapstanError
from capstan.local.file_lock import FileLock, HeldError

from .items import Entry, Item

__all__ = ["ResultFile", "ResultFileError"]


class ResultFileError(CapstanError):
    """The file cannot be written or read, or holds something else than results."""


class ResultFile:
    """JSON lines, one for each item. Results of an earlier run stay; its errors and an incomplete last line are
    dropped. An item whose input or options have changed is computed again; `close` removes its earlier line. Until then
    no other process can open the file: FILE.lock beside it names the holder.
    """

    def __init__(self, path: str | Path) -> None:
        self.finished: dict[str, str] = {}
        """The digests of finished items, by id."""
        self._replaced = False
        try:
            self.path = Path(path).resolve()
            if self.path.exists() and not stat.S_ISREG(self.path.stat().st_mode):
                raise ResultFileError(
                    f"{path} is a folder, a device or a pipe, which keeps no lines: give another file"
                )
            self._lock = FileLock(self.path.with_name(f"{self.path.name}.lock"))
            try:
                if self.path.exists():
                    self._take_over()
                self._file = self.path.open("ab", buffering=0)
            except BaseException:
                self._lock.close()
                raise
        except HeldError as error:
            raise ResultFileError(
                f"{path} is being written by {error}: wait for its end, or give each run a file of its own"
            ) from error
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ResultFileError(f"{str(path)!r}: {reason}: give a file that can be written") from error

    def has(self, entry: Entry) -> bool:
        """Whether the entry was finished with this input and these options."""
        return self.finished.get(entry.id) == entry.digest

    def append(self, items: Iterable[Item]) -> None:
        """Write whole lines. If that fails, raises ResultFileError with the number of bytes to write; the file still
        ends with a whole line.
        """
        items = list(items)
        data = "".join(item.line() for item in items).encode()
        start = self._file.seek(0, os.SEEK_END)
        written = 0
        try:
            while written < len(data):
                written += self._file.write(data[written:])
        except OSError as error:
            self._file.truncate(start)
            raise ResultFileError(
                f"{self.path}: {error.strerror} after {start} bytes, {len(data)} more were to be written: make room "
                "and run it again: it continues from there"
            ) from error
        self._replaced |= any(item.id in self.finished for item in items)

    def close(self) -> None:
        """Finish the file: write it to the disk and release its lock."""
        if not self._file.closed:
            try:
                os.fsync(self._file.fileno())
                self._file.close()
                if self._replaced:
                    self._take_over(errors=True)
            finally:
                self._lock.close()

    def __enter__(self) -> ResultFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take_over(self, errors: bool = False) -> None:
        """Note the finished items, and keep only the last line of each item in the file; lines with errors are kept
        only with `errors`.
        """
        last: dict[str, int] = {}
        self.finished.clear()
        lines = 0
        with self.path.open("rb") as file:
            for number, line in enumerate(file):
                lines += 1
                if not line.endswith(b"\n"):
                    continue
                name, digest = self._read(number, line)
                last[name] = number
                self.finished.pop(name, None)
                if digest is not None:
                    self.finished[name] = digest
        kept = {number for name, number in last.items() if errors or name in self.finished}
        if len(kept) < lines:
            self._keep(kept)

    def _read(self, number: int, line: bytes) -> tuple[str, str | None]:
        """The id and the digest of a line. The digest is None if the line has an error, NaN or infinity."""
        constants: list[str] = []
        try:
            told = json.loads(line, parse_constant=constants.append)
            return str(told["id"]), None if constants or "error" in told else str(told["digest"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ResultFileError(
                f"{self.path}, line {number + 1}: {line[:80]!r} is no result of a fleet: give another file"
            ) from error

    def _keep(self, numbers: set[int]) -> None:
        """Keep only the lines with these numbers. The old file stays until they are written."""
        new = self.path.with_name(f"{self.path.name}.new")
        try:
            with self.path.open("rb") as file, new.open("wb") as kept:
                kept.writelines(line for number, line in enumerate(file) if number in numbers)
                kept.flush()
                os.fsync(kept.fileno())
            new.replace(self.path)
        except OSError:
            new.unlink(missing_ok=True)
            raise
