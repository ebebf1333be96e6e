"""Implements device memory in the host's own memory. Buffers are bytearrays, and operations run when they are
called.

It defines what every device's operations compute; the kernels on the GPU match it byte for byte.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

from ..errors import BufferMismatchError, OutOfMemoryError
from ..memory import Capabilities, DeviceBuffer, DeviceSpan, MemoryType
from .casts import convert
from .device_interface import DeviceInterface, Readback
from .probe import capabilities_of
from .span_checks import INDEX_BYTES, check_cast, check_copies, check_device, check_mask, check_positions

__all__ = ["HostMemory", "view_of"]

_CODES = {"int64": "q", "int32": "i"}


class HostMemory(DeviceInterface):
    """The memory half of a device whose buffers are bytearrays."""

    async def capabilities(self) -> Capabilities:
        return await capabilities_of(self)

    def allocate(
        self,
        size: int,
        memory_type: MemoryType = MemoryType.DEFAULT,
        *,
        label: str = "",
        category: str = "user",
        owner: str = "",
    ) -> DeviceBuffer:
        if size < 0:
            raise BufferMismatchError(f"the size of buffer {label!r} is {size} bytes; it must be at least 0")
        try:
            data = bytearray(size)
        except (MemoryError, OverflowError):
            raise OutOfMemoryError(
                f"buffer {label!r} of {size} bytes does not fit into memory; free others or take a smaller size"
            ) from None

        def free() -> None:
            with suppress(BufferError):  # a view of the bytes is still alive
                data.clear()

        memory = self.get_memory_info(memory_type)
        return DeviceBuffer(data, size, memory, label=label, category=category, owner=owner, free=free)

    def batch(self) -> AbstractContextManager[None]:
        return nullcontext()

    def copy_tensors(self, pairs: Sequence[tuple[DeviceSpan, DeviceSpan]]) -> None:
        check_copies(pairs, self.type)
        for source, destination in pairs:
            view_of(destination)[:] = bytes(view_of(source))

    def copy_cpu_to_device(self, destination: DeviceSpan, data: Any) -> None:
        check_device(destination, self.type)
        view = memoryview(data)
        _check_bytes(view, destination, "written to")
        try:
            view_of(destination)[:] = view.cast("B")
        except TypeError:  # not contiguous, empty in some dimension, or of a format that is not native
            view_of(destination)[:] = view.tobytes()

    async def copy_device_to_cpu(self, source: DeviceSpan, out: Any = None) -> Readback:
        check_device(source, self.type)
        started = time.perf_counter()
        data = b""
        if out is None:
            data = bytes(view_of(source))
        else:
            view = memoryview(out)
            _check_bytes(view, source, "read from")
            try:
                if view.nbytes:
                    view.cast("B")[:] = view_of(source)
            except TypeError as error:
                raise BufferMismatchError(f"`out`: {error}; give a writable array in C order") from None
        return Readback(data, waiting_ms=0.0, copying_ms=1e3 * (time.perf_counter() - started))

    def zero(self, span: DeviceSpan) -> None:
        check_device(span, self.type)
        view_of(span)[:] = bytes(span.length)

    def cast(self, source: DeviceSpan, source_type: str, destination: DeviceSpan, destination_type: str) -> None:
        check_cast(source, source_type, destination, destination_type, self.type)
        view_of(destination)[:] = convert(view_of(source), source_type, destination_type)

    def update_attention_mask(
        self, mask: DeviceSpan, dtype: str, capacity: int, old: Sequence[int], new: Sequence[int]
    ) -> None:
        check_mask(mask, dtype, capacity, old, new, self.type)
        size = INDEX_BYTES[dtype]
        view = view_of(mask)
        for row, (before, after) in enumerate(zip(old, new, strict=True)):
            first, last = sorted((before, after))
            value = int(after > before).to_bytes(size, "little")
            start = (row * capacity + first) * size
            view[start : start + (last - first) * size] = value * (last - first)

    def update_position_ids(self, positions: DeviceSpan, dtype: str, starts: Sequence[int], count: int) -> None:
        check_positions(positions, dtype, starts, count, self.type)
        values = array(_CODES[dtype], (start + step for start in starts for step in range(count)))
        view_of(positions)[:] = values.tobytes()


def view_of(span: DeviceSpan) -> memoryview:
    """The bytes of a span."""
    return memoryview(span.buffer.handle)[span.offset : span.offset + span.length]


def _check_bytes(view: memoryview, span: DeviceSpan, verb: str) -> None:
    if view.nbytes != span.length:
        raise BufferMismatchError(
            f"{view.nbytes} bytes cannot be {verb} a span of {span.length} bytes; take an array or a sub-span of "
            "equal length"
        )
