"""Rows of quantized key/value caches in NumPy, as onnxruntime's WebGPU provider packs them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["LEVELS", "packed_rows", "unpacked_rows"]

HALF = (0.0113, 0.0342, 0.0578, 0.0829, 0.1104, 0.1419, 0.1809, 0.2377)
LEVELS = np.array([-level for level in reversed(HALF)] + list(HALF), np.float32)
"""Elements of 4 bits, as parts of the row's length."""


def packed_rows(rows: npt.NDArray[Any], bits: int) -> npt.NDArray[np.uint32]:
    """Rows [..., head] as words: the scale, then bytes around 128 or pairs of the numbers of levels. Rows of NaN have a
    scale of NaN."""
    if bits == 8:
        scales = np.abs(rows).max(axis=-1, keepdims=True) / 127
    else:
        scales = np.sqrt(np.square(rows.astype(np.float64)).sum(axis=-1, keepdims=True))
    scales = scales.astype(np.float32)
    parts = np.nan_to_num(rows / np.where(scales > 0, scales, np.float32(np.inf)))
    if bits == 8:
        numbers = (np.round(parts) + 128).astype(np.uint8)
    else:
        nearest = np.abs(parts[..., None] - LEVELS).argmin(axis=-1).astype(np.uint8)
        numbers = nearest[..., ::2] | nearest[..., 1::2] << 4
    words = np.ascontiguousarray(numbers).view(np.uint32)
    return np.concatenate([scales.view(np.uint32), words], axis=-1)


def unpacked_rows(words: npt.NDArray[np.uint32], bits: int) -> npt.NDArray[np.float32]:
    """The numbers in such rows."""
    scales = np.ascontiguousarray(words[..., :1]).view(np.float32)
    numbers = np.ascontiguousarray(words[..., 1:]).view(np.uint8)
    if bits == 8:
        return (numbers.astype(np.float32) - 128) * scales
    both = np.stack([numbers & 15, numbers >> 4], axis=-1)
    return LEVELS[both.reshape(*numbers.shape[:-1], -1)] * scales
