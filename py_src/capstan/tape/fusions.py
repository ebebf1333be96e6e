"""Runs the passes over a recorded step. They replace recorded operations by Capstan's operations, and join these. The
operations are defined in `ops`; this module only calls them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from ..errors import TapeError
from .ops import RULES
from .ops.attention import Attention
from .ops.lookup import TableParts, lookups_followed, lookups_joined
from .ops.matmul import NBitsWeights
from .ops.minima import minima_joined
from .ops.position_row import positions_joined
from .ops.prefill_attention import PrefillAttention
from .ort_kernels import read_step
from .placement import MisplacedError, Placement, place_values
from .recording import Command, Recording
from .step_graph import Node, Recorded, StepGraph, without_dead

if TYPE_CHECKING:
    from ..graph import LeftOut

__all__ = ["PASSES", "fitted", "fuse_step", "put_back", "require_computed"]

PASSES = (
    *("clears", "direct", "matvec", "gated", "norm", "residual", "attention", "states", "dead", "prefill", "rows"),
    "prompts",
)
"""The passes over a recorded step, by the names in `Model.load(passes=...)`:

clears     drop the clears of recycled buffers
direct     give indirect dispatches counts from a table by sequence length
matvec     matrix-vector products, of int4 or dense weights, by our kernels
gated      the gated half of a feed-forward layer (norm, two products, SiLU) by the same kernel (needs residual; where
           it was recorded as separate operations, matvec); activations without a gate by the product before them
norm       norms computed by the product that reads them (needs matvec; those of a sum need residual)
residual   residuals, biases, factors and caps by the product before them (needs matvec; residuals need norm or gated),
           and factors of embeddings by their lookup; casts of these with norm
attention  rotary embedding, cache write and attention of one token in one kernel, and its join
states     convolutions and linear attention of one token, with their states
dead       drop operations whose results are never read
prefill    replay prefill runs of a few lengths, with int4 matrix products by one of our kernels
rows       one step for all rows of a generator (needs matvec, attention and whatever leaves nothing else as recorded)
"""


def fuse_step(
    recording: Recording,
    ops: Sequence[Command],
    lasting: Collection[int],
    passes: Collection[str],
    left: Collection[int] = (),
    left_out: Mapping[int, LeftOut] = MappingProxyType({}),
    weights: Mapping[int, NBitsWeights] = MappingProxyType({}),
    tables: Collection[TableParts] = (),
    positions: int | None = None,
) -> Placement:
    """The step with the given passes applied, its values in buffers. `lasting` are buffers whose contents outlive it.
    Operations whose index is in `left` stay as recorded. `left_out` has the windows and soft caps, by cache of keys,
    that the recorded attention kernels ignore and ours compute; `weights`, by buffer, have the minima, `tables` are the
    tables in parts, `positions` is the buffer of the step's position.

    Raises TapeError if no operation of Capstan fits its buffers, or if not all of `left_out` is computed.
    """

    def read(kept: Collection[int]) -> StepGraph:
        graph, met = read_step(recording, ops, lasting, passes, {*kept, *left}, RULES)
        if "matvec" in passes:
            graph = minima_joined(graph, recording, ops, weights)
            graph = lookups_joined(graph, recording, ops, tables, {*kept, *left})
            graph = lookups_followed(graph, recording, ops, {*kept, *left})
            graph = positions_joined(graph, recording, ops, positions, {*kept, *left})
        for rules in RULES:
            for name, fold in rules.folds.items():
                if name in passes:
                    graph = fold(graph, met)
        return put_back(graph, left_out)

    return require_computed(fitted(read, dead="dead" in passes), left_out)


def put_back(graph: StepGraph, left_out: Mapping[int, LeftOut]) -> StepGraph:
    """The graph in which Capstan's attention operations have the windows and soft caps, by cache of keys, that the
    recorded kernels ignore.
    """

    def whole(node: Node) -> Node:
        what = node.what
        if not isinstance(what, Attention | PrefillAttention) or what.key not in left_out:
            return node
        asked = left_out[what.key]
        found = what.with_left_out(asked.window, asked.softcap)
        return replace(node, what=replace(found, slides=asked.slides) if isinstance(found, Attention) else found)

    return replace(graph, nodes=tuple(whole(node) for node in graph.nodes))


def require_computed(placement: Placement, left_out: Mapping[int, LeftOut]) -> Placement:
    """The placement. Raises TapeError if a remaining recorded attention ignores a window or soft cap."""
    ours = Counter(node.what.key for node in placement.nodes if isinstance(node.what, Attention | PrefillAttention))
    missing = [what for cache, what in left_out.items() if ours[cache] < what.layers]
    if missing:
        raise TapeError(f"none of our kernels computes attention over {missing[0].key}")
    return placement


def fitted(read: Callable[[Collection[int]], StepGraph], *, dead: bool) -> Placement:
    """Places the values of the graph that `read` makes in buffers; with `dead` it drops unread values. `read` gets the
    recorded operations that must stay unchanged.

    From trial to trial more of them stay unchanged: a recorded operation stays if a part of it has no separate kernel
    (a sum, a gate or a norm that joined no product), or if its replacement does not fit its buffers. Raises TapeError
    if no trial succeeds.
    """
    kept: set[int] = set()
    while True:
        graph = read(kept)
        left = {
            origin
            for node in graph.nodes
            if not isinstance(node.what, Recorded) and node.what.loose
            for origin in node.origins
        }
        if not left:
            try:
                return place_values(without_dead(graph) if dead else graph)
            except MisplacedError as error:
                left = set(error.origins) - kept
                if not left:
                    raise
        kept |= left
