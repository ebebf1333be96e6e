"""Lets nodes write the graph's outputs themselves, where an Identity copies another value to an output."""

from __future__ import annotations

from .onnx_pb2 import ModelProto
from .wiring import copy_of, delete

__all__ = ["named_outputs"]


def named_outputs(model: ModelProto) -> ModelProto:
    """The same model without Identity nodes that make outputs of results of other nodes; these results have the
    outputs' names. A result that is an output itself stays.
    """
    outputs = {value.name for value in model.graph.output}
    made = {name for node in model.graph.node for name in node.output}
    renamed = {
        node.input[0]: node.output[0]
        for node in model.graph.node
        if node.op_type == "Identity" and node.output[0] in outputs and node.input[0] in made - outputs
    }
    if not renamed:
        return model
    result = copy_of(model)
    gone = set(renamed.items())
    delete(result.graph.node, lambda node: node.op_type == "Identity" and (node.input[0], node.output[0]) in gone)
    for node in result.graph.node:
        for names in (node.input, node.output):
            for place, name in enumerate(names):
                names[place] = renamed.get(name, name)
    return result
