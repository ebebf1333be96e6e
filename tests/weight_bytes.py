"""The bytes of a weight, from those of its data file: the definition of a right upload."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from typing import Any

import numpy as np

from capstan.graph import Angles, Beside, Narrow, Part, Turn, WeightEntry

__all__ = ["angle_table", "beside_one_another", "bytes_of", "part_bytes"]


def bytes_of(entry: WeightEntry, data: bytes) -> bytes:
    if any(isinstance(part.change, Beside) for part in entry.pieces):
        return beside_one_another(entry.pieces, data)
    return b"".join(part_bytes(part, data) for part in entry.pieces)


def beside_one_another(parts: Sequence[Part], data: bytes) -> bytes:
    """The buffer's bytes of parts whose rows are beside one another."""
    matrices = []
    for part in parts:
        assert isinstance(part.change, Beside)
        held = np.frombuffer(data[part.offset : part.offset + part.length], np.uint8)
        matrices.append(held.reshape(-1, part.change.row))
    joined = np.concatenate(matrices, axis=1)
    assert {part.change.stride for part in parts if isinstance(part.change, Beside)} == {joined.shape[1]}
    return joined.tobytes()


def part_bytes(part: Part, data: bytes) -> bytes:
    """One part's bytes in the buffer."""
    held = np.frombuffer(data[part.offset : part.offset + part.length], np.uint8)
    if isinstance(part.change, Narrow):
        return held.view(np.float32).astype(np.float16).tobytes()
    if isinstance(part.change, Angles):
        return angle_table(part.change).tobytes()
    if part.change is None:
        return held.tobytes()
    assert isinstance(part.change, Turn)
    rows, columns, bits = part.change.rows, part.change.columns, part.change.bits
    if bits == 4:
        elements = np.stack([held & 15, held >> 4], axis=1).reshape(-1)[: rows * columns]
    else:
        elements = held.view({8: np.uint8, 16: np.uint16, 32: np.uint32}[bits])
    if part.change.flipped:
        elements = elements ^ elements.dtype.type(1 << (bits - 1))
    turned = np.ascontiguousarray(elements.reshape(rows, columns).T)
    if bits == 4:
        turned = np.pad(turned, ((0, 0), (0, rows % 2)))
        turned = turned[:, ::2] | turned[:, 1::2] << 4
    return turned.tobytes()


def angle_table(angles: Angles) -> np.ndarray[Any, np.dtype[Any]]:
    """The table, computed by NumPy."""
    frequencies = np.frombuffer(b64decode(angles.frequencies), "<f4")
    products = (np.arange(angles.rows, dtype=np.float32)[:, None] * frequencies).astype(np.float64)
    waves = (np.cos if angles.wave == "cos" else np.sin)(products).astype(np.float32) * np.float32(angles.scale)
    table: np.ndarray[Any, np.dtype[Any]] = waves.astype(np.float16 if angles.bits == 16 else np.float32)
    return table
