"""Data files on a disk, as capstan.host.storage describes sources of weights."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from ..host.storage import DataFile, LoadPlan, Outcome, Problem, Sink, SourceIdentity

__all__ = ["DiskSource"]


class DiskMemory:
    """Part of a file, as a capstan.host.storage.MemorySink."""

    def __init__(self, start: int, length: int) -> None:
        self.start = start
        self.data = bytearray(length)

    def put(self, at: int, data: bytes) -> None:
        first, end = max(at, self.start), min(at + len(data), self.start + len(self.data))
        self.data[first - self.start : end - self.start] = data[first - at : end - at]

    def to_bytes(self) -> bytes:
        return bytes(self.data)


class DiskLoading:
    """A capstan.host.storage.Loading, from a disk into Python's memory; nothing is stored on the way."""

    def __init__(self, path: Path, sink: DiskMemory) -> None:
        self._path = path
        self._sink = sink

    async def run(
        self,
        plan: LoadPlan,
        file: DataFile | None,
        told: Callable[[int], None],
        hashed: Callable[[int, bytes], None] | None,
    ) -> Outcome:
        at = plan.start
        with self._path.open("rb") as opened:
            opened.seek(at)
            while at < plan.end:
                data = opened.read(plan.shard)
                digest = hashlib.sha256(data).hexdigest() if plan.vouched else None
                if plan.vouched and digest != plan.digests[at // plan.shard]:
                    return Outcome(at, (), (), Problem("digest", str(digest)))
                if not data:
                    return Outcome(at, (), (), Problem("source", f"the file has {at} bytes now"))
                self._sink.put(at, data)
                at += len(data)
        return Outcome(at, (), (), None)

    async def finish(self) -> None:
        """All is there once it was read."""

    def close(self) -> None:
        """Nothing is held."""


class DiskSource:
    """A capstan.host.storage.Source."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        about = path.stat()
        self.identity = SourceIdentity(f"file:{path}", about.st_size, str(about.st_mtime_ns))
        self._path = path

    def loading(self, sink: Sink) -> DiskLoading:
        assert isinstance(sink, DiskMemory)
        return DiskLoading(self._path, sink)

    def memory(self, start: int, length: int) -> DiskMemory:
        return DiskMemory(start, length)

    def close(self) -> None:
        """Nothing is held."""
