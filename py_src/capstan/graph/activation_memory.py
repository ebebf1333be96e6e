"""Estimates the memory that a run of a graph needs besides its inputs and outputs: the activations alive at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from .onnx_pb2 import ModelProto, NodeProto, ValueInfoProto
from .weight_inputs import DTYPES
from .wiring import Wiring, captured_names

__all__ = ["Activation", "Activations", "activations"]

SHAPES_ONLY = {"Shape", "Size", "Constant"}
"""Operators whose results stay on the CPU."""


@dataclass(frozen=True)
class Activation:
    """Describes a tensor that node number `made` makes and node number `read` reads last. `dims` holds sizes and
    dimension names.
    """

    name: str
    bits: int
    dims: tuple[int | str, ...]
    made: int
    read: int

    def bytes(self, size_of: Callable[[str], int]) -> int:
        elements = 1
        for size in self.dims:
            elements *= size if isinstance(size, int) else size_of(size)
        return (elements * self.bits + 7) // 8


@dataclass(frozen=True)
class Activations:
    """The intermediate tensors of a graph, in the order in which they are made.

    `assumed` are those whose shape the file does not give; each counts as the largest tensor that its node reads.
    """

    tensors: tuple[Activation, ...]
    assumed: tuple[str, ...]

    def peak(self, batch_size: int, tokens: int, capacity: int) -> int:
        """The most bytes of intermediate tensors alive at once in a run of `batch_size` rows of `tokens` tokens over a
        cache of `capacity` positions.

        This is an estimate of a session's allocation. A session may take more, since kernels allocate buffers (split
        attention above all) and onnxruntime-web keeps freed buffers in size classes; it may take less, since fused
        nodes need fewer tensors.
        """
        return self.peak_of(cache(lambda name: dimension(name, batch_size, tokens, capacity)))

    def peak_of(self, size_of: Callable[[str], int]) -> int:
        """The peak for any run, given the size of each free dimension by its name."""
        changes: dict[int, int] = {}
        for tensor in self.tensors:
            size = tensor.bytes(size_of)
            changes[tensor.made] = changes.get(tensor.made, 0) + size
            changes[tensor.read + 1] = changes.get(tensor.read + 1, 0) - size
        most = alive = 0
        for step in sorted(changes):
            alive += changes[step]
            most = max(most, alive)
        return most


def dimension(name: str, batch_size: int, tokens: int, capacity: int) -> int:
    """The size of a free dimension in a run, by the names that exporters use; products of names are multiplied.

    An unknown name counts as 1.
    """
    size = 1
    for part in name.lower().split("*"):
        if part.strip().isdigit():
            size *= int(part)
        elif any(word in part for word in ("past", "total", "+")):
            size *= capacity
        elif "seq" in part or "length" in part:
            size *= tokens
        elif "batch" in part:
            size *= batch_size
    return size


def activations(model: ModelProto) -> Activations:
    """The tensors that a run makes and drops again, without inputs, outputs, constants and shapes."""
    graph = model.graph
    wiring = Wiring(graph)
    kept = wiring.inputs | wiring.outputs | set(wiring.constants)
    known = {value.name: declared(value) for value in [*graph.value_info, *graph.input, *graph.output]}
    last_read = {name: index for index, node in enumerate(graph.node) for name in [*node.input, *captured_names(node)]}
    tensors: list[Activation] = []
    assumed: list[str] = []
    for index, node in enumerate(graph.node):
        for name in node.output:
            if not name or name in kept or node.op_type in SHAPES_ONLY:
                continue
            bits_and_dims = known.get(name)
            if bits_and_dims is None:
                bits_and_dims = known[name] = like_its_inputs(node, known, wiring)
                assumed.append(name)
            bits, dims = bits_and_dims
            tensors.append(Activation(name, bits, dims, index, max(index, last_read.get(name, index))))
    return Activations(tuple(tensors), tuple(assumed))


Known = dict[str, tuple[int, tuple[int | str, ...]] | None]


def declared(value: ValueInfoProto) -> tuple[int, tuple[int | str, ...]] | None:
    """The bits of an element and the dimensions; None if the file omits one of the two."""
    kind = value.type.tensor_type
    if kind.elem_type not in DTYPES or not kind.HasField("shape"):
        return None
    dims = tuple(
        dim.dim_value if dim.WhichOneof("value") == "dim_value" else dim.dim_param or "?" for dim in kind.shape.dim
    )
    return DTYPES[kind.elem_type][1], dims


def like_its_inputs(node: NodeProto, known: Known, wiring: Wiring) -> tuple[int, tuple[int | str, ...]]:
    """The largest tensor that a node reads, without weights and constants, if all free dimensions have the same
    size.
    """
    read = [item for name in node.input if name not in wiring.constants and (item := known.get(name))]
    changing = [(bits, dims) for bits, dims in read if any(isinstance(size, str) for size in dims)]
    return max(
        changing or read,
        key=lambda item: item[0] * math.prod(d if isinstance(d, int) else dimension(d, 1, 64, 64) for d in item[1]),
        default=(8, (0,)),
    )
