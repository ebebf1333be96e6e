"""Defines how tensors of a GGUF file are rearranged; web/src/worker/shaders/memory/unpack.wgsl does the same.

Each type's function takes blocks of bytes, [blocks, bytes], and gives for each block its q, [blocks, elements], and its
d and m, [blocks, elements / block]; see graph/gguf/gguf_types.py. m is None for types without minima. d is exact in
float32, since it is a float16 times an integer of at most 8 bits; so is m.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from ...graph import Unpack, WeightEntry
from ...graph.gguf.gguf_types import PACKED
from ...graph.model_file import PARTS
from ...graph.onnx_pb2 import ModelProto
from ...graph.weight_inputs import entry_of
from ...host.disk_file import open_file
from ...model_files.gguf.header import GgmlType

__all__ = ["made_weights", "unpacked", "weight_bytes"]

Bytes: TypeAlias = NDArray[np.uint8]
Floats: TypeAlias = NDArray[np.float32]
Block: TypeAlias = tuple[NDArray[np.int16], Floats, Floats | None]

IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int16)
FP4 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int16)
"""Twice the values of a float of 4 bits."""


def halves(data: Bytes, at: int) -> Floats:
    """The float16 at a byte of each block, [blocks, 1]."""
    return np.ascontiguousarray(data[:, at : at + 2]).view(np.float16).astype(np.float32)


def fields(data: Bytes, at: int, groups: int, width: int, bits: int) -> NDArray[np.int16]:
    """The elements of `groups * width` bytes, beginning at byte `at`: each group gives the lowest `bits` of all its
    bytes, then the next `bits`."""
    held = data[:, at : at + groups * width].reshape(-1, groups, 1, width)
    shifts = np.arange(0, 8, bits, dtype=np.uint8).reshape(1, 1, -1, 1)
    return (held >> shifts & ((1 << bits) - 1)).reshape(len(data), -1).astype(np.int16)


def each_bit(data: Bytes, at: int) -> NDArray[np.int16]:
    """The 32 bits that begin at byte `at`, the lowest first."""
    return np.unpackbits(data[:, at : at + 4], axis=1, bitorder="little").astype(np.int16)


def scales_of_six_bits(data: Bytes) -> tuple[NDArray[np.int16], NDArray[np.int16]]:
    """The 8 scales and the 8 minima of Q4_K and Q5_K, in bytes 4 to 15."""
    d, m, both = data[:, 4:8], data[:, 8:12], data[:, 12:16]
    scales = np.concatenate([d & 63, both & 15 | d >> 2 & 48], axis=1)
    return scales.astype(np.int16), np.concatenate([m & 63, both >> 4 | m >> 2 & 48], axis=1).astype(np.int16)


def q4_k(data: Bytes) -> Block:
    scales, minima = scales_of_six_bits(data)
    return fields(data, 16, 4, 32, 4), halves(data, 0) * scales, -halves(data, 2) * minima


def q5_k(data: Bytes) -> Block:
    scales, minima = scales_of_six_bits(data)
    q = fields(data, 48, 4, 32, 4) + fields(data, 16, 1, 32, 1) * 16
    return q, halves(data, 0) * scales, -halves(data, 2) * minima


def q3_k(data: Bytes) -> Block:
    low, high = fields(data, 96, 1, 8, 4), fields(data, 104, 1, 4, 2)
    q = fields(data, 32, 2, 32, 2) + fields(data, 0, 1, 32, 1) * 4 - 4
    return q, halves(data, 108) * (low + high * 16 - 32), None


def q6_k(data: Bytes) -> Block:
    q = fields(data, 0, 2, 64, 4) + fields(data, 128, 2, 32, 2) * 16 - 32
    return q, halves(data, 208) * data[:, 192:208].view(np.int8), None


def iq4_xs(data: Bytes) -> Block:
    low = np.stack([data[:, 4:8] & 15, data[:, 4:8] >> 4], axis=2).reshape(-1, 8).astype(np.int16)
    high = np.stack([data[:, 2:4] >> 2 * place & 3 for place in range(4)], axis=2).reshape(-1, 8).astype(np.int16)
    return IQ4[fields(data, 8, 8, 16, 4)], halves(data, 0) * (low + high * 16 - 32), None


def mxfp4(data: Bytes) -> Block:
    exponent = data[:, :1].astype(np.uint32)
    bits = np.where(exponent < 2, np.uint32(1 << 21) << exponent, (exponent - 1) << 23).astype(np.uint32)
    return FP4[fields(data, 1, 1, 16, 4)], bits.view(np.float32), None


BLOCKS: Mapping[GgmlType, Callable[[Bytes], Block]] = {
    GgmlType.Q4_0: lambda data: (fields(data, 2, 1, 16, 4) - 8, halves(data, 0), None),
    GgmlType.Q4_1: lambda data: (fields(data, 4, 1, 16, 4), halves(data, 0), halves(data, 2)),
    GgmlType.Q5_0: lambda data: (fields(data, 6, 1, 16, 4) + each_bit(data, 2) * 16 - 16, halves(data, 0), None),
    GgmlType.Q5_1: lambda data: (fields(data, 8, 1, 16, 4) + each_bit(data, 4) * 16, halves(data, 0), halves(data, 2)),
    GgmlType.Q8_0: lambda data: (data[:, 2:34].view(np.int8).astype(np.int16), halves(data, 0), None),
    GgmlType.Q2_K: lambda data: (
        fields(data, 16, 2, 32, 2),
        halves(data, 80) * (data[:, :16] & 15),
        -halves(data, 82) * (data[:, :16] >> 4),
    ),
    GgmlType.Q3_K: q3_k,
    GgmlType.Q4_K: q4_k,
    GgmlType.Q5_K: q5_k,
    GgmlType.Q6_K: q6_k,
    GgmlType.IQ4_NL: lambda data: (IQ4[fields(data, 2, 1, 16, 4)], halves(data, 0), None),
    GgmlType.IQ4_XS: iq4_xs,
    GgmlType.MXFP4: mxfp4,
}


def unpacked(how: Unpack, data: bytes) -> NDArray[Any]:
    """The matrix that a tensor of these bytes becomes: [rows, columns / block], or [columns / block, rows] with a
    stride; quants in bytes, [rows, columns * bits / 8]."""
    kind = GgmlType(how.type)
    if kind in PACKED:
        made = of_blocks(how, kind, np.frombuffer(data, np.uint8).reshape(-1, kind.block[1]))
    elif kind == GgmlType.BF16:
        made = (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    else:
        made = np.frombuffer(data, np.float32 if kind == GgmlType.F32 else np.float16)
    matrix = made.reshape(how.rows, -1)
    if how.halves:
        matrix = matrix.reshape(-1, how.halves // 2, 2, matrix.shape[1]).swapaxes(1, 2).reshape(matrix.shape)
    if how.what != "quants":
        with np.errstate(over="ignore"):
            matrix = matrix.astype(np.float16 if how.bits == 16 else np.float32)
    elif how.bits == 4:
        matrix = matrix[:, ::2] | matrix[:, 1::2] << 4
    return np.ascontiguousarray(matrix.T if how.stride else matrix)


def made_weights(model: ModelProto, folder: Path) -> dict[str, Any]:
    """The weights of a GGUF file in `folder` as onnxruntime takes them, by name. Changes the model in place: the
    weights become external data without parts. None for a model of another format.
    """
    made = {}
    for tensor in model.graph.initializer:
        if not any(item.key == PARTS for item in tensor.external_data):
            continue
        entry = entry_of(tensor)
        with open_file(folder / entry.location) as file:
            data = weight_bytes(entry, partial(read_at, file))
        kind = np.dtype(entry.dtype)
        made[tensor.name] = onnxruntime.OrtValue.ortvalue_from_numpy(np.frombuffer(data, kind).reshape(entry.dims))
        del tensor.external_data[:]
        for key, value in (("location", entry.location), ("length", str(entry.length))):
            tensor.external_data.add(key=key, value=value)
    return made


def read_at(file: BinaryIO, offset: int, length: int) -> bytes:
    file.seek(offset)
    return file.read(length)


def weight_bytes(entry: WeightEntry, read: Callable[[int, int], bytes]) -> bytes:
    """The bytes of a weight of a GGUF file; `read(offset, length)` gives those of the file."""
    made = []
    for part in entry.pieces:
        data = read(part.offset, part.length)
        made.append(unpacked(part.change, data) if isinstance(part.change, Unpack) else np.frombuffer(data, np.uint8))
    changes = [part.change for part in entry.pieces if isinstance(part.change, Unpack)]
    if any(each.stride > each.rows or each.between for each in changes):
        made = [np.concatenate(made, axis=1)]
    return b"".join(each.tobytes() for each in made)


def of_blocks(how: Unpack, kind: GgmlType, data: Bytes) -> NDArray[Any]:
    q, d, m = BLOCKS[kind](data)
    if how.what == "quants":
        return (q + (1 << (how.bits - 1)) - how.shift).astype(np.uint8)
    if how.what == "scales":
        return np.repeat(d, PACKED[kind].block // how.block, axis=1)
    if how.what == "minima":
        assert m is not None, f"{kind.name} has no minima"
        return d * np.float32(how.shift) + m
    values = (q.reshape(*d.shape, -1) * d[..., None]).astype(np.float32)
    return values if m is None else values + m[..., None]
