"""Sequence lengths as inputs of a graph that is run eagerly.

The host knows how long the sequence is, but an eager GroupQueryAttention wants its `total_sequence_length` on the CPU,
so a graph that sums the mask has onnxruntime read the whole mask back, sum it, and read the sum back, before the first
kernel of a prefill. The rewrite replaces the sums by two small inputs:

    seqlens_k             int32 [1]: positions valid after the run, less one
    total_sequence_length int32 []: positions valid after the run; onnxruntime takes it from the CPU
"""

from __future__ import annotations

from dataclasses import dataclass

from .onnx_pb2 import ModelProto, TensorProto
from .total_length import ATTENTION, SEQLENS_K, TOTAL_LENGTH
from .wiring import Wiring, attribute, copy_of, fresh_name, integers, prune, value_info

__all__ = ["FedLengths", "lengths_as_inputs"]

SAME_VALUE = {"Cast", "Identity"}


@dataclass(frozen=True)
class FedLengths:
    """The names of a graph's two length inputs."""

    seqlens_k: str
    total: str
    reads_mask: bool
    """Whether the graph still has the mask among its inputs, for something else."""


def lengths_as_inputs(model: ModelProto, mask: str = "attention_mask") -> tuple[ModelProto, FedLengths | None, str]:
    """Feed every attention's lengths from inputs; return the new model, their names, and why it is unchanged (empty if
    it was rewritten).

    Run it after `total_length_on_gpu`. Only sums over the mask are replaced, so the inputs' values are what the graph
    would compute from a mask whose ones are the valid positions. A graph that has other lengths too, or no
    GroupQueryAttention, comes back as an equal copy with the reason.
    """
    result = copy_of(model)
    graph = result.graph
    wiring = Wiring(graph)
    users = [node for node in graph.node if node.op_type == ATTENTION]
    if not users:
        return result, None, f"no {ATTENTION} takes a length"
    for node in users:
        if len(node.input) <= TOTAL_LENGTH or not is_last(wiring, node.input[SEQLENS_K], mask):
            return result, None, f"seqlens_k of node {node.name} is no sum of {mask} less one"
        if not is_total(wiring, node.input[TOTAL_LENGTH], mask):
            return result, None, f"total_sequence_length of node {node.name} is no sum of {mask}"
    last, total = (fresh_name(graph, f"capstan.{part}") for part in ("seqlens_k", "total_sequence_length"))
    graph.input.extend([value_info(last, TensorProto.INT32, [1]), value_info(total, TensorProto.INT32, [])])
    for node in users:
        node.input[SEQLENS_K], node.input[TOTAL_LENGTH] = last, total
    prune(graph)
    reads_mask = mask in Wiring(graph).consumers
    if not reads_mask:
        graph.input.remove(next(value for value in graph.input if value.name == mask))
    return result, FedLengths(last, total, reads_mask), ""


def source(wiring: Wiring, name: str) -> str:
    """The tensor whose value this one has, found by walking up past nodes that do not change it."""
    while (node := wiring.producer.get(name)) is not None and node.op_type in SAME_VALUE:
        name = node.input[0]
    return name


def is_sum(wiring: Wiring, name: str, mask: str) -> bool:
    """Whether a tensor is the mask's sum over its positions: int [batch]."""
    node = wiring.producer.get(source(wiring, name))
    if node is None or node.op_type != "ReduceSum" or source(wiring, node.input[0]) != mask:
        return False
    axes = integers(wiring.constants.get(node.input[1])) if len(node.input) > 1 else None
    return axes in ([1], [-1]) and attribute(node, "keepdims", 1) == 0


def is_last(wiring: Wiring, name: str, mask: str) -> bool:
    """Whether a tensor is that sum less one: int [batch]."""
    node = wiring.producer.get(source(wiring, name))
    if node is None or node.op_type != "Sub":
        return False
    return is_sum(wiring, node.input[0], mask) and integers(wiring.constants.get(node.input[1])) == [1]


def is_total(wiring: Wiring, name: str, mask: str) -> bool:
    """Whether a tensor is that sum's maximum over the batch: an int scalar."""
    node = wiring.producer.get(source(wiring, name))
    if node is None or node.op_type != "ReduceMax" or len(node.input) > 1 or attribute(node, "keepdims", 1) != 0:
        return False
    return not any(item.name == "axes" for item in node.attribute) and is_sum(wiring, node.input[0], mask)
