"""Gives a speech decoder the inputs of a text decoder: a mask, which gives lengths, and positions.

The export takes both from the size of its growing caches. With a mask plain_attention.py recognises its attention,
whose caches then have one size and are written in place:

    Slice(table, Shape(past), Shape(past) + Shape(input_ids)) -> Gather(table, position_ids)

Keys get a bias of zeros beside the biases of queries and values, so that one matrix product makes keys, queries and
values.
"""

from __future__ import annotations

from base64 import b64encode

from .node_writer import new_node, place_of
from .onnx_pb2 import ModelProto, NodeProto, TensorProto
from .parts import Angles, Part
from .total_length import ancestry
from .weight_inputs import entry_of, made_of
from .wiring import Wiring, copy_of, fresh_name, prune, value_info

__all__ = ["speech_decoder"]

LENGTHS = {"Add", "Cast", "Constant", "Gather", "Shape", "Squeeze", "Unsqueeze"}
"""Operators between a cache's shape and the rows of the table."""
PRODUCTS = ("MatMul", "MatMulNBits")
BITS: dict[int, int] = {TensorProto.FLOAT: 32, TensorProto.FLOAT16: 16}
READ = 4
"""The smallest number of bytes of the data file that a part names."""


def speech_decoder(model: ModelProto, past: str, input_ids: str, mask: str, positions: str) -> ModelProto:
    """The same model with the inputs `mask` and `positions`. A graph that already has one of them, or that does not
    take positions from the size of the cache `past`, comes back as an equal copy.
    """
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
    keys_biased(result)
    prune(graph)
    return result


def keys_biased(model: ModelProto) -> None:
    """Give keys a bias of zeros if queries and values have one, in place."""
    graph, wiring = model.graph, Wiring(model.graph)
    for node in [node for node in graph.node if node.op_type == "MultiHeadAttention"]:
        query, key, value = (wiring.producer.get(name) for name in node.input[:3])
        if query is None or key is None or value is None or key.op_type not in PRODUCTS:
            continue
        constants = [wiring.constants[name] for name in value.input if name in wiring.constants]
        if query.op_type != "Add" or value.op_type != "Add" or len(constants) != 1:
            continue
        zeros = zeros_like(constants[0], fresh_name(graph, f"{key.output[0]}/zeros"))
        if zeros is not None:
            total = fresh_name(graph, f"{key.output[0]}/biased")
            graph.initializer.append(zeros)
            graph.node.insert(place_of(graph, node), new_node("Add", [node.input[1], zeros.name], [total]))
            node.input[1] = total


def zeros_like(tensor: TensorProto, name: str) -> TensorProto | None:
    """A vector of zeros of the same size, in the same data file if there is one; None for other shapes and types."""
    bits = BITS.get(tensor.data_type)
    if bits is None or len(tensor.dims) != 1:
        return None
    [size] = tensor.dims
    if tensor.data_location != TensorProto.EXTERNAL:
        return TensorProto(name=name, data_type=tensor.data_type, dims=[size], raw_data=bytes(size * bits // 8))
    held = entry_of(tensor)
    # Zeros as the sines of zero angles.
    sines = Angles("sin", 1, b64encode(bytes(4 * size)).decode(), 1.0, bits)
    return made_of(name, tensor.data_type, [size], held.location, [Part(held.offset, READ, sines)])


def rows_from(wiring: Wiring, node: NodeProto, past: str, input_ids: str) -> bool:
    """Whether a Slice takes rows of a table that begin at the length of a cache, one for each id."""
    if node.input[0] not in wiring.constants:
        return False
    sources = []
    for name in node.input[1:3]:
        above = list(ancestry(wiring, name))
        if any(isinstance(item, NodeProto) and item.op_type not in LENGTHS for item in above):
            return False
        sources.append({item for item in above if isinstance(item, str)})
    return sources == [{past}, {past, input_ids}]
