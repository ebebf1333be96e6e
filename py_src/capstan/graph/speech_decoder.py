"""A speech decoder with the inputs of a text decoder: a mask, from which lengths come, and positions.

The export takes both from the size of its growing caches. With a mask plain_attention.py reads its attention, whose
caches then have one size and are written in place:

    Slice(table, Shape(past), Shape(past) + Shape(input_ids)) -> Gather(table, position_ids)
"""

from __future__ import annotations

from .node_writer import new_node, place_of
from .onnx_pb2 import ModelProto, NodeProto, TensorProto
from .total_length import ancestry
from .wiring import Wiring, copy_of, prune, value_info

__all__ = ["speech_decoder"]

LENGTHS = {"Add", "Cast", "Constant", "Gather", "Shape", "Squeeze", "Unsqueeze"}
"""Operators between a cache's shape and the rows of the table."""


def speech_decoder(model: ModelProto, past: str, input_ids: str, mask: str, positions: str) -> ModelProto:
    """The same with inputs `mask` and `positions`. A graph that has one of them, or that takes positions from something
    else than the size of the cache `past`, comes back as an equal copy."""
    result = copy_of(model)
    graph = result.graph
    wiring = Wiring(graph)
    tables = [node for node in graph.node if node.op_type == "Slice" and rows_from(wiring, node, past, input_ids)]
    if wiring.inputs & {mask, positions} or len(tables) != 1:
        return result
    [table] = tables
    place = place_of(graph, table)
    graph.node.insert(place, new_node("Gather", [table.input[0], positions], list(table.output), axis=0))
    del graph.node[place + 1]
    graph.input.append(value_info(mask, TensorProto.INT64, ["batch_size", "total_sequence_length"]))
    graph.input.append(value_info(positions, TensorProto.INT64, ["batch_size", "sequence_length"]))
    prune(graph)
    return result


def rows_from(wiring: Wiring, node: NodeProto, past: str, input_ids: str) -> bool:
    """Whether a Slice takes the rows of a table that begin at the length of a cache, one for each id."""
    if node.input[0] not in wiring.constants:
        return False
    sources = []
    for name in node.input[1:3]:
        above = list(ancestry(wiring, name))
        if any(isinstance(item, NodeProto) and item.op_type not in LENGTHS for item in above):
            return False
        sources.append({item for item in above if isinstance(item, str)})
    return sources == [{past}, {past, input_ids}]
