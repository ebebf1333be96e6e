"""Defines how matrix products and tables hold each type of a GGUF file's tensors.

A quantized weight of the file is `d * q`, or `d * q + m` if the type has minima; d and m belong to a block of a row.
MatMulNBits computes `d * (Q - zero)` with a zero of half the range. So `Q = q + zero - shift`, and `m + d * shift` are
the remaining minima, which a second matrix product multiplies by the sums of the blocks of x. `shift` is the middle of
q, so that the remaining minima are small.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...model_files.gguf.header import GgmlType

__all__ = ["DENSE", "PACKED", "Packing"]

DENSE = (GgmlType.F32, GgmlType.F16, GgmlType.BF16)
"""Types without blocks."""


@dataclass(frozen=True)
class Packing:
    """Describes how MatMulNBits holds a quantized type, for the buffer's blocks."""

    bits: int
    block: int
    """Elements of a row that share a scale."""
    shift: int | None = None
    """For types with minima, the q that becomes zero; None for the others, whose q is signed."""


PACKED: Mapping[GgmlType, Packing] = {
    GgmlType.Q4_0: Packing(4, 32),
    GgmlType.Q4_1: Packing(4, 32, shift=8),
    GgmlType.Q5_0: Packing(8, 32),
    GgmlType.Q5_1: Packing(8, 32, shift=16),
    GgmlType.Q8_0: Packing(8, 32),
    GgmlType.Q2_K: Packing(4, 16, shift=2),
    GgmlType.Q3_K: Packing(4, 16),
    GgmlType.Q4_K: Packing(4, 32, shift=8),
    GgmlType.Q5_K: Packing(8, 32, shift=16),
    GgmlType.Q6_K: Packing(8, 16),
    GgmlType.IQ4_NL: Packing(8, 32),
    GgmlType.IQ4_XS: Packing(8, 32),
    GgmlType.MXFP4: Packing(8, 32),
}
