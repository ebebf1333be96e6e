"""Lets the GPU compute the sequence lengths.

Exports that are not made for graph capture take attention's `total_sequence_length` from Shape(attention_mask). That
value is on the CPU and frozen at capture, and with a static mask it is the mask's size instead of the sequence's. The
rewrite gives the subgraph that the model builder writes with enable_webgpu_graph:

    attention_mask -> Cast(int32) -> ReduceSum(axis 1) -+-> Sub(1)    -> seqlens_k
                                                        +-> ReduceMax -> total_sequence_length
"""

from __future__ import annotations

from collections.abc import Iterator

from .node_writer import NodeWriter
from .onnx_pb2 import ModelProto, NodeProto, TensorProto
from .wiring import Wiring, copy_of, prune

__all__ = ["add_lengths", "total_length_on_gpu"]

ATTENTION = "GroupQueryAttention"
SEQLENS_K, TOTAL_LENGTH = 5, 6
LENGTH_OPS = {
    "Cast",
    "Sub",
    "ReduceSum",
    "ReduceMax",
    "Gather",
    "Squeeze",
    "Unsqueeze",
    "Reshape",
    "Identity",
    "Shape",
    "Slice",
}


def ancestry(wiring: Wiring, name: str) -> Iterator[NodeProto | str]:
    """Every node above a tensor, and every graph input that reaches it."""
    pending, seen = [name], {name}
    while pending:
        current = pending.pop()
        node = wiring.producer.get(current)
        if node is None:
            if current in wiring.inputs:
                yield current
            continue
        yield node
        for source in node.input:
            if source and source not in seen:
                seen.add(source)
                pending.append(source)


def from_shape_of(wiring: Wiring, name: str, mask: str) -> bool:
    """Whether a tensor is a length computed from the mask, with a Shape on the way."""
    above = list(ancestry(wiring, name))
    nodes = [item for item in above if isinstance(item, NodeProto)]
    sources = {item for item in above if isinstance(item, str)}
    if sources != {mask} or any(node.op_type not in LENGTH_OPS | {"Constant"} for node in nodes):
        return False
    return any(node.op_type == "Shape" for node in nodes)


def total_length_on_gpu(model: ModelProto, mask: str = "attention_mask") -> ModelProto:
    """Let attention's lengths come from the sum of the mask instead of its shape.

    Both length inputs of every GroupQueryAttention whose total comes from Shape(mask) are rewired; dead nodes are
    removed. A graph without such a node (made with enable_webgpu_graph, or without attention over a mask) comes back as
    an equal copy.
    """
    result = copy_of(model)
    graph = result.graph
    wiring = Wiring(graph)
    users = [
        node
        for node in graph.node
        if node.op_type == ATTENTION
        and len(node.input) > TOTAL_LENGTH
        and from_shape_of(wiring, node.input[TOTAL_LENGTH], mask)
    ]
    if not users:
        return result
    writer = NodeWriter(graph, "/capstan/lengths")
    last, total = add_lengths(writer, mask)
    for node in users:
        node.input[SEQLENS_K], node.input[TOTAL_LENGTH] = last, total
    writer.insert(0)
    prune(graph)
    return result


def add_lengths(writer: NodeWriter, mask: str) -> tuple[str, str]:
    """Add the nodes that count positions: each row's number minus one, int32 [batch], and the largest number, int32
    [].
    """
    total = writer.add("ReduceSum", [writer.add("Cast", [mask], to=TensorProto.INT32), writer.ints([1])], keepdims=0)
    last = writer.add("Sub", [total, writer.numbers(TensorProto.INT32, [1])])
    return last, writer.add("ReduceMax", [total], keepdims=0)
