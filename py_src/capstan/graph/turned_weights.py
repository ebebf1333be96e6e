"""Transposes weights once, while loading, if the graph would transpose them in each run.

A model whose output projection shares the embedding's weight may have a Transpose, as Optimum exports it. onnxruntime
would transpose an initializer once, but weights are inputs of the graph on WebGPU.
"""

from __future__ import annotations

from .onnx_pb2 import ModelProto, NodeProto, TensorProto
from .parts import Part, Turn
from .weight_inputs import DTYPES, entry_of, made_of
from .wiring import Wiring, copy_of, fresh_name, prune

__all__ = ["turned_weights"]

WIDTHS = (8, 16, 32)
"""Bits of elements that fill whole bytes of a buffer's rows."""


def turned_weights(model: ModelProto) -> ModelProto:
    """The same model, with a separate weight in place of each transposed matrix of the data files."""
    result = copy_of(model)
    graph = result.graph
    wiring = Wiring(graph)
    for node in [node for node in graph.node if node.op_type == "Transpose"]:
        weight = wiring.constants.get(node.input[0])
        if weight is None or not is_turned(node, weight):
            continue
        entry, name = entry_of(weight), fresh_name(graph, f"{weight.name}_turned")
        if entry.parts:
            continue  # The weight already has parts.
        rows, columns = entry.dims
        turn = Turn(rows, columns, DTYPES[entry.onnx_type][1], flipped=False)
        part = Part(entry.offset, entry.length, turn)
        graph.initializer.append(made_of(name, entry.onnx_type, [columns, rows], entry.location, [part]))
        for reader in wiring.consumers.get(node.output[0], []):
            for place, source in enumerate(reader.input):
                if source == node.output[0]:
                    reader.input[place] = name
    prune(graph)
    return result


def is_turned(node: NodeProto, weight: TensorProto) -> bool:
    """Whether a node transposes a matrix of a data file."""
    if weight.data_location != TensorProto.EXTERNAL or len(weight.dims) != 2:
        return False
    perm = next((list(item.ints) for item in node.attribute if item.name == "perm"), [1, 0])
    return perm == [1, 0] and weight.data_type in DTYPES and DTYPES[weight.data_type][1] in WIDTHS
