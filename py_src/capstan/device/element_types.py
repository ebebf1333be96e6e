"""Lists the element types with their four names: those of onnxruntime-web, ONNX (a number), onnxruntime and PEP
3118.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import BindingError

__all__ = ["ELEMENT_TYPES", "ONNX_NAMES", "ElementType", "byte_count", "dtype_of", "dtype_of_format"]


@dataclass(frozen=True)
class ElementType:
    """One element type; `size` is bytes an element."""

    onnx: int
    """TensorProto.DataType."""
    tensor: str
    """onnxruntime's name, as in 'tensor(float)'."""
    format: str
    """PEP 3118's character."""
    size: int


ELEMENT_TYPES = {
    "float32": ElementType(1, "tensor(float)", "f", 4),
    "uint8": ElementType(2, "tensor(uint8)", "B", 1),
    "int8": ElementType(3, "tensor(int8)", "b", 1),
    "uint16": ElementType(4, "tensor(uint16)", "H", 2),
    "int16": ElementType(5, "tensor(int16)", "h", 2),
    "int32": ElementType(6, "tensor(int32)", "i", 4),
    "int64": ElementType(7, "tensor(int64)", "q", 8),
    "bool": ElementType(9, "tensor(bool)", "?", 1),
    "float16": ElementType(10, "tensor(float16)", "e", 2),
    "float64": ElementType(11, "tensor(double)", "d", 8),
    "uint32": ElementType(12, "tensor(uint32)", "I", 4),
    "uint64": ElementType(13, "tensor(uint64)", "Q", 8),
}
"""By onnxruntime-web's name, which is numpy's too."""
ONNX_NAMES = {kind.onnx: name for name, kind in ELEMENT_TYPES.items()}
"""The names of element types, by ONNX's numbers."""

PYTHON_TYPES = {float: "float64", int: "int64", bool: "bool"}

# C's integer characters have the platform's sizes: 'l' is 8 bytes on Linux, 4 in a page.
KINDS = {**dict.fromkeys("bhilqn", "int"), **dict.fromkeys("BHILQN", "uint"), **dict.fromkeys("efd", "float")}


def dtype_of(given: Any) -> str:
    """The name of an element type, which callers give as a name, ONNX's number, 'tensor(float)', a numpy dtype or type.

    Raises BindingError for anything else.
    """
    if isinstance(given, str):
        if given in ELEMENT_TYPES:
            return given
        found = [name for name, kind in ELEMENT_TYPES.items() if kind.tensor == given]
    elif isinstance(given, int):
        found = [ONNX_NAMES[given]] if given in ONNX_NAMES else []
    elif isinstance(given, type) and given in PYTHON_TYPES:
        found = [PYTHON_TYPES[given]]
    else:
        name = getattr(given, "name", None) or getattr(given, "__name__", None)
        found = [name.rstrip("_")] if isinstance(name, str) and name.rstrip("_") in ELEMENT_TYPES else []
    if not found:
        raise BindingError(f"{given!r} is not an element type; it must be one of {', '.join(ELEMENT_TYPES)}")
    return found[0]


def dtype_of_format(form: str, size: int) -> str | None:
    """The name for a PEP 3118 format whose elements have `size` bytes; None for a record, a string, swapped bytes."""
    form = form.lstrip("@=<")
    if form == "?":
        return "bool"
    name = f"{KINDS.get(form, '')}{8 * size}"
    return name if name in ELEMENT_TYPES else None


def byte_count(dtype: str, dims: Sequence[int]) -> int:
    """Bytes of a tensor of that shape."""
    return ELEMENT_TYPES[dtype].size * math.prod(dims)
