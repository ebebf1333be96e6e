"""Defines how rows of caches are saved in fewer bits; web/src/worker/narrow_rows.ts does the same, byte for byte."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..narrow_rows import BLOCK, NarrowRows
from .unpacked import unpacked

__all__ = ["narrowed", "widened"]


def narrowed(rows: bytes | bytearray | memoryview, dtype: str, bits: int) -> bytes:
    """Blocks of Q8_0, or with 4 bits of Q4_1, made of float16 or float32 numbers."""
    blocks = np.frombuffer(rows, dtype).astype(np.float64).reshape(-1, BLOCK)
    if bits == 8:
        d = half(np.abs(blocks).max(1, keepdims=True) / 127)
        quants = np.clip(nearest(blocks, d), -127, 127).astype(np.int8)
        return np.concatenate([d.view(np.uint8), quants.view(np.uint8)], axis=1).tobytes()
    least = blocks.min(1, keepdims=True)
    d, m = half((blocks.max(1, keepdims=True) - least) / 15), half(least)
    q = np.clip(nearest(blocks - m, d), 0, 15).astype(np.uint8)
    half_way = BLOCK // 2
    return np.concatenate(
        [d.view(np.uint8), m.view(np.uint8), q[:, :half_way] | q[:, half_way:] << 4], axis=1
    ).tobytes()


def widened(rows: bytes | bytearray | memoryview, dtype: str, bits: int) -> bytes:
    """The float16 or float32 numbers of blocks."""
    narrow = NarrowRows(dtype, bits)
    wide = len(rows) // narrow.size(np.dtype(dtype).itemsize * BLOCK) * np.dtype(dtype).itemsize * BLOCK
    return unpacked(narrow.change(wide), bytes(rows)).tobytes()


def half(numbers: NDArray[np.float64]) -> NDArray[np.float16]:
    return numbers.astype(np.float32).astype(np.float16)


def nearest(numbers: NDArray[np.float64], d: NDArray[np.float16]) -> NDArray[np.float64]:
    """The nearest whole multiples of d, or 0 if d is 0."""
    scale = d.astype(np.float64)
    return np.floor(np.divide(numbers, scale, out=np.zeros_like(numbers), where=scale != 0) + 0.5)
