"""Splits key/value caches that are larger than a binding of the GPU adapter into parts of some heads each.

    GroupQueryAttention(q, k, v, past [B, H, P, D])     Split(q), Split(k), Split(v)
                                                        GroupQueryAttention(q_p, k_p, v_p, past_p [B, H / N, P, D])
                                                        Concat

Each query head attends to the same key/value head as before, so the results are equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .carried import CachePair, part_name
from .joined_products import SPLIT_WITH_SIZES, opset_of
from .node_writer import NodeWriter, place_of
from .onnx_pb2 import GraphProto, ModelProto, NodeProto
from .wiring import attribute, copy_of, delete

__all__ = ["SplitCache", "parts_that_fit", "split_caches", "whole_because"]

PAST_KEY, PAST_VALUE, LAST_SHARED = 3, 4, 9
"""Inputs of GroupQueryAttention. The inputs after the last of these differ from head to head: a bias, sinks."""
HEADS = 1
"""The index of a cache's heads among its dimensions."""


@dataclass(frozen=True)
class SplitCache:
    """A cache that is larger than a binding."""

    name: str
    bytes: int
    parts: int


def parts_that_fit(heads: int, head_bytes: int, largest: int) -> int:
    """The smallest number of parts with equal numbers of heads, each of at most `largest` bytes; 0 if one head is
    larger.
    """
    return next(
        (parts for parts in range(1, heads + 1) if not heads % parts and heads // parts * head_bytes <= largest), 0
    )


def split_caches(
    model: ModelProto, pairs: Mapping[CachePair, int], largest: int
) -> tuple[ModelProto, tuple[SplitCache, ...]]:
    """The model with each cache of more than `largest` bytes in parts, and these caches. `pairs` have the bytes of a
    head of each. If the caches have to stay whole, the model comes back unchanged.
    """
    large = {pair.past: pair for pair, size in pairs.items() if pair.heads * size > largest}
    if not large or whole_because(model, tuple(pairs)):
        return model, ()
    parts = max(parts_that_fit(pair.heads, pairs[pair], largest) or pair.heads for pair in large.values())
    if parts == 1:
        return model, ()
    result = copy_of(model)
    for node in [node for node in result.graph.node if node.op_type == "GroupQueryAttention"]:
        if len(node.input) > PAST_KEY and node.input[PAST_KEY] in large:
            divide(result.graph, node, large[node.input[PAST_KEY]], parts)
    described = (SplitCache(pair.past, pair.heads * pairs[pair], parts) for pair in large.values())
    return result, tuple(described)


def whole_because(model: ModelProto, pairs: Sequence[CachePair]) -> str:
    """The reason why the caches of `pairs` cannot be split; empty without one."""
    if opset_of(model) < SPLIT_WITH_SIZES:
        return f"its operator set is older than {SPLIT_WITH_SIZES}"
    attention = (node for node in model.graph.node if node.op_type == "GroupQueryAttention")
    found = {node.input[PAST_KEY]: node for node in attention if len(node.input) > PAST_KEY}
    presents = {pair.present for pair in pairs}
    shared = next((node for key, node in found.items() if key in presents), None)
    if shared is not None:
        return f"node {shared.name or shared.output[0]} reads the caches of another node"
    for pair in pairs:
        if pair.kind != "key":
            continue
        node = found.get(pair.past)
        if node is None:
            return f"{pair.past} is not a cache of a GroupQueryAttention node"
        if any(node.input[LAST_SHARED + 1 :]):
            return f"node {node.name or node.output[0]} reads an input with values for each head"
        if any(node.input[1:3]) != all(node.input[1:3]):
            return f"node {node.name or node.output[0]} takes keys or values from elsewhere"
    return ""


def divide(graph: GraphProto, node: NodeProto, pair: CachePair, parts: int) -> None:
    """Replace one node by attention over parts of the heads."""
    heads, kv_heads = (attribute(node, name, 0) // parts for name in ("num_heads", "kv_num_heads"))
    front = node.name or node.output[0]
    queries, others = [heads * pair.head_size] * parts, [kv_heads * pair.head_size] * parts
    writer = NodeWriter(graph, f"{front}/parts")

    def taken_apart(name: str, sizes: Sequence[int], what: str) -> list[str]:
        found = [writer.name(f"{what}_{place}") for place in range(len(sizes))]
        writer.add("Split", [name, writer.ints(sizes, f"{what}_sizes")], outputs=found, axis=-1)
        return found

    if any(node.input[1:3]):
        pieces = [taken_apart(node.input[0], queries, "q")]
        pieces += [taken_apart(name, others, what) for name, what in zip(node.input[1:3], "kv", strict=True)]
    else:
        packed = taken_apart(node.input[0], [*queries, *others, *others], "qkv")
        pieces = [packed[start : start + parts] for start in range(0, 3 * parts, parts)]
    caches = [*node.input[PAST_KEY : PAST_VALUE + 1], *node.output[1:3]]
    for name in caches:
        in_parts(graph, name, parts)
    results = []
    for part in range(parts):
        own = NodeProto()
        own.CopyFrom(node)
        own.name = writer.name(f"{part}")
        own.input[:3] = [each[part] for each in pieces]
        own.input[PAST_KEY : PAST_VALUE + 1] = [part_name(name, part) for name in caches[:2]]
        results.append(own.name)
        own.output[:] = [own.name, *(part_name(name, part) for name in caches[2:])]
        for item in own.attribute:
            if item.name in ("num_heads", "kv_num_heads"):
                item.i //= parts
        writer.made.append(own)
    place = place_of(graph, node)
    writer.add("Concat", results, outputs=node.output[:1], axis=-1)
    del graph.node[place]
    writer.insert(place)


def in_parts(graph: GraphProto, name: str, parts: int) -> None:
    """Replace a cache by inputs or outputs for parts of the heads."""
    for values in (graph.input, graph.output):
        for place, value in enumerate(values[:]):
            if value.name != name:
                continue
            made = []
            for part in range(parts):
                own = type(value)()
                own.CopyFrom(value)
                own.name = part_name(name, part)
                dims = own.type.tensor_type.shape.dim
                heads = dims[HEADS].dim_value // parts
                dims[HEADS].Clear()
                dims[HEADS].dim_value = heads
                made.append(own)
            delete(values, lambda each: each.name == name)
            for index, each in enumerate(made):
                values.insert(place + index, each)
            return
