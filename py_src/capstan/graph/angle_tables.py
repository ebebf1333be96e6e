"""Turns rotary tables that a graph computes from constants (rotary_nodes.py) into weights. A device computes such a
table once, and all sessions share it.

onnxruntime would compute such a table again for each session, and each session would have a copy.
"""

from __future__ import annotations

import struct
from base64 import b64encode

from .long_rope import ROTATED_BY
from .onnx_pb2 import GraphProto, ModelProto, TensorProto
from .parts import Angles, Part
from .rotary_nodes import computed_rows
from .weight_inputs import external_entries, made_of
from .wiring import Wiring, copy_of, prune

__all__ = ["angle_tables"]

BITS: dict[int, int] = {TensorProto.FLOAT: 32, TensorProto.FLOAT16: 16}
READ = 4
"""Bytes of the data file that a table's part names: a part must have some, although the table needs none."""


def angle_tables(model: ModelProto) -> ModelProto:
    """The same model, in which each rotary table that the graph computes from constants is a weight of a data file. A
    model without data files is returned as an equal copy.
    """
    result = copy_of(model)
    graph = result.graph
    held = next(iter(external_entries(result)), None)
    if held is None:
        return result
    wiring = Wiring(graph)
    for name in table_names(graph):
        rows = computed_rows(wiring, name)
        if rows is None or rows.kind not in BITS:
            continue
        frequencies = b64encode(struct.pack(f"<{len(rows.frequencies)}f", *rows.frequencies)).decode()
        angles = Angles("sin" if rows.sine else "cos", rows.rows, frequencies, rows.scale, BITS[rows.kind])
        wiring.producer[name].output[0] = f"{name}/computed"
        part = Part(held.offset, READ, angles)
        graph.initializer.append(made_of(name, rows.kind, [angles.rows, angles.columns], held.location, [part]))
    prune(graph)
    return result


def table_names(graph: GraphProto) -> list[str]:
    """The names of the cosines and sines by which nodes rotate, except outputs of the graph."""
    outputs = {value.name for value in graph.output}
    read = [node.input[at : at + 2] for node in graph.node if (at := ROTATED_BY.get(node.op_type)) is not None]
    return [name for name in dict.fromkeys(name for names in read for name in names) if name and name not in outputs]
