"""Makes the rotary tables of a model with long rope inputs of the graph. Such a model changes its rotary factors when a
sequence exceeds the original length.

As soon as a sequence outgrows the original length, all its positions are rotated by the long factors, including the
keys in the cache. Exports have both tables. The size of the mask selects one, which here is the cache's capacity, or
the execution provider selects one run by run:

    attention_mask -> Shape -> ... -> Greater(original length) -> If -> cos_cache, sin_cache
    cos_cache, sin_cache: the long rows after the short ones, from multiRotaryCacheConcatOffset on

Here the tables become inputs of the graph, of which each sequence has its own: its length says what is in them. Their
rows are in a file, or branches of the If compute them (rotary_nodes.py).

Models that see pictures by positions of three axes (M-RoPE) get the same inputs: a sequence's rows are those of its
pictures' places (device/rope_tables.py), and every position is the token's place again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..errors import UnsupportedModelError
from .onnx_pb2 import GraphProto, ModelProto, NodeProto, TensorProto
from .rotary_nodes import ComputedRows, computed_rows, write_rows
from .total_length import ATTENTION, ancestry
from .weight_inputs import DTYPES, entry_of
from .wiring import Wiring, attribute, copy_of, delete, fresh_name, int64_tensor, integers, prune, value_info

__all__ = ["LongRope", "RopeTable", "TableRows", "long_rope", "picture_rope", "rope_of_length"]

COS_CACHE = 7
MROPE = "MRotaryEmbedding"
ROTATED_BY = {ATTENTION: COS_CACHE, "RotaryEmbedding": 2}
"""By operator, the index of the input cos_cache; sin_cache is the next input."""
FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)
REMEDY = "export the model with onnxruntime-genai's model builder"
PROBE = 1024
"""The number of first bytes of a table by which it is found in the file."""


@dataclass(frozen=True)
class TableRows:
    """Rows of a rotary table, as bytes of a data file; an empty `location` is the graph's own file."""

    location: str
    offset: int
    length: int
    """The length in bytes."""
    rows: int


@dataclass(frozen=True)
class RopeTable:
    """The cosines or the sines: an input of the graph, one row for each position."""

    name: str
    dtype: str
    width: int
    """Elements of a row."""
    short: TableRows | ComputedRows
    long: TableRows | ComputedRows
    stored: str = ""
    """The element type of the rows where they are; empty for the same."""


@dataclass(frozen=True)
class LongRope:
    """The two kinds of rotary factors of a model."""

    original: int
    """The length of the longest sequence that is rotated by the short factors; 0 for one kind of factors."""
    tables: tuple[RopeTable, ...]
    sections: tuple[int, ...] = ()
    """How many elements of a row turn by frames, rows and columns of pictures; empty for positions of one axis."""

    @property
    def positions(self) -> int:
        """Positions of the longest sequence."""
        return min(table.long.rows for table in self.tables)


@dataclass
class Choice:
    """A table of the graph with both kinds of rows."""

    name: str
    original: int
    node: NodeProto | None
    """The If that chooses; None if the tensor has the long rows after the short ones."""
    short: TensorProto | ComputedRows
    long: TensorProto | ComputedRows
    """Without a node the same tensor as `short`."""


def long_rope(
    model: ModelProto, mask: str = "attention_mask", joined_at: int = 0, file: bytes = b""
) -> tuple[ModelProto, LongRope | None]:
    """The model with each table that has two kinds of rows as an input, and these tables; an equal copy and None if
    there are none. `joined_at` is the first long row in tables that have both kinds. `file` are the bytes of the parsed
    model, without which places in it are unknown.

    Raises UnsupportedModelError for a choice that does not depend on the mask's length.
    """
    result = copy_of(model)
    graph = result.graph
    choices = list(choices_of(graph, mask, joined_at))
    if not choices:
        return result, None
    tables = []
    for choice in choices:
        kind, width = require_alike(choice)
        short, long = (
            rows if isinstance(rows, ComputedRows) else rows_of(choice.name, rows, file)
            for rows in (choice.short, choice.long)
        )
        if choice.node is None and isinstance(long, TableRows):
            short, long = parted(long, choice.original)
        tables.append(RopeTable(choice.name, DTYPES[kind][0], width, short, long))
        graph.input.append(value_info(choice.name, kind, ["rotated_positions", width]))
    leave_out(graph, choices)
    prune(graph)
    return result, LongRope(choices[0].original, tuple(tables))


def picture_rope(model: ModelProto, longest: int, file: bytes = b"") -> tuple[ModelProto, LongRope | None]:
    """The model with each table of an MRotaryEmbedding as an input, and a description of these tables, of up to
    `longest` rows; an equal copy and None for a model without one. `file` is as in `long_rope`.

    Raises UnsupportedModelError for axes that are not one after another, and for tables that are computed.
    """
    result = copy_of(model)
    graph = result.graph
    nodes = [node for node in graph.node if node.op_type == MROPE]
    names = dict.fromkeys(name for node in nodes for name in node.input[2:4])
    if not nodes:
        return result, None
    found = {tuple(next((item.ints for item in node.attribute if item.name == "mrope_section"), ())) for node in nodes}
    tensors = {tensor.name: tensor for tensor in graph.initializer if tensor.name in names}
    widths = {tuple(tensor.dims[1:]) for tensor in tensors.values()}
    apart = any(attribute(node, "mrope_layout", 0) for node in nodes)
    sections = found.pop()
    if apart or found or len(tensors) < len(names) or widths != {(sum(sections),)}:
        raise UnsupportedModelError(
            f"node {nodes[0].name} ({MROPE}) rotates by axes that are interleaved, or by tables "
            f"that are not constant; {REMEDY}"
        )
    tables = []
    for name, tensor in tensors.items():
        kind, width = form_of(tensor)
        whole = rows_of(name, tensor, file)
        rows = min(whole.rows, longest)
        long = replace(whole, length=whole.length // whole.rows * rows, rows=rows)
        tables.append(RopeTable(name, DTYPES[kind][0], width, replace(long, length=0, rows=0), long))
        graph.input.append(value_info(name, kind, ["rotated_positions", width]))
    delete(graph.initializer, lambda tensor: tensor.name in names)
    return result, LongRope(0, tuple(tables), sections)


def rope_of_length(model: ModelProto, length: int, mask: str = "attention_mask", joined_at: int = 0) -> ModelProto:
    """The model with the tables for a sequence of that length, as constants. Raises the errors of `long_rope`."""
    result = copy_of(model)
    graph = result.graph
    choices = list(choices_of(graph, mask, joined_at))
    for choice in choices:
        long = length > choice.original
        chosen = choice.long if long else choice.short
        if isinstance(chosen, ComputedRows):
            added = GraphProto()
            write_rows(added, choice.name, chosen)
            graph.initializer.extend(added.initializer)
            for node in reversed(added.node):
                graph.node.insert(0, node)
            continue
        if choice.node is not None:
            tensor = graph.initializer.add()
            tensor.CopyFrom(chosen)
            tensor.name = choice.name
            continue
        both = next(tensor for tensor in graph.initializer if tensor.name == choice.name)
        both.name = fresh_name(graph, f"{choice.name}_both")
        bounds = (choice.original, both.dims[0], 0) if long else (0, choice.original, 0)
        names = [fresh_name(graph, f"{choice.name}_{what}") for what in ("from", "to", "axis")]
        graph.initializer.extend(int64_tensor(name, [bound]) for name, bound in zip(names, bounds, strict=True))
        graph.node.insert(0, NodeProto(op_type="Slice", input=[both.name, *names], output=[choice.name]))
    leave_out(graph, [choice for choice in choices if choice.node is not None])
    prune(graph)
    return result


def choices_of(graph: GraphProto, mask: str, joined_at: int) -> Iterator[Choice]:
    """The rotary tables of the graph that have two kinds of rows. Raises UnsupportedModelError."""
    wiring = Wiring(graph)
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    names: dict[str, None] = {}
    for reader in graph.node:
        place = ROTATED_BY.get(reader.op_type, len(reader.input))
        names |= dict.fromkeys(filter(None, reader.input[place : place + 2]))
    found = []
    for name in names:
        node, tensor = wiring.producer.get(name), tensors.get(name)
        if node is not None and node.op_type == "If":
            original = longest_short(wiring, node, mask)
            place = list(node.output).index(name)
            short, long = (branch_table(node, branch, place) for branch in ("else_branch", "then_branch"))
            found.append(Choice(name, original, node, short, long))
        elif tensor is not None and joined_at and len(tensor.dims) == 2 and tensor.dims[0] > joined_at:
            found.append(Choice(name, joined_at, None, tensor, tensor))
    if len({choice.original for choice in found}) > 1:
        types = ", ".join(f"{choice.name} at {choice.original}" for choice in found)
        raise UnsupportedModelError(f"rotary factors change at different lengths ({types}); {REMEDY}")
    yield from found


def leave_out(graph: GraphProto, choices: list[Choice]) -> None:
    """Remove the nodes that choose, and the tensors with both kinds of rows."""
    chosen = {choice.name for choice in choices if choice.node is not None}
    joined = {choice.name for choice in choices if choice.node is None}
    delete(graph.node, lambda node: not chosen.isdisjoint(node.output))
    delete(graph.initializer, lambda tensor: tensor.name in joined)


def parted(whole: TableRows, original: int) -> tuple[TableRows, TableRows]:
    """The short rows of a table and the long ones after them."""
    cut = original * (whole.length // whole.rows)
    long = TableRows(whole.location, whole.offset + cut, whole.length - cut, whole.rows - original)
    return TableRows(whole.location, whole.offset, cut, original), long


def longest_short(wiring: Wiring, choice: NodeProto, mask: str) -> int:
    """The length up to which an If takes its else branch."""
    node = wiring.producer.get(choice.input[0])
    if node is not None and node.op_type == "Greater":
        bound = integers(wiring.constants.get(node.input[1]))
        sources = {item for item in ancestry(wiring, node.input[0]) if isinstance(item, str)}
        if sources == {mask} and bound is not None and len(bound) == 1:
            return bound[0]
    raise UnsupportedModelError(
        f"node {choice.name} (If) chooses rotary factors, but not by comparing the length of {mask} with a "
        f"constant; {REMEDY}"
    )


def branch_table(choice: NodeProto, branch: str, place: int) -> TensorProto | ComputedRows:
    """The rows in output number `place` of an If's branch."""
    graph = next(item.g for item in choice.attribute if item.name == branch)
    name = graph.output[place].name
    for tensor in graph.initializer:
        if tensor.name == name:
            return tensor
    for node in graph.node:
        if name in node.output:
            for item in node.attribute:
                if node.op_type == "Constant" and item.name == "value":
                    return item.t
            computed = computed_rows(Wiring(graph), name)
            if computed is not None:
                return computed
            raise UnsupportedModelError(
                f"node {choice.name} (If) computes rotary factors by node {node.name} ({node.op_type}); {REMEDY}"
            )
    raise UnsupportedModelError(f"node {choice.name} (If) has no rotary factors {name} in its {branch}; {REMEDY}")


def require_alike(choice: Choice) -> tuple[int, int]:
    """The type and the width of a table. Raises UnsupportedModelError unless both kinds of rows have the same type and
    width.
    """
    kinds = {form_of(rows) for rows in (choice.short, choice.long)}
    kind, width = next(iter(kinds))
    if len(kinds) > 1 or kind not in FLOATS:
        types = " and ".join(
            "computed" if isinstance(rows, ComputedRows) else str(list(rows.dims))
            for rows in (choice.short, choice.long)
        )
        raise UnsupportedModelError(
            f"rotary factors {choice.name} are {types}, expected floats of one type, [positions, half of the head]; "
            f"{REMEDY}"
        )
    return kind, width


def form_of(rows: TensorProto | ComputedRows) -> tuple[int, int]:
    """The type of a table's elements, and their number in a row; zeros for a tensor without rows."""
    if isinstance(rows, ComputedRows):
        return rows.kind, len(rows.frequencies)
    return (rows.data_type, rows.dims[1]) if len(rows.dims) == 2 else (0, 0)


def rows_of(name: str, tensor: TensorProto, file: bytes) -> TableRows:
    """The place of a table's rows."""
    if tensor.data_location == TensorProto.EXTERNAL:
        entry = entry_of(tensor)
        return TableRows(entry.location, entry.offset, entry.length, tensor.dims[0])
    data = tensor.raw_data
    start = file.find(data[:PROBE])
    while start >= 0 and file[start : start + len(data)] != data:
        start = file.find(data[:PROBE], start + 1)
    size = tensor.dims[0] * tensor.dims[1] * DTYPES[tensor.data_type][1] // 8
    if len(data) != size or not size or (file and start < 0):
        raise UnsupportedModelError(
            f"rotary factors {name} have {len(data)} bytes of raw_data, expected {size} in the graph's file; {REMEDY}"
        )
    return TableRows("", max(0, start), len(data), tensor.dims[0])
