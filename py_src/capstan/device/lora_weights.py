"""Checks LoRA adapters against the inputs of a model's graph, and packs their tensors into one device buffer.

`Model.load_adapter` passes the file of one adapter, `Model.combine_adapters` several loaded ones. The result is a
LoraWeights, which a decoder's `set_lora` takes: a span for each slot, which is a LoRA input of the session.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from ..errors import BindingError, UnsupportedModelError
from ..graph import LoraInput, LoraSlot
from ..memory import BufferRequest, DeviceBuffer, DeviceSpan, round_up
from .device_interface import DeviceInterface
from .element_types import byte_count
from .lora_file import AdapterTensor, read_adapter
from .run_input import HostTensor

__all__ = ["LoraGraph", "LoraWeights", "silent"]

RANK_STEP = 4
"""The rank is padded with zeros to a multiple of this: kernels read vectors of four elements."""
ALIGNMENT = 16
"""The alignment of each tensor within the buffer of a LoRA adapter."""
SHOWN = 3
"""The most names of inputs in an error message."""


@dataclass(frozen=True)
class LoraGraph:
    """The LoRA inputs of a model's graph; loads adapters for them."""

    inputs: tuple[LoraInput, ...] = ()
    others: tuple[str, ...] = ()
    """The graph's other inputs with a default, for error messages."""

    def slots(self, rank: int) -> tuple[LoraSlot, ...]:
        """The input tensors of a session for adapters of `rank`."""
        return tuple(each.slot(rank) for each in self.inputs)

    async def load(self, device: DeviceInterface, data: Any, what: str, model: str) -> LoraWeights:
        """Load an adapter file to the device. Error messages call the file `what` and the model `model`.

        Raises ModelFileError if `data` is no adapter file, OutOfMemoryError, and the errors of `require_fitting`.
        """
        tensors = read_adapter(data, what).tensors
        rank = require_fitting(self, tensors, what, model)
        return await laid_out(device, self, rank, tensors, f"{model} {what}")

    async def combine(self, device: DeviceInterface, layers: Sequence[LoraWeights], owner: str) -> LoraWeights:
        """Merge adapters into one: if several fill the same input, the last one wins. Raises OutOfMemoryError."""
        tensors: dict[str, AdapterTensor] = {}
        for layer in layers:
            for slot in self.slots(layer.rank):
                if slot.name in layer.filled:
                    data = (await device.copy_device_to_cpu(layer.spans[slot.name])).data
                    tensors[slot.name] = AdapterTensor(slot.onnx_type, slot.dims, memoryview(data))
        return await laid_out(device, self, max(layer.rank for layer in layers), tensors, owner)


@dataclass(eq=False)
class LoraWeights:
    """One adapter, or several merged ones, in one device buffer with a span for each slot. `close` frees the buffer."""

    graph: LoraGraph
    rank: int
    filled: frozenset[str]
    """Names of the inputs that the adapter has; the others keep their defaults."""
    buffer: DeviceBuffer
    spans: Mapping[str, DeviceSpan] = field(default_factory=dict)
    """By name of the slot."""

    def close(self) -> None:
        self.buffer.close()


def require_fitting(graph: LoraGraph, tensors: Mapping[str, AdapterTensor], what: str, model: str) -> int:
    """Check that an adapter fits the graph and return its rank, rounded up to RANK_STEP. Error messages call the
    adapter `what` and the model `model`.

    Raises UnsupportedModelError if the model has no LoRA inputs. Raises BindingError if a tensor matches no input,
    differs from its input in type or shape, differs in rank from the other factor of its product, or is missing, and if
    the rank exceeds the model's widest layer.
    """
    inputs = {each.name: each for each in graph.inputs}
    again = "take the adapter that was exported with this model"
    for name in tensors:
        if name in graph.others:
            raise BindingError(
                f"{what} has a tensor {name} {shape_of(tensors[name])}; that input of the model {model} is not a "
                "factor of a LoRA product: adapters fill two factors that are multiplied one after the other, and "
                "weights with a free size, or with 'lora' in their names; fold the tensor's values into one of these"
            )
    if not inputs:
        names = ", ".join(f"{name} {shape_of(tensors[name])}" for name in list(tensors)[:1])
        raise UnsupportedModelError(
            f"{what}: the model {model} has no inputs for LoRA adapters, and none for {names or 'any tensor'}; export "
            "it with Olive's extract-adapters pass, which makes A and B inputs instead of constants, or merge the "
            "adapter into its weights"
        )
    rank = 0
    for name, tensor in tensors.items():
        wanted = inputs.get(name)
        if wanted is None:
            some = ", ".join(sorted(inputs)[:SHOWN]) + (", ..." if len(inputs) > SHOWN else "")
            raise BindingError(
                f"{what} has a tensor {name} {shape_of(tensor)}, for which the model {model} has no input (adapters "
                f"fill inputs, not constants of the graph); its inputs for adapters are {some}: {again}"
            )
        fits = len(wanted.dims) == len(tensor.dims) and all(
            isinstance(size, str) or size == given for size, given in zip(wanted.dims, tensor.dims, strict=True)
        )
        if not fits or wanted.onnx_type != tensor.onnx_type:
            raise BindingError(f"{what}: {name} is {shape_of(tensor)}; the model takes {wanted.shape}; {again}")
        rank = max(rank, *free_sizes(wanted, tensor), 0)
    for each in graph.inputs:
        own, other = (rank_of(inputs[name], tensors) for name in (each.name, each.meets or each.name))
        if own != other:
            raise BindingError(
                f"{what}: {each.name} has the rank {own} and {each.meets}, with which it is multiplied, has {other}; "
                f"{again}"
            )
    widest = max(size for each in graph.inputs for size in each.dims if isinstance(size, int))
    if rank > widest:
        raise BindingError(f"{what} has the rank {rank}; the model's widest layer allows at most {widest}; {again}")
    return round_up(max(rank, default_rank(each for each in graph.inputs if each.name not in tensors), 1), RANK_STEP)


def default_rank(inputs: Iterable[LoraInput]) -> int:
    """The largest rank of the defaults that change the result."""
    return max((each.held for each in inputs if not each.silent), default=0)


def shape_of(tensor: AdapterTensor) -> str:
    return f"{tensor.dtype} {list(tensor.dims)}"


def free_sizes(wanted: LoraInput, tensor: AdapterTensor) -> list[int]:
    """The tensor's sizes in the dimensions that the graph leaves free; each of them is the rank."""
    return [given for size, given in zip(wanted.dims, tensor.dims, strict=True) if isinstance(size, str)]


def rank_of(wanted: LoraInput, tensors: Mapping[str, AdapterTensor]) -> int:
    """The rank of a tensor, or of the default if it is missing; 0 if it has no free size."""
    tensor = tensors.get(wanted.name)
    return wanted.held if tensor is None else max(free_sizes(wanted, tensor), default=0)


async def laid_out(
    device: DeviceInterface, graph: LoraGraph, rank: int, tensors: Mapping[str, AdapterTensor], owner: str
) -> LoraWeights:
    """Pack fitting tensors into one device buffer, padded with zeros to `rank`. Raises OutOfMemoryError."""
    slots = graph.slots(rank)
    sizes = [byte_count(slot.dtype, slot.dims) for slot in slots]
    total = sum(round_up(size, ALIGNMENT) for size in sizes)
    [buffer] = await device.allocate_all([BufferRequest("LoRA adapter", total, "weights")], owner)
    weights = LoraWeights(graph, rank, frozenset(tensors), buffer)
    spans: dict[str, DeviceSpan] = {}
    with ExitStack() as undo:
        undo.callback(buffer.close)
        at = 0
        for each, slot, size in zip(graph.inputs, slots, sizes, strict=True):
            image = bytearray(round_up(size, ALIGNMENT))
            place(image, slot, tensors.get(slot.name) or default_of(each))
            device.copy_cpu_to_device(buffer.span(at, len(image)), image)
            spans[slot.name] = buffer.span(at, size)
            at += len(image)
        undo.pop_all()
    weights.spans = spans
    return weights


def silent(graph: LoraGraph) -> list[HostTensor]:
    """The LoRA inputs of runs without an adapter. A free rank is that of the defaults, or 0 if none of them changes the
    result: a factor without elements costs nothing.
    """
    rank = default_rank(graph.inputs)
    tensors = []
    for each, slot in zip(graph.inputs, graph.slots(rank), strict=True):
        image = bytearray(byte_count(slot.dtype, slot.dims))
        place(image, slot, default_of(each))
        tensors.append(HostTensor(slot.name, slot.dtype, slot.dims, memoryview(image)))
    return tensors


def default_of(wanted: LoraInput) -> AdapterTensor | None:
    """The default of an input; None if it does not change the result."""
    if wanted.silent:
        return None
    assert wanted.default, f"the default of {wanted.name} was not read"
    return AdapterTensor(wanted.onnx_type, wanted.sizes(wanted.held), memoryview(wanted.default))


def place(image: bytearray, slot: LoraSlot, tensor: AdapterTensor | None) -> None:
    """Write a tensor into a slot, whose first or last dimension is larger where the tensor's rank was rounded up. None
    leaves zeros."""
    if tensor is None:
        return
    width, whole = (byte_count(slot.dtype, dims[-1:]) for dims in (tensor.dims, slot.dims))
    if width == whole:
        image[: len(tensor.data)] = tensor.data
        return
    for row in range(math.prod(tensor.dims[:-1])):
        image[row * whole : row * whole + width] = tensor.data[row * width : (row + 1) * width]
