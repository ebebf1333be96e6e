"""Converts among float32, float16, int32, int64 and uint32. This module is the definition, and cast.wgsl matches it.

The rules hold bit for bit, for every input:

- Between floats the nearest value, ties to even; values out of range become infinite. A NaN keeps its sign and the high
  bits of its payload, and becomes quiet.
- From integer to float32 likewise, rounded once; to float16 by way of float32, which changes no result.
- From float to integer towards zero; values out of range become the nearest limit, and NaN becomes 0.
- Between integers the low bits are kept, and signed ones extended by their sign.
- A type converted to itself keeps its bits.

Elements are little-endian, as on every machine that shows web pages.
"""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["ELEMENT_BYTES", "convert"]

ELEMENT_BYTES = {"float32": 4, "float16": 2, "int32": 4, "int64": 8, "uint32": 4}
"""The types that can be converted, with the bytes of an element."""

_CODES = {"float16": "H", "int32": "i", "int64": "q", "uint32": "I"}
_RANGES = {"int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1), "uint32": (0, 2**32 - 1)}


def convert(data: Buffer, source_type: str, destination_type: str) -> bytes:
    """Convert the elements of `data` to the destination type; both types are keys of ELEMENT_BYTES."""
    if source_type == destination_type:
        return bytes(data)
    if source_type == "float32":
        floats = array("f")
        floats.frombytes(data)
        return _from_floats(floats, destination_type)
    elements = array(_CODES[source_type])
    elements.frombytes(data)
    if source_type in _RANGES:
        return _from_integers(elements, source_type, destination_type)
    floats = array("f")
    floats.frombytes(array("I", map(_widened_halfs().__getitem__, elements)).tobytes())
    return _from_floats(floats, destination_type)


def _from_integers(elements: array[int], source_type: str, destination_type: str) -> bytes:
    if destination_type in _RANGES:
        if source_type == "int64":
            return array("i", memoryview(elements).cast("B").cast("i")[::2]).tobytes()
        return array("q", elements).tobytes() if destination_type == "int64" else elements.tobytes()
    floats = array("f", map(_sticky, elements) if source_type == "int64" else elements)
    return floats.tobytes() if destination_type == "float32" else _narrowed(floats)


def _from_floats(elements: array[float], destination_type: str) -> bytes:
    if destination_type == "float32":
        return elements.tobytes()
    if destination_type == "float16":
        return _narrowed(elements)
    low, high = _RANGES[destination_type]
    return array(_CODES[destination_type], [_saturated(value, low, high) for value in elements]).tobytes()


def _saturated(value: float, low: int, high: int) -> int:
    if value != value:
        return 0
    return low if value <= low else high if value >= high else int(value)


def _sticky(value: int) -> int:
    """An integer that rounds to the same float32 as `value` and is exact as a Python float, so that the conversion
    rounds only once.
    """
    magnitude = abs(value)
    if magnitude < 2**53:
        return value
    kept = (magnitude >> 11 | (magnitude & 0x7FF != 0)) << 11
    return kept if value > 0 else -kept


@lru_cache(maxsize=1)
def _widened_halfs() -> array[int]:
    """The float32 bits of all 65536 float16 values."""
    return array("I", map(_widened, range(65536)))


def _widened(half: int) -> int:
    sign, exponent, fraction = (half & 0x8000) << 16, half >> 10 & 31, half & 0x3FF
    if exponent == 31:
        return sign | (0x7FC00000 | fraction << 13 if fraction else 0x7F800000)
    if exponent == 0:
        if fraction == 0:
            return sign
        shift = 11 - fraction.bit_length()
        return sign | (113 - shift) << 23 | (fraction << shift & 0x3FF) << 13
    return sign | (exponent + 112) << 23 | fraction << 13


def _narrowed(elements: array[float]) -> bytes:
    """Convert float32 elements to float16."""
    if not math.isnan(sum(elements)):
        try:
            return struct.pack(f"<{len(elements)}e", *elements)
        except OverflowError:
            pass  # some become infinite
    words: Iterable[int] = memoryview(elements).cast("B").cast("I")
    return array("H", map(_narrowed_bits, words)).tobytes()


def _narrowed_bits(bits: int) -> int:
    sign, magnitude = bits >> 16 & 0x8000, bits & 0x7FFFFFFF
    if magnitude > 0x7F800000:
        return sign | 0x7E00 | magnitude >> 13 & 0x3FF
    if magnitude >= 0x477FF000:  # 65520, halfway from the largest float16 to 65536
        return sign | 0x7C00
    if magnitude >= 0x38800000:  # 2**-14, the least normal float16
        rebiased = magnitude - 0x38000000
        return sign | rebiased + 0xFFF + (rebiased >> 13 & 1) >> 13
    exponent = magnitude >> 23
    if exponent < 102:  # below half the least float16
        return sign
    shift = 126 - exponent
    fraction = magnitude & 0x7FFFFF | 0x800000
    quotient, rest, half = fraction >> shift, fraction & (1 << shift) - 1, 1 << shift - 1
    return sign | quotient + (rest > half or (rest == half and quotient & 1))
