"""Turns a fused step of one sequence into a step of several sequences that advance together, one per row."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import TapeError
from .fused_step import FusedStep, fused_step
from .kernel_plan import WorkgroupLimits
from .ops.attention import Attention
from .ops.beside import Beside
from .ops.convolution import Convolution
from .ops.delta_rule import DeltaRule, GatedHeadNorm
from .ops.gemv import MatVec, unfit_matvec
from .ops.head_gate import HeadGate
from .ops.lookup import Lookup, lookup_in
from .ops.normed_rows import NormedRows, NormsBeside
from .ops.position_row import PositionRow
from .placement import Placement, place_values
from .recording import Command, Recording
from .step_graph import Node, Recorded, StepGraph, without_dead

__all__ = ["RowSpans", "row_step", "several_rows"]

Span = tuple[int, int, int]
"""Handle, offset, bytes."""


@dataclass(frozen=True)
class RowSpans:
    """The places of the rows on the device, for the recorded step's buffers of one sequence."""

    state: Span
    buffers: Mapping[int, Span]
    """By recorded buffer: ids, logits and caches, whose rows lie one after another."""
    ids: int
    """The recorded buffer of the ids."""
    table: Span | None = None
    """The table by which attention reads the caches: u32 [rows, capacity], the row that holds each position."""
    packed: bool = False
    """Whether a row is a position of any sequence; the row's state has the sequence's number and length, and the caches
    of the sequences lie one after another.
    """


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
    """A step of `rows` sequences of up to `capacity` positions, made from the placed step of one; its kernels take the
    workgroups of the longest sequence. With `along` it is a step of one sequence over `rows` positions, and `spans` has
    its caches. Raises TapeError if an operation has no form for several rows.
    """
    graph = several_rows(placement, recording, ops, spans, rows, along)
    step = fused_step(place_values(graph), {}, (), spans.state, limits, capacity, spans.table)
    for kernel in step.kernels:
        kernel["bindings"] = {name: _moved(binding, spans) for name, binding in kernel["bindings"].items()}
    return step


def _moved(binding: list[Any], spans: RowSpans) -> list[Any]:
    """The binding of the rows' buffer for a binding of one sequence's buffer."""
    kind, number, *_ = binding
    return ["span", *spans.buffers[number]] if kind == "recorded" and number in spans.buffers else binding


def several_rows(
    placement: Placement, recording: Recording, ops: Sequence[Command], spans: RowSpans, rows: int, along: bool = False
) -> StepGraph:
    """The graph of the step of several sequences. Its values are in scratch, except those of `spans` and the biases,
    which all rows share. Logits without a place in `spans` are not computed.
    """
    changed = {buffer for op in ops for buffer in recording.writes(op)}
    shared = {value for value, home in placement.homes.items() if home not in changed and home not in spans.buffers}
    rows_homes = {value: home for value, home in placement.homes.items() if home in spans.buffers}
    made = [value for node in placement.nodes for value in node.writes]
    last = {rows_homes[value]: value for value in made if value in rows_homes and rows_homes[value] != spans.ids}
    live = without_dead(StepGraph(placement.nodes, rows_homes, {}, last)).nodes
    nodes = tuple(_several(node, recording, ops, placement.homes, shared, spans, rows, along) for node in live)
    biases = {value for node in nodes for value in _biases(node)}
    if not biases <= shared:
        raise TapeError("a product of the step adds a vector that differs from row to row before its activation")
    homes = {**rows_homes, **{value: placement.homes[value] for value in biases}}
    first = {homes[value]: value for node in nodes for value in node.reads if value not in made and value in homes}
    unknown = {value for node in nodes for value in node.reads} - set(made) - set(first.values())
    if unknown:
        raise TapeError(f"the step reads {len(unknown)} buffers that are not the rows'")
    return StepGraph(nodes, homes, first, last)


def _several(
    node: Node,
    recording: Recording,
    ops: Sequence[Command],
    homes: Mapping[int, int],
    shared: Collection[int],
    spans: RowSpans,
    rows: int,
    along: bool,
) -> Node:
    """The node over several rows."""
    what = node.what
    if isinstance(what, MatVec):
        return replace(node, what=_widened(what, node.reads, shared, rows))
    if isinstance(what, Beside):
        apart = what.apart(node.reads, node.writes)
        return replace(
            node, what=replace(what, products=tuple(_widened(each, reads, shared, rows) for each, reads, _ in apart))
        )
    if isinstance(what, Attention):
        if spans.packed and (what.prepared or what.turned):
            raise TapeError("another kernel writes the caches, which works only for separate rows")
        made = replace(what, rows=rows, along=along, tabled=spans.table is not None, packed=spans.packed)
        return replace(node, what=made)
    if isinstance(what, Lookup | GatedHeadNorm | HeadGate | NormedRows):
        return replace(node, what=replace(what, rows=rows))
    if isinstance(what, NormsBeside):
        return replace(node, what=what.widened(rows))
    if isinstance(what, Convolution | DeltaRule):
        if not along:
            raise TapeError(f"{what.title} has a form only for one sequence")
        return replace(node, what=replace(what, positions=rows))
    if isinstance(what, PositionRow):
        return replace(node, what=replace(what, rows=rows, along=along))
    found = lookup_in(recording, ops[what.index]) if isinstance(what, Recorded) else None
    if found is None or found[0] != spans.ids:
        raise TapeError(f"operation {node.position} of the step has a form only for one row")
    reads = tuple(value for value in node.reads if homes.get(value) == spans.ids)
    return replace(node, what=replace(found[1], rows=rows), reads=reads)


def _widened(what: MatVec, reads: Sequence[int], shared: Collection[int], rows: int) -> MatVec:
    """The product of several rows. A residual that the rows share becomes a bias, which the kernel reads once."""
    made = replace(what, rows=rows)
    if what.scales is not None and (reason := unfit_matvec(made)):
        raise TapeError(f"{what.title} has a form only for one row: {reason}")
    alone = what.residual and not (what.bias or what.up or what.activated or what.factor)
    if alone and reads[what.inputs.index("residual")] in shared:
        return replace(made, residual=False, bias=True)
    return made


def _biases(node: Node) -> Iterator[int]:
    """The values that a node's products add to every row."""
    what = node.what
    apart = [(what, node.reads)] if isinstance(what, MatVec) else []
    if isinstance(what, Beside):
        apart = [(each, tuple(reads)) for each, reads, _ in what.apart(node.reads, node.writes)]
    for each, reads in apart:
        yield from (value for name, value in zip(each.inputs, reads, strict=True) if name.startswith("bias"))
