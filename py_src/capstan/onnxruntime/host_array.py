"""Represents tensors in Python's heap by any PEP 3118 buffer, with or without numpy."""

from __future__ import annotations

import sys
from array import array, typecodes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..device.element_types import ELEMENT_TYPES, byte_count, dtype_of_format
from ..errors import BindingError

__all__ = ["HostArray", "as_array", "empty"]


@dataclass(frozen=True)
class HostArray:
    """Describes a tensor's bytes, without a copy, together with their type and shape."""

    data: memoryview
    """The bytes, flat (format 'B')."""
    dtype: str
    dims: tuple[int, ...]

    @classmethod
    def of(cls, what: str, value: Any, dtype: str | None = None) -> HostArray:
        """A view of an ndarray, a memoryview, an array.array or another PEP 3118 buffer, or of a pair (flat data,
        shape).

        `what` names it in errors. Plain bytes in a pair are elements of `dtype`, if that is given. An array that is
        not C-contiguous is copied. Raises BindingError.
        """
        shape: tuple[int, ...] | None = None
        if isinstance(value, tuple) and len(value) == 2 and not isinstance(value[0], int | float):
            value, shape = value[0], tuple(int(size) for size in value[1])
        try:
            view = memoryview(value)
        except (TypeError, ValueError, BufferError) as error:
            raise BindingError(
                f"{what} is {type(value).__name__}, which gives no PEP 3118 buffer ({error}); "
                "give an ndarray, a memoryview with format and shape, an array.array or a pair (bytes, shape)"
            ) from error
        found = dtype_of_format(view.format, view.itemsize)
        if shape is not None and dtype is not None and view.format in ("B", "b", "c"):
            found = dtype
        if found is None:
            raise BindingError(
                f"{what} has elements of format {view.format!r}; they must be one of {', '.join(ELEMENT_TYPES)}, in "
                "this machine's byte order"
            )
        dims = shape if shape is not None else tuple(view.shape or ())
        needed = byte_count(found, dims)
        if needed != view.nbytes:
            raise BindingError(f"{what}: {view.nbytes} bytes were given, expected {needed} for {found} {list(dims)}")
        return cls(flat(view), found, dims)

    @classmethod
    def to_write(cls, what: str, value: Any, dtype: str | None = None) -> HostArray:
        """A writable view. Raises BindingError if the array is read-only or not C-contiguous."""
        host = cls.of(what, value, dtype)
        if host.data.nbytes and (host.data.readonly or not memoryview(_buffer(value)).c_contiguous):
            raise BindingError(f"{what} is read-only or not C-contiguous; give an array that can be written in place")
        return host


def _buffer(value: Any) -> Any:
    return value[0] if isinstance(value, tuple) else value


def flat(view: memoryview) -> memoryview:
    """The bytes of a view: the same memory if it is contiguous, else a copy."""
    if view.nbytes == 0:
        return memoryview(b"")
    try:
        return view.cast("B")
    except TypeError:
        # Not contiguous, or of a format with a byte order, such as that of ctypes.
        return memoryview(view.tobytes())


def empty(dtype: str, dims: Sequence[int]) -> HostArray:
    """A new tensor of zeros."""
    return HostArray(memoryview(bytearray(byte_count(dtype, dims))), dtype, tuple(dims))


def as_array(host: HostArray) -> Any:
    """Give the tensor to its user without a copy: as an ndarray if numpy is loaded, else as a memoryview.

    As a memoryview, a tensor with a dimension of size 0 is flat, and a float16 tensor shows its bits as uint16 if
    Python cannot cast to float16.
    """
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        if not host.data.nbytes:
            return numpy.empty(host.dims, host.dtype)
        return numpy.frombuffer(host.data, host.dtype).reshape(host.dims)
    form = ELEMENT_TYPES[host.dtype].format
    if not host.data.nbytes:
        return memoryview(array(form if form in typecodes else "B"))
    try:
        return host.data.cast(form, host.dims)  # type: ignore[call-overload]
    except ValueError:
        return host.data.cast("H", host.dims)
