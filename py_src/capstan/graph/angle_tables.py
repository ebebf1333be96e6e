"""Rotary tables that a graph computes from constants: a device computes them once, and all sessions share them.

    Range(0, positions, 1) -> Unsqueeze -> Mul(frequencies) -> Cos or Sin -> Mul(scale)? -> Cast?

onnxruntime would compute such a table again for each session, which then has a copy of its own.
"""

from __future__ import annotations

import struct
from base64 import b64encode
from collections.abc import Sequence
from typing import Literal

from .onnx_pb2 import ModelProto, NodeProto, TensorProto
from .parts import Angles, Part
from .weights import DTYPES, external_entries, made_of
from .wiring import Wiring, copy_of, prune

__all__ = ["angle_tables"]

WAVES: dict[str, Literal["cos", "sin"]] = {"Cos": "cos", "Sin": "sin"}
READ = 4
"""Bytes of the data file that a table's part names; a part has some, and the table needs none of them."""


def angle_tables(model: ModelProto) -> ModelProto:
    """The same model with each such table as a weight of a data file; an equal copy of a model without data files."""
    result = copy_of(model)
    graph = result.graph
    held = next(iter(external_entries(result)), None)
    if held is None:
        return result
    wiring = Wiring(graph)
    tables = {}
    for node in graph.node:
        last = last_of(node, wiring) if node.op_type in WAVES else None
        angles = angles_of(node, last, wiring) if last is not None else None
        if last is not None and angles is not None:
            tables[last.output[0]] = angles
    for name, angles in tables.items():
        kind = TensorProto.FLOAT16 if angles.bits == 16 else TensorProto.FLOAT
        part = Part(held.offset, READ, angles)
        for node in graph.node:
            if name in node.output:
                node.output[list(node.output).index(name)] = f"{name}/computed"
        graph.initializer.append(made_of(name, kind, [angles.rows, angles.columns], held.location, [part]))
    prune(graph)
    return result


def last_of(wave: NodeProto, wiring: Wiring) -> NodeProto | None:
    """The node that gives the table: the cosines, or what scales and narrows them; None for an output of the graph."""
    last = wave
    for kind in ("Mul", "Cast"):
        readers = wiring.consumers.get(last.output[0], [])
        if len(readers) == 1 and readers[0].op_type == kind:
            last = readers[0]
    return None if last.output[0] in wiring.outputs else last


def angles_of(wave: NodeProto, last: NodeProto, wiring: Wiring) -> Angles | None:
    """The table from the first of its nodes to the last; None where it is computed in another way."""
    product = wiring.producer.get(wave.input[0])
    column = wiring.producer.get(product.input[0]) if product is not None and product.op_type == "Mul" else None
    positions = wiring.producer.get(column.input[0]) if column is not None and column.op_type == "Unsqueeze" else None
    if product is None or positions is None or positions.op_type != "Range":
        return None
    bounds = [floats(wiring, name) for name in positions.input]
    frequencies = floats(wiring, product.input[1])
    if not frequencies or [len(bound) for bound in bounds] != [1, 1, 1]:
        return None
    start, end, step = (bound[0] for bound in bounds)
    scale, node = 1.0, wave
    while node is not last:
        node = wiring.consumers[node.output[0]][0]
        if node.op_type == "Mul":
            factors = [floats(wiring, name) for name in node.input]
            [factor] = [found for found in factors if found] or [()]
            if len(factor) != 1:
                return None
            scale = factor[0]
    kind = next((item.i for item in last.attribute if item.name == "to"), TensorProto.FLOAT)
    if (start, step) != (0.0, 1.0) or kind not in (TensorProto.FLOAT, TensorProto.FLOAT16):
        return None
    text = b64encode(struct.pack(f"<{len(frequencies)}f", *frequencies)).decode()
    return Angles(WAVES[wave.op_type], int(end), text, scale, DTYPES[kind][1])


def floats(wiring: Wiring, name: str) -> Sequence[float]:
    """The values of a constant of float32; none for anything else."""
    tensor = wiring.constants.get(name)
    if tensor is None or tensor.data_type != TensorProto.FLOAT or tensor.data_location == TensorProto.EXTERNAL:
        return ()
    return struct.unpack(f"<{len(tensor.raw_data) // 4}f", tensor.raw_data) if tensor.raw_data else tensor.float_data
