"""Checks the arguments of operations on spans before any operation is queued, for all devices."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import BindingError, BufferMismatchError
from ..memory import WORD, DeviceSpan, StridedCopy, check_use
from .casts import ELEMENT_BYTES

__all__ = [
    "INDEX_BYTES",
    "check_cast",
    "check_copies",
    "check_device",
    "check_mask",
    "check_positions",
    "check_strided",
]

INDEX_BYTES = {"int64": 8, "int32": 4}
"""dtypes of masks and positions, and the bytes of an element."""


def check_device(span: DeviceSpan, device: str) -> None:
    """Raise BufferMismatchError unless the span's buffer belongs to the device, ClosedError if the buffer was
    closed.
    """
    if span.buffer.memory.device != device:
        raise BufferMismatchError(
            f"buffer {span.buffer.label!r} is memory of device {span.buffer.memory.device!r}; this device is "
            f"{device!r}; copy through the CPU"
        )
    _ = span.buffer.handle


def check_copies(pairs: Sequence[tuple[DeviceSpan, DeviceSpan]], device: str) -> None:
    """Raise BufferMismatchError unless each source is as long as its destination. The plan of the copies checks whether
    their memory can be copied.
    """
    for source, destination in pairs:
        check_device(source, device)
        check_device(destination, device)
        if source.length != destination.length:
            raise BufferMismatchError(
                f"{source.length} bytes cannot be copied to a span of {destination.length} bytes; take sub-spans of "
                "equal length"
            )


def check_strided(copies: Sequence[StridedCopy], device: str) -> None:
    """Raise BufferMismatchError unless all pieces are inside their spans, in memory that can be copied."""
    for source, source_stride, destination, stride, length, count in copies:
        for span, step in ((source, source_stride), (destination, stride)):
            check_device(span, device)
            if min(step, length, count) < 0 or (count and (count - 1) * step + length > span.length):
                raise BufferMismatchError(
                    f"{count} pieces of {length} bytes at intervals of {step} bytes go past a span of {span.length} "
                    "bytes; stay inside it"
                )
        numbers = (source.offset, source_stride, destination.offset, stride, length)
        words = not any(number % WORD for number in numbers)
        check_use("copy source", source, words=words)
        check_use("copy destination", destination, words=words)


def check_cast(
    source: DeviceSpan, source_type: str, destination: DeviceSpan, destination_type: str, device: str
) -> int:
    """The number of elements of a cast. Raises BindingError for dtypes that cannot be cast, BufferMismatchError for
    lengths that do not match.
    """
    check_device(source, device)
    check_device(destination, device)
    for dtype in (source_type, destination_type):
        if dtype not in ELEMENT_BYTES:
            raise BindingError(f"{dtype!r} cannot be cast; a cast converts among {', '.join(ELEMENT_BYTES)}")
    count, rest = divmod(source.length, ELEMENT_BYTES[source_type])
    if rest or destination.length != count * ELEMENT_BYTES[destination_type]:
        raise BufferMismatchError(
            f"{source.length} bytes of {source_type} cannot be cast to {destination.length} bytes of "
            f"{destination_type}; both spans must hold the same number of elements"
        )
    check_use("cast source", source)
    check_use("cast destination", destination)
    return count


def check_mask(
    mask: DeviceSpan, dtype: str, capacity: int, old: Sequence[int], new: Sequence[int], device: str
) -> None:
    """Raise BindingError for another dtype or row lengths outside of [0, capacity], BufferMismatchError unless the span
    holds a [len(old), capacity] mask."""
    size = _index_bytes("an attention mask", dtype)
    if len(old) != len(new):
        raise BindingError(
            f"{len(old)} old and {len(new)} new lengths of mask rows were given; give one of each for every row"
        )
    for length in (*old, *new):
        if not 0 <= length <= capacity:
            raise BindingError(f"a mask row has the length {length}; it must be from 0 to {capacity}")
    _check_length(mask, len(old) * capacity * size, f"a mask [{len(old)}, {capacity}] of {dtype}", device)
    check_use("mask", mask)


def check_positions(positions: DeviceSpan, dtype: str, starts: Sequence[int], count: int, device: str) -> None:
    """Raise BindingError for another dtype or positions out of the dtype's range, BufferMismatchError unless the span
    holds [len(starts), count].
    """
    size = _index_bytes("positions", dtype)
    if count < 0:
        raise BindingError(f"the count of positions is {count}; it must be at least 0")
    limit = 1 << (8 * size - 1)
    for start in starts:
        if not -limit <= start <= limit - max(count, 1):
            raise BindingError(f"{count} positions from {start} exceed {dtype}, which holds {-limit} to {limit - 1}")
    _check_length(positions, len(starts) * count * size, f"positions [{len(starts)}, {count}] of {dtype}", device)
    check_use("positions", positions)


def _index_bytes(what: str, dtype: str) -> int:
    if dtype not in INDEX_BYTES:
        raise BindingError(f"the dtype of {what} is {dtype!r}; it must be {' or '.join(INDEX_BYTES)}")
    return INDEX_BYTES[dtype]


def _check_length(span: DeviceSpan, length: int, what: str, device: str) -> None:
    check_device(span, device)
    if span.length != length:
        raise BufferMismatchError(f"{what} takes {length} bytes; the span has {span.length}")
