"""Replaces experts of a GGUF file by experts with the same weights in float32, for CPUs.

    QMoE(x, scores, quants, scales, bias, quants, scales, bias)      becomes      MoE(x, scores, V, bias, V, bias)

V has the values of the tensors, `d * q`. onnxruntime rounds activations to int8 for experts of 8 bits. In a float16
graph casts are around the node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .node_writer import take_attribute
from .onnx_pb2 import GraphProto, ModelProto, NodeProto, TensorProto
from .parts import Unpack
from .weight_inputs import WeightEntry, external_entries, made_of
from .wide_products import FloatProducts
from .wiring import copy_of, fresh_name

__all__ = ["float_experts"]

INPUTS = (0, 1, 2, 4, 5, 7)
"""The inputs of QMoE in the order of MoE: all except the scales."""
WEIGHTS = (2, 5)
"""The quants of each product; after them come their scales."""
PACKED_ONLY = ("expert_weight_bits", "block_size")


def float_experts(model: ModelProto) -> tuple[ModelProto, bool]:
    """The same model, and whether it has experts of a GGUF file; without these it stays unchanged."""
    entries = {entry.name: entry for entry in external_entries(model) if entry.parts}
    names = [node.name for node in model.graph.node if node.op_type == "QMoE" and node.input[WEIGHTS[0]] in entries]
    if not names:
        return model, False
    result = copy_of(model)
    floats = FloatProducts(result)
    for node in [node for node in result.graph.node if node.name in names]:
        become_floats(result.graph, node, entries, floats)
    floats.finish()
    return result, True


def become_floats(
    graph: GraphProto, node: NodeProto, entries: Mapping[str, WeightEntry], floats: FloatProducts
) -> None:
    """Turn one QMoE node into MoE, in place."""
    given = [*node.input, *[""] * len(INPUTS)]
    half = entries[given[WEIGHTS[0] + 1]].onnx_type == TensorProto.FLOAT16
    inputs = [given[place] for place in INPUTS]
    for place, name in enumerate(inputs):
        if INPUTS[place] in WEIGHTS:
            inputs[place] = float_weight(graph, entries[name])
        elif half and name:
            inputs[place] = floats.widened(name)
    del node.input[:]
    node.input.extend(inputs if inputs[-1] else inputs[:-1])
    node.op_type = "MoE"
    take_attribute(node, *PACKED_ONLY)
    if half:
        floats.narrow(node)


def float_weight(graph: GraphProto, packed: WeightEntry) -> str:
    """The name of the float32 values [experts, rows, columns] of a weight."""
    parts, columns = [], 0
    for part in packed.parts:
        how = part.change
        assert isinstance(how, Unpack), "experts are unpacked"
        columns = how.columns
        between = 4 * columns * (len(packed.parts) - 1)
        parts.append(replace(part, change=replace(how, what="values", bits=32, block=1, between=between)))
    name = fresh_name(graph, f"{packed.name}_float")
    graph.initializer.append(made_of(name, TensorProto.FLOAT, (*packed.dims[:2], columns), packed.location, parts))
    return name
