"""The input that says of how many positions the logits are: always one, the last."""

from __future__ import annotations

from .onnx_pb2 import ModelProto, TensorProto
from .wiring import copy_of, int64_tensor

__all__ = ["LOGITS_TO_KEEP", "keep_last_logits"]

LOGITS_TO_KEEP = "num_logits_to_keep"
"""An int64 of one element. 0 means all positions."""


def keep_last_logits(model: ModelProto, logits: str = "logits") -> ModelProto:
    """Let `num_logits_to_keep` be the constant 1, if the model has that input; the logits are then [B, 1, V]."""
    result = copy_of(model)
    graph = result.graph
    found = next((value for value in graph.input if value.name == LOGITS_TO_KEEP), None)
    if found is None:
        return result
    kind = found.type.tensor_type
    if kind.elem_type != TensorProto.INT64 or any(dim.dim_value != 1 for dim in kind.shape.dim):
        return result  # something else of that name, which nobody feeds
    graph.input.remove(found)
    graph.initializer.append(int64_tensor(LOGITS_TO_KEEP, [1], scalar=not kind.shape.dim))
    for value in graph.output:
        dims = value.type.tensor_type.shape.dim
        if value.name == logits and len(dims) == 3:
            dims[1].Clear()
            dims[1].dim_value = 1
    return result
