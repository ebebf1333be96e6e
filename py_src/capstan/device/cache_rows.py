"""Describes rows of one sequence that can be reused: key/value caches, whose first positions other sequences of the
model may copy, and the places of pictures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["CacheRows", "PictureSpan", "RowSource", "SavedRows"]


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

    async def read(self, length: int) -> SavedRows:
        """The first `length` positions in the host's memory. Raises OutOfMemoryError."""

    def takes(self, base: int, length: int) -> bool:
        """Whether the next position has all positions to which it attends after a `write` of `length` positions whose
        sliding caches begin at `base`.
        """

    def write(self, rows: SavedRows, length: int) -> None:
        """Overwrite the first `length` positions with those of `rows`, which has no more than these."""


@dataclass(frozen=True)
class SavedRows:
    """The first positions of a sequence's caches in the host's memory."""

    caches: Sequence[bytes | memoryview]
    """The rows of each cache, [heads, positions, head size], in the order of `GraphDescription.cache`."""
    base: int = 0
    """The first position that sliding caches hold."""

    def copy_to(self, target: CacheRows, length: int) -> None:
        target.write(self, length)


@dataclass(frozen=True)
class PictureSpan:
    """The places of a picture's features in a sequence, row by row."""

    start: int
    rows: int
    columns: int
