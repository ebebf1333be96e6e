"""Rewrites the operators around LinearAttention and experts to ones with WebGPU kernels in onnxruntime-web.

LpNormalization(x)             x over its root mean square (SimplifiedLayerNormalization), over the root of its length
LinearAttentionGate(a, t, d, b) decay: Mul(Softplus(Add(a, t)), d), in float32; beta: Sigmoid(b)
GatedRMSNorm(x, scale, gate)   each head's root-mean-square norm, times gate times its Sigmoid
GatedAdd(x, y, gate)           Add(x, Mul(y, gate)); onnxruntime-web 1.30 has it on no device
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from .onnx_pb2 import AttributeProto, ModelProto, NodeProto, TensorProto
from .wiring import attribute, copy_of, fresh_name, int64_tensor

__all__ = ["plain_recurrence"]

OPERATORS = ("LpNormalization", "LinearAttentionGate", "GatedRMSNorm", "GatedAdd")
LEAST = 1e-12
"""Mean of the squares below which a vector counts as zero."""
CODES: dict[int, str] = {TensorProto.FLOAT: "f", TensorProto.FLOAT16: "e"}


def plain_recurrence(model: ModelProto) -> ModelProto:
    """The same model with these operators in plain ones, where their types and sizes are known; others stay."""
    if not any(node.op_type in OPERATORS for node in model.graph.node):
        return model
    result = copy_of(model)
    values = {value.name: value for value in [*result.graph.value_info, *result.graph.input]}
    types = {name: value.type.tensor_type.elem_type for name, value in values.items()}
    sizes = {name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for name, value in values.items()}
    scales = {tensor.name: list(tensor.dims) for tensor in result.graph.initializer}
    for node in [node for node in result.graph.node if node.op_type in OPERATORS]:
        element = types.get(node.output[0], TensorProto.UNDEFINED)
        shape = sizes.get(node.output[0], [0])
        if element not in CODES and node.op_type != "GatedAdd":
            continue
        made = Plain(result, node, element)
        if node.op_type == "GatedAdd":
            made.gated_add()
        elif node.op_type == "LinearAttentionGate":
            made.gate()
        elif node.op_type == "GatedRMSNorm" and shape[-1] and len(scales.get(node.input[1], [])) == 1:
            made.gated_norm(scales[node.input[1]][0], shape[-1])
        elif node.op_type == "LpNormalization" and shape[-1] and last_axis(node, len(shape)):
            made.norm(shape[-1])
        made.put()
    return result


def last_axis(node: NodeProto, rank: int) -> bool:
    """Whether the node divides by the Euclidean norm over the last axis."""
    return attribute(node, "axis", -1) in (-1, rank - 1) and attribute(node, "p", 2) == 2


@dataclass
class Plain:
    """Makes the nodes that take the place of one."""

    model: ModelProto
    node: NodeProto
    element: int
    made: list[NodeProto] = field(default_factory=list)

    def norm(self, size: int) -> None:
        scale = self.numbers("scale", [size**-0.5] * size)
        self.add("SimplifiedLayerNormalization", [self.node.input[0], scale], self.node.output[0])
        self.normalize(LEAST)

    def gate(self) -> None:
        a, bias, decay, b = self.node.input
        half = self.element != TensorProto.FLOAT
        wide = self.cast(a, "a", TensorProto.FLOAT) if half else a
        soft = self.add("Softplus", [self.add("Add", [wide, bias], "biased")], "softplus")
        if half:
            scaled = self.add("Mul", [soft, decay], "decay")
            self.cast(scaled, self.node.output[0], self.element)
        else:
            self.add("Mul", [soft, decay], self.node.output[0])
        self.add("Sigmoid", [b], self.node.output[1])

    def gated_add(self) -> None:
        x, y, gate = self.node.input
        self.add("Add", [x, self.add("Mul", [y, gate], "gated")], self.node.output[0])

    def gated_norm(self, head: int, width: int) -> None:
        x, scale, gate = self.node.input
        epsilon = next((item.f for item in self.node.attribute if item.name == "epsilon"), 1e-5)
        heads = self.add("Reshape", [x, self.ints("by_head", [0, -1, head])], "heads")
        normed = self.add("SimplifiedLayerNormalization", [heads, scale], "normed")
        self.normalize(epsilon)
        whole = self.add("Reshape", [normed, self.ints("by_token", [0, -1, width])], "whole")
        open_ = self.add("Mul", [gate, self.add("Sigmoid", [gate], "sigmoid")], "open")
        self.add("Mul", [whole, open_], self.node.output[0])

    def add(self, operator: str, inputs: list[str], wanted: str) -> str:
        """A node; `wanted` is one of the old node's outputs, or what the result is called below it."""
        output = wanted if wanted in self.node.output else fresh_name(self.model.graph, f"{self.node.name}/{wanted}")
        made = NodeProto(op_type=operator, name=f"{self.node.name}/{operator}_{len(self.made)}", output=[output])
        made.input.extend(inputs)
        self.made.append(made)
        return output

    def normalize(self, epsilon: float) -> None:
        """The attributes of the norm that was added last."""
        for name, number in (("axis", -1), ("stash_type", 1)):
            self.made[-1].attribute.add(name=name, type=AttributeProto.INT, i=number)
        self.made[-1].attribute.add(name="epsilon", type=AttributeProto.FLOAT, f=epsilon)

    def cast(self, name: str, wanted: str, element: int) -> str:
        output = self.add("Cast", [name], wanted)
        self.made[-1].attribute.add(name="to", type=AttributeProto.INT, i=element)
        return output

    def numbers(self, wanted: str, values: list[float]) -> str:
        name = fresh_name(self.model.graph, f"{self.node.name}/{wanted}")
        data = struct.pack(f"<{len(values)}{CODES[self.element]}", *values)
        self.model.graph.initializer.add(name=name, data_type=self.element, dims=[len(values)], raw_data=data)
        return name

    def ints(self, wanted: str, values: list[int]) -> str:
        name = fresh_name(self.model.graph, f"{self.node.name}/{wanted}")
        self.model.graph.initializer.append(int64_tensor(name, values))
        return name

    def put(self) -> None:
        """Put what was made in the node's place; nothing made leaves it."""
        if not self.made:
            return
        nodes = self.model.graph.node
        place = list(nodes).index(self.node)
        del nodes[place]
        for made in reversed(self.made):
            nodes.insert(place, made)
