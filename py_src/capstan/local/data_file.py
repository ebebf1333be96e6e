"""Data files on a disk, as capstan.host.storage describes sources of weights."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from ..host.storage import Chunk, SourceIdentity

__all__ = ["DiskChunk", "DiskSource"]


class DiskChunk:
    """A capstan.host.storage.Chunk in Python's memory."""

    def __init__(self, capacity: int) -> None:
        self.handle: Any = bytearray(capacity)

    async def sha256(self, length: int) -> str:
        return hashlib.sha256(memoryview(self.handle)[:length]).hexdigest()

    def to_bytes(self, length: int) -> bytes:
        return bytes(memoryview(self.handle)[:length])


class DiskSource:
    """A capstan.host.storage.Source; a file has no stream that could break, each read says where."""

    end: int | None = None

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        about = path.stat()
        self.identity = SourceIdentity(f"file:{path}", about.st_size, str(about.st_mtime_ns))
        self.position: int | None = None
        self._path = path

    async def seek(self, start: int, end: int | None) -> None:
        self.position = start

    async def read(self, chunk: Chunk, length: int) -> int:
        assert self.position is not None
        found = await self.read_at(chunk, self.position, length)
        self.position += found
        return found

    async def read_at(self, chunk: Chunk, start: int, length: int) -> int:
        with self._path.open("rb") as file:
            file.seek(start)
            return file.readinto(memoryview(chunk.handle)[:length])

    def close(self) -> None:
        self.position = None
