"""The logits of every position again, of a graph that last_token.py has cut to the last one."""

from __future__ import annotations

from .last_token import CUT
from .onnx_pb2 import ModelProto
from .wiring import copy_of

__all__ = ["every_position"]


def every_position(model: ModelProto) -> ModelProto:
    """Undo `last_token_logits` without `first`, or `logits_cut`: their Slice hands on all that it reads."""
    result = copy_of(model)
    graph = result.graph
    cuts = [node for node in graph.node if node.name.startswith(CUT) and node.op_type == "Slice"]
    for node in cuts:
        del node.input[1:]
        node.op_type = "Identity"
    for value in [*graph.value_info, *graph.output] if cuts else ():
        # Those behind the Slice were told to have one position.
        shape = value.type.tensor_type.shape.dim
        if len(shape) == 3 and shape[1].dim_value == 1:
            shape[1].Clear()
    return result
