"""Makes the sequence lengths inputs of a graph that is run eagerly.

The host knows the sequence's length, but an eager GroupQueryAttention needs its `total_sequence_length` on the CPU. So
with a graph that sums the mask onnxruntime reads the whole mask back, sums it, and reads the sum back, before the first
kernel of a prefill. The rewrite replaces the sums by two small inputs:

    seqlens_k             int32 [1]: positions valid after the run, less one
    total_sequence_length int32 []: positions valid after the run; onnxruntime takes it from the CPU

Attention over sliding caches (sliding_caches.py) has two separate inputs, which count only the positions in the caches.
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
    held_seqlens_k: str = ""
    """The same for the positions from the base of sliding caches on; empty if there are none."""
    held_total: str = ""


def lengths_as_inputs(
    model: ModelProto, mask: str = "attention_mask", base: str = ""
) -> tuple[ModelProto, FedLengths | None, str]:
    """Feed every attention's lengths from inputs; return the new model, their names, and why it is unchanged (empty if
    it was rewritten). `base` is the input of `sliding_caches`, if there is one.

    Run it after `total_length_on_gpu`. Only sums over the mask are replaced, so the inputs' values are what the graph
    would compute from a mask whose ones are the valid positions. A graph that also has other lengths, or no
    GroupQueryAttention, comes back as an equal copy with the reason.
    """
    result = copy_of(model)
    graph = result.graph
    wiring = Wiring(graph)
    users = [node for node in graph.node if node.op_type == ATTENTION]
    if not users:
        return result, None, f"no {ATTENTION} takes a length"
    held = []
    for node in users:
        if len(node.input) <= TOTAL_LENGTH:
            return result, None, f"node {node.name} has no total_sequence_length"
        lengths = node.input[SEQLENS_K], node.input[TOTAL_LENGTH]
        from_base = [over_base(wiring, length, base) for length in lengths]
        slides = all(from_base)
        last, total = (found or length for found, length in zip(from_base, lengths, strict=True))
        if not is_last(wiring, last, mask):
            return result, None, f"seqlens_k of node {node.name} is not the sum of {mask} minus one"
        if not is_total(wiring, total, mask):
            return result, None, f"total_sequence_length of node {node.name} is not a sum of {mask}"
        held.append(slides)
    names = ["seqlens_k", "total_sequence_length"]
    names += ["held_seqlens_k", "held_total_sequence_length"] if any(held) else []
    fed = [fresh_name(graph, f"capstan.{name}") for name in names]
    for place, name in enumerate(fed):
        graph.input.append(value_info(name, TensorProto.INT32, [] if place % 2 else [1]))
    for node, slides in zip(users, held, strict=True):
        node.input[SEQLENS_K], node.input[TOTAL_LENGTH] = fed[2:] if slides else fed[:2]
    prune(graph)
    read = Wiring(graph).consumers
    for value in [value for value in graph.input if value.name in (mask, base) and value.name not in read]:
        graph.input.remove(value)
    return result, FedLengths(*fed), ""


def over_base(wiring: Wiring, name: str, base: str) -> str:
    """The length from which a tensor subtracts the base; empty if the tensor is not such a difference."""
    node = wiring.producer.get(name) if base else None
    return node.input[0] if node is not None and node.op_type == "Sub" and node.input[1] == base else ""


def source(wiring: Wiring, name: str) -> str:
    """Find the tensor whose value this tensor has, by walking up past nodes that do not change it."""
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
    """Whether a tensor is the mask's sum over its positions, minus one: int [batch]."""
    node = wiring.producer.get(source(wiring, name))
    if node is None or node.op_type != "Sub":
        return False
    return is_sum(wiring, node.input[0], mask) and integers(wiring.constants.get(node.input[1])) == [1]


def is_total(wiring: Wiring, name: str, mask: str) -> bool:
    """Whether a tensor is the maximum over the batch of the mask's sums: an int scalar."""
    node = wiring.producer.get(source(wiring, name))
    if node is None or node.op_type != "ReduceMax" or len(node.input) > 1 or attribute(node, "keepdims", 1) != 0:
        return False
    return not any(item.name == "axes" for item in node.attribute) and is_sum(wiring, node.input[0], mask)
