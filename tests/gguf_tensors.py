"""Random tensors of every type of a GGUF file, and all the ways in which buffers hold them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from capstan.graph import Unpack
from capstan.graph.gguf.gguf_types import DENSE, PACKED
from capstan.model_files.gguf.header import GgmlType

__all__ = ["float32_of", "random_tensor", "ways", "weights"]

HALVES_AT: dict[GgmlType, tuple[int, ...]] = {
    GgmlType.Q2_K: (80, 82),
    GgmlType.Q3_K: (108,),
    GgmlType.Q6_K: (208,),
    **dict.fromkeys((GgmlType.Q4_1, GgmlType.Q5_1, GgmlType.Q4_K, GgmlType.Q5_K), (0, 2)),
}
"""The bytes of a block at which its float16 are; 0 of the others."""


def random_tensor(kind: GgmlType, rows: int, columns: int, seed: int) -> bytes:
    """The bytes of a tensor: any but for its floats, which are finite, some of them subnormal, none larger than 2."""
    random = np.random.default_rng(seed)
    elements, size = kind.block
    data = random.integers(0, 256, (rows * columns // elements, size), np.uint8)
    if kind == GgmlType.F32:
        return random.standard_normal(rows * columns).astype(np.float32).tobytes()
    if kind == GgmlType.BF16:
        return (random.standard_normal(rows * columns).astype(np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()
    if kind == GgmlType.MXFP4:
        data[:, 0] = random.integers(108, 124, len(data))
        return data.tobytes()
    for at in HALVES_AT.get(kind, (0,)):
        data[:, at + 1] = data[:, at + 1] & 0xBF
    return data.tobytes()


def ways(kind: GgmlType, rows: int, columns: int, halves: int = 0) -> Iterator[Unpack]:
    """Everything that a buffer may have of a tensor, in each element type."""
    packing = PACKED.get(kind)
    shift = packing.shift or 0 if packing else 0
    for bits in (16, 32):
        yield Unpack(kind, "values", rows, columns, bits, halves=halves)
        yield Unpack(kind, "values", rows, columns, bits, halves=halves, stride=rows)
        if packing is not None:
            yield Unpack(kind, "scales", rows, columns, bits, packing.block, halves)
            if packing.shift is not None:
                yield Unpack(kind, "minima", rows, columns, bits, packing.block, halves, shift, rows)
    if packing is not None:
        yield Unpack(kind, "quants", rows, columns, packing.bits, halves=halves, shift=shift)
    assert packing is not None or kind in DENSE


def float32_of(kind: GgmlType, data: bytes, rows: int) -> NDArray[np.float32]:
    """The tensor as the package `gguf` reads it."""
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    held = np.frombuffer(data, np.uint8)
    held = held.view({GgmlType.F32: np.float32, GgmlType.F16: np.float16}.get(kind, np.uint8))
    made = dequantize(held.reshape(rows, -1), GGMLQuantizationType(kind))
    return np.asarray(made, np.float32)


def weights(kind: GgmlType, dims: tuple[int, ...], seed: int) -> bytes:
    """The bytes of a tensor of a model: random as before, but of the size that weights have; about 1 for vectors."""
    if len(dims) == 1:
        return (1 + np.random.default_rng(seed).standard_normal(dims) / 10).astype(np.float32).tobytes()
    data = np.frombuffer(random_tensor(kind, dims[0], dims[1], seed), np.uint8).reshape(-1, kind.block[1]).copy()
    factor = dims[1] ** -0.5 / np.std(float32_of(kind, data.tobytes(), dims[0]))
    if kind in DENSE:
        held = float32_of(kind, data.tobytes(), dims[0]) * np.float32(factor)
        if kind == GgmlType.BF16:
            return (held.view(np.uint32) >> 16).astype("<u2").tobytes()
        return held.astype(np.float16 if kind == GgmlType.F16 else np.float32).tobytes()
    if kind == GgmlType.MXFP4:
        data[:, 0] += round(np.log2(factor)) & 0xFF
        return data.tobytes()
    for at in HALVES_AT.get(kind, (0,)):
        halves = np.ascontiguousarray(data[:, at : at + 2]).view(np.float16) * np.float32(factor)
        data[:, at : at + 2] = halves.astype(np.float16).view(np.uint8)
    return data.tobytes()
