"""Ranges of a data file that fill a weight's buffer, as they are or rearranged on the way."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any, ClassVar

__all__ = ["Beside", "Change", "Narrow", "Part", "Turn", "change_of", "fields_of", "parts_of", "text_of"]


@dataclass(frozen=True)
class Turn:
    """A matrix whose file has [rows, columns] and whose buffer has [columns, rows], each row of the buffer from a whole
    byte on."""

    kind: ClassVar[str] = "turn"
    rows: int
    columns: int
    bits: int
    """Bits of an element: 4, 8, 16 or 32; int4 has the even elements in the low halves of bytes."""
    flipped: bool
    """Whether the highest bit of each element is inverted on the way: signed integers become unsigned ones, by adding
    half of their range."""

    def made(self, length: int) -> int:
        return self.columns * ((self.rows * self.bits + 7) // 8)

    step = made


@dataclass(frozen=True)
class Beside:
    """A matrix whose rows, of `row` bytes in the file, are `stride` bytes apart in the buffer: other parts are beside
    them. Both are multiples of 4."""

    kind: ClassVar[str] = "beside"
    row: int
    stride: int

    def made(self, length: int) -> int:
        return length

    def step(self, length: int) -> int:
        return self.row


@dataclass(frozen=True)
class Narrow:
    """An even number of float32 that the buffer has as float16."""

    kind: ClassVar[str] = "narrow"

    def made(self, length: int) -> int:
        return length // 2

    step = made


Change = Turn | Beside | Narrow
"""A way to rearrange a part. `made(length)` is the bytes in the buffer of a part of `length` bytes, `step(length)` how
far behind its start the next part starts."""

CHANGES: dict[str, type[Change]] = {each.kind: each for each in (Turn, Beside, Narrow)}


@dataclass(frozen=True)
class Part:
    """`length` bytes at `offset` of a file, as they are or rearranged. In the buffer they are behind the part before,
    or each of their rows is behind that part's."""

    offset: int
    length: int
    change: Change | None = None

    @property
    def made(self) -> int:
        """Bytes in the buffer."""
        return self.change.made(self.length) if self.change else self.length

    @property
    def step(self) -> int:
        """Bytes from its start in the buffer to that of the next part."""
        return self.change.step(self.length) if self.change else self.length


def fields_of(change: Change | None) -> tuple[Any, ...] | None:
    """The kind of a change and its fields; web/src/gpu/turn.ts has the same."""
    return (change.kind, *astuple(change)) if change else None


def change_of(fields: Sequence[Any] | None) -> Change | None:
    """The change of such fields."""
    return CHANGES[fields[0]](*fields[1:]) if fields else None


def text_of(parts: Sequence[Part]) -> str:
    """The parts as JSON, for `parts_of`."""
    return json.dumps([(part.offset, part.length, fields_of(part.change)) for part in parts])


def parts_of(text: str) -> tuple[Part, ...]:
    return tuple(Part(offset, length, change_of(fields)) for offset, length, fields in json.loads(text))
