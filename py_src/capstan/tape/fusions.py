"""Passes over the graph of a step: which operations become kernels of ours, and which of these join.

Each is a pure function from graph to graph; `fuse_step` runs those that are asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from .placement import MisplacedError, Placement, place_values
from .recording import Command, Recording
from .step_graph import Add, MatVec, Multiply, Node, Norm, Silu, StepGraph, read_step

__all__ = ["PASSES", "fold_gates", "fold_norms", "fold_residuals", "fuse_step", "without_dead"]

PASSES = ("clears", "direct", "matvec", "gated", "norm", "residual", "attention", "dead", "prefill")
"""What can be done to a recorded step, by the names that `Model.load(passes=...)` takes.

clears     drop the clears of recycled buffers
direct     give indirect dispatches counts from a table by sequence length
matvec     matrix-vector products, of int4 or dense weights, by kernels of ours
gated      the gated half of a feed-forward layer (norm, two products, SiLU) by the same kernel (needs residual; where
           it was recorded as separate operations, matvec)
norm       RMS norms computed by the product that reads them (needs matvec; those of a sum need residual)
residual   residuals and biases added by the product before them (needs matvec; residuals need norm or gated)
attention  rotary embedding, cache write and attention of one token in one kernel, and its join
dead       drop operations whose results nobody reads
prefill    replay prefill runs of a few lengths, with int4 matrix products by a kernel of ours
"""

LIFTED = ("matvec", "gated", "norm", "residual", "attention")
"""Passes that replace recorded operations."""


Loose = Add | Silu | Multiply | Norm
"""What no kernel of ours does by itself."""


def fuse_step(
    recording: Recording, ops: Sequence[Command], lasting: Collection[int], passes: Collection[str]
) -> Placement:
    """The step with the given passes applied, its values in buffers. `lasting` are buffers whose contents outlive it.

    Sums, gates and norms have no kernels of their own: a recorded operation that finds no product to join stays as it
    was recorded, as does one whose kernel does not fit where its values are. Raises TapeError if nothing helps.
    """
    lift = [name for name in LIFTED if name in passes]
    kept: set[int] = set()
    while True:
        graph = read_step(recording, ops, lasting, lift, kept)
        if "gated" in passes:
            graph = fold_gates(graph)
        if "residual" in passes:
            graph = fold_residuals(graph)
        if "norm" in passes:
            graph = fold_norms(graph)
        left = {origin for node in graph.nodes if isinstance(node.what, Loose) for origin in node.origins}
        if not left:
            try:
                return place_values(without_dead(graph) if "dead" in passes else graph)
            except MisplacedError as error:
                left = set(error.origins) - kept
                if not left:
                    raise
        kept |= left


def fold_gates(graph: StepGraph) -> StepGraph:
    """Let one product compute silu(W x) * (W_up x) where nobody else reads what passes between the parts."""
    readers, makers = graph.readers(), graph.makers()
    lasting = set(graph.last.values())

    def made_for(value: int, reader: Node) -> Node | None:
        """What makes a value for one reader alone."""
        return makers.get(value) if value not in lasting and readers[value] == [reader] else None

    gone: set[int] = set()
    """Values that are no longer made."""
    joined: dict[int, Node] = {}
    """What takes the place of a multiplication, by the value it makes."""
    for node in graph.nodes:
        if not isinstance(node.what, Multiply):
            continue
        for gate_value, up_value in (node.reads, node.reads[::-1]):
            silu, up = made_for(gate_value, node), made_for(up_value, node)
            if silu is None or up is None or not isinstance(silu.what, Silu):
                continue
            gate = made_for(silu.reads[0], silu)
            if gate is None or gate.reads != up.reads:
                continue
            if not (isinstance(gate.what, MatVec) and isinstance(up.what, MatVec) and _pair(gate.what, up.what)):
                continue
            if silu.what.size == node.what.size == gate.what.n:
                weights = [up.what.weights, up.what.scales]
                joined[node.writes[0]] = replace(
                    gate,
                    what=replace(gate.what, up=tuple(buffer for buffer in weights if buffer is not None)),
                    writes=node.writes,
                    position=node.position,
                    origins=gate.origins | up.origins | silu.origins | node.origins,
                )
                gone |= {*silu.writes, *silu.reads, up_value}
                break
    nodes = [joined.get(node.writes[0], node) if node.writes else node for node in graph.nodes]
    return replace(graph, nodes=tuple(node for node in nodes if gone.isdisjoint(node.writes)))


def _pair(gate: MatVec, up: MatVec) -> bool:
    """Whether two products differ in their weights alone, and do nothing besides."""
    alike = replace(gate, weights=up.weights, scales=up.scales) == up and (gate.scales is None) == (up.scales is None)
    return alike and gate.up is None and gate.norm is None and not gate.residual


def fold_residuals(graph: StepGraph) -> StepGraph:
    """Let a product add the residual that its result alone is added to."""
    readers, makers = graph.readers(), graph.makers()
    lasting = set(graph.last.values())
    gone: set[int] = set()
    """Values that are no longer made."""
    joined: dict[int, Node] = {}
    """What takes the place of a sum, by the value it makes."""
    for node in graph.nodes:
        if not isinstance(node.what, Add):
            continue
        for product, other in (node.reads[::-1], node.reads):
            maker = makers.get(product)
            if maker is None or product == other or product in lasting or readers[product] != [node]:
                continue
            if isinstance(maker.what, MatVec) and not maker.what.residual and maker.what.up is None:
                joined[node.writes[0]] = replace(
                    maker,
                    what=replace(maker.what, residual=True),
                    reads=(*maker.reads, other),
                    writes=node.writes,
                    position=node.position,
                    origins=maker.origins | node.origins,
                )
                gone.add(product)
                break
    nodes = [
        joined.get(node.writes[0], node) if isinstance(node.what, Add) else node
        for node in graph.nodes
        if not (isinstance(node.what, MatVec) and node.writes[0] in gone)
    ]
    return replace(graph, nodes=tuple(nodes))


def fold_norms(graph: StepGraph) -> StepGraph:
    """Let products normalise their input themselves, where nobody else reads the normalised vector."""
    readers = graph.readers()
    lasting = set(graph.last.values())
    folded: dict[int, Node] = {}
    """Norms that go, by the value they make."""
    for node in graph.nodes:
        if isinstance(node.what, Norm) and node.writes[0] not in lasting:
            using = readers.get(node.writes[0], [])
            if using and all(_takes_norm(reader, node.writes[0]) for reader in using):
                folded[node.writes[0]] = node
    nodes = []
    for node in graph.nodes:
        if node.writes and node.writes[0] in folded and isinstance(node.what, Norm):
            continue
        norm = folded.get(node.reads[0]) if isinstance(node.what, MatVec) else None
        if norm is not None and isinstance(node.what, MatVec) and isinstance(norm.what, Norm):
            what = replace(node.what, norm=norm.what.by)
            origins = node.origins | norm.origins
            node = replace(node, what=what, reads=(norm.reads[0], *node.reads[1:]), origins=origins)
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes))


def _takes_norm(reader: Node, value: int) -> bool:
    what = reader.what
    return isinstance(what, MatVec) and what.norm is None and reader.reads[0] == value and value not in reader.reads[1:]


def without_dead(graph: StepGraph) -> StepGraph:
    """Without the operations that make nothing that is read, or that outlives the step."""
    wanted = set(graph.last.values())
    nodes: list[Node] = []
    for node in reversed(graph.nodes):
        if wanted.isdisjoint(node.writes):
            continue
        nodes.append(node)
        wanted |= set(node.reads)
    return replace(graph, nodes=tuple(reversed(nodes)))
