"""Defines the owner and the view of device memory: a DeviceBuffer owns bytes, a DeviceSpan is (buffer, offset,
length).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..errors import BufferMismatchError, ClosedError
from .info import MemoryInfo

__all__ = ["BufferRequest", "DeviceBuffer", "DeviceSpan", "Loan", "StridedCopy"]


class BufferRequest(NamedTuple):
    """A request for a buffer; see `DeviceInterface.allocate_all`."""

    label: str
    size: int
    """The size in bytes."""
    category: str
    """The category in the ledger."""


class DeviceBuffer:
    """Owns `size` bytes on a device, which `close` or the end of a `with` block frees.

    `handle` identifies them on the device: an engine handle on WebGPU, a bytearray on the CPU devices.
    `capstan.memory.ledger()` lists the bytes under `category` and `owner`.
    """

    def __init__(
        self,
        handle: Any,
        size: int,
        memory: MemoryInfo,
        *,
        label: str = "",
        category: str = "user",
        owner: str = "",
        free: Callable[[], None],
    ) -> None:
        self._handle = handle
        self._free: Callable[[], None] | None = free
        self._closed = False
        self._holders = 0
        self.loans: list[Loan] = []
        """Parts of it that generators hold."""
        self.size = size
        self.memory = memory
        self.label = label
        self.category = category
        self.owner = owner

    @property
    def handle(self) -> Any:
        """The handle of the bytes on the device. Raises ClosedError after `close`."""
        if self._closed and self._holders == 0:
            raise ClosedError(f"buffer {self.label!r} of {self.size} bytes was closed; allocate it again")
        return self._handle

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def span(self, offset: int = 0, length: int | None = None) -> DeviceSpan:
        """The `length` bytes from `offset`; to the end by default. Raises BufferMismatchError outside the buffer."""
        return DeviceSpan(self, offset, self.size - offset if length is None else length)

    def close(self) -> None:
        """Free the bytes. If they are still held, the last `release` frees them. Closing twice is harmless."""
        self._closed = True
        self._free_unused()

    def retain(self) -> None:
        """Keep the bytes until `release`, even if the buffer is closed meanwhile."""
        _ = self.handle
        self._holders += 1

    def release(self) -> None:
        """End one `retain`."""
        self._holders -= 1
        self._free_unused()

    def _free_unused(self) -> None:
        if self._closed and self._holders == 0 and self._free is not None:
            free, self._free = self._free, None
            free()

    def __enter__(self) -> DeviceBuffer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self.size} bytes"
        return f"<DeviceBuffer {self.label!r} {state} on {self.memory.device}>"


@dataclass(frozen=True)
class DeviceSpan:
    """Refers to `length` bytes of `buffer` from `offset`. A span owns nothing: the buffer must outlive the use of the
    span.
    """

    buffer: DeviceBuffer
    offset: int
    length: int

    def meets(self, other: DeviceSpan) -> bool:
        """Whether two spans have bytes in common."""
        first, last = max(self.offset, other.offset), min(self.offset + self.length, other.offset + other.length)
        return self.buffer is other.buffer and first < last

    def __post_init__(self) -> None:
        if self.offset < 0 or self.length < 0 or self.offset + self.length > self.buffer.size:
            raise BufferMismatchError(
                f"bytes {self.offset} to {self.offset + self.length} are not in buffer {self.buffer.label!r}, which "
                f"has {self.buffer.size} bytes; stay inside it"
            )

    def sub(self, offset: int, length: int) -> DeviceSpan:
        """The span of `length` bytes that begins at `offset`, counted from this span's start. It must lie inside this
        span.
        """
        if offset < 0 or length < 0 or offset + length > self.length:
            raise BufferMismatchError(
                f"bytes {offset} to {offset + length} are not in the span of {self.length} bytes; stay inside it"
            )
        return DeviceSpan(self.buffer, self.offset + offset, length)


class Loan:
    """Holds parts of buffers, by name, for a generator until `end` is called; their buffers stay open until then. A
    `shared` loan allows other loans of the same bytes, because these bytes have no meaning between runs.
    """

    def __init__(self, spans: Mapping[str, DeviceSpan], *, whole: Collection[str] = (), shared: bool = False) -> None:
        """Hold these parts; for names in `whole`, hold the whole buffers. Raises ClosedError if a buffer was closed,
        and then holds nothing.
        """
        self.spans = dict(spans)
        self.taken = {name: span.buffer.span() if name in whole else span for name, span in spans.items()}
        self.shared = shared
        self._held: list[DeviceBuffer] = []
        try:
            for buffer in {id(span.buffer): span.buffer for span in self.spans.values()}.values():
                buffer.retain()
                buffer.loans.append(self)
                self._held.append(buffer)
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """Release the parts; harmless if repeated."""
        held, self._held = self._held, []
        for buffer in held:
            buffer.loans.remove(self)
            buffer.release()


class StridedCopy(NamedTuple):
    """Describes a copy of `pieces` pieces of `length` bytes each. Piece i begins `i * source_stride` bytes after the
    start of the source, and goes to the place `i * stride` bytes after the start of the destination. Source and
    destination do not overlap.
    """

    source: DeviceSpan
    source_stride: int
    destination: DeviceSpan
    stride: int
    length: int
    pieces: int

    def pairs(self) -> list[tuple[DeviceSpan, DeviceSpan]]:
        """Each piece's source and destination. Raises BufferMismatchError if a piece is not inside its span."""
        return [
            (self.source.sub(i * self.source_stride, self.length), self.destination.sub(i * self.stride, self.length))
            for i in range(self.pieces)
        ]
