"""Where bytes are, as the copy planner sees it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from ..errors import BufferMismatchError
from .info import MemoryInfo, MemoryType
from .pools import round_up
from .span import DeviceSpan

__all__ = ["HOST", "Kind", "Place", "Temporaries", "Temporary"]

HOST = MemoryInfo("Cpu", "reference", MemoryType.DEFAULT, heap="python")
"""Python's heap."""


class Kind(Enum):
    """What can be done with bytes where they are."""

    HEAP = "heap"
    """Host memory that is always there: Python's or onnxruntime's."""
    STORAGE = "storage"
    """What a device computes in."""
    STAGING = "staging"
    """Copied to and from by the device in words, and mapped by the host; no storage."""


@dataclass(frozen=True)
class Place:
    """`length` bytes at `offset` of a buffer, which has `size` bytes that are somebody's and `padding` after them."""

    memory: MemoryInfo
    buffer: int
    """Names the buffer among all buffers of a plan; 0 or more."""
    offset: int
    length: int
    size: int
    padding: int = 0

    def __post_init__(self) -> None:
        if self.offset < 0 or self.length < 0 or self.end > self.size:
            raise BufferMismatchError(
                f"bytes {self.offset} to {self.end} of buffer {self.buffer}, which has {self.size}; stay inside it"
            )

    @classmethod
    def of(cls, span: DeviceSpan, multiple: int = 1) -> Place:
        """A span whose device makes buffers in multiples of `multiple` bytes and calls them by numbers."""
        size = span.buffer.size
        padding = round_up(size, multiple) - size
        return cls(span.buffer.memory, span.buffer.handle, span.offset, span.length, size, padding)

    @property
    def end(self) -> int:
        return self.offset + self.length

    @property
    def free_after(self) -> int:
        """Bytes after the place that may be overwritten: the padding, if the place reaches up to it."""
        return self.padding if self.end == self.size else 0

    @property
    def there_after(self) -> int:
        """Bytes after the place that may be read."""
        return self.size + self.padding - self.end

    @property
    def device(self) -> tuple[str, int]:
        return self.memory.device, self.memory.device_id

    @property
    def kind(self) -> Kind:
        if not self.memory.heap:
            return Kind.STORAGE
        return Kind.STAGING if self.memory.heap == "gpu-process" else Kind.HEAP

    def same(self, other: Place) -> bool:
        return (self.buffer, self.offset, self.length) == (other.buffer, other.offset, other.length)

    def overlaps(self, other: Place) -> bool:
        return self.buffer == other.buffer and max(self.offset, other.offset) < min(self.end, other.end)

    def precedes(self, other: Place) -> bool:
        """Whether the other goes on where this one ends."""
        return self.buffer == other.buffer and self.end == other.offset

    def storage(self) -> MemoryInfo:
        """The DEFAULT memory of this place's device."""
        return (
            self.memory if self.kind is Kind.STORAGE else replace(self.memory, memory_type=MemoryType.DEFAULT, heap="")
        )


@dataclass(frozen=True)
class Temporary:
    """A buffer that a plan needs while it is carried out; `buffer` is below zero."""

    buffer: int
    memory: MemoryInfo
    bytes: int
    """What is used of it; on a device it has whole words."""


@dataclass
class Temporaries:
    """Makes the temporary buffers of one plan."""

    made: list[Temporary] = field(default_factory=list)

    def place(self, memory: MemoryInfo, length: int, offset: int = 0) -> Place:
        """A new buffer with `length` bytes at `offset` of it, and room up to whole words."""
        size = offset + length
        self.made.append(Temporary(-1 - len(self.made), memory, size))
        return Place(memory, self.made[-1].buffer, offset, length, size, -size % 4)
