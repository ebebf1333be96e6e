"""Weights' surroundings made of paper: a server, a storage and a sink that tests can break, on CPython."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from typing import Any

from capstan.errors import StorageError, WeightsChangedError
from capstan.host.storage import BrokenDownloadError, SourceIdentity

__all__ = ["PaperBacking", "PaperChunk", "PaperServer", "PaperSink", "PaperSource"]


class PaperChunk:
    def __init__(self, capacity: int) -> None:
        self.handle = bytearray(capacity)

    async def sha256(self, length: int) -> str:
        return hashlib.sha256(self.handle[:length]).hexdigest()

    def to_bytes(self, length: int) -> bytes:
        return bytes(self.handle[:length])


class PaperServer:
    """One file at one URL. No response gets past the byte `break_at`; `corrupt` maps a byte's position to
    how many responses still spoil it; `change_at` is how many requests it takes until the file is another one."""

    def __init__(self, data: bytes, *, url: str = "https://host/m/data", etag: str | None = "1") -> None:
        self.data = data
        self.url = url
        self.etag = etag
        self.size_told = True
        self.listed: str | None = None
        """The SHA-256 that a hub lists for the file."""
        self.sent = 0
        self.requests: list[tuple[int, int]] = []
        self.break_at: int | None = None
        self.corrupt: Counter[int] = Counter()
        self.change_at: int | None = None

    def open(self) -> PaperSource:
        return PaperSource(self)

    def identity(self) -> SourceIdentity:
        size = len(self.data) if self.size_told else None
        if self.listed is not None:
            return SourceIdentity(self.url, size, f"sha256 {self.listed}")
        return SourceIdentity(self.url, size, f'etag "{self.etag}"' if self.etag else None)

    def respond(self, start: int, end: int | None) -> bytes:
        if self.change_at is not None and len(self.requests) >= self.change_at:
            self.etag = "changed"
        stop = len(self.data) if end is None else end
        self.requests.append((start, stop))
        found = bytearray(self.data[start:stop])
        for place in [place for place in self.corrupt if start <= place < stop and self.corrupt[place] > 0]:
            self.corrupt[place] -= 1
            found[place - start] ^= 1
        return bytes(found)


class PaperSource:
    def __init__(self, server: PaperServer) -> None:
        self.server = server
        self.identity = server.identity()
        self.position: int | None = None
        self.end: int | None = None
        self._stream = b""

    async def seek(self, start: int, end: int | None) -> None:
        self._stream, self.position, self.end = self._request(start, end), start, end

    async def read(self, chunk: Any, length: int) -> int:
        assert self.position is not None
        assert self.end is None or self.position + length <= self.end, "read past the end of what was asked for"
        cut = self.server.break_at
        if cut is not None and self.position + length > cut:
            self.server.sent += max(0, cut - self.position)
            raise BrokenDownloadError("the connection broke off")
        part, self._stream = self._stream[:length], self._stream[length:]
        self.position += len(part)
        return self._fill(chunk, part)

    async def read_at(self, chunk: Any, start: int, length: int) -> int:
        return self._fill(chunk, self._request(start, start + length))

    def close(self) -> None:
        self.position = None

    def _fill(self, chunk: Any, part: bytes) -> int:
        self.server.sent += len(part)
        chunk.handle[: len(part)] = part
        return len(part)

    def _request(self, start: int, end: int | None) -> bytes:
        found = self.server.respond(start, end)
        if self.server.identity() != self.identity:
            raise WeightsChangedError(f"{self.identity.name} changed")
        return found


class PaperBacking:
    """Files in a dictionary. `before` is called with (operation, name) ahead of each, and may raise."""

    kind = "opfs"

    def __init__(self) -> None:
        self.files: dict[str, bytearray] = {}
        self.locked: set[str] = set()
        self.open_files: Counter[str] = Counter()
        self.free: int | None = None
        self.before: Callable[[str, str], None] = lambda operation, name: None

    async def names(self) -> list[str]:
        self.before("names", "")
        return list(self.files)

    async def read_text(self, name: str) -> str | None:
        self.before("read_text", name)
        return self.files[name].decode() if name in self.files else None

    async def write_text(self, name: str, text: str) -> None:
        self.before("write_text", name)
        self.files[name] = bytearray(text.encode())

    async def append_text(self, name: str, text: str) -> None:
        self.before("append_text", name)
        self.files.setdefault(name, bytearray()).extend(text.encode())

    async def remove(self, name: str) -> None:
        self.before("remove", name)
        if name in self.locked or self.open_files[name]:
            raise StorageError(f"{name}: another tab has it open")
        self.files.pop(name, None)

    async def open(self, name: str, size: int, shard_size: int, write: bool) -> PaperFile:
        self.before("open", name)
        if write:
            if name in self.locked or self.open_files[name]:
                raise StorageError(f"{name}: another tab has it open")
            self.files.setdefault(name, bytearray())
        elif len(self.files.get(name, b"")) != size:
            raise StorageError(f"{name}: {len(self.files.get(name, b''))} bytes are left of {size}")
        return PaperFile(self, name, exclusive=write or name not in self.locked)

    async def free_bytes(self) -> int | None:
        return self.free

    def chunk(self, capacity: int) -> PaperChunk:
        return PaperChunk(capacity)


class PaperFile:
    def __init__(self, backing: PaperBacking, name: str, exclusive: bool) -> None:
        self._backing = backing
        self._name = name
        self.exclusive = exclusive
        backing.open_files[name] += 1

    async def read(self, chunk: Any, start: int, length: int) -> int:
        self._backing.before("read", self._name)
        if self._name not in self._backing.files:
            raise StorageError(f"{self._name}: it is gone")
        part = self._backing.files[self._name][start : start + length]
        chunk.handle[: len(part)] = part
        return len(part)

    async def write(self, chunk: Any, start: int, length: int) -> None:
        self._backing.before("write", self._name)
        file = self._backing.files[self._name]
        file.extend(bytes(max(0, start + length - len(file))))
        file[start : start + length] = chunk.handle[:length]

    async def pour(self, sink: Any, start: int, length: int, shard_size: int, told: Callable[[int], None]) -> int:
        """Shard by shard, up to the first that is not whole or may not be read."""
        done = 0
        while sink.pours and done < length:
            size = min(shard_size, length - done)
            if sink.wants(start + done, size):
                chunk = PaperChunk(size)
                try:
                    if await self.read(chunk, start + done, size) < size:
                        break
                except StorageError:
                    break
                await sink.accept(chunk, start + done, size)
            done += size
            told(done)
        return done

    def close(self) -> None:
        self._backing.open_files[self._name] -= 1


class PaperSink:
    """Collects the bytes of (offset, length) spans."""

    pours = False
    """Whether stored files can do without a chunk."""

    def __init__(self, *spans: tuple[int, int]) -> None:
        self.spans = spans
        self.found = [bytearray() for _ in spans]
        self.finished = False

    def wants(self, start: int, length: int) -> bool:
        return any(offset < start + length and start < offset + size for offset, size in self.spans)

    async def accept(self, chunk: Any, start: int, length: int) -> None:
        for (offset, size), found in zip(self.spans, self.found, strict=True):
            first, last = max(start, offset), min(start + length, offset + size)
            if first < last:
                assert len(found) == first - offset, "bytes were left out or came twice"
                found += chunk.handle[first - start : last - start]

    async def finish(self) -> None:
        self.finished = True
