"""Removes the input with the number of positions that give logits. Its value is always 0, which means all, as in the
native package.
"""

from __future__ import annotations

from collections.abc import Iterable

from .onnx_pb2 import ModelProto, TensorProto
from .wiring import copy_of, int64_tensor

__all__ = ["logits_of_all", "logits_to_keep"]

LOGITS_TO_KEEP = "num_logits_to_keep"
"""An int64 of one element. 0 means all positions."""
UNNAMED = "onnx::Neg_"
"""The beginning of the name that PyTorch's exporter gives this input if it loses the original name; onnxruntime-genai
feeds it, too.
"""


def logits_to_keep(names: Iterable[str]) -> str | None:
    """The name of the input that gives the number of logits; None if the graph has none."""
    return next((name for name in names if name == LOGITS_TO_KEEP or name.startswith(UNNAMED)), None)


def logits_of_all(model: ModelProto) -> ModelProto:
    """Make `num_logits_to_keep` the constant 0, if the model has that input; its default is removed."""
    result = copy_of(model)
    graph = result.graph
    name = logits_to_keep(value.name for value in graph.input)
    found = next((value for value in graph.input if value.name == name), None)
    if name is None or found is None:
        return result
    kind = found.type.tensor_type
    if kind.elem_type != TensorProto.INT64 or any(dim.dim_value != 1 for dim in kind.shape.dim):
        return result  # another input of that name, which is not fed
    graph.input.remove(found)
    for tensor in [tensor for tensor in graph.initializer if tensor.name == name]:
        graph.initializer.remove(tensor)
    graph.initializer.append(int64_tensor(name, [0], scalar=not kind.shape.dim))
    return result
