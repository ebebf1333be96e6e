"""Recognises lookups of table rows by ids, such as the embeddings of tokens.

In a step of one sequence, a recorded lookup in one table usually stays as recorded. If a factor or a cast follows it,
Capstan's lookup also computes that: Gemma's embeddings are scaled, and float32 from there on. A table that is larger
than a binding has several parts (graph/split_weights.py). One lookup of Capstan then replaces the recorded operations,
which look an id up in all parts and choose a result. The graph has the parts of each table, in order.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from ..kernel_plan import KernelPlan, WorkgroupLimits
from ..operation import ELEMENT_BYTES, Binding, Buffer, Kernel, Operation, Value
from ..ort_kernels import bound, element_of
from ..recording import Command, Dispatch, Recording
from ..step_graph import Node, Recorded, StepGraph
from .elementwise import Cast, Scale
from .gemv import Factor

__all__ = ["Lookup", "TableParts", "lookup_in", "lookups_followed", "lookups_joined"]

VECTORS = re.compile(r"var<storage, read> data ?: array<vec4<")
BY_INT64 = re.compile(r"var<storage, read> (?:input_)?indices ?: array<vec2<u32>>")
IN_4_BITS = {
    False: ("input[data_offset / 8]", "unpack4xU8(", "let zero_point = input_element_t(8);"),
    True: (
        *("input[data_offset / 8]", "unpack4xI8(", "quantized_data = quantized_data - 16 ;"),
        "let zero_point = input_element_t(0);",
    ),
}
"""Lines of a lookup in a table in 4 bits (GatherBlockQuantized), by whether these are signed."""


@dataclass(frozen=True)
class TableParts:
    """A table in parts of `size` rows each (the last part may have fewer): the buffers of the rows, in order."""

    tables: tuple[int, ...]
    size: int


@dataclass(frozen=True)
class Lookup(Operation):
    """`rows` rows of a table of weights, of `k` elements each, by the ids in reads[0]."""

    tables: tuple[int, ...]
    """The buffers of the table's parts."""
    k: int
    element: str
    rows: int = 1
    scales: tuple[int, ...] = ()
    """The buffers of the scales, one for `block` elements, if the table has 4 bits with zero point 8."""
    block: int = 0
    size: int = 0
    """Rows of a part, if there are several parts."""
    factor: Factor | None = None
    """The factor or divisor of the rows."""
    wide: bool = False
    """Whether the rows are then cast from float16 to float32."""
    signed: bool = False
    """Whether 4 bits are signed, with zero point 0."""

    def written_bytes(self, index: int) -> int:
        return self.rows * self.k * ELEMENT_BYTES["f32" if self.wide else self.element]

    def kernels(self, reads: Sequence[int], writes: Sequence[int], limits: WorkgroupLimits) -> list[Kernel]:
        """A kernel for each part, which writes the rows of its own ids."""
        found = []
        numbers = bool(self.scales) or self.factor is not None or self.wide
        words = self.k if numbers else self.k * ELEMENT_BYTES[self.element] // 4
        for index, table in enumerate(self.tables):
            bindings: dict[str, Binding] = {"ids": Value(reads[0]), "table": Buffer(table)}
            constants: dict[str, int | float | bool] = {
                "WORDS": words,
                "NUMBERS": numbers,
                "WIDE": self.wide,
                "DIVIDED": self.factor is not None and self.factor.divides,
                "PARTED": len(self.tables) > 1,
            }
            if constants["PARTED"]:
                constants |= {"FIRST": index * self.size, "SIZE": self.size}
            if self.scales:
                constants |= {
                    "BYTES": False,
                    "SIGNED": self.signed,
                    "BLOCK": self.block,
                    "SCALES": -(-self.k // self.block),
                }
                bindings["scales"] = Buffer(self.scales[index])
            if self.factor is not None:
                bindings["factor"] = Buffer(self.factor.buffer)
            plan = KernelPlan("gather_rows", constants, (-(-words // 64), self.rows, 1))
            found.append(Kernel(plan, self.element == "f16", {**bindings, "y": Value(writes[0])}))
        return found


def lookup_in(recording: Recording, op: Command) -> tuple[int, Lookup] | None:
    """The buffer of the ids (or other indices) and the lookup of a recorded operation; None if it is not a lookup."""
    met = bound(recording, op, recording.uploaded())
    if not isinstance(op, Dispatch) or met is None:
        return None
    at, uniforms = met
    pipeline = recording.pipelines[op.pipeline]
    element = element_of(pipeline)
    if element is None:
        return None
    if tuple(at) == ("data", "input_indices", "output"):
        shape = uniforms.get("data_indices_shape")
        if not isinstance(shape, tuple) or len(shape) != 2:
            return None
        k = int(shape[1]) * (4 if VECTORS.search(pipeline.code) else 1)
        whole = k * ELEMENT_BYTES[element] % 4 == 0
        return (at["input_indices"], Lookup((at["data"],), k, element)) if whole else None
    if tuple(at) == ("input", "indices", "scales", "output"):
        shape, block = uniforms.get("input_shape_shape"), uniforms.get("block_size")
        axes = uniforms.get("gather_axis"), uniforms.get("quantize_axis")
        if axes != (0, 1) or not isinstance(shape, tuple) or len(shape) != 2 or not isinstance(block, int):
            return None
        for signed, lines in IN_4_BITS.items():
            if all(line in pipeline.code for line in lines):
                table, scales = (at["input"],), (at["scales"],)
                return at["indices"], Lookup(table, int(shape[1]), element, 1, scales, block, signed=signed)
    return None


def lookups_followed(
    graph: StepGraph, recording: Recording, ops: Sequence[Command], kept: Collection[int]
) -> StepGraph:
    """Let lookups compute the factors and casts that are the only readers of their results, unless they are in
    `kept`.
    """
    readers, makers, lasting = graph.readers(), graph.makers(), set(graph.last.values())
    changed = dict(makers)
    gone: set[int] = set()
    for node in graph.nodes:
        if not isinstance(node.what, Scale | Cast) or node.reads[0] in lasting:
            continue
        maker = changed[node.reads[0]] if node.reads[0] in makers else None
        looked = looked_up(maker, recording, ops, graph) if maker is not None else None
        if looked is None or len(readers[node.reads[0]]) != 1 or not looked.origins.isdisjoint(kept):
            continue
        what = followed(looked.what, node.what) if isinstance(looked.what, Lookup) else None
        if what is not None:
            changed[node.writes[0]] = replace(
                node, what=what, reads=looked.reads, origins=node.origins | looked.origins
            )
            gone.add(node.reads[0])
    nodes = (changed[node.writes[0]] if node.writes else node for node in graph.nodes)
    return replace(graph, nodes=tuple(node for node in nodes if gone.isdisjoint(node.writes)))


def looked_up(node: Node, recording: Recording, ops: Sequence[Command], graph: StepGraph) -> Node | None:
    """The node as Capstan's lookup by int64 ids, in tables that the step does not change; None if it is not such a
    lookup.
    """
    if isinstance(node.what, Lookup):
        return node
    op = ops[node.what.index] if isinstance(node.what, Recorded) else None
    found = lookup_in(recording, op) if op is not None else None
    if found is None or not isinstance(op, Dispatch) or not BY_INT64.search(recording.pipelines[op.pipeline].code):
        return None
    first = set(graph.first.values())
    if any(
        graph.homes.get(value) in (*found[1].tables, *found[1].scales) and value not in first for value in node.reads
    ):
        return None
    ids = tuple(value for value in node.reads if graph.homes.get(value) == found[0])
    return replace(node, what=found[1], reads=ids) if len(ids) == 1 else None


def followed(what: Lookup, by: Scale | Cast) -> Lookup | None:
    """The lookup with the following operation joined; None if that is impossible."""
    if what.wide or by.size != what.k:
        return None
    if isinstance(by, Cast):
        return replace(what, wide=True) if (what.element, by.element) == ("f16", "f32") else None
    return replace(what, factor=Factor(by.factor, by.divides)) if what.factor is None else None


def lookups_joined(
    graph: StepGraph,
    recording: Recording,
    ops: Sequence[Command],
    tables: Collection[TableParts],
    kept: Collection[int],
) -> StepGraph:
    """Let one operation look ids up in all parts of a table and choose, unless the recorded operations are in
    `kept`.
    """
    for each in tables:
        graph = joined_in(graph, recording, ops, each, kept)
    return graph


def joined_in(
    graph: StepGraph, recording: Recording, ops: Sequence[Command], table: TableParts, kept: Collection[int]
) -> StepGraph:
    found: dict[int, tuple[Node, int, Lookup]] = {}
    for node in graph.nodes:
        met = lookup_in(recording, ops[node.what.index]) if isinstance(node.what, Recorded) else None
        if met is not None and met[1].tables[0] in table.tables:
            found[met[1].tables[0]] = (node, *met)
    if set(found) != set(table.tables):
        return graph
    lookups = [found[part] for part in table.tables]
    readers, lasting = graph.readers(), set(graph.last.values())
    gone: list[Node] = []
    [value] = lookups[0][0].writes
    for node, _, _ in lookups[1:]:
        makes = [value, *node.writes]
        choosers = {id(reader): reader for made in makes for reader in readers.get(made, ())}
        if len(choosers) != 1 or not lasting.isdisjoint(makes):
            return graph
        [chooser] = choosers.values()
        if not set(makes) <= set(chooser.reads) or len(chooser.writes) != 1:
            return graph
        gone.append(chooser)
        [value] = chooser.writes
    ids = ids_of(graph, recording, ops, lookups[0][0], lookups[0][1])
    first = lookups[0][2]
    alike = {replace(what, tables=(), scales=()) for _, _, what in lookups}
    gone += [node for node, _, _ in lookups]
    origins = frozenset(index for node in gone for index in node.origins)
    if ids is None or len(alike) != 1 or not origins.isdisjoint(kept):
        return graph
    scales = tuple(part for _, _, what in lookups for part in what.scales)
    whole = replace(first, tables=table.tables, scales=scales, size=table.size)
    last = next(node for node in gone if value in node.writes)
    by = Node(whole, (ids,), (value,), last.position, origins)
    others = {id(node) for node in gone if node is not last}
    return replace(graph, nodes=tuple(by if each is last else each for each in graph.nodes if id(each) not in others))


def ids_of(graph: StepGraph, recording: Recording, ops: Sequence[Command], lookup: Node, indices: int) -> int | None:
    """The value of the ids from which a lookup's row numbers within a part were computed; None if they come from
    elsewhere.
    """
    makers = graph.makers()
    maker = next((makers.get(value) for value in lookup.reads if graph.homes.get(value) == indices), None)
    if maker is None or not isinstance(maker.what, Recorded):
        return None
    met = bound(recording, ops[maker.what.index], recording.uploaded())
    if met is None or tuple(met[0]) != ("data", "input_indices", "output"):
        return None
    return next((value for value in maker.reads if graph.homes.get(value) == met[0]["input_indices"]), None)
