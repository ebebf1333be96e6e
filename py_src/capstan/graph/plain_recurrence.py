"""Rewrites experts and the operators around LinearAttention to operators that have WebGPU kernels in
onnxruntime-web.

LpNormalization(x)             x over its root mean square (SimplifiedLayerNormalization), over the root of its length
LinearAttentionGate(a, t, d, b) decay: Mul(Softplus(Add(a, t)), d), in float32; beta: Sigmoid(b)
GatedRMSNorm(x, scale, gate)   each head's root-mean-square norm, times gate times its Sigmoid
GatedAdd(x, y, gate)           Add(x, Mul(y, gate)); onnxruntime-web 1.30 has it on no device
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .node_writer import NodeWriter, place_of
from .onnx_pb2 import ModelProto, NodeProto, TensorProto
from .wiring import attribute, copy_of

__all__ = ["plain_recurrence"]

OPERATORS = ("LpNormalization", "LinearAttentionGate", "GatedRMSNorm", "GatedAdd")
LEAST = 1e-12
"""A vector with a smaller mean of squares counts as zero."""
FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)


def plain_recurrence(model: ModelProto) -> ModelProto:
    """The same model with these operators replaced by plain operators, if types and sizes are known. Other operators
    stay.
    """
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
        if element not in FLOATS and node.op_type != "GatedAdd":
            continue
        writer = NodeWriter(result.graph, f"{node.name or node.output[0]}/plain")
        made = Plain(writer, node, element)
        if node.op_type == "GatedAdd":
            made.gated_add()
        elif node.op_type == "LinearAttentionGate":
            made.gate()
        elif node.op_type == "GatedRMSNorm" and shape[-1] and len(scales.get(node.input[1], [])) == 1:
            made.gated_norm(scales[node.input[1]][0], shape[-1])
        elif node.op_type == "LpNormalization" and shape[-1] and last_axis(node, len(shape)):
            made.norm(shape[-1])
        if writer.made:
            place = place_of(result.graph, node)
            del result.graph.node[place]
            writer.insert(place)
    return result


def last_axis(node: NodeProto, rank: int) -> bool:
    """Whether the node divides by the Euclidean norm over the last axis."""
    return attribute(node, "axis", -1) in (-1, rank - 1) and attribute(node, "p", 2) == 2


@dataclass
class Plain:
    """Makes the nodes that replace one node."""

    writer: NodeWriter
    node: NodeProto
    element: int

    def norm(self, size: int) -> None:
        scale = self.writer.numbers(self.element, [size**-0.5] * size, "scale")
        self.normed(self.node.input[0], scale, LEAST, self.node.output)

    def gate(self) -> None:
        a, bias, decay, b = self.node.input
        log_decay, beta = self.node.output
        add, half = self.writer.add, self.element != TensorProto.FLOAT
        wide = add("Cast", [a], to=TensorProto.FLOAT) if half else a
        soft = add("Softplus", [add("Add", [wide, bias])])
        if half:
            add("Cast", [add("Mul", [soft, decay])], outputs=[log_decay], to=self.element)
        else:
            add("Mul", [soft, decay], outputs=[log_decay])
        add("Sigmoid", [b], outputs=[beta])

    def gated_add(self) -> None:
        x, y, gate = self.node.input
        self.writer.add("Add", [x, self.writer.add("Mul", [y, gate])], outputs=self.node.output)

    def gated_norm(self, head: int, width: int) -> None:
        x, scale, gate = self.node.input
        epsilon = next((item.f for item in self.node.attribute if item.name == "epsilon"), 1e-5)
        add, ints = self.writer.add, self.writer.ints
        heads = add("Reshape", [x, ints([0, -1, head], "by_head")])
        whole = add("Reshape", [self.normed(heads, scale, epsilon), ints([0, -1, width], "by_token")])
        add("Mul", [whole, add("Mul", [gate, add("Sigmoid", [gate])])], outputs=self.node.output)

    def normed(self, x: str, scale: str, epsilon: float, outputs: Sequence[str] = ()) -> str:
        """x over the root of the mean of its squares, times the scale."""
        operator = "SimplifiedLayerNormalization"
        return self.writer.add(operator, [x, scale], outputs=outputs, axis=-1, stash_type=1, epsilon=epsilon)
