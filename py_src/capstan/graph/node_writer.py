"""Writes nodes and small constants into a graph, for the passes that put operators in place of others."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from .onnx_pb2 import AttributeProto, GraphProto, NodeProto, TensorProto
from .wiring import fresh_name, int64_tensor

__all__ = ["AttributeValue", "NodeWriter", "add_attribute", "new_node", "place_of", "set_attribute", "take_attribute"]

AttributeValue = int | float | str | Sequence[int]
CODES: dict[int, str] = {TensorProto.FLOAT: "f", TensorProto.FLOAT16: "e", TensorProto.INT32: "i"}
"""The `struct` format of an element."""


def new_node(
    op: str,
    inputs: Iterable[str],
    outputs: Iterable[str],
    *,
    name: str = "",
    domain: str = "",
    **attributes: AttributeValue,
) -> NodeProto:
    """A node outside of any graph; without a name it takes that of its first output."""
    node = NodeProto(op_type=op, domain=domain, input=inputs, output=outputs)
    node.name = name or node.output[0]
    for key, value in attributes.items():
        add_attribute(node, key, value)
    return node


def set_attribute(node: NodeProto, name: str, value: AttributeValue) -> None:
    """Set an attribute of a node, and replace one of that name."""
    take_attribute(node, name)
    add_attribute(node, name, value)


def add_attribute(node: NodeProto, name: str, value: AttributeValue) -> None:
    """Add an attribute to a node without one of that name."""
    if isinstance(value, int):
        node.attribute.add(name=name, type=AttributeProto.INT, i=value)
    elif isinstance(value, float):
        node.attribute.add(name=name, type=AttributeProto.FLOAT, f=value)
    elif isinstance(value, str):
        node.attribute.add(name=name, type=AttributeProto.STRING, s=value.encode())
    else:
        node.attribute.add(name=name, type=AttributeProto.INTS, ints=value)


def take_attribute(node: NodeProto, *names: str) -> None:
    """Remove attributes of these names, if the node has them."""
    for item in [item for item in node.attribute if item.name in names]:
        node.attribute.remove(item)


def place_of(graph: GraphProto, node: NodeProto) -> int:
    """The index of the graph's node with the same first output."""
    return next(place for place, each in enumerate(graph.node[:]) if each.output[0] == node.output[0])


class NodeWriter:
    """Collects nodes with names below one prefix; constants are added to the graph immediately."""

    def __init__(self, graph: GraphProto, front: str) -> None:
        self.graph, self.front = graph, fresh_name(graph, front)
        self.made: list[NodeProto] = []
        self._names: dict[str, int] = {}

    def name(self, part: str) -> str:
        """An unused name: FRONT/part, then FRONT/part_2 ..."""
        count = self._names[part] = self._names.get(part, 0) + 1
        return f"{self.front}/{part}" if count == 1 else f"{self.front}/{part}_{count}"

    def add(
        self,
        op: str,
        inputs: Iterable[str],
        part: str = "",
        *,
        outputs: Sequence[str] = (),
        domain: str = "",
        **attributes: AttributeValue,
    ) -> str:
        """Add a node and return its first output, which has the node's name unless `outputs` are given."""
        name = self.name(part or op)
        self.made.append(new_node(op, inputs, outputs or [name], name=name, domain=domain, **attributes))
        return self.made[-1].output[0]

    def ints(self, values: Sequence[int], part: str = "ints", *, scalar: bool = False) -> str:
        """An INT64 constant: a vector, or a scalar if requested."""
        name = self.name(part)
        self.graph.initializer.append(int64_tensor(name, values, scalar=scalar))
        return name

    def numbers(
        self, kind: int, values: Sequence[float], part: str = "numbers", dims: Sequence[int] | None = None
    ) -> str:
        """A constant of this ONNX element type, by default a vector; `dims` of () make it a scalar."""
        tensor = self.graph.initializer.add(name=self.name(part), data_type=kind)
        tensor.dims.extend([len(values)] if dims is None else dims)
        tensor.raw_data = struct.pack(f"<{len(values)}{CODES[kind]}", *values)
        return tensor.name

    def insert(self, place: int) -> None:
        """Put the nodes into the graph, the first at `place`."""
        for offset, node in enumerate(self.made):
            self.graph.node.insert(place + offset, node)
