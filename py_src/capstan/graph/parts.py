"""Describes the ranges of a data file that fill a weight's buffer, unchanged or rearranged while loading."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

__all__ = [
    "Angles",
    "Beside",
    "Change",
    "Narrow",
    "Part",
    "Turn",
    "Unpack",
    "change_of",
    "fields_of",
    "parts_of",
    "text_of",
]


@dataclass(frozen=True)
class Turn:
    """A matrix that is [rows, columns] in the file and [columns, rows] in the buffer; each row of the buffer starts at
    a whole byte.
    """

    kind: ClassVar[str] = "turn"
    rows: int
    columns: int
    bits: int
    """Bits of an element: 4, 8, 16 or 32; int4 has the even elements in the low halves of bytes."""
    flipped: bool
    """Whether the highest bit of each element is inverted while loading: adding half of the range makes signed integers
    unsigned.
    """

    def made(self, length: int) -> int:
        return self.columns * ((self.rows * self.bits + 7) // 8)

    step = made


@dataclass(frozen=True)
class Beside:
    """A matrix whose rows, of `row` bytes in the file, are `stride` bytes apart in the buffer, because other parts are
    beside them. Both are multiples of 4.
    """

    kind: ClassVar[str] = "beside"
    row: int
    stride: int

    def made(self, length: int) -> int:
        return length

    def step(self, length: int) -> int:
        return self.row


@dataclass(frozen=True)
class Narrow:
    """An even number of float32 values that are float16 in the buffer."""

    kind: ClassVar[str] = "narrow"

    def made(self, length: int) -> int:
        return length // 2

    step = made


@dataclass(frozen=True)
class Unpack:
    """A tensor of a GGUF file, of which the buffer has the quants, the scales, the minima or the values; see
    graph/gguf/gguf_types.py.
    """

    kind: ClassVar[str] = "unpack"
    type: int
    """A GgmlType."""
    what: Literal["quants", "scales", "minima", "values"]
    rows: int
    columns: int
    bits: int
    """Bits of an element in the buffer: 4 or 8 of quants, 16 or 32 of floats."""
    block: int = 1
    """The number of the tensor's elements for one element of the buffer: those that share a scale and a minimum."""
    halves: int = 0
    """Rows of an attention head, if the file alternates rows of both halves and the buffer has one half after the
    other; 0 for rows that stay.
    """
    shift: int = 0
    """The q that becomes zero, of a type with minima."""
    stride: int = 0
    """Elements of a row of a buffer [columns, rows], including those of other parts beside; 0 for a buffer [rows,
    columns].
    """
    between: int = 0
    """Bytes of other parts' rows between two rows, a multiple of 4."""

    def made(self, length: int) -> int:
        return self.rows * (self.columns // self.block) * self.bits // 8

    def step(self, length: int) -> int:
        if self.between:
            return self.made(length) // self.rows
        return self.rows * self.bits // 8 if self.stride > self.rows else self.made(length)


@dataclass(frozen=True)
class Angles:
    """A rotary table [positions, frequencies] that only the buffer has: for each position p and frequency f, `scale` x
    cos(p f) or sin(p f), with p f in float32.
    """

    kind: ClassVar[str] = "angles"
    wave: Literal["cos", "sin"]
    rows: int
    frequencies: str
    """float32, little-endian, in base64."""
    scale: float
    bits: int
    """Bits of an element in the buffer: 16 or 32."""

    @property
    def columns(self) -> int:
        return len(b64decode(self.frequencies)) // 4

    def made(self, length: int) -> int:
        return self.rows * self.columns * self.bits // 8

    step = made


Change = Turn | Beside | Narrow | Unpack | Angles
"""A way to rearrange a part. A part of `length` bytes takes `made(length)` bytes in the buffer, and the next part
starts `step(length)` bytes after its start.
"""

CHANGES: dict[str, type[Change]] = {each.kind: each for each in (Turn, Beside, Narrow, Unpack, Angles)}


@dataclass(frozen=True)
class Part:
    """`length` bytes at `offset` of a file, unchanged or rearranged. In the buffer a part follows the part before it,
    or each of its rows follows that part's row.
    """

    offset: int
    length: int
    change: Change | None = None

    @property
    def made(self) -> int:
        """Bytes in the buffer."""
        return self.change.made(self.length) if self.change else self.length

    @property
    def step(self) -> int:
        """Bytes in the buffer from its start to the start of the next part."""
        return self.change.step(self.length) if self.change else self.length


def fields_of(change: Change | None) -> tuple[Any, ...] | None:
    """The kind of a change and its fields; web/src/worker/gpu/rearranger.ts has the same."""
    return (change.kind, *vars(change).values()) if change else None


def change_of(fields: Sequence[Any] | None) -> Change | None:
    """The change with these fields."""
    return CHANGES[fields[0]](*fields[1:]) if fields else None


def text_of(parts: Sequence[Part]) -> str:
    """The parts as JSON, for `parts_of`."""
    return json.dumps([(part.offset, part.length, fields_of(part.change)) for part in parts])


def parts_of(text: str) -> tuple[Part, ...]:
    return tuple(Part(offset, length, change_of(fields)) for offset, length, fields in json.loads(text))
