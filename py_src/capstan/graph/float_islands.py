"""Removes casts around norms and rotary embeddings. A node between a cast to float32 and a cast back to float16 takes
and gives the float16 values directly.

    float16 -> Cast -> SimplifiedLayerNormalization (float32) -> Cast -> float16

The model builder writes this where it does not trust float16 kernels. The kernels of onnxruntime-web and of Capstan
compute such a node in float32 internally and round its result once, so that the casts change only the rounding of its
weights; without the casts a tape's kernels can join these nodes.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from dataclasses import dataclass

from .onnx_pb2 import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto
from .parts import Narrow, Part
from .weight_inputs import entry_of, made_of
from .wiring import Wiring, attribute, copy_of, fresh_name, prune

__all__ = ["float_islands_in_half", "in_half"]

FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16


@dataclass(frozen=True)
class Kind:
    """An operator: the inputs that are values, and those that are weights."""

    values: tuple[int, ...]
    weights: tuple[int, ...] = ()
    hands_on: bool = True
    """Whether the readers of its results may be in the same island. Those of a residual stream's sum may not: in some
    models the sum exceeds float16.
    """


ROTARY = Kind((0,), (2, 3))
KINDS = {
    "SimplifiedLayerNormalization": Kind((0,), (1,)),
    "SkipSimplifiedLayerNormalization": Kind((0, 1), (2, 3), hands_on=False),
    "RotaryEmbedding": ROTARY,
    "MRotaryEmbedding": ROTARY,
    "Reshape": Kind((0,)),
}

LEAST_EPSILON = 1e-9
"""The smallest epsilon of a norm; with less, one over the root of its square sum can exceed the largest float16."""

KEEPS_TYPE = {
    *("Add", "Mul", "Sub", "Div", "Sigmoid", "Tanh", "Gelu", "FastGelu", "QuickGelu", "Relu", "Softmax"),
    *("Reshape", "Transpose", "Split", "Slice", "Squeeze", "Unsqueeze", "Concat", "Identity", "Gather", "Expand"),
    *("MatMul", "MatMulNBits", "GroupQueryAttention", "MultiHeadAttention", "RotaryEmbedding", "MRotaryEmbedding"),
    *("SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization", "LayerNormalization"),
}
"""Operators whose results are of their first input's element type."""


def float_islands_in_half(model: ModelProto, fed: Collection[str] = ()) -> ModelProto:
    """The model with float16 nodes in place of float32 nodes whose inputs all come from float16 and whose outputs all
    return to it; a model without such nodes is returned unchanged. `fed` names inputs that are weights: those that
    become float16 get another name.
    """
    if not any(node.op_type == "Cast" and attribute(node, "to", 0) == HALF for node in model.graph.node):
        return model
    result = copy_of(model)
    islands = Islands(result.graph, fed)
    if not islands.nodes:
        return model
    for node in islands.nodes.values():
        islands.become_half(node)
    changed = {name for node in islands.nodes.values() for name in node.output}
    prune(result.graph)
    made = {name for node in result.graph.node for name in node.output} - changed
    for value in [value for value in result.graph.value_info if value.name not in made]:
        result.graph.value_info.remove(value)
    return result


class Islands:
    """The nodes of a graph that can compute in float16 although casts to and from float32 surround them, by their first
    output.
    """

    def __init__(self, graph: GraphProto, fed: Collection[str]) -> None:
        self.graph, self.wiring = graph, Wiring(graph)
        self.fed = {value.name: value for value in graph.input if value.name in fed}
        self.types = {value.name: value.type.tensor_type.elem_type for value in (*graph.input, *graph.value_info)}
        self.nodes = {node.output[0]: node for node in graph.node if node.op_type in KINDS}
        while left := [name for name, node in self.nodes.items() if not self.is_inside(node)]:
            for name in left:
                del self.nodes[name]

    def is_inside(self, node: NodeProto) -> bool:
        """Whether a node belongs to an island, if all other nodes of `nodes` belong to one."""
        if any(item.name == "epsilon" and item.f < LEAST_EPSILON for item in node.attribute):
            return False
        names = [name for name in given(node, KINDS[node.op_type].weights) if name not in self.fed]
        weights = [self.wiring.constants.get(name) for name in names]
        if any(weight is None or not can_be_half(weight) for weight in weights):
            return False
        used = [name for name in node.output if name in self.wiring.consumers or name in self.wiring.outputs]
        comes = all(map(self.comes_from_half, given(node, KINDS[node.op_type].values)))
        return comes and bool(used) and all(self.goes_to_half(node, name) for name in used)

    def comes_from_half(self, name: str) -> bool:
        node = self.wiring.producer.get(name)
        if node is None:
            return False
        if node.op_type == "Cast":
            readers = self.wiring.consumers[name]
            return self.dtype(node.input[0]) == HALF and all(self.holds(reader, name) for reader in readers)
        return KINDS[node.op_type].hands_on if self.nodes.get(node.output[0]) is node else False

    def goes_to_half(self, node: NodeProto, name: str) -> bool:
        if name in self.wiring.outputs:
            return False
        readers = self.wiring.consumers[name]
        casts = [reader for reader in readers if is_cast_to_half(reader)]
        if any(cast.output[0] in self.wiring.outputs for cast in casts[1:]):
            return False
        others = [reader for reader in readers if not is_cast_to_half(reader)]
        return not others or (KINDS[node.op_type].hands_on and all(self.holds(other, name) for other in others))

    def holds(self, reader: NodeProto, name: str) -> bool:
        """Whether a node that reads a tensor as a value is in an island."""
        return self.nodes.get(reader.output[0]) is reader and name in given(reader, KINDS[reader.op_type].values)

    def dtype(self, name: str) -> int:
        """The element type of a tensor; 0 if unknown."""
        while name not in self.types:
            tensor, node = self.wiring.constants.get(name), self.wiring.producer.get(name)
            if tensor is not None:
                return int(tensor.data_type)
            if node is not None and node.op_type == "Cast":
                return attribute(node, "to", 0)
            if node is None or node.op_type not in KEEPS_TYPE:
                return 0
            name = node.input[0]
        return int(self.types[name])

    def become_half(self, node: NodeProto) -> None:
        kind = KINDS[node.op_type]
        for place, name in enumerate(node.input):
            if name and place in kind.values and self.wiring.producer[name].op_type == "Cast":
                node.input[place] = self.wiring.producer[name].input[0]
            elif name and place in kind.weights:
                held = self.fed.get(name)
                constants = self.wiring.constants
                node.input[place] = half_weight(self.graph, constants[name]) if held is None else self.half_input(held)
        for name in node.output:
            for cast in filter(is_cast_to_half, self.wiring.consumers.get(name, [])):
                self.bypass(cast)

    def half_input(self, held: ValueInfoProto) -> str:
        """The name of an input's twin in float16, which is made if it is not there."""
        name = in_half(held.name)
        if all(value.name != name for value in self.graph.input):
            twin = self.graph.input.add()
            twin.CopyFrom(held)
            twin.name, twin.type.tensor_type.elem_type = name, HALF
        return name

    def bypass(self, cast: NodeProto) -> None:
        """Let the readers of a cast read its input, which now has the type to which it was cast."""
        source, name = cast.input[0], cast.output[0]
        readers = self.wiring.consumers.get(name, [])
        if name in self.wiring.outputs or any(name not in reader.input for reader in readers):
            cast.op_type = "Identity"
            del cast.attribute[:]
            return
        for reader in readers:
            for place, each in enumerate(reader.input):
                if each == name:
                    reader.input[place] = source


def given(node: NodeProto, places: tuple[int, ...]) -> list[str]:
    return [node.input[place] for place in places if place < len(node.input) and node.input[place]]


def is_cast_to_half(node: NodeProto) -> bool:
    return node.op_type == "Cast" and attribute(node, "to", 0) == HALF


def can_be_half(tensor: TensorProto) -> bool:
    if tensor.data_type != FLOAT:
        return False
    if tensor.data_location == TensorProto.EXTERNAL:
        entry = entry_of(tensor)
        return not entry.parts and entry.length % 8 == 0
    return bool(tensor.raw_data)


def in_half(name: str) -> str:
    return f"{name}_in_half"


def half_weight(graph: GraphProto, tensor: TensorProto) -> str:
    """The name of the tensor's twin in float16, which is made if it is not there."""
    name = in_half(tensor.name)
    known = next((each for each in graph.initializer if each.name == name), None)
    if known is not None and list(known.dims) == list(tensor.dims):
        return name
    name = fresh_name(graph, name)
    if tensor.data_location == TensorProto.EXTERNAL:
        entry = entry_of(tensor)
        part = Part(entry.offset, entry.length, Narrow())
        graph.initializer.append(made_of(name, HALF, tensor.dims, entry.location, [part]))
        return name
    values = struct.unpack(f"<{len(tensor.raw_data) // 4}f", tensor.raw_data)
    made = graph.initializer.add(name=name, data_type=HALF, raw_data=struct.pack(f"<{len(values)}e", *values))
    made.dims.extend(tensor.dims)
    return name
