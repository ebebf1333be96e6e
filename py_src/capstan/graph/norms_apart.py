"""Norms of q and k before attention, where GroupQueryAttention has them as inputs: onnxruntime-web computes them there
on WebGPU only.

    q [batch, tokens, heads x head size] -> Reshape by head -> SimplifiedLayerNormalization -> Reshape -> attention

with q, k and v split first where they are one tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from .onnx_pb2 import AttributeProto, ModelProto, NodeProto
from .wiring import attribute, copy_of, fresh_name, int64_tensor

__all__ = ["norms_apart"]

ATTENTION = "GroupQueryAttention"
QUERY, KEY, VALUE, Q_NORM_WEIGHT, K_NORM_WEIGHT = 0, 1, 2, 14, 15
SPLIT_BY_INPUT = 13
"""The first opset in which sizes are an input of Split."""


@dataclass
class Stand:
    """Nodes that come to stand before one node, with names of their own."""

    model: ModelProto
    node: NodeProto
    front: str
    made: list[NodeProto] = field(default_factory=list)

    @classmethod
    def before(cls, model: ModelProto, node: NodeProto) -> Stand:
        return cls(model, node, fresh_name(model.graph, f"{node.name or node.output[0]}/norms"))

    def add(self, op: str, inputs: Iterable[str], part: str, outputs: int = 1, **attributes: int | float) -> str:
        """Add a node; returns the name of its output, or the common prefix of its outputs' names."""
        name = f"{self.front}/{part}"
        names = [name] if outputs == 1 else [f"{name}_{i}" for i in range(outputs)]
        made = NodeProto(op_type=op, name=name, input=list(inputs), output=names)
        for key, value in attributes.items():
            item = made.attribute.add(name=key)
            if isinstance(value, float):
                item.type, item.f = AttributeProto.FLOAT, value
            else:
                item.type, item.i = AttributeProto.INT, value
        self.made.append(made)
        return name

    def ints(self, part: str, values: Sequence[int]) -> str:
        self.model.graph.initializer.append(int64_tensor(f"{self.front}/{part}", values))
        return f"{self.front}/{part}"

    def insert(self) -> None:
        nodes = self.model.graph.node
        place = next(i for i, node in enumerate(nodes) if node is self.node or node.output == self.node.output)
        for each in reversed(self.made):
            nodes.insert(place, each)


def norms_apart(model: ModelProto) -> ModelProto:
    """Put the norms of q and k, where attention has them as inputs, into nodes before it."""
    result = copy_of(model)
    opset = max((item.version for item in result.opset_import if item.domain in ("", "ai.onnx")), default=0)
    tensors = {tensor.name: tensor for tensor in result.graph.initializer}
    for node in [node for node in result.graph.node if node.op_type == ATTENTION]:
        weights = [tensors.get(name) for name in node.input[Q_NORM_WEIGHT : K_NORM_WEIGHT + 1] if name]
        packed = not (len(node.input) > KEY and node.input[KEY])
        if len(weights) != 2 or None in weights or (packed and opset < SPLIT_BY_INPUT):
            continue
        normed(result, node, packed, int(tensors[node.input[Q_NORM_WEIGHT]].dims[0]))
    return result


def normed(model: ModelProto, node: NodeProto, packed: bool, head: int) -> None:
    """Replace the norms of one attention, in place."""
    stand = Stand.before(model, node)
    heads = (attribute(node, "num_heads", 0), attribute(node, "kv_num_heads", 0))
    if packed:
        sizes = stand.ints("sizes", [head * count for count in (*heads, heads[1])])
        apart = stand.add("Split", [node.input[QUERY], sizes], "apart", outputs=3, axis=-1)
        for place in (QUERY, KEY, VALUE):
            node.input[place] = f"{apart}_{place}"
    epsilon = next((item.f for item in node.attribute if item.name == "qk_norm_epsilon"), 1e-6)
    for place, weight, count, part in (
        (QUERY, node.input[Q_NORM_WEIGHT], heads[0], "q"),
        (KEY, node.input[K_NORM_WEIGHT], heads[1], "k"),
    ):
        by_head = stand.ints(f"{part}_by_head", [0, 0, count, head])
        whole = stand.ints(f"{part}_whole", [0, 0, count * head])
        name = stand.add("Reshape", [node.input[place], by_head], f"{part}_heads")
        name = stand.add("SimplifiedLayerNormalization", [name, weight], f"{part}_normed", axis=-1, epsilon=epsilon)
        node.input[place] = stand.add("Reshape", [name, whole], part)
    stand.insert()
    del node.input[Q_NORM_WEIGHT:]
    while not node.input[-1]:
        del node.input[-1]
    for item in [item for item in node.attribute if item.name == "qk_norm_epsilon"]:
        node.attribute.remove(item)
