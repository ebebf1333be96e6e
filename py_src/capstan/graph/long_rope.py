"""Long rope: a model with other rotary factors past its original length than up to it.

From the step on at which a sequence outgrows the original length, all its positions are rotated by the long factors,
the keys in the cache too. Such a graph chooses by the size of the mask, which here is the cache's capacity, or leaves
the choice to the execution provider (multiRotaryCacheConcatOffset), which rotates new keys only. So sequences end at
the original length, and up to there the graph needs the short factors alone:

    attention_mask -> Shape -> ... -> Greater(original length) -> If -> cos_cache, sin_cache
"""

from __future__ import annotations

from ..errors import UnsupportedModelError
from .onnx_pb2 import ModelProto, NodeProto, TensorProto
from .total_length import ATTENTION, ancestry
from .wiring import Wiring, copy_of, integers, prune

__all__ = ["short_rope"]

COS_CACHE = 7
ROTATED_BY = {ATTENTION: COS_CACHE, "RotaryEmbedding": 2}
"""The index of the input cos_cache by operator; sin_cache is the next input."""


def short_rope(model: ModelProto, mask: str = "attention_mask") -> tuple[ModelProto, int]:
    """The model with each choice of rotary factors replaced by the short ones, and the most positions that they are
    for; an equal copy and 0 if it has no such choice.

    Raises UnsupportedModelError for a choice that is not by the length of the mask.
    """
    result = copy_of(model)
    graph = result.graph
    wiring = Wiring(graph)
    choices: dict[str, NodeProto] = {}
    for node in graph.node:
        place = ROTATED_BY.get(node.op_type, len(node.input))
        for name in node.input[place : place + 2]:
            choice = wiring.producer.get(name)
            if choice is not None and choice.op_type == "If":
                choices[choice.output[0]] = choice
    limits = []
    for choice in choices.values():
        limits.append(longest_short(wiring, choice, mask))
        branch = next(item.g for item in choice.attribute if item.name == "else_branch")
        made = {node.output[0]: constant(node, choice) for node in branch.node}
        made |= {tensor.name: tensor for tensor in branch.initializer}
        for outer, inner in zip(choice.output, branch.output, strict=True):
            tensor = TensorProto()
            tensor.CopyFrom(made[inner.name])
            tensor.name = outer
            graph.initializer.append(tensor)
        graph.node.remove(choice)
    prune(graph)
    return result, min(limits, default=0)


def longest_short(wiring: Wiring, choice: NodeProto, mask: str) -> int:
    """The length up to which an If takes its else branch."""
    node = wiring.producer.get(choice.input[0])
    if node is not None and node.op_type == "Greater":
        bound = integers(wiring.constants.get(node.input[1]))
        sources = {item for item in ancestry(wiring, node.input[0]) if isinstance(item, str)}
        if sources == {mask} and bound is not None and len(bound) == 1:
            return bound[0]
    raise UnsupportedModelError(
        f"node {choice.name} (If) chooses rotary factors, and not by whether {mask} is longer than a constant; "
        "export the model with onnxruntime-genai's model builder"
    )


def constant(node: NodeProto, choice: NodeProto) -> TensorProto:
    for item in node.attribute:
        if node.op_type == "Constant" and item.name == "value":
            return item.t
    raise UnsupportedModelError(
        f"node {choice.name} (If) computes rotary factors by node {node.name} ({node.op_type}); export the model with "
        "onnxruntime-genai's model builder"
    )
