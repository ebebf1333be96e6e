"""Describes rows of one sequence that can be reused: key/value caches, whose first positions other sequences of the
model may copy, and the places of pictures.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..host import current_host
from ..host.storage_interface import Sink
from .narrow_rows import NarrowRows

__all__ = ["CacheRows", "FollowingRows", "PictureSpan", "RowBytes", "RowSource", "SavedRows"]


class RowSource(Protocol):
    """Rows that a sequence of the model may take over (`DecoderRow.adopt`)."""

    def copy_to(self, target: Any, length: int) -> None:
        """Copy the first `length` positions to the caches of a sequence of the same model."""


class CacheRows(RowSource, Protocol):
    """The caches of a sequence on a device, or a copy of their first positions. The decoder that ran the model knows
    which tokens the positions hold; `DecoderRow.adopt` of the same model takes them over.
    """

    def size(self, length: int) -> int:
        """Bytes of a copy of the first `length` positions."""

    def continues(self, target: Any, length: int) -> bool:
        """Whether `target` has all positions that the next one attends to after a `copy_to` of the first `length`
        positions; caches that slide may hold too few.
        """

    def holds(self, length: int) -> bool:
        """Whether the caches hold the whole window of the position after `length`."""

    async def kept(self, length: int) -> CacheRows:
        """A copy of the first `length` positions in new memory, made on the device. Raises OutOfMemoryError."""

    def free(self) -> None:
        """Free the memory of a copy; it cannot be used again. The caches of a sequence are not changed."""

    @property
    def base(self) -> int:
        """The first position that sliding caches hold."""

    def read(self, length: int) -> AsyncGenerator[bytes | bytearray]:
        """The first `length` positions of each cache, [heads, positions, head size], in the order of
        `GraphDescription.cache`; one cache is in the host's memory at a time. Raises OutOfMemoryError.
        """

    def takes(self, base: int, length: int) -> bool:
        """Whether the next position has all positions to which it attends after a `load` of `length` positions whose
        sliding caches begin at `base`.
        """

    async def load(self, rows: SavedRows, length: int) -> None:
        """Overwrite the first `length` positions with those of `rows`, which has no more than these. Raises
        StorageError.
        """


class RowBytes(Protocol):
    """The rows of a sequence's caches, one cache after the other, in memory or in a file."""

    async def read(self, start: int, length: int) -> bytes | bytearray | memoryview:
        """Read `length` bytes from `start` on. Raises StorageError if they are damaged."""

    @property
    def in_file(self) -> bool:
        """Whether `pour` works."""

    async def pour(self, sink: Sink) -> None:
        """Give the sink all bytes from a file, without Python's memory. Raises StorageError if they are damaged; the
        sink may then have some of them.
        """


@dataclass(frozen=True)
class SavedRows:
    """The first positions of a sequence's caches outside of a device."""

    sizes: Sequence[int]
    """Bytes of each cache, [heads, positions, head size], in the order of `GraphDescription.cache`."""
    bytes: RowBytes
    base: int = 0
    """The first position that sliding caches hold."""
    narrow: NarrowRows | None = None
    """How fewer bits stand for the numbers in `bytes`."""

    def stored(self, size: int) -> int:
        """The bytes that stand for `size` bytes of a cache."""
        return size if self.narrow is None else self.narrow.size(size)

    async def each(self) -> AsyncIterator[memoryview]:
        """The rows of one cache after the other. Raises StorageError."""
        at = 0
        for size in map(self.stored, self.sizes):
            rows = await self.bytes.read(at, size)
            if self.narrow is not None:
                rows = current_host().widen_rows(rows, self.narrow.dtype, self.narrow.bits)
            yield memoryview(rows)
            at += size


class FollowingRows:
    """Rows that `CacheRows.load` writes after `DecoderRow.adopt`."""

    def copy_to(self, target: Any, length: int) -> None:
        """Copies nothing."""


@dataclass(frozen=True)
class PictureSpan:
    """The places of a picture's features in a sequence, row by row."""

    start: int
    rows: int
    columns: int
