"""Looks up the constants of a graph, and the nodes that make and read its tensors."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

from ..errors import ModelFileError
from .onnx_pb2 import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

__all__ = [
    "SAME_VALUES",
    "Wiring",
    "attribute",
    "changed_in_place",
    "changing",
    "copied",
    "copy_of",
    "delete",
    "fresh_name",
    "int64_tensor",
    "integers",
    "prune",
    "taken_names",
    "value_info",
]


SAME_VALUES = {"Cast", "Identity"}
"""Operators that change values only by rounding."""


class Wiring:
    """Producers, consumers and constants of one graph, by tensor name; a snapshot, not kept up to date."""

    def __init__(self, graph: GraphProto) -> None:
        self.producer: dict[str, NodeProto] = {}
        self.consumers: dict[str, list[NodeProto]] = {}
        self.constants: dict[str, TensorProto] = {tensor.name: tensor for tensor in graph.initializer}
        self.declared: dict[str, ValueInfoProto] = {value.name: value for value in (*graph.value_info, *graph.input)}
        """The types of inputs, and of other tensors that the graph declares."""
        self.inputs = {value.name for value in graph.input}
        self.outputs = {value.name for value in graph.output}
        for node in graph.node[:]:
            for name in node.output:
                if name:
                    self.producer[name] = node
            for name in dict.fromkeys([*node.input, *captured_names(node)]):
                if name:
                    self.consumers.setdefault(name, []).append(node)
            if node.op_type == "Constant" and node.output:
                for item in node.attribute:
                    if item.name == "value":
                        self.constants[node.output[0]] = item.t

    def original(self, name: str) -> str:
        """The tensor above nodes that change no value."""
        while (node := self.producer.get(name)) is not None and node.op_type in SAME_VALUES:
            name = node.input[0]
        return name

    def maker(self, name: str) -> NodeProto | None:
        """The node that computes a tensor's values; None for an input or a constant."""
        return self.producer.get(self.original(name))


def captured_names(node: NodeProto) -> Iterable[str]:
    """Names that the node's subgraphs (If, Loop, Scan) may take from the graph around them."""
    for subgraph in subgraphs(node):
        for inner in subgraph.node:
            yield from inner.input
            yield from captured_names(inner)
        yield from (value.name for value in subgraph.output)


def subgraphs(node: NodeProto) -> Iterable[GraphProto]:
    """The graphs in a node's attributes."""
    for item in node.attribute:
        if item.HasField("g") or item.graphs:
            yield from [item.g, *item.graphs]


def attribute(node: NodeProto, name: str, default: int) -> int:
    """An integer attribute of a node."""
    return next((int(item.i) for item in node.attribute if item.name == name), default)


def integers(tensor: TensorProto | None) -> list[int] | None:
    """The values of an inline INT64 or INT32 tensor; None for anything else."""
    if tensor is None or tensor.data_location == TensorProto.EXTERNAL:
        return None
    if tensor.data_type == TensorProto.INT64:
        width, code, fields = 8, "q", list(tensor.int64_data)
    elif tensor.data_type == TensorProto.INT32:
        width, code, fields = 4, "i", list(tensor.int32_data)
    else:
        return None
    if tensor.raw_data:
        return list(struct.unpack(f"<{len(tensor.raw_data) // width}{code}", tensor.raw_data))
    return [int(value) for value in fields]


def value_info(name: str, element_type: int, dims: Iterable[int | str]) -> ValueInfoProto:
    """The declaration of a tensor: its TensorProto.DataType and its sizes; free sizes are names."""
    value = ValueInfoProto(name=name)
    value.type.tensor_type.elem_type = element_type
    # A tensor without dimensions also has a shape.
    value.type.tensor_type.shape.SetInParent()
    for size in dims:
        dim = value.type.tensor_type.shape.dim.add()
        if isinstance(size, int):
            dim.dim_value = size
        else:
            dim.dim_param = size
    return value


def int64_tensor(name: str, values: Sequence[int], *, scalar: bool = False) -> TensorProto:
    """An INT64 initializer: a vector, or a scalar if requested."""
    try:
        data = struct.pack(f"<{len(values)}q", *values)
    except struct.error as error:
        raise ModelFileError(
            f"the graph's sizes make {name} {list(values)}, expected numbers below 2^63; export the model again"
        ) from error
    tensor = TensorProto(name=name, data_type=TensorProto.INT64, raw_data=data)
    if not scalar:
        tensor.dims.append(len(values))
    return tensor


_changed: ContextVar[ModelProto | None] = ContextVar("changed", default=None)


@contextmanager
def changing(model: ModelProto) -> Iterator[ModelProto]:
    """Inside the block `copy_of` returns the model itself, so that successive passes change it: copying a graph takes
    longer than most passes.
    """
    before = _changed.set(model)
    try:
        yield model
    finally:
        _changed.reset(before)


def changed_in_place(model: ModelProto) -> AbstractContextManager[ModelProto]:
    """Like `changing`, but of a copy, for a model that is needed unchanged afterwards."""
    return changing(copied(model))


def copy_of(model: ModelProto) -> ModelProto:
    """A copy for a pass to change; the model itself within `changing`."""
    return model if model is _changed.get() else copied(model)


def copied(model: ModelProto) -> ModelProto:
    """A copy, even within `changing`."""
    twin = ModelProto()
    twin.CopyFrom(model)
    return twin


def delete(items: Any, gone: Callable[[Any], bool]) -> None:
    """Delete messages from a repeated field. The field's `remove` compares messages by their contents, which takes
    long.
    """
    for place in reversed([place for place, item in enumerate(items[:]) if gone(item)]):
        del items[place]


def fresh_name(graph: GraphProto, wanted: str) -> str:
    """`wanted`, or `wanted_2`, `wanted_3`... if the graph already uses it for a node or tensor."""
    taken = taken_names(graph)
    name, count = wanted, 1
    while name in taken:
        count += 1
        name = f"{wanted}_{count}"
    return name


def taken_names(graph: GraphProto) -> set[str]:
    """The names of the nodes and tensors of a graph."""
    taken = {node.name for node in graph.node} | {tensor.name for tensor in graph.initializer}
    return taken | {name for node in graph.node for name in node.output} | {value.name for value in graph.input}


def prune(graph: GraphProto) -> list[str]:
    """Delete, in place, nodes without readers, and unread initializers; return the names of the deleted nodes."""
    gone: list[str] = []
    used: set[str] = set()

    def unread(node: NodeProto) -> bool:
        return not used.intersection(node.output)

    while True:
        used.clear()
        used.update(value.name for value in graph.output)
        for node in graph.node[:]:
            used.update(node.input)
            used.update(captured_names(node))
        dead = [node.name for node in graph.node[:] if unread(node)]
        if not dead:
            break
        gone += dead
        delete(graph.node, unread)
    delete(graph.initializer, lambda tensor: tensor.name not in used)
    return gone
