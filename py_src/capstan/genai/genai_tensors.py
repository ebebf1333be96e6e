"""Converts tensors and the arrays that scripts for onnxruntime-genai pass and receive."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from math import prod
from operator import index
from typing import Any

from ..errors import ArgumentTypeError, BindingError, PromptError
from ..model_files.bounded_json import clipped

try:
    import numpy
except ImportError:  # a page without numpy's wheel
    numpy: Any = None  # type: ignore[no-redef]

__all__ = ["NamedTensors", "Tensor", "as_array", "flat_numbers", "numpy", "of_bytes", "token_rows"]

FORMATS = {"int32": "i", "int64": "q", "float32": "f"}
ELEMENT_TYPES = {
    "float32": 1,
    "uint8": 2,
    "int8": 3,
    "uint16": 4,
    "int16": 5,
    "int32": 6,
    "int64": 7,
    "bool": 9,
    "float16": 10,
    "float64": 11,
    "uint32": 12,
    "uint64": 13,
}
"""ONNX's numbers of the element types of a Tensor."""


def as_array(values: Iterable[int] | Iterable[float], dtype: str, shape: Sequence[int]) -> Any:
    """Convert values to an ndarray, or without numpy to a memoryview, which has no dimension of size 0."""
    data: array[Any] = array(FORMATS[dtype], values)
    if numpy is not None:
        return numpy.frombuffer(data, dtype).reshape(shape) if len(data) else numpy.empty(shape, dtype)
    return memoryview(data).cast("B").cast(FORMATS[dtype], tuple(shape)) if len(data) else memoryview(data)


def of_bytes(data: bytes, dtype: str, shape: Sequence[int]) -> Any:
    """Convert numbers to an ndarray, or without numpy to a memoryview. The memoryview of float16 numbers shows their
    bits.
    """
    if numpy is not None:
        return numpy.frombuffer(data, dtype).reshape(shape).copy()
    kind = {**FORMATS, "float16": "H"}[dtype]
    return memoryview(data).cast(kind, tuple(shape)) if data else memoryview(data)


def listed(value: Any) -> Any:
    """Convert an array, a Tensor, or lists of these to lists."""
    if isinstance(value, Tensor):
        value = value.as_numpy()
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Iterable) and not isinstance(value, bytes | bytearray | str):
        return [listed(item) for item in value]
    return value


def token_rows(tokens: Any) -> list[list[int]]:
    """Read rows of token ids from a number, a list, an array or a Tensor of one or two dimensions.

    Raises PromptError for values that are not integers, and for rows of different length; the native package takes 1.5
    for 1 and '5' for 5.
    """
    if tokens is None or isinstance(tokens, bytes | bytearray | str):
        kind = type(tokens).__name__
        raise ArgumentTypeError(f"tokens is {clipped(tokens)}, of type {kind}; give ids, as the tokenizer encodes text")
    items = listed(tokens)
    if not isinstance(items, list):
        items = [items]
    rows = items if items and all(isinstance(item, list) for item in items) else [items]
    found = [[token_of(item, place) for place, item in enumerate(row)] for row in rows]
    if len({len(row) for row in found}) > 1:
        lengths = ", ".join(str(len(row)) for row in found)
        raise PromptError(f"the rows have {lengths} tokens; pad them to one length, as Tokenizer.encode_batch does")
    return found


def token_of(item: Any, place: int) -> int:
    try:
        if isinstance(item, bool):
            raise TypeError
        return index(item)
    except TypeError:
        raise PromptError(f"token {place} is {item!r}; token ids are integers") from None


def flat_numbers(values: Any) -> list[float]:
    """All numbers of an array or of nested lists, in order."""

    def walk(item: Any) -> Iterable[float]:
        if isinstance(item, list):
            for inner in item:
                yield from walk(inner)
        elif isinstance(item, int | float):
            yield float(item)
        else:
            raise ArgumentTypeError(f"a number is {clipped(item)}, of type {type(item).__name__}; give numbers")

    return list(walk(listed(values)))


class Tensor:
    """An array, copied when it is made. Raises TypeError for anything else, BindingError for an element type unknown to
    ONNX tensors.
    """

    def __init__(self, values: Any, /) -> None:
        if isinstance(values, list | tuple | str | bytes):
            raise ArgumentTypeError(f"Tensor: {clipped(values)} is of type {type(values).__name__}; give an ndarray")
        if numpy is not None:
            values = numpy.array(values, order="C", copy=True)
            dtype, shape = str(values.dtype), list(values.shape)
        else:
            view = memoryview(values)
            names = {form: name for name, form in FORMATS.items()} | {"l": "int64"}
            dtype, shape = names.get(view.format, view.format), list(view.shape)
            values = memoryview(bytearray(view.tobytes())).cast(view.format, tuple(shape))
        if dtype not in ELEMENT_TYPES:
            raise BindingError(
                f"Tensor: its elements are of type {dtype}; they must be one of {', '.join(ELEMENT_TYPES)}"
            )
        self._values, self._dtype, self._shape = values, dtype, shape

    @property
    def dtype(self) -> str:
        """The element type by numpy's name."""
        return self._dtype

    def shape(self) -> list[int]:
        """The sizes of the dimensions."""
        return list(self._shape)

    def type(self) -> int:
        """ONNX's number of the element type; the native package raises TypeError here."""
        return ELEMENT_TYPES[self._dtype]

    def data(self) -> memoryview:
        """The bytes; the native package gives an address."""
        return memoryview(self._values).cast("B") if prod(self._shape) else memoryview(b"")

    def as_numpy(self) -> Any:
        """A copy as an ndarray (a memoryview without numpy)."""
        if numpy is not None:
            return self._values.copy()
        return memoryview(bytearray(self.data())).cast(self._values.format, self._values.shape)


class NamedTensors:
    """Tensors by name."""

    def __init__(self) -> None:
        self._tensors: dict[str, Tensor] = {}

    def __contains__(self, name: str, /) -> bool:
        return name in self._tensors

    def __delitem__(self, name: str, /) -> None:
        self._tensors.pop(name, None)

    def __getitem__(self, name: str, /) -> Tensor:
        if name not in self._tensors:
            raise BindingError(f"there is no tensor {name!r}; the names are {', '.join(self._tensors) or 'none'}")
        return self._tensors[name]

    def __setitem__(self, name: str, value: Any, /) -> None:
        self._tensors[name] = value if isinstance(value, Tensor) else Tensor(value)

    def __len__(self) -> int:
        return len(self._tensors)

    def keys(self) -> list[str]:
        """The names."""
        return list(self._tensors)
