"""Moves norms of q and k out of GroupQueryAttention, which onnxruntime-web supports only on WebGPU.

    q [batch, tokens, heads x head size] -> Reshape by head -> SimplifiedLayerNormalization -> Reshape -> attention

q, k and v are split first if they are one tensor.
"""

from __future__ import annotations

from .node_writer import NodeWriter, place_of, take_attribute
from .onnx_pb2 import ModelProto, NodeProto
from .wiring import attribute, copy_of

__all__ = ["norms_apart"]

ATTENTION = "GroupQueryAttention"
QUERY, KEY, VALUE, Q_NORM_WEIGHT, K_NORM_WEIGHT = 0, 1, 2, 14, 15
SPLIT_BY_INPUT = 13
"""The first opset in which sizes are an input of Split."""


def norms_apart(model: ModelProto) -> ModelProto:
    """Put the norms of q and k that are inputs of attention into nodes before it."""
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
    writer = NodeWriter(model.graph, f"{node.name or node.output[0]}/norms")
    heads = (attribute(node, "num_heads", 0), attribute(node, "kv_num_heads", 0))
    if packed:
        sizes = writer.ints([head * count for count in (*heads, heads[1])], "sizes")
        apart = [writer.name(part) for part in ("query", "key", "value")]
        writer.add("Split", [node.input[QUERY], sizes], outputs=apart, axis=-1)
        node.input[QUERY : VALUE + 1] = apart
    epsilon = next((item.f for item in node.attribute if item.name == "qk_norm_epsilon"), 1e-6)
    for place, weight, count, part in (
        (QUERY, node.input[Q_NORM_WEIGHT], heads[0], "q"),
        (KEY, node.input[K_NORM_WEIGHT], heads[1], "k"),
    ):
        by_head = writer.ints([0, 0, count, head], f"{part}_by_head")
        whole = writer.ints([0, 0, count * head], f"{part}_whole")
        name = writer.add("Reshape", [node.input[place], by_head], f"{part}_heads")
        name = writer.add("SimplifiedLayerNormalization", [name, weight], f"{part}_normed", axis=-1, epsilon=epsilon)
        node.input[place] = writer.add("Reshape", [name, whole], part)
    writer.insert(place_of(model.graph, node))
    del node.input[Q_NORM_WEIGHT:]
    while not node.input[-1]:
        del node.input[-1]
    take_attribute(node, "qk_norm_epsilon")
