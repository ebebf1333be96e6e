"""Ranges of a data file that fill a weight's buffer, as they are or rearranged on the way."""

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


@dataclass(frozen=True)
class Unpack:
    """A tensor of a GGUF file, of which the buffer has one thing; see graph/gguf/gguf_types.py."""

    kind: ClassVar[str] = "unpack"
    type: int
    """A GgmlType."""
    what: Literal["quants", "scales", "minima", "values"]
    rows: int
    columns: int
    bits: int
    """Bits of an element in the buffer: 4 or 8 of quants, 16 or 32 of floats."""
    block: int = 1
    """Elements of a row of the tensor for one of the buffer: those that share a scale and a minimum."""
    halves: int = 0
    """Rows of an attention head whose file has the two halves of the rows in turn and whose buffer has one half after
    the other; 0 for rows that stay."""
    shift: int = 0
    """The q that becomes zero, of a type with minima."""
    stride: int = 0
    """Elements of a row of the buffer that is [columns, rows]: `rows` of them, and those of other parts beside; 0 for a
    buffer of [rows, columns]."""
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
    """A rotary table [positions, frequencies], which the buffer has and the file has not: for each position p and
    frequency f, `scale` x cos(p f) or sin(p f), with p f in float32."""

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
"""A way to rearrange a part. `made(length)` is the bytes in the buffer of a part of `length` bytes, `step(length)` how
far after its start the next part starts."""

CHANGES: dict[str, type[Change]] = {each.kind: each for each in (Turn, Beside, Narrow, Unpack, Angles)}


@dataclass(frozen=True)
class Part:
    """`length` bytes at `offset` of a file, as they are or rearranged. In the buffer they are after the part before,
    or each of their rows is after that part's."""

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
    """The kind of a change and its fields; web/src/worker/gpu/rearranger.ts has the same."""
    return (change.kind, *vars(change).values()) if change else None


def change_of(fields: Sequence[Any] | None) -> Change | None:
    """The change of such fields."""
    return CHANGES[fields[0]](*fields[1:]) if fields else None


def text_of(parts: Sequence[Part]) -> str:
    """The parts as JSON, for `parts_of`."""
    return json.dumps([(part.offset, part.length, fields_of(part.change)) for part in parts])


def parts_of(text: str) -> tuple[Part, ...]:
    return tuple(Part(offset, length, change_of(fields)) for offset, length, fields in json.loads(text))
