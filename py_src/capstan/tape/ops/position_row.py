"""Recognises learned positions: the row of a table at the sequence's position is added to the embedding of the
token.

A recorded step looks the row up by the position that the host or the sampler wrote. Capstan's operation takes the
position from the sampler's state, so that each of several sequences has its own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from ..kernel_plan import KernelPlan, WorkgroupLimits
from ..operation import ELEMENT_BYTES, STATE, Binding, Buffer, Kernel, Operation, Value
from ..recording import Command, Recording
from ..step_graph import Node, Recorded, StepGraph
from .elementwise import Add
from .lookup import lookup_in

__all__ = ["PositionRow", "positions_joined"]

WORKGROUP = 64


@dataclass(frozen=True)
class PositionRow(Operation):
    """reads[0] + the row of a table of weights, of `k` elements, at the position of the new token."""

    table: int
    k: int
    element: str
    rows: int = 1
    """The number of sequences, each with a vector and a part of the state."""
    along: bool = False
    """Whether these are successive positions of one sequence instead."""

    def written_bytes(self, index: int) -> int:
        return self.rows * self.k * ELEMENT_BYTES[self.element]

    def kernels(self, reads: Sequence[int], writes: Sequence[int], limits: WorkgroupLimits) -> list[Kernel]:
        plan = KernelPlan("add_position", {"K": self.k, "ALONG": self.along}, (-(-self.k // WORKGROUP), self.rows, 1))
        bindings: dict[str, Binding] = {
            "x": Value(reads[0]),
            "table": Buffer(self.table),
            "state": STATE,
            "y": Value(writes[0]),
        }
        return [Kernel(plan, self.element == "f16", bindings)]


def positions_joined(
    graph: StepGraph, recording: Recording, ops: Sequence[Command], positions: int | None, kept: Collection[int]
) -> StepGraph:
    """Let one operation look up the row of a position and add it, unless the recorded operations are in `kept`;
    `positions` is the recorded buffer of the step's position.
    """
    readers, makers, lasting = graph.readers(), graph.makers(), set(graph.last.values())
    changed: dict[int, Node] = {}
    gone: set[int] = set()
    for node in graph.nodes:
        if not isinstance(node.what, Add) or not node.origins.isdisjoint(kept):
            continue
        for x, row in (node.reads, node.reads[::-1]):
            maker = makers.get(row)
            if maker is None or not isinstance(maker.what, Recorded) or row in lasting or readers[row] != [node]:
                continue
            found = lookup_in(recording, ops[maker.what.index])
            if found is None or found[0] != positions or maker.what.index in kept or found[1].scales:
                continue
            [table], k, element = found[1].tables, found[1].k, found[1].element
            if (k, element) == (node.what.size, node.what.element):
                origins = node.origins | maker.origins
                changed[node.writes[0]] = replace(
                    node, what=PositionRow(table, k, element), reads=(x,), origins=origins
                )
                gone.add(row)
                break
    nodes = (changed.get(node.writes[0], node) if node.writes else node for node in graph.nodes)
    return replace(graph, nodes=tuple(node for node in nodes if gone.isdisjoint(node.writes)))
