"""Allocates the activations and the weights of a program in its memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from ...graph import CachePair, Unpack, UnpackedWeight, WeightEntry, WideWeight, external_entries
from ...graph.gguf.gguf_types import PACKED
from ...graph.nbits_products import INT8_ACTIVATIONS
from ...graph.onnx_pb2 import ModelProto, NodeProto, TensorProto
from ...model_files.gguf.header import GgmlType
from .cpu_program import BLOCK, FLOAT, CpuWeight, Scales, Split, aligned, packed_bytes

__all__ = [
    "BY_ROWS",
    "LENGTHS",
    "Activated",
    "HeadNorm",
    "Joined",
    "Known",
    "Lengths",
    "Memory",
    "Share",
    "UnknownGraphError",
    "WHOLE_ROWS",
    "Value",
    "Weights",
    "apart",
    "cache_places",
]

CONTROL = 1024
"""Bytes at the start of the memory, for the threads' barrier."""


SCALES: Mapping[GgmlType, Scales] = {
    **dict.fromkeys((GgmlType.Q4_0, GgmlType.Q5_0, GgmlType.Q8_0, GgmlType.IQ4_NL), Scales.CENTRED),
    **dict.fromkeys((GgmlType.Q4_1, GgmlType.Q5_1), Scales.HALVES),
    **dict.fromkeys((GgmlType.Q4_K, GgmlType.Q6_K), Scales.BYTES),
}
"""Types whose scales stay as a file has them; those of others are floats."""


class UnknownGraphError(Exception):
    """A graph has a node that no operation of a program computes."""


class Share(NamedTuple):
    """How threads share an operation: how its parts are dealt out, and the columns of a part."""

    unit: int
    split: Split


BY_ROWS = Share(BLOCK, Split.ROWS_OR_COLUMNS)
WHOLE_ROWS = Share(0, Split.ROWS)


class HeadNorm(NamedTuple):
    """A norm that is computed for each head separately."""

    weight: int
    """Its address."""
    size: int
    epsilon: float


@dataclass(eq=False)
class Value:
    """An activation: rows of `width` float32, `row` bytes apart."""

    address: int
    width: int
    row: int
    bytes: int
    kept: bool = False
    reads: int = 0
    """The number of reads by nodes that are still to come."""
    quantized: tuple[int, int] | None = None
    """The address and the bytes of the same activation in 8 bits."""
    share: Share = BY_ROWS
    """How the threads that computed it shared the work."""
    whole: Value | None = None
    """The value whose rows include those of this one."""
    norm: HeadNorm | None = None
    """The norm of each of its heads; attention computes it."""


@dataclass(frozen=True)
class Activated:
    """x * sigmoid(x), sigmoid(x) alone or the gelu of x by tanh, which a gate computes."""

    of: Value
    whole: bool
    gelu: bool = False


@dataclass(frozen=True)
class Joined:
    """Activations side by side."""

    parts: tuple[Value, ...]


class Lengths:
    """A length in positions that each run passes to the program."""


LENGTHS = Lengths()
Known: TypeAlias = Value | Activated | Joined | Lengths


class Memory:
    """Allocates addresses; freed memory is used first."""

    def __init__(self) -> None:
        self.end = CONTROL
        self._free: list[tuple[int, int]] = []

    def take(self, size: int) -> int:
        """The address of `size` bytes: the smallest free range that fits, or new memory."""
        fitting = [each for each in self._free if size <= each[1] <= 2 * size]
        return self._again(min(fitting, key=lambda each: each[1])) if fitting else self.hold(size)

    def hold(self, size: int) -> int:
        """The address of `size` new bytes."""
        address, self.end = self.end, aligned(self.end + size)
        return address

    def release(self, value: Value) -> None:
        """Free the memory of a value that no node reads any more."""
        if value.reads == 0 and value.bytes:
            self._free.append((value.address, value.bytes))
            if value.quantized is not None:
                self._free.append(value.quantized)
                value.quantized = None
            value.bytes = 0

    def _again(self, free: tuple[int, int]) -> int:
        """Use a free range again, as a whole, so that it is later freed as a whole."""
        self._free.remove(free)
        return free[0]


class Weights:
    """The weights of a graph; each is put into the memory when it is first read."""

    def __init__(self, model: ModelProto, made: Sequence[WideWeight | UnpackedWeight], memory: Memory) -> None:
        self._memory = memory
        self._sources = {each.location: each for each in made}
        self._entries = {each.name: each for each in external_entries(model)}
        self._found: dict[str, CpuWeight] = {}

    def all(self) -> tuple[CpuWeight, ...]:
        return tuple(self._found.values())

    def packed(self, node: NodeProto, place: int) -> CpuWeight:
        """A packed weight that a node reads. Raises UnknownGraphError."""
        found = self.of(node, place)
        if found.form < 0:
            raise UnknownGraphError(f"a product has weights in floats ({node.name})")
        return found

    def floats(self, node: NodeProto, place: int) -> CpuWeight:
        """A weight in floats that a node reads. Raises UnknownGraphError."""
        found = self.of(node, place)
        if found.form >= 0:
            raise UnknownGraphError(f"input {place} of a {node.op_type} is packed ({node.name})")
        return found

    def of(self, node: NodeProto, place: int) -> CpuWeight:
        """A weight that a node reads. Raises UnknownGraphError."""
        name = node.input[place]
        if name not in self._found:
            entry = self._entries.get(name)
            if entry is None:
                raise UnknownGraphError(f"a weight of a {node.op_type} is computed or inside the graph ({node.name})")
            if entry.onnx_type != TensorProto.FLOAT:
                raise UnknownGraphError(f"a weight of a {node.op_type} is {entry.dtype} ({node.name})")
            source = self._sources.get(entry.location)
            form = -1 if source is None else form_of(source, entry)
            n, k = math.prod(entry.dims[:-1]), entry.dims[-1]
            size = entry.length if form < 0 else packed_bytes(form, n, k)
            self._found[name] = CpuWeight(name, self._memory.hold(size), size, form, n, k, source or entry)
        return self._found[name]


def apart(values: Sequence[Value], widths: Sequence[int]) -> list[tuple[int, int]] | None:
    """The address of each part of activations that are side by side, and the bytes between its rows; None if the widths
    do not add up or a part lies in two of the values.
    """
    if sum(each.width for each in values) != sum(widths):
        return None
    places, rest, before = [], list(values), 0
    for width in widths:
        if before + width > rest[0].width:
            return None
        places.append((rest[0].address + FLOAT * before, rest[0].row))
        before += width
        if before == rest[0].width:
            rest, before = rest[1:], 0
    return places


def cache_places(pairs: Sequence[CachePair]) -> Mapping[str, tuple[int, int]]:
    """For the input of each cache, the bytes of one position of all caches before it, and of this cache."""
    found, before = {}, 0
    for pair in pairs:
        size = FLOAT * pair.heads * pair.head_size
        found[pair.past] = before, size
        before += size
    return found


def form_of(source: WideWeight | UnpackedWeight, entry: WeightEntry) -> int:
    """The `form` of a CpuWeight. Raises UnknownGraphError."""
    k = entry.dims[-1]
    if isinstance(source, WideWeight):
        if source.level != INT8_ACTIVATIONS:
            raise UnknownGraphError(
                f"its matrix products require activations in float32 (accuracy_level {source.level})"
            )
        if k % BLOCK or (source.block % BLOCK and source.block != BLOCK // 2):
            raise UnknownGraphError(f"a weight has {k} columns in blocks of {source.block}")
        centred = source.halves and source.zeros is None
        return form_bits(source.bits, source.block, Scales.CENTRED if centred else Scales.FLOATS)
    changes = [part.change for part in source.parts]
    types = {GgmlType(each.type) if isinstance(each, Unpack) else None for each in changes}
    kind = types.pop() if len(types) == 1 else None
    packing = PACKED.get(kind) if kind is not None else None
    if packing is None or len(entry.dims) != 2:
        return -1
    if k % BLOCK:
        raise UnknownGraphError(f"a weight has {k} columns, not a multiple of {BLOCK}")
    assert kind is not None
    return form_bits(packing.bits, packing.block, SCALES.get(kind, Scales.FLOATS))


def form_bits(bits: int, block: int, scales: Scales) -> int:
    """The number that CpuWeight.form documents."""
    if scales != Scales.BYTES and block < BLOCK:
        scales = Scales.SIXTEEN
    return 2 * scales + (bits == 8)
