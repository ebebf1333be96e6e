"""Reads a model's files of weights from a disk, on CPython.

Loading requests byte ranges through the interface `Source` of capstan.host.storage_interface, like those of an address
in a page.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from ..errors import ModelFileError
from ..host.disk_file import open_file
from ..host.storage_interface import Backing, DataFile, LoadPlan, Outcome, Sink, SourceIdentity

__all__ = ["DiskSource"]


class DiskMemory:
    """Implements capstan.host.storage_interface.MemorySink for part of a file on disk."""

    def __init__(self, start: int, length: int) -> None:
        self.start = start
        self.length = length
        self.data = bytearray()
        """The bytes from `start` on that were read."""

    def put(self, at: int, data: bytes) -> None:
        self.data += data[max(0, self.start - at) :]

    def to_bytes(self) -> bytes:
        return bytes(self.data[: self.length])

    async def finish(self) -> None:
        """Does nothing: reads are complete."""

    def close(self) -> None:
        """Does nothing: there is nothing to free."""


class DiskParts:
    """Implements capstan.host.storage_interface.PartsFile for a file on disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = open_file(path)

    async def parts(self, places: Sequence[tuple[int, int]]) -> bytes:
        found = []
        for start, length in places:
            self._file.seek(start)
            found.append(self._file.read(length))
            if len(found[-1]) < length:
                raise ModelFileError(
                    f"{self._path}: {start + len(found[-1])} bytes, but the model reads up to byte {start + length}; "
                    "copy the file again, whole, and load the model again"
                )
        return b"".join(found)

    def close(self) -> None:
        self._file.close()


class DiskSource:
    """Implements capstan.host.storage_interface.Source for a file on disk."""

    def __init__(self, path: Path) -> None:
        """Raises ModelFileError."""
        with open_file(path) as file:
            about = os.fstat(file.fileno())
        self.identity = SourceIdentity(f"file:{path}", about.st_size, str(about.st_mtime_ns))
        self._path = path

    async def load(
        self,
        plan: LoadPlan,
        file: DataFile | None,
        sink: Sink,
        report: Callable[[int], None],
        hashed: Callable[[int, bytes], None] | None,
    ) -> Outcome:
        """Load a part of the file; nothing is stored. See capstan.host.storage_interface.Source."""
        assert isinstance(sink, DiskMemory)
        at = plan.start
        with open_file(self._path) as opened:
            opened.seek(at)
            while at < plan.end:
                data = opened.read(plan.shard)
                if not data:
                    return Outcome(at, (), (), "source", f"the file has {at} bytes now")
                if plan.vouched and (digest := hashlib.sha256(data).hexdigest()) != plan.digests[at // plan.shard]:
                    return Outcome(at, (), (), "digest", digest)
                sink.put(at, data)
                at += len(data)
        return Outcome(at, (), (), None)

    async def look_elsewhere(self) -> None:
        """Does nothing: the file is here."""

    def offer(self, backing: Backing, name: str) -> None:
        """Does nothing: no other site needs it."""

    def memory(self, start: int, length: int) -> DiskMemory:
        return DiskMemory(start, length)

    def opened(self) -> DiskParts:
        return DiskParts(self._path)

    def close(self) -> None:
        """Does nothing: there is nothing to free."""
