"""A fused step of one sequence made one of several, which advance together, a row each."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import TapeError
from .fused_step import FusedStep, fused_step
from .kernel_plan import KernelPlan, WorkgroupLimits
from .operation import ELEMENT_BYTES, Binding, Buffer, Kernel, Operation, Value
from .ops.attention import Attention
from .ops.beside import Beside
from .ops.gemv import MatVec, unfit_matvec
from .ort_kernels import bound, element_of
from .placement import Placement, place_values
from .recording import Command, Dispatch, Recording
from .step_graph import Node, Recorded, StepGraph

__all__ = ["Gather", "RowSpans", "row_step", "several_rows"]

VECTORS = re.compile(r"var<storage, read> data ?: array<vec4<")
IN_4_BITS = ("input[data_offset / 8]", "unpack4xU8(", "let zero_point = input_element_t(8);")
"""Lines of a lookup in a table in 4 bits (GatherBlockQuantized)."""
Span = tuple[int, int, int]
"""Handle, offset, bytes."""


@dataclass(frozen=True)
class Gather(Operation):
    """`rows` rows of a table of weights, of `k` elements each, by the ids that are reads[0]."""

    table: int
    k: int
    element: str
    rows: int
    scales: int | None = None
    """The buffer of the scales, one for `block` elements, if the table has 4 bits with zero point 8."""
    block: int = 0

    def written_bytes(self, index: int) -> int:
        return self.rows * self.k * ELEMENT_BYTES[self.element]

    def kernels(self, reads: Sequence[int], writes: Sequence[int], limits: WorkgroupLimits) -> list[Kernel]:
        bindings: dict[str, Binding] = {"ids": Value(reads[0]), "table": Buffer(self.table)}
        if self.scales is None:
            constants: dict[str, int] = {"WORDS": self.k * ELEMENT_BYTES[self.element] // 4}
        else:
            constants = {"WORDS": self.k, "BYTES": False, "BLOCK": self.block, "SCALES": -(-self.k // self.block)}
            bindings["scales"] = Buffer(self.scales)
        plan = KernelPlan("gather_rows", constants, (-(-constants["WORDS"] // 64), self.rows, 1))
        return [Kernel(plan, self.element == "f16", {**bindings, "y": Value(writes[0])})]


@dataclass(frozen=True)
class RowSpans:
    """The places of the rows on the device, for the recorded step's buffers of one sequence."""

    state: Span
    buffers: Mapping[int, Span]
    """By recorded buffer: ids, logits and caches, whose rows lie one behind the other."""
    ids: int
    """The recorded buffer of the ids."""


def row_step(
    placement: Placement,
    recording: Recording,
    ops: Sequence[Command],
    spans: RowSpans,
    rows: int,
    limits: WorkgroupLimits,
    capacity: int,
    along: bool = False,
) -> FusedStep:
    """A step of `rows` sequences of up to `capacity` positions, of the placed step of one: its kernels take the
    workgroups of the longest. With `along` it is a step of one sequence over so many positions, and `spans` has its
    caches. Raises TapeError where it has an operation with no form for several rows."""
    graph = several_rows(placement, recording, ops, spans, rows, along)
    step = fused_step(place_values(graph), {}, (), spans.state, limits, capacity)
    for kernel in step.kernels:
        kernel["bindings"] = {name: _moved(binding, spans) for name, binding in kernel["bindings"].items()}
    return step


def _moved(binding: list[Any], spans: RowSpans) -> list[Any]:
    """A binding of a buffer of one sequence as that of the rows."""
    kind, number, *_ = binding
    return ["span", *spans.buffers[number]] if kind == "recorded" and number in spans.buffers else binding


def several_rows(
    placement: Placement, recording: Recording, ops: Sequence[Command], spans: RowSpans, rows: int, along: bool = False
) -> StepGraph:
    """The graph of the step of several sequences: its values are wherever there is room, but for those of `spans`."""
    nodes = tuple(_several(node, recording, ops, placement.homes, spans, rows, along) for node in placement.nodes)
    homes = {value: home for value, home in placement.homes.items() if home in spans.buffers}
    made = [value for node in nodes for value in node.writes]
    first = {homes[value]: value for node in nodes for value in node.reads if value not in made and value in homes}
    unknown = {value for node in nodes for value in node.reads} - set(made) - set(first.values())
    if unknown:
        raise TapeError(f"the step reads {len(unknown)} buffers that are not the rows'")
    last = {homes[value]: value for value in made if value in homes and homes[value] != spans.ids}
    return StepGraph(nodes, homes, first, last)


def _several(
    node: Node,
    recording: Recording,
    ops: Sequence[Command],
    homes: Mapping[int, int],
    spans: RowSpans,
    rows: int,
    along: bool,
) -> Node:
    """The node over several rows."""
    what = node.what
    if isinstance(what, MatVec):
        return replace(node, what=_widened(what, rows))
    if isinstance(what, Beside):
        return replace(node, what=replace(what, products=tuple(_widened(each, rows) for each in what.products)))
    if isinstance(what, Attention):
        return replace(node, what=replace(what, rows=rows, along=along))
    found = _gather(recording, ops[what.index], spans.ids, rows) if isinstance(what, Recorded) else None
    if found is None:
        raise TapeError(f"operation {node.position} of the step is known for one row only")
    return replace(node, what=found, reads=tuple(value for value in node.reads if homes.get(value) == spans.ids))


def _widened(what: MatVec, rows: int) -> MatVec:
    made = replace(what, rows=rows)
    if what.scales is not None and (reason := unfit_matvec(made)):
        raise TapeError(f"{what.title} is known for one row only: {reason}")
    return made


def _gather(recording: Recording, op: Command, ids: int, rows: int) -> Gather | None:
    """A recorded lookup of the ids' embeddings over several rows."""
    met = bound(recording, op, recording.uploaded())
    if not isinstance(op, Dispatch) or met is None:
        return None
    at, uniforms = met
    pipeline = recording.pipelines[op.pipeline]
    element = element_of(pipeline)
    if element is None:
        return None
    if tuple(at) == ("data", "input_indices", "output") and at["input_indices"] == ids:
        shape = uniforms.get("data_indices_shape")
        if not isinstance(shape, tuple) or len(shape) != 2:
            return None
        k = int(shape[1]) * (4 if VECTORS.search(pipeline.code) else 1)
        return Gather(at["data"], k, element, rows) if k * ELEMENT_BYTES[element] % 4 == 0 else None
    if tuple(at) == ("input", "indices", "scales", "output") and at["indices"] == ids:
        shape, block = uniforms.get("input_shape_shape"), uniforms.get("block_size")
        axes = uniforms.get("gather_axis"), uniforms.get("quantize_axis")
        if axes != (0, 1) or not isinstance(shape, tuple) or len(shape) != 2 or not isinstance(block, int):
            return None
        if not all(line in pipeline.code for line in IN_4_BITS):
            return None
        return Gather(at["input"], int(shape[1]), element, rows, at["scales"], block)
    return None
