"""Lets tables that only lookups of tokens read stay on disk: the rows of a run's tokens become an input in their place.

    Gather(table [V, W], ids)                      Gather(rows [R, W], numbers)
    GatherBlockQuantized(table, ids, scales, ...)  GatherBlockQuantized(rows, numbers, rows of the scales, ...)

`numbers` [batch, tokens] has the place of each token's row among the rows. The operators stay, so results are equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..model_files.genai_config import DISK_ROWS
from .mask_values import Lengths, MaskError, MaskValues
from .onnx_pb2 import ModelProto, NodeProto, TensorProto, ValueInfoProto
from .parts import Unpack
from .weight_inputs import WeightEntry, known_external_entries
from .wiring import Wiring, attribute, copy_of, delete, prune, value_info

__all__ = ["DiskTable", "looked_up_bytes", "tables_as_rows", "without_unread"]

LOOKUPS = {"Gather": (0,), "GatherBlockQuantized": (0, 2, 3)}
"""The operators that look rows up, each with its inputs that have rows."""
IDS = 1


@dataclass(frozen=True)
class DiskTable:
    """A table of a data file whose rows are an input."""

    entry: WeightEntry
    """The table; the input has its name."""
    moved: tuple[tuple[int, int], ...] = ()
    """The tokens whose row does not have their number, each with the number of its row."""

    @property
    def row(self) -> tuple[int, ...]:
        """The sizes of a row."""
        return self.entry.dims[1:]

    @property
    def row_bytes(self) -> int:
        """The bytes of a row as the input has it."""
        return self.entry.length // self.entry.dims[0]

    def place(self, token: int) -> tuple[int, int]:
        """The offset and the length in the file of a token's row."""
        [part] = self.entry.pieces
        size = part.length // self.entry.dims[0]
        return part.offset + dict(self.moved).get(token, token) * size, size

    def unpack(self, rows: int) -> Unpack | None:
        """The rearrangement of some rows of a GGUF file; None for rows that are in the file as the input has them."""
        [part] = self.entry.pieces
        return replace(part.change, rows=rows) if isinstance(part.change, Unpack) else None


def looked_up_bytes(model: ModelProto, ids: str) -> int:
    """The bytes of the tables that only lookups of tokens read."""
    return sum(each.length for _, tables in lookups(model, ids) for each in tables)


def tables_as_rows(model: ModelProto, ids: str) -> tuple[ModelProto, tuple[DiskTable, ...]]:
    """The model with rows in place of the tables that only lookups of tokens read; `ids` is the input with the tokens.
    There may be none.
    """
    model = copy_of(model)
    graph, wiring = model.graph, Wiring(model.graph)
    found, results = dict[str, DiskTable](), dict[str, ValueInfoProto]()
    tokens = [size.dim_value or size.dim_param for size in wiring.declared[ids].type.tensor_type.shape.dim]
    for node, tables in lookups(model, ids):
        moved = moved_rows(wiring, node, ids)
        if moved is None:
            continue
        node.input[IDS] = DISK_ROWS
        found |= {each.name: DiskTable(each, moved) for each in tables}
        results[node.output[0]] = looked_up(node, tables, tokens)
    if not found:
        return model, ()
    delete(graph.value_info, lambda value: value.name in results)
    graph.value_info.extend(results.values())
    graph.input.append(value_info(DISK_ROWS, TensorProto.INT64, tokens))
    for each in found.values():
        rows = graph.input.add(name=each.entry.name)
        # Without a shape: onnxruntime takes no free number of rows for scales beside zero points.
        rows.type.tensor_type.elem_type = each.entry.onnx_type
    held = [tensor for tensor in graph.initializer if tensor.name not in found]
    del graph.initializer[:]
    graph.initializer.extend(held)
    prune(graph)
    return model, tuple(found.values())


def without_unread(model: ModelProto, name: str) -> ModelProto:
    """The model without an input, if no node reads it."""
    if name in Wiring(model.graph).consumers:
        return model
    model = copy_of(model)
    delete(model.graph.input, lambda value: value.name == name)
    return model


def looked_up(node: NodeProto, tables: Sequence[WeightEntry], tokens: Sequence[int | str]) -> ValueInfoProto:
    """The declaration of a lookup's result, which onnxruntime cannot infer from inputs without a shape."""
    table, *scales = tables
    packed = node.op_type != "Gather" and table.onnx_type == TensorProto.UINT8
    elements = 8 // attribute(node, "bits", 4) if packed else 1
    kind = scales[0].onnx_type if scales else table.onnx_type
    return value_info(node.output[0], kind, [*tokens, *table.dims[1:-1], table.dims[-1] * elements])


def lookups(model: ModelProto, ids: str) -> Iterator[tuple[NodeProto, list[WeightEntry]]]:
    """Each node that looks up rows by tokens in tables that no other operator reads, with these tables."""
    graph, wiring = model.graph, Wiring(model.graph)
    entries = {entry.name: entry for entry in known_external_entries(model)}
    asked = {node.output[0] for node in wiring.consumers.get(ids, ()) if is_map(wiring, node, ids)} | {ids}
    nodes = [node for node in graph.node if node.op_type in LOOKUPS and node.input[IDS] in asked]
    found = []
    for node in nodes:
        names = [node.input[place] for place in LOOKUPS[node.op_type] if place < len(node.input) and node.input[place]]
        tables = [entries[name] for name in names if name in entries]
        by_row = attribute(node, "axis", 0) == 0 and attribute(node, "gather_axis", 0) == 0
        only = all(wiring.consumers[name] == [node] for name in names)
        if by_row and only and len(tables) == len(names) and all(is_rows(each) for each in tables):
            found.append((node, tables))
    looked_up = {table.name for _, tables in found for table in tables}
    others = [entry for name, entry in entries.items() if name not in looked_up]
    for node, tables in found:
        if not any(overlaps(table, other) for table in tables for other in others):
            yield node, tables


def is_map(wiring: Wiring, node: NodeProto, ids: str) -> bool:
    """Whether a node gives each token another number from a list for all tokens; see spliced_embedding."""
    return node.op_type == "Gather" and node.input[IDS] == ids and node.input[0] in wiring.producer


def is_rows(entry: WeightEntry) -> bool:
    """Whether rows of a table are ranges of its file."""
    count, [part, *others] = entry.dims[0] if len(entry.dims) > 1 else 0, entry.pieces
    how = part.change
    unpacked = isinstance(how, Unpack) and (how.rows, how.halves, how.stride, how.between) == (count, 0, 0, 0)
    return (how is None or unpacked) and not others and count > 1 and part.length % count == 0


def overlaps(one: WeightEntry, other: WeightEntry) -> bool:
    """Whether two weights have bytes of a file in common, as far as the first and the last byte of each show."""
    return one.location == other.location and one.offset < other.end and other.offset < one.end


def moved_rows(wiring: Wiring, node: NodeProto, ids: str) -> tuple[tuple[int, int], ...] | None:
    """The tokens that a lookup gives the row of another number, with that number; None if these are unknown."""
    if node.input[IDS] == ids:
        return ()
    rows = wiring.producer[node.input[IDS]].input[0]
    try:
        numbers: Sequence[float | None] = MaskValues(wiring, "", "", Lengths(0, 0)).of(rows).items
    except MaskError:
        return None
    return tuple((token, int(row or 0)) for token, row in enumerate(numbers) if row != token)
