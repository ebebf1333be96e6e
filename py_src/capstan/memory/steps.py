"""What a plan is made of: steps that the device takes in one submit, and steps that the host takes.

Buffers are numbers: an engine handle, or below zero one of the plan's temporaries. Offsets and sizes are bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

__all__ = [
    "Bounce",
    "ByteCopy",
    "Cast",
    "Copy",
    "DeviceStep",
    "FillMask",
    "FillPositions",
    "HostCopy",
    "HostStep",
    "Readback",
    "Step",
    "Upload",
    "Zero",
]

WORD = 4
"""WebGPU copies whole words only: offsets and sizes are multiples of this."""


@dataclass(frozen=True)
class Move:
    """`bytes` bytes of one buffer to another place; `kind` is what the executor calls it."""

    kind: ClassVar[str]

    source: int
    source_offset: int
    destination: int
    destination_offset: int
    bytes: int

    def as_json(self) -> list[Any]:
        return [self.kind, self.source, self.source_offset, self.destination, self.destination_offset, self.bytes]


class Copy(Move):
    """copyBufferToBuffer: two buffers of one device, everything in words."""

    kind = "copy"


class ByteCopy(Move):
    """The byte-exact copy kernel: two storage buffers, any offsets and size."""

    kind = "bytes"


class Bounce(Move):
    """A copy inside one storage buffer, which may overlap, through a buffer of the executor's: two copies."""

    kind = "bounce"


@dataclass(frozen=True)
class Zero:
    """Zeros, at any offset and size."""

    buffer: int
    offset: int
    bytes: int

    def as_json(self) -> list[Any]:
        return ["zero", self.buffer, self.offset, self.bytes]


@dataclass(frozen=True)
class Cast:
    """Convert `count` elements; offsets are multiples of the element sizes."""

    source: int
    source_offset: int
    source_type: str
    destination: int
    destination_offset: int
    destination_type: str
    count: int

    def as_json(self) -> list[Any]:
        source = [self.source, self.source_offset, self.source_type]
        return ["cast", *source, self.destination, self.destination_offset, self.destination_type, self.count]


@dataclass(frozen=True)
class FillMask:
    """Row r of a [rows, capacity] mask had its first old[r] elements one; make it new[r]."""

    buffer: int
    offset: int
    dtype: str
    capacity: int
    old: tuple[int, ...]
    new: tuple[int, ...]

    def as_json(self) -> list[Any]:
        return ["mask", self.buffer, self.offset, self.dtype, self.capacity, list(self.old), list(self.new)]


@dataclass(frozen=True)
class FillPositions:
    """Row r of [rows, count] positions becomes starts[r], starts[r] + 1, ..."""

    buffer: int
    offset: int
    dtype: str
    starts: tuple[int, ...]
    count: int

    def as_json(self) -> list[Any]:
        return ["positions", self.buffer, self.offset, self.dtype, list(self.starts), self.count]


@dataclass(frozen=True)
class Upload:
    """queue.writeBuffer from host memory, at a word. Of the last word, bytes past `bytes` belong to nobody.

    It reaches the queue when it is called: after what was submitted, before what is only encoded.
    """

    source: int
    source_offset: int
    destination: int
    destination_offset: int
    bytes: int


@dataclass(frozen=True)
class Readback:
    """Device memory to host memory: whole words around the bytes go to `staging_offset` of the group's staging buffer,
    and from there, once it is mapped, the bytes themselves to the destination."""

    source: int
    source_offset: int
    destination: int
    destination_offset: int
    bytes: int
    staging_offset: int = 0

    @property
    def window(self) -> tuple[int, int]:
        """Offset and size, in words, of what is copied to staging memory."""
        start = self.source_offset // WORD * WORD
        return start, -(-(self.source_offset + self.bytes) // WORD) * WORD - start


@dataclass(frozen=True)
class HostCopy:
    """Host memory to host memory: between two WebAssembly heaps, or a heap and staging memory while it is mapped."""

    source: int
    source_offset: int
    destination: int
    destination_offset: int
    bytes: int
    mapped: bool = False
    """One of the two is staging memory and has to be mapped first."""


DeviceStep = Copy | ByteCopy | Bounce | Zero | Cast | FillMask | FillPositions
HostStep = Upload | Readback | HostCopy
Step = DeviceStep | HostStep
