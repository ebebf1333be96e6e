"""The format of a saved state: a header with tokens and digests, and the rows of each cache in the order of the graph.

As bytes it is a line with the version of the format, the SHA-256 of the header and its length, the length (u32,
little-endian), the header (JSON), and the rows. The header has a digest of each shard of rows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

from ..device.cache_rows import RowBytes
from ..device.narrow_rows import BITS
from ..device.prefix_cache import Content
from ..errors import OptionError, StorageError
from ..host.storage_interface import DataFile, LoadPlan, Sink
from ..model_files.bounded_json import NotJsonError, clipped, read_json

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["AGAIN", "SHARD", "FileRows", "KeptRows", "RowSink", "SavedState", "contents_of", "write_shards"]

FORMAT = b"capstan state "
VERSION = b"2\n"
"""Raised when the header, the order of the rows or their meaning changes."""
DIGEST, LENGTH = 32, 4
"""Bytes of the digest, and of the header's length."""
SHARD = 4 << 20
"""Bytes of rows that share a digest."""
AGAIN = "append the tokens instead, and the model runs on them"


class RowSink(Protocol):
    """Keeps the rows of a state that is being saved. Methods raise StorageError."""

    async def begin(self, size: int) -> None:
        """Begin with this number of bytes; called again if the device is lost meanwhile."""

    async def write(self, start: int, data: bytearray) -> str:
        """Keep a shard that begins at `start`; returns its SHA-256 as hex."""


class KeptRows:
    """A RowSink in memory."""

    def __init__(self) -> None:
        self.shards: list[bytearray] = []

    async def begin(self, size: int) -> None:
        self.shards = []

    async def write(self, start: int, data: bytearray) -> str:
        self.shards.append(data)
        return hashlib.sha256(data).hexdigest()


async def write_shards(caches: AsyncGenerator[bytes | bytearray], sink: RowSink) -> list[str]:
    """Give a sink the rows of all caches, shard by shard; returns the digests."""
    digests: list[str] = []
    shard = bytearray()

    async def write() -> None:
        digests.append(await sink.write(SHARD * len(digests), shard))

    async with aclosing(caches):
        async for rows in caches:
            view = memoryview(rows)
            while len(shard) + len(view) >= SHARD:
                room = SHARD - len(shard)
                shard += view[:room]
                view = view[room:]
                await write()
                shard = bytearray()
            shard += view
    if shard:
        await write()
    return digests


class MemoryRows:
    """The rows of a state that is in memory, whose digests were compared."""

    in_file = False

    def __init__(self, data: memoryview) -> None:
        self._data = data

    async def read(self, start: int, length: int) -> memoryview:
        return self._data[start : start + length]

    async def pour(self, sink: Sink) -> None:
        raise NotImplementedError("read them")


class FileRows:
    """The rows of a state in a stored file, which are compared with their digests when they are read."""

    in_file = True

    def __init__(self, file: DataFile, size: int, digests: Sequence[str]) -> None:
        self._file, self._size, self._digests = file, size, digests
        self._last: tuple[int, bytes] = -1, b""
        """The last shard that was read, and its number."""

    async def read(self, start: int, length: int) -> bytearray:
        found = bytearray()
        while len(found) < length:
            shard, skipped = divmod(start + len(found), SHARD)
            if shard != self._last[0]:
                at = shard * SHARD
                memory = self._file.memory(at, min(SHARD, self._size - at))
                await self._load(at, min(at + SHARD, self._size), memory)
                self._last = shard, memory.to_bytes()
            found += self._last[1][skipped : skipped + length - len(found)]
        return found

    async def pour(self, sink: Sink) -> None:
        try:
            await self._load(0, self._size, sink)
            await sink.finish()
        finally:
            sink.close()

    async def _load(self, start: int, end: int, sink: Sink) -> None:
        plan = LoadPlan(start, end, self._size, SHARD, self._digests, True, (), SHARD)
        found = await self._file.load(plan, sink)
        if found.problem is not None:
            raise StorageError(
                f"the state's rows are damaged: shard {found.at // SHARD} of {SHARD} bytes has another digest; {AGAIN}"
            )


@dataclass(frozen=True)
class SavedState:
    """A state: its header, whose fields have their types, and its rows."""

    header: Mapping[str, Any]
    rows: RowBytes

    @classmethod
    def of_bytes(cls, state: Buffer) -> SavedState:
        """A state in memory. Raises StorageError, OptionError."""
        data = memoryview(state).cast("B")
        start = len(FORMAT) + len(VERSION)
        found = bytes(data[:start])
        if not found.startswith(FORMAT) or not found.endswith(b"\n"):
            raise StorageError(f"these {len(data)} bytes begin with {clipped(found)}; they are no saved state: {AGAIN}")
        if not found.endswith(VERSION):
            version = found[len(FORMAT) :].decode("latin-1").strip()
            raise OptionError(f"the state has version {clipped(version)} of the format; this Capstan reads 2: {AGAIN}")
        body = data[start + DIGEST :]
        end = LENGTH + int.from_bytes(body[:LENGTH], "little")
        if hashlib.sha256(body[:end]).digest() != data[start : start + DIGEST]:
            raise damaged(len(data))
        header, rows = cls.header_of(bytes(body[LENGTH:end])), body[end:]
        if len(rows) != header["bytes"]:
            raise damaged(len(data))
        for at, digest in zip(range(0, len(rows), SHARD), header["digests"], strict=True):
            if hashlib.sha256(rows[at : at + SHARD]).hexdigest() != digest:
                raise damaged(len(data))
        return cls(header, MemoryRows(rows))

    @staticmethod
    def header_of(text: str | bytes) -> Mapping[str, Any]:
        """Read a header. Raises StorageError."""
        try:
            header: dict[str, Any] = read_json(text)
        except NotJsonError as error:
            raise StorageError(f"the state's header is not valid: {error}; {AGAIN}") from error
        require_header(header)
        return header

    @staticmethod
    def as_bytes(header: Mapping[str, Any], shards: Sequence[bytearray]) -> bytes:
        text = json.dumps(header).encode()
        length = len(text).to_bytes(LENGTH, "little")
        return b"".join([FORMAT, VERSION, hashlib.sha256(length + text).digest(), length, text, *shards])

    @property
    def contents(self) -> tuple[Content, ...]:
        """The pictures in the tokens."""
        return contents_of(self.header)


def contents_of(header: Mapping[str, Any]) -> tuple[Content, ...]:
    """The pictures in the tokens of a state."""
    return tuple(Content(**each) for each in header["contents"])


def damaged(size: int) -> StorageError:
    return StorageError(f"the state of {size} bytes is cut off or damaged: its digest differs; {AGAIN}")


KINDS: dict[str, type] = {
    "model": dict,
    "adapters": list,
    "caches": list,
    "tokens": list,
    "appended": list,
    "contents": list,
    "long": bool,
    "length": int,
    "base": int,
    "bits": int,
    "bytes": int,
    "digests": list,
}


def require_header(header: Any) -> None:
    """Raise StorageError unless the fields have their types: anyone can write a right digest."""
    given = header if isinstance(header, dict) else {}
    wrong = [name for name, kind in KINDS.items() if type(given.get(name)) is not kind]
    if not wrong:
        count = len(header["tokens"])
        flat = [place for pair in header["appended"] if isinstance(pair, list) for place in pair]
        ranges = [pair for pair in header["appended"] if isinstance(pair, list) and len(pair) == 2]
        contents = [each for each in header["contents"] if is_content(each, count)]
        checks = {
            "length": 0 < header["length"] <= count,
            "base": 0 <= header["base"] < max(1, header["length"]),
            "appended": len(ranges) == len(header["appended"]) and is_ascending([0, *flat, count]) and flat[:1] == [0],
            "contents": len(contents) == len(header["contents"]),
            "bits": header["bits"] in BITS,
            "bytes": header["bytes"] > 0,
            "digests": len(header["digests"]) == -(-header["bytes"] // SHARD)
            and all(isinstance(each, str) for each in header["digests"]),
        }
        wrong = [name for name, right in checks.items() if not right]
    if wrong:
        raise StorageError(f"the state's {wrong[0]} is {clipped(given.get(wrong[0]))}, which no state has; {AGAIN}")


def is_ascending(places: Sequence[Any]) -> bool:
    return all(type(place) is int for place in places) and all(one <= other for one, other in pairwise(places))


def is_content(each: Any, count: int) -> bool:
    """Whether this is a range of the first `count` tokens with a digest."""
    if not isinstance(each, dict) or set(each) != {"start", "end", "digest"} or not isinstance(each["digest"], str):
        return False
    return is_ascending([0, each["start"], each["end"], count])
