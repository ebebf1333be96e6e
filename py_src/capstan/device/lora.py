"""LoRA adapters on a device: what a file has for the inputs of a graph, laid out as sequences are given it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import BindingError, UnsupportedModelError
from ..graph import LoraInput, LoraSlot
from ..memory import BufferRequest, DeviceBuffer, DeviceSpan, round_up
from .element_types import byte_count
from .interface import DeviceInterface
from .lora_file import AdapterTensor, read_adapter

__all__ = ["LoraGraph", "LoraWeights", "silent"]

RANK_STEP = 4
"""Ranks are filled up with zeros to a multiple of it: kernels read vectors of four elements."""
ALIGNMENT = 16
"""The alignment of each tensor within the buffer of a LoRA adapter."""
SHOWN = 3
"""Names of inputs that a message shows."""


@dataclass(frozen=True)
class LoraGraph:
    """The inputs of a model's graph that adapters fill."""

    inputs: tuple[LoraInput, ...] = ()

    def slots(self, rank: int) -> tuple[LoraSlot, ...]:
        """The tensors that a sequence is given for adapters of that rank."""
        return tuple(each.slot(rank) for each in self.inputs)

    async def load(self, device: DeviceInterface, data: Any, what: str, model: str) -> LoraWeights:
        """An adapter file on the device; `what` and `model` are what messages call the two.

        Raises ModelFileError for what is no adapter file, OutOfMemoryError, and what `require_fitting` raises.
        """
        tensors = read_adapter(data, what).tensors
        rank = require_fitting(self, tensors, what, model)
        return await laid_out(device, self, rank, tensors, f"{model} {what}")

    async def combine(self, device: DeviceInterface, layers: Sequence[LoraWeights], owner: str) -> LoraWeights:
        """Adapters laid over one another: of two that fill an input the later one counts. Raises OutOfMemoryError."""
        inputs = {each.name: each for each in self.inputs}
        tensors: dict[str, AdapterTensor] = {}
        for layer in layers:
            for slot in self.slots(layer.rank):
                wanted = [part for part in slot.parts if part[0] in layer.filled]
                if wanted:
                    image = memoryview((await device.copy_device_to_cpu(layer.spans[slot.name])).data)
                    tensors |= {part[0]: taken(image, slot, *part[1:], inputs[part[0]], layer.rank) for part in wanted}
        return await laid_out(device, self, max(layer.rank for layer in layers), tensors, owner)


@dataclass(eq=False)
class LoraWeights:
    """One adapter, or several laid over one another, for every input of the graph: one buffer with a part for each
    slot. `close` frees it."""

    graph: LoraGraph
    rank: int
    filled: frozenset[str]
    """The inputs that the adapter has tensors for; the others are as without one."""
    buffer: DeviceBuffer
    spans: Mapping[str, DeviceSpan] = field(default_factory=dict)
    """By slot."""

    def close(self) -> None:
        self.buffer.close()


def require_fitting(graph: LoraGraph, tensors: Mapping[str, AdapterTensor], what: str, model: str) -> int:
    """The rank of an adapter that fits the graph. `what` and `model` are what messages call the two.

    Raises UnsupportedModelError for a model without inputs for adapters, BindingError for tensors that it has no input
    for, of another type or shape, or that are missing.
    """
    inputs = {each.name: each for each in graph.inputs}
    if not inputs:
        raise UnsupportedModelError(
            f"{what}: the model {model} has no inputs for LoRA adapters; export it with Olive's extract-adapters pass, "
            "or merge the adapter into its weights"
        )
    again = "take the adapter that was exported with this model"
    rank = 0
    for name, tensor in tensors.items():
        wanted = inputs.get(name)
        if wanted is None:
            some = ", ".join(sorted(inputs)[:SHOWN]) + (", ..." if len(inputs) > SHOWN else "")
            raise BindingError(
                f"{what} has a tensor {name} {shape_of(tensor)}, for which the model {model} has no input; its inputs "
                f"for adapters are {some}: {again}"
            )
        fits = len(wanted.dims) == len(tensor.dims) and all(
            isinstance(size, str) or size == given for size, given in zip(wanted.dims, tensor.dims, strict=True)
        )
        if not fits or wanted.onnx_type != tensor.onnx_type:
            raise BindingError(f"{what}: {name} is {shape_of(tensor)}, the model takes {wanted.shape}; {again}")
        rank = max(rank, *free_sizes(wanted, tensor), 0)
    for each in graph.inputs:
        own, other = (rank_of(inputs[name], tensors) for name in (each.name, each.meets or each.name))
        if own != other:
            raise BindingError(
                f"{what}: {each.name} has the rank {own} and {each.meets}, by which it is multiplied, {other}; {again}"
            )
        if not each.silent and not each.default and each.name not in tensors:
            raise BindingError(
                f"{what} has no tensor {each.name} {each.shape}, whose default in the model is in another file; {again}"
            )
    widest = max(size for each in graph.inputs for size in each.dims if isinstance(size, int))
    if rank > widest:
        raise BindingError(
            f"{what} has the rank {rank}; at most {widest}, the model's widest layer, makes sense; {again}"
        )
    return round_up(max(rank, 1), RANK_STEP)


def shape_of(tensor: AdapterTensor) -> str:
    return f"{tensor.dtype} {list(tensor.dims)}"


def free_sizes(wanted: LoraInput, tensor: AdapterTensor) -> list[int]:
    """Sizes where the graph leaves them open: the rank."""
    return [given for size, given in zip(wanted.dims, tensor.dims, strict=True) if isinstance(size, str)]


def rank_of(wanted: LoraInput, tensors: Mapping[str, AdapterTensor]) -> int:
    """The rank of a tensor; 0 if it is missing or has no free size."""
    tensor = tensors.get(wanted.name)
    return 0 if tensor is None else max(free_sizes(wanted, tensor), default=0)


async def laid_out(
    device: DeviceInterface, graph: LoraGraph, rank: int, tensors: Mapping[str, AdapterTensor], owner: str
) -> LoraWeights:
    """Fitting tensors on the device, filled up to that rank with zeros. Raises OutOfMemoryError."""
    slots = graph.slots(rank)
    sizes = [byte_count(slot.dtype, slot.dims) for slot in slots]
    total = sum(round_up(size, ALIGNMENT) for size in sizes)
    [buffer] = await device.allocate_all([BufferRequest("LoRA adapter", total, "weights")], owner)
    weights = LoraWeights(graph, rank, frozenset(tensors), buffer)
    spans: dict[str, DeviceSpan] = {}
    try:
        at = 0
        inputs = {each.name: each for each in graph.inputs}
        for slot, size in zip(slots, sizes, strict=True):
            image = bytearray(round_up(size, ALIGNMENT))
            for name, row, column in slot.parts:
                if name in tensors:
                    place(image, slot, row, column, tensors[name].data, tensors[name].dims)
                elif inputs[name].default:
                    place(image, slot, row, column, memoryview(inputs[name].default), inputs[name].sizes(rank))
            device.copy_cpu_to_device(buffer.span(at, len(image)), image)
            spans[slot.name] = buffer.span(at, size)
            at += len(image)
    except BaseException:
        buffer.close()
        raise
    weights.spans = spans
    return weights


def silent(graph: LoraGraph) -> tuple[list[tuple[str, str, tuple[int, ...]]], list[memoryview]]:
    """The inputs of a run without a LoRA adapter: name, dtype and dims, and the bytes. Factors without elements add
    nothing and cost nothing.
    """
    tensors = [(each.name, each.dtype, each.sizes(0)) for each in graph.inputs]
    data = [
        memoryview(each.default or bytes(byte_count(dtype, dims)))
        for each, (_, dtype, dims) in zip(graph.inputs, tensors, strict=True)
    ]
    return tensors, data


def rows_of(slot: LoraSlot, row: int, column: int, dims: Sequence[int]) -> tuple[int, int, list[int]]:
    """Bytes of a part's rows, how many rows are one piece, and where in the slot each piece begins. A part has the
    slot's dimensions but for the first and the last."""
    width, whole = dims[-1] if dims else 1, slot.dims[-1] if slot.dims else 1
    count = math.prod(dims[:-1])
    bits = byte_count(slot.dtype, (width,)), byte_count(slot.dtype, (whole,))
    if width == whole and not column:
        return bits[0] * count, 1, [bits[1] * row]
    start = byte_count(slot.dtype, (column,))
    return bits[0], count, [bits[1] * (row + number) + start for number in range(count)]


def place(image: bytearray, slot: LoraSlot, row: int, column: int, data: memoryview, dims: Sequence[int]) -> None:
    """Write a tensor into its part of a slot."""
    size, count, starts = rows_of(slot, row, column, dims)
    for number, start in zip(range(count), starts, strict=True):
        image[start : start + size] = data[number * size : (number + 1) * size]


def taken(image: memoryview, slot: LoraSlot, row: int, column: int, wanted: LoraInput, rank: int) -> AdapterTensor:
    """A tensor out of its part of a slot."""
    dims = wanted.sizes(rank)
    size, _, starts = rows_of(slot, row, column, dims)
    data = b"".join(image[start : start + size] for start in starts)
    return AdapterTensor(wanted.onnx_type, dims, memoryview(data))
