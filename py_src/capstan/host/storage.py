"""The interfaces that the loading of weights uses: sources, chunks, stored files, sinks."""

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
    "Chunk",
    "DataFile",
    "ExternalData",
    "Sink",
    "Source",
    "SourceIdentity",
    "WeightData",
]


class BrokenDownloadError(CapstanError):
    """A download broke off; it may be tried again, after `wait` seconds if its server named a time (Retry-After)."""

    def __init__(self, message: str, wait: float | None = None) -> None:
        super().__init__(message)
        self.wait = wait


@dataclass(frozen=True)
class SourceIdentity:
    """A source's description, known before its bytes are read."""

    name: str
    """Its URL, or 'file:' and the path of a picked file."""
    size: int | None
    """Bytes; None where the server does not tell."""
    validator: str | None
    """Changes when the bytes do: an ETag, else a Last-Modified, else None; of a picked file its time stamp, of a hub's
    large file 'sha256' and the digest that the hub lists."""

    @property
    def key(self) -> str | None:
        """A name for these very bytes as the source vouches for them; None if it does not."""
        if self.size is None or self.validator is None:
            return None
        return short_hash(f"{self.name}\n{self.validator}\n{self.size}")

    @property
    def sha256(self) -> str | None:
        """The SHA-256 of the whole file, as hex; None if the source does not give it."""
        told = re.fullmatch(r"sha256 ([0-9a-f]{64})", self.validator or "")
        return told[1] if told else None

    @property
    def name_key(self) -> str:
        """A file name for the source, whatever its bytes are at the moment."""
        return short_hash(self.name)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class Chunk(Protocol):
    """A buffer on the host's side that is used for one shard after the other."""

    handle: Any
    """The buffer as sources, files and sinks take it."""

    def sha256(self, length: int) -> Awaitable[str]:
        """The SHA-256 of its first bytes, as hex."""

    def to_bytes(self, length: int) -> bytes:
        """Its first bytes."""


class Source(Protocol):
    """The bytes of one file. Reads raise BrokenDownloadError, WeightsChangedError or ModelFileError."""

    identity: SourceIdentity

    @property
    def position(self) -> int | None:
        """The position of the stream that `seek` opened; None without a stream."""

    @property
    def end(self) -> int | None:
        """The end of that stream; None is the end of the file. A server without ranges sends more than requested."""

    async def seek(self, start: int, end: int | None) -> None:
        """Open a stream over the bytes from `start` to `end` (None: the end of the file)."""

    async def read(self, chunk: Chunk, length: int) -> int:
        """Fill the chunk from the stream; fewer bytes than `length` only at the stream's end."""

    async def read_at(self, chunk: Chunk, start: int, length: int) -> int:
        """Fill the chunk by a separate request, past every cache; the stream keeps its position."""

    def close(self) -> None:
        """Give up the stream."""


class DataFile(Protocol):
    """A stored file, open. Every method may raise StorageError."""

    exclusive: bool
    """Nobody else can write it while it is open."""

    async def read(self, chunk: Chunk, start: int, length: int) -> int: ...
    async def write(self, chunk: Chunk, start: int, length: int) -> None:
        """On return the bytes survive a crash of the page."""

    async def pour(self, sink: Sink, start: int, length: int, shard_size: int, told: Callable[[int], None]) -> int:
        """Give the sink what it wants of these bytes, shard by shard, without a chunk in between.

        Returns how many bytes are done: whole shards, and 0 where file or sink need the chunk. `told` hears of them.
        """

    def close(self) -> None: ...


class Backing(Protocol):
    """Files in the browser's storage; every method may raise StorageError."""

    kind: str
    """'opfs' or 'cache'."""

    async def names(self) -> list[str]: ...
    async def read_text(self, name: str) -> str | None: ...
    async def write_text(self, name: str, text: str) -> None:
        """Whole or not at all."""

    async def append_text(self, name: str, text: str) -> None:
        """Append to a file. A crash may truncate the last append."""

    async def remove(self, name: str) -> None:
        """No error if there is none; StorageError if another tab has it open."""

    async def open(self, name: str, size: int, shard_size: int, write: bool) -> DataFile:
        """`write` makes the file if it is not there, and locks it; else it must have `size` bytes."""

    async def free_bytes(self) -> int | None:
        """The bytes that the browser still lets this origin store."""

    def chunk(self, capacity: int) -> Chunk: ...


class Sink(Protocol):
    """The target of the bytes: GPU buffers, or memory."""

    def wants(self, start: int, length: int) -> bool:
        """Whether any of these bytes is of use."""

    async def accept(self, chunk: Chunk, start: int, length: int) -> None:
        """The first bytes of the chunk, from `start` of the file; calls come in ascending order."""

    async def finish(self) -> None:
        """All came; wait until they are where they belong."""


class WeightData(Protocol):
    """A data file of a model: from the store as far as it is there, else from its source
    (capstan.weights.weight_file.WeightFile)."""

    @property
    def content(self) -> str | None:
        """A name of these bytes, for sharing; None if nothing vouches for them."""

    def require(self, end: int) -> None:
        """Raise ModelFileError if the file is known to be shorter."""

    async def read(self, start: int, length: int) -> bytes:
        """A few bytes, without loading the rest."""

    async def load(self, sink: Sink, end: int, progress: Callable[[int, int], None]) -> None:
        """Give the sink the parts of the file that it wants, and store the file; the model needs its first `end`
        bytes."""

    async def note_upload(self, owner: str, requests: Sequence[Any], pieces: Sequence[Sequence[object]]) -> None:
        """Let the next page begin with the upload while Python starts."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class ExternalData:
    """The data files of a model, opened when they are needed."""

    folder: str
    """Their folder's address, as the ledger and messages have it."""
    ends: Mapping[str, int]
    """How many bytes the model needs of each, by location."""
    open: Callable[[str], Awaitable[WeightData]]
    """Opens one by its location. Raises ModelFileError."""
