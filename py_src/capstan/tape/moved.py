"""Copies results of ours into the buffers where recorded operations read them, if ours cannot write there.

onnxruntime-web reuses a buffer after the last read of its value. One operation of ours that replaces several may then
read a buffer that it would write: the sum with what minima add can be in the buffer of the product's x.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .kernel_plan import KernelPlan, WorkgroupLimits
from .operation import Kernel, Operation, Value
from .step_graph import Node, Recorded, StepGraph, Values

__all__ = ["Moved", "moved_apart"]

THREADS = 64
WIDEST = 32768
"""Workgroups in x."""


@dataclass(frozen=True)
class Moved(Operation):
    """The same as reads[0], of `bytes` bytes, in another buffer."""

    bytes: int

    def written_bytes(self, index: int) -> int:
        return self.bytes

    def kernels(self, reads: Sequence[int], writes: Sequence[int], limits: WorkgroupLimits) -> list[Kernel]:
        words = -(-self.bytes // 4)
        groups = -(-words // THREADS)
        wide = min(groups, WIDEST)
        plan = KernelPlan("moved", {"WORDS": words, "WIDE": wide * THREADS}, (wide, -(-groups // wide), 1))
        return [Kernel(plan, False, {"x": Value(reads[0]), "y": Value(writes[0])})]


def moved_apart(graph: StepGraph, values: Values) -> StepGraph:
    """The graph in which operations of ours write none of the recorded buffers that they read: they make values of
    their own instead, which are copied."""
    met = {value for node in graph.nodes if isinstance(node.what, Recorded) for value in (*node.reads, *node.writes)}
    met |= {*graph.first.values(), *graph.last.values()}
    nodes: list[Node] = []
    for node in graph.nodes:
        if isinstance(node.what, Recorded):
            nodes.append(node)
            continue
        taken = {graph.homes[value] for value in node.reads if value in met and value in graph.homes}
        taken -= node.what.in_place
        instead = {value: values.fresh() for value in node.writes if value in met and graph.homes.get(value) in taken}
        nodes.append(replace(node, writes=tuple(instead.get(value, value) for value in node.writes)))
        for value, own in instead.items():
            what = Moved(node.what.written_bytes(node.writes.index(value)))
            nodes.append(Node(what, (own,), (value,), node.position, node.origins))
    return replace(graph, nodes=tuple(nodes))
