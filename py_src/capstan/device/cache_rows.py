"""Describes rows of one sequence that can be reused: key/value caches, whose first positions other sequences of the
model may copy, and the places of pictures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["CacheRows", "PictureSpan"]


class CacheRows(Protocol):
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

    def copy_to(self, target: Any, length: int) -> None:
        """Copy the first `length` positions to other caches of the same model on the device."""

    def free(self) -> None:
        """Free the memory of a copy; it cannot be used again. The caches of a sequence are not changed."""


@dataclass(frozen=True)
class PictureSpan:
    """The places of a picture's features in a sequence, row by row."""

    start: int
    rows: int
    columns: int
