"""The rotary tables of a model with long rope, of which each sequence has those for its length.

Graphs of such a model take the tables as inputs (graph/long_rope.py). A device fills them for each sequence anew when
`RowDecoder.rotate` says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..graph import LongRope, TableRows
from .element_types import byte_count
from .noted_graphs import OpenWeights

__all__ = ["RopeTables", "places", "read_rows", "read_tables"]


@dataclass(frozen=True)
class RopeTables:
    """The rows of each table of `rope`."""

    rope: LongRope
    short: tuple[bytes, ...]
    long: tuple[bytes, ...]

    @classmethod
    def of(cls, rope: LongRope, parts: Sequence[bytes]) -> RopeTables:
        """The tables from the bytes at `places(rope)`."""
        return cls(rope, tuple(parts[: len(rope.tables)]), tuple(parts[len(rope.tables) :]))

    def rows(self, long: bool, positions: int) -> list[bytes]:
        """The rows of so many positions of each table, with the long factors or the short ones; behind the short rows,
        which no sequence reads past, are long ones."""
        found = []
        for table, short, other in zip(self.rope.tables, self.short, self.long, strict=True):
            end = byte_count(table.dtype, (positions, table.width))
            first = b"" if long else short[:end]
            found.append(first + other[len(first) : end])
        return found


def places(rope: LongRope) -> list[TableRows]:
    """The short rows of each table, then the long ones."""
    return [*(table.short for table in rope.tables), *(table.long for table in rope.tables)]


async def read_tables(rope: LongRope | None, file: bytes, open_weights: OpenWeights) -> RopeTables | None:
    """The tables, from the bytes of the graph's own file and from data files."""
    return None if rope is None else RopeTables.of(rope, await read_rows(places(rope), file, open_weights))


async def read_rows(places: Sequence[TableRows], file: bytes, open_weights: OpenWeights) -> list[bytes]:
    """The bytes of rows of tables, from the graph's own file and from data files."""
    parts = []
    for place in places:
        if not place.location:
            parts.append(bytes(file[place.offset : place.offset + place.length]))
            continue
        data = await open_weights(place.location)
        try:
            parts.append(await data.read(place.offset, place.length))
        finally:
            data.close()
    return parts
