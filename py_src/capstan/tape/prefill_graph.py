"""Makes a graph of values from a recorded prefill run, with Capstan's operations where possible."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from .fusions import fitted, put_back, require_computed
from .kernel_plan import KernelPlan, WorkgroupLimits
from .operation import Kernel, Operation, Value
from .ops import READERS
from .ops.matmul import NBitsWeights
from .placement import Placement
from .recording import Command, Recording
from .step_graph import Node, Recorded, StepGraph, Values, walk

if TYPE_CHECKING:
    from ..graph import LeftOut

__all__ = ["Moved", "fuse_prefill", "moved_apart"]


def fuse_prefill(
    recording: Recording,
    ops: Sequence[Command],
    lasting: Collection[int],
    weights: Mapping[int, NBitsWeights],
    rows: int,
    limits: WorkgroupLimits,
    left_out: Mapping[int, LeftOut] = MappingProxyType({}),
) -> Placement:
    """A recorded run of `rows` positions with Capstan's operations, its values in buffers; `weights` are by buffer,
    `limits` are those of the adapter.

    `lasting` are buffers whose contents outlive the run. A recorded operation stays if ours does not fit the buffers of
    its values. `left_out` has the windows and soft caps, by cache of keys, that the recorded attention kernels ignore
    and ours compute. Raises TapeError if some of `left_out` is not computed.
    """

    def read(kept: Collection[int]) -> StepGraph:
        values = Values()
        readers = [reader(recording, ops, weights, rows, values, limits) for reader in READERS]

        def lifted(index: int, reads: Mapping[int, int], writes: Mapping[int, int]) -> list[Node] | None:
            if index in kept:
                return None
            found = (reader.read(index, reads, writes) for reader in readers)
            return next((nodes for nodes in found if nodes is not None), None)

        graph = walk(recording, ops, lasting, values, lifted)
        for reader in readers:
            graph = reader.joined(graph)
        return moved_apart(put_back(graph, left_out), values)

    return require_computed(fitted(read, dead=True), left_out)


THREADS = 64
WIDEST = 32768
"""Workgroups in x."""


@dataclass(frozen=True)
class Moved(Operation):
    """A copy of reads[0], of `bytes` bytes, in another buffer."""

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
    """The graph changed so that Capstan's operations write none of the recorded buffers that they read: they write new
    values instead, which are copied.

    onnxruntime-web reuses a buffer after the last read of its value. An operation of Capstan that replaces several may
    then read a buffer that it would write: the sum of a product and its minima's product can be in the buffer of the
    product's x.
    """
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
