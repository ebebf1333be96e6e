"""Checks whether a tensor fits an input or output of a session. Every error has the tensor's name, the expected value
and the given value.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ..device.device_interface import BoundSpan, DeviceSession, Fetch, TensorSpec
from ..device.element_types import ELEMENT_TYPES, byte_count
from ..errors import BindingError, BufferMismatchError
from ..memory import DeviceSpan, MemoryInfo, check_use, why_incompatible

__all__ = [
    "check_apart",
    "check_dims",
    "check_dtype",
    "check_held",
    "check_placed",
    "check_room",
    "check_span",
    "known",
]


def known(kind: str, specs: Mapping[str, TensorSpec], name: str) -> TensorSpec:
    """Find the input or output of that name; `kind` is 'input' or 'output'."""
    if name not in specs:
        raise BindingError(f"the model has no {kind} {name!r}; it has {', '.join(map(repr, specs))}")
    return specs[name]


def check_dtype(kind: str, spec: TensorSpec, dtype: str) -> None:
    """Raise BindingError unless the element type is the model's."""
    if dtype != spec.dtype:
        raise BindingError(f"{kind} {spec.name!r} is {spec.dtype}, got {dtype}; convert the array with astype")


def check_dims(kind: str, spec: TensorSpec, dims: Sequence[int]) -> None:
    """Raise BindingError unless the rank and the fixed dimensions are the model's. Free dimensions accept any size."""
    fits = len(dims) == len(spec.dims) and all(
        isinstance(expected, str) or expected == got for expected, got in zip(spec.dims, dims, strict=True)
    )
    if not fits:
        raise BindingError(
            f"{kind} {spec.name!r} has shape {list(spec.dims)}, got {list(dims)}; reshape the array (free dimensions "
            "take any size)"
        )


def check_span(kind: str, name: str, span: DeviceSpan, dtype: str, dims: Sequence[int]) -> None:
    """Raise BufferMismatchError if the buffer was closed, is too small or begins between two elements."""
    where = f"{kind} {name!r}: buffer {span.buffer.label!r}"
    if span.buffer.closed:
        raise BufferMismatchError(f"{where} was closed; bind an open one")
    needed = byte_count(dtype, dims)
    if span.length < needed:
        raise BufferMismatchError(
            f"{where} has {span.length} bytes, but {dtype} {list(dims)} needs {needed}; bind a larger buffer"
        )
    size = ELEMENT_TYPES[dtype].size
    if span.offset % size:
        raise BufferMismatchError(
            f"{where} is used from byte {span.offset}, expected a multiple of {size}, the size of {dtype}; "
            "align the span"
        )


def check_held(kind: str, name: str, dtype: str, session: DeviceSession) -> None:
    """Raise BufferMismatchError unless the session takes tensors of that type in its device's memory."""
    if not session.holds(dtype):
        raise BufferMismatchError(
            f"{kind} {name!r}: {dtype} on the device, expected 'cpu': onnxruntime-web takes no GPU buffer for it; "
            "bind an array"
        )


def check_room(name: str, span: DeviceSpan, dtype: str, dims: Sequence[int]) -> None:
    """Raise BufferMismatchError if writing an output, in whole words, would write past its span."""
    size = byte_count(dtype, dims)
    if size % 4 and span.offset + span.length < span.buffer.size:
        raise BufferMismatchError(
            f"output {name!r}: buffer {span.buffer.label!r} continues after the {size} bytes of the tensor, expected "
            "its end or a multiple of 4 bytes: a GPU writes whole words; bind a separate buffer"
        )


def check_apart(feeds: Sequence[BoundSpan], fetches: Sequence[Fetch], in_place: Collection[tuple[str, str]]) -> None:
    """Raise BindingError if an output shares bytes with another tensor of the run, because a write to one would change
    the other.

    `in_place` has the pairs (input, output) that the model's attention keeps in one buffer.
    """
    others = [("input", feed, extent(feed)) for feed in feeds]
    for fetch in fetches:
        if not isinstance(fetch, BoundSpan):
            continue
        where = extent(fetch)
        for kind, other, taken in others:
            if not overlap(where, taken) or ((other.name, fetch.name) in in_place and where == taken):
                continue
            raise BindingError(
                f"output {fetch.name!r} and {kind} {other.name!r} share memory of buffer {fetch.span.buffer.label!r}: "
                f"one would overwrite the other; bind output {fetch.name!r} to separate memory"
            )
        others.append(("output", fetch, where))


Extent = tuple[object, int, int]
"""The memory, with the first byte and the end in it."""


def extent(tensor: BoundSpan) -> Extent:
    """The range of bytes that a tensor's elements occupy. Read-only arrays are assumed to share no bytes with arrays
    that are written.
    """
    span, size = tensor.span, byte_count(tensor.dtype, tensor.dims)
    memory = span.buffer.memory
    if memory.heap != "python":
        return (memory.device, memory.device_id, span.buffer.handle), span.offset, span.offset + size
    view = memoryview(span.buffer.handle)
    if view.readonly or not size:
        return view, 0, 0
    start = address_of(view) + span.offset
    return "python", start, start + size


def address_of(view: memoryview) -> int:
    """The address of writable bytes in Python's heap."""
    from ctypes import addressof, c_char  # noqa: PLC0415  (for several arrays only)

    return addressof(c_char.from_buffer(view))


def overlap(a: Extent, b: Extent) -> bool:
    return a[0] == b[0] and max(a[1], b[1]) < min(a[2], b[2])


def check_placed(kind: str, name: str, span: DeviceSpan, memory: MemoryInfo) -> None:
    """Raise BufferMismatchError unless the session's device can use the span in place, and MemoryTypeError for another
    type of the device's memory. Results are copied to host accessible memory, where they may begin anywhere in a
    buffer.
    """
    where = f"{kind} {name!r}: buffer {span.buffer.label!r}"
    if (span.buffer.memory.device, span.buffer.memory.device_id) == (memory.device, memory.device_id):
        check_use(kind, span, what=f"{kind} {name!r}")
    elif reason := why_incompatible(span.buffer.memory, memory):
        raise BufferMismatchError(
            f"{where} is in {span.buffer.memory.name} of {span.buffer.memory.device} "
            f"{span.buffer.memory.device_id}, expected {memory.name} of {memory.device} {memory.device_id} "
            f"({reason}); copy it to that device first"
        )
    if not memory.heap and span.buffer.memory.memory_type is memory.memory_type and span.offset:
        raise BufferMismatchError(
            f"{where} is used from byte {span.offset}, expected byte 0: onnxruntime-web binds whole buffers; copy the "
            "span into a separate buffer"
        )
