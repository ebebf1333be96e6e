"""Nodes that compute a rotary table, in a graph or a branch of an If: cosines or sines of positions times frequencies.

onnxruntime computes them once, as it makes the session.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from .onnx_pb2 import AttributeProto, GraphProto, TensorProto
from .wiring import Wiring, attribute, int64_tensor

__all__ = ["ComputedRows", "computed_rows", "write_rows"]

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
    front = f"/model/rotary/{name}"

    def node(kind: str, *inputs: str) -> str:
        graph.node.add(op_type=kind, name=f"{front}/{kind}", input=inputs, output=[f"{front}/{kind}/output_0"])
        return f"{front}/{kind}/output_0"

    def constant(part: str, dims: Sequence[int], values: Sequence[float]) -> str:
        data = struct.pack(f"<{len(values)}f", *values)
        graph.initializer.add(name=f"{front}/{part}", data_type=TensorProto.FLOAT, dims=dims, raw_data=data)
        return f"{front}/{part}"

    bounds = (("start", 0.0), ("limit", float(rows.rows)), ("delta", 1.0))
    positions = node("Range", *(constant(part, [], [value]) for part, value in bounds))
    graph.initializer.append(int64_tensor(f"{front}/axis", [1]))
    turns = constant("frequencies", [1, len(rows.frequencies)], rows.frequencies)
    made = node(WAVES[rows.sine], node("Mul", node("Unsqueeze", positions, f"{front}/axis"), turns))
    if rows.scale != 1.0:
        graph.node.add(op_type="Mul", name=f"{front}/scaled", input=[made, constant("scale", [], [rows.scale])])
        graph.node[-1].output.append(f"{front}/scaled")
        made = f"{front}/scaled"
    if rows.kind != TensorProto.FLOAT:
        node("Cast", made)
        graph.node[-1].attribute.add(name="to", type=AttributeProto.INT, i=rows.kind)
    graph.node[-1].output[0] = name


def computed_rows(wiring: Wiring, name: str) -> ComputedRows | None:
    """The rows of the table of that name, if the graph computes it by these nodes."""
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
