"""Defines the interfaces that the loading of weights uses: sources, stored files, and sinks, which receive a file's
bytes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from ..errors import CapstanError

__all__ = [
    "Backing",
    "BrokenDownloadError",
    "DataFile",
    "ExternalData",
    "LoadPlan",
    "MOST_GRAPH_BYTES",
    "MemorySink",
    "Outcome",
    "PartsFile",
    "Progress",
    "Sink",
    "Source",
    "SourceIdentity",
    "WeightData",
]


Progress = Callable[[str, int, int], None]
"""Called with (name of the loaded thing, bytes done, bytes in all)."""

MOST_GRAPH_BYTES = (2 << 30) - 1
"""The largest ONNX file, protobuf's limit."""


class BrokenDownloadError(CapstanError):
    """A download broke off. It may be tried again, after `wait` seconds if the server named a time (Retry-After)."""

    def __init__(self, message: str, wait: float | None = None) -> None:
        super().__init__(message)
        self.wait = wait


@dataclass(frozen=True)
class SourceIdentity:
    """Identifies the file of a source before its bytes are read."""

    name: str
    """Its URL, or 'file:' and the path of a picked file."""
    size: int | None
    """Bytes; None if the server does not give the size."""
    validator: str | None
    """A text that changes with the bytes: an ETag, else a Last-Modified, else None; for a picked file its time stamp,
    for a hub's large file 'sha256' and the digest in the hub's list.
    """

    @property
    def key(self) -> str | None:
        """A name for exactly these bytes, made from the source's validator; None if the source has no validator."""
        if self.size is None or self.validator is None:
            return None
        return short_hash(f"{self.name}\n{self.validator}\n{self.size}")

    @property
    def sha256(self) -> str | None:
        """The SHA-256 of the whole file, as hex; None if the source does not give it."""
        described = re.fullmatch(r"sha256 ([0-9a-f]{64})", self.validator or "")
        return described[1] if described else None

    @property
    def name_key(self) -> str:
        """A file name for the source, independent of its present bytes."""
        return short_hash(self.name)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class Sink(Protocol):
    """Receives a file's bytes, into GPU buffers or into memory."""

    async def finish(self) -> None:
        """Wait until all bytes are in place; called after the last byte."""

    def close(self) -> None:
        """End a load that is under way, and free its buffers."""


class MemorySink(Sink, Protocol):
    """Holds part of a file in memory outside of Python's heap."""

    def to_bytes(self) -> bytes:
        """A copy of these bytes."""


@dataclass(frozen=True)
class LoadPlan:
    """Describes a part of a file to load; sizes and offsets are in bytes.

    Shards that the sink wants are loaded. With a `journal` all other shards are loaded, too. A stored shard is read
    from the open file, any other shard from the source.
    """

    start: int
    """The start of the part; with digests the start of a shard."""
    end: int
    """The end of the part; a file of unknown size is read to the end of a shard."""
    size: int | None
    """The size of the file."""
    shard: int
    """Bytes of a shard; the last one may have fewer."""
    digests: Sequence[str | None]
    """The SHA-256 of each shard, if known."""
    vouched: bool
    """Whether shards from the source must have these digests."""
    stored: Sequence[int]
    """The shards that are in the open file."""
    request: int
    """Bytes of the largest request."""
    verifies: bool = False
    """Whether stored shards are compared with their digests."""
    writes: bool = False
    """Whether shards from the source are written to the open file."""
    journal: str | None = None
    """The name of the text that gains a line [shard, digest] for each shard of a download that is being stored."""
    alone: bool = False
    """Whether each shard is fetched by a separate request that bypasses every cache."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"stored": list(self.stored)}


@dataclass(frozen=True)
class Outcome:
    """How far the loading of a part has come."""

    at: int
    """The sink has its bytes up to this offset. After a 'write' problem this includes the shard that met it."""
    kept: Sequence[tuple[int, str]]
    """The shards that were written, with their digests."""
    unsound: Sequence[int]
    """Stored shards that differ from their digests."""
    problem: str | None
    """The reason for stopping early: 'read' or 'write' if the open file or its journal failed, 'source' if a download
    broke off, 'digest' if the source's bytes have another digest.
    """
    message: str = ""
    """The failure, or the digest that was found."""
    wait: float | None = None
    """The pause in seconds that the server requests."""


class PartsFile(Protocol):
    """A file on this machine that stays open for reads of a few bytes at many places."""

    async def parts(self, places: Sequence[tuple[int, int]]) -> bytes:
        """The bytes of parts, one after another; a place has the offset and the length. Raises StorageError or
        ModelFileError for a part that cannot be read.
        """

    def close(self) -> None: ...


class Source(Protocol):
    """Gives the bytes of one file."""

    identity: SourceIdentity

    async def load(
        self,
        plan: LoadPlan,
        file: DataFile | None,
        sink: Sink,
        report: Callable[[int], None],
        hashed: Callable[[int, bytes], None] | None,
    ) -> Outcome:
        """Load a part of the file into the sink, in ascending order, from the open file or the source
        (web/src/worker/storage/weight_load.ts). Calls `report` with the offset that was reached, and `hashed` with the
        start and the bytes of each shard. Raises WeightsChangedError, ModelFileError, and the sink's errors.
        """

    async def look_elsewhere(self) -> None:
        """Take the bytes from where another site may have stored the file, if it is there with the hub's SHA-256."""

    def offer(self, backing: Backing, name: str) -> None:
        """Let other sites have the stored file, in the background, unless it came from there."""

    def memory(self, start: int, length: int) -> MemorySink: ...

    def opened(self) -> PartsFile | None:
        """The file for reads of its parts; None if it is not on this machine."""

    def close(self) -> None:
        """Abort the load that is under way."""


class DataFile(PartsFile, Protocol):
    """A stored file that is open."""

    exclusive: bool
    """No other page can write it while it is open."""

    async def sha256(self, start: int, length: int) -> str | None:
        """The SHA-256 of a part, as hex; None if the file is shorter. Raises StorageError."""

    async def write(self, start: int, data: bytes | bytearray | memoryview) -> str:
        """Write a shard, which begins at `start`, into a file that is open for it; returns its SHA-256 as hex. Raises
        StorageError.
        """

    async def flush(self) -> None:
        """Wait until the disk has all that was written. Raises StorageError."""

    async def load(self, plan: LoadPlan, sink: Sink) -> Outcome:
        """Load a part into the sink, without another source: shards are compared with the digests of a plan that is
        `vouched`. Raises StorageError, and the sink's errors.
        """

    def memory(self, start: int, length: int) -> MemorySink: ...


class Backing(Protocol):
    """Stores files in the browser's storage. Every method may raise StorageError."""

    kind: str
    """'opfs' or 'cache'."""

    async def names(self) -> list[str]: ...
    async def read_text(self, name: str) -> str | None: ...
    async def write_text(self, name: str, text: str) -> None:
        """Write a whole text, or nothing."""

    async def read_bytes(self, name: str) -> bytes | None: ...
    async def write_bytes(self, name: str, data: bytes) -> None:
        """Write a whole file; a crash may leave it incomplete."""

    async def remove(self, name: str) -> None:
        """Remove a file; no error if there is none, StorageError if another tab has it open."""

    async def open(self, name: str, size: int, shard_size: int, write: bool) -> DataFile:
        """Open a file. With `write` the file is locked, and is made if it does not exist; without `write` it must have
        `size` bytes.
        """

    async def free_bytes(self) -> int | None:
        """The bytes that the browser still lets this origin store."""


class WeightData(Protocol):
    """A data file of a model. Stored bytes are read from the store, all others from the file's source
    (capstan.weights.weight_file.WeightFile).
    """

    @property
    def content(self) -> str | None:
        """A name of these bytes, by which they are shared; None if no digest confirms them."""

    @property
    def key(self) -> str | None:
        """The key of the source's identity, which does not change when the file is stored; None if the source has no
        key.
        """

    @property
    def address(self) -> str:
        """The address of the source, under which the bytes are stored."""

    @property
    def size(self) -> int | None:
        """The file's size in bytes; None if unknown."""

    def require(self, end: int) -> None:
        """Raise ModelFileError if the file is known to be shorter."""

    async def read(self, start: int, length: int) -> bytes:
        """A few bytes, without loading the rest."""

    async def load(self, sink: Sink, end: int, progress: Callable[[int, int], None]) -> None:
        """Give the sink the parts of the file that it wants, and store the file. The model needs only the first `end`
        bytes.
        """

    async def opened(self, end: int, progress: Callable[[int, int], None]) -> PartsFile:
        """The file on this machine, for reads of its parts; the model needs its first `end` bytes."""

    async def note_upload(self, owner: str, requests: Sequence[Any], pieces: Sequence[Sequence[object]]) -> None:
        """Note the upload, so that the next page can begin it while Python starts."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class ExternalData:
    """The data files of a model, opened when they are needed."""

    folder: str
    """Their folder's address in the ledger and in messages."""
    ends: Mapping[str, int]
    """The number of bytes that the model needs of each, by location."""
    open: Callable[[str], Awaitable[WeightData]]
    """Opens a data file by its location. Raises ModelFileError."""
