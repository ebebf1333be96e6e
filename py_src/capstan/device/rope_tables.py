"""Computes the rotary tables of a model with long rope. Each sequence has tables for its length, which graphs of such a
model take as inputs (graph/long_rope.py). A device fills them again for a sequence when `RowDecoder.rotate` is called,
or `SeeingRow.see` for a model with positions of three axes.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import cos, sin

from ..graph import ComputedRows, LongRope, TableRows
from .cache_rows import PictureSpan
from .element_types import byte_count
from .noted_graphs import OpenWeights

__all__ = ["RopeTables", "places", "read_rows", "read_tables"]


@dataclass(frozen=True)
class RopeTables:
    """The rows of each table of `rope`: bytes of files, or rows that are computed when a sequence needs them."""

    rope: LongRope
    short: tuple[bytes | ComputedRows, ...]
    long: tuple[bytes | ComputedRows, ...]

    @classmethod
    def of(cls, rope: LongRope, parts: Sequence[bytes]) -> RopeTables:
        """The tables from the bytes at `places(rope)`."""
        read = iter(parts)
        found = [rows if isinstance(rows, ComputedRows) else next(read) for rows in all_rows(rope)]
        return cls(rope, tuple(found[: len(rope.tables)]), tuple(found[len(rope.tables) :]))

    def rows(self, long: bool, positions: int, pictures: Sequence[PictureSpan] = ()) -> list[bytes]:
        """The first `positions` rows of each table, with the long factors or the short ones. Short rows exist only up
        to the original length; long rows fill the places after them, which no sequence reads. With positions of three
        axes the rows are those for the tokens of a sequence with these pictures.
        """
        found = []
        cut = 0 if long else min(positions, self.rope.original)
        for table, short, other in zip(self.rope.tables, self.short, self.long, strict=True):
            size, stored = (byte_count(kind, (1, table.width)) for kind in (table.dtype, table.stored or table.dtype))
            parts = ((short, 0, cut), (other, cut, positions))
            whole = b"".join(rows_of(rows, start, end, stored) for rows, start, end in parts)
            if size < stored:
                whole = narrowed(whole)
            found.append(turned(whole, size, self.rope.sections, pictures) if pictures else whole)
        return found


@lru_cache(maxsize=2)
def narrowed(rows: bytes) -> bytes:
    """Convert float32 elements to float16."""
    return struct.pack(f"<{len(rows) // 4}e", *memoryview(rows).cast("f"))


def turned(whole: bytes, size: int, sections: Sequence[int], pictures: Sequence[PictureSpan]) -> bytes:
    """The rows of `whole` (`size` bytes each) in the order of a sequence's tokens, as many as before. A token of a
    picture rotates by the picture's first position plus its own row and column; text continues after the largest
    position."""
    first, second = (size * sum(sections[:count]) // sum(sections) for count in (1, 2))
    found, place, position = list[bytes](), 0, 0
    for each in pictures:
        found.append(whole[position * size : (position + each.start - place) * size])
        position += each.start - place
        for number in range(each.rows * each.columns):
            down, right = divmod(number, each.columns)
            for axis, start, end in ((0, 0, first), (down, first, second), (right, second, size)):
                at = (position + axis) * size
                found.append(whole[at + start : at + end])
        place = each.start + each.rows * each.columns
        position += max(each.rows, each.columns)
    return b"".join([*found, whole[position * size :]])[: len(whole)]


def rows_of(rows: bytes | ComputedRows, start: int, end: int, size: int) -> bytes:
    """The rows from `start` to `end`, each of `size` bytes."""
    if isinstance(rows, bytes):
        return rows[start * size : end * size]
    wave = sin if rows.sine else cos
    values = array("d")
    for position in range(start, end):
        values.extend([wave(position * each) * rows.scale for each in rows.frequencies])
    return struct.pack(f"<{len(values)}{'f' if size == 4 * len(rows.frequencies) else 'e'}", *values)


def places(rope: LongRope) -> list[TableRows]:
    """The short rows of each table, then the long ones; without computed rows."""
    return [rows for rows in all_rows(rope) if isinstance(rows, TableRows)]


def all_rows(rope: LongRope) -> list[TableRows | ComputedRows]:
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
