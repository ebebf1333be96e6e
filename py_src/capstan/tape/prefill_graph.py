"""A recorded prefill run as a graph of values, with operations of ours where there are some for it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from .fusions import fitted, put_back, require_computed
from .kernel_plan import WorkgroupLimits
from .moved import moved_apart
from .ops import READERS
from .ops.matmul import NBitsWeights
from .placement import Placement
from .recording import Command, Recording
from .step_graph import Node, StepGraph, Values, walk

if TYPE_CHECKING:
    from ..graph import LeftOut

__all__ = ["fuse_prefill"]


def fuse_prefill(
    recording: Recording,
    ops: Sequence[Command],
    lasting: Collection[int],
    weights: Mapping[int, NBitsWeights],
    rows: int,
    limits: WorkgroupLimits,
    left_out: Mapping[int, LeftOut] = MappingProxyType({}),
) -> Placement:
    """A recorded run of `rows` positions with operations of ours, its values in buffers; `weights` by buffer, `limits`
    the adapter's.

    `lasting` are buffers whose contents outlive the run. An operation of ours that does not fit where its values are
    stays as it was recorded. `left_out` has the windows and soft caps, by cache of keys, that the recorded attention
    kernels ignore and ours compute. Raises TapeError if not all of it is computed.
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
