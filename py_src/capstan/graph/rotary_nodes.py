"""Writes and recognises nodes that compute a rotary table, in a graph or a branch of an If. The table has cosines or
sines of positions times frequencies.

onnxruntime computes such a table once, when it makes the session.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from .node_writer import NodeWriter
from .onnx_pb2 import GraphProto, TensorProto
from .wiring import Wiring, attribute

__all__ = ["ComputedRows", "add_rows", "computed_rows", "write_rows"]

WAVES = ("Cos", "Sin")


@dataclass(frozen=True)
class ComputedRows:
    """Rows of a rotary table: cosines or sines of positions times frequencies, times a scale."""

    frequencies: tuple[float, ...]
    scale: float
    sine: bool
    rows: int
    kind: int
    """The ONNX type of the elements."""


def write_rows(graph: GraphProto, name: str, rows: ComputedRows) -> None:
    """Write the table [rows, frequencies] of that name."""
    writer = NodeWriter(graph, f"/model/rotary/{name}")
    add_rows(writer, rows)
    writer.made[-1].output[0] = name
    graph.node.extend(writer.made)


def add_rows(writer: NodeWriter, rows: ComputedRows) -> str:
    """Add the nodes of a table [rows, frequencies]; returns its name."""
    bounds = (("start", 0.0), ("limit", float(rows.rows)), ("delta", 1.0))
    positions = writer.add("Range", [writer.numbers(TensorProto.FLOAT, [at], part, dims=()) for part, at in bounds])
    column = writer.add("Unsqueeze", [positions, writer.ints([1], "axis")])
    dims = [1, len(rows.frequencies)]
    frequencies = writer.numbers(TensorProto.FLOAT, rows.frequencies, "frequencies", dims)
    made = writer.add(WAVES[rows.sine], [writer.add("Mul", [column, frequencies])])
    if rows.scale != 1.0:
        made = writer.add("Mul", [made, writer.numbers(TensorProto.FLOAT, [rows.scale], "scale", dims=())])
    return made if rows.kind == TensorProto.FLOAT else writer.add("Cast", [made], to=rows.kind)


def computed_rows(wiring: Wiring, name: str) -> ComputedRows | None:
    """The rows of the table of that name, if the graph computes it with these nodes."""
    kind, scale = int(TensorProto.FLOAT), 1.0
    node = wiring.producer.get(name)
    if node is not None and node.op_type == "Cast":
        kind = attribute(node, "to", kind)
        node = wiring.producer.get(node.input[0])
    if node is not None and node.op_type == "Mul":
        [scale, *others] = numbers(wiring, node.input[1]) or [0.0]
        node = wiring.producer.get(node.input[0]) if scale and not others else None
    if node is None or node.op_type not in WAVES:
        return None
    found = [node]
    for wanted in ("Mul", "Unsqueeze", "Range"):
        maker = wiring.producer.get(found[-1].input[0])
        if maker is None or maker.op_type != wanted:
            return None
        found.append(maker)
    frequencies = numbers(wiring, found[1].input[1])
    start, limit, delta = (numbers(wiring, each) for each in found[3].input)
    if not frequencies or start != [0.0] or delta != [1.0] or not limit:
        return None
    return ComputedRows(tuple(frequencies), scale, node.op_type == "Sin", int(limit[0]), kind)


def numbers(wiring: Wiring, name: str) -> list[float] | None:
    """The values of a float32 constant."""
    tensor = wiring.constants.get(name)
    if tensor is None or tensor.data_type != TensorProto.FLOAT or len(tensor.raw_data) % 4:
        return None
    return list(struct.unpack(f"<{len(tensor.raw_data) // 4}f", tensor.raw_data))
