"""Joins two recorded matrix products into one product of Capstan. The two belong to one weight with minima: one
multiplies by the integers of the weight, the other by its minima.

A GGUF file's graph (graph/gguf/gguf_tensors.py) multiplies x by the integers. It multiplies the sums of the blocks of x
by the minima, and adds both results. `products` has the minima for the integers of each product. Dispatches are
recognised by the buffers that they bind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..ort_kernels import RunReader, bound
from ..recording import Command, Recording
from ..step_graph import Node, Recorded, StepGraph
from .elementwise import ADDS, Add
from .gemv import MatVec
from .gemv_joins import Joins
from .matmul import NBitsWeights, Product, Quantize

__all__ = ["MinimaSums", "minima_joined"]


def minima_joined(
    graph: StepGraph, recording: Recording, ops: Sequence[Command], products: Mapping[int, NBitsWeights]
) -> StepGraph:
    """Let products add their minima. Sums of blocks without another reader are dropped."""
    joins = Joins(graph)
    sums_of: dict[int, Node] = {}
    """The nodes that make the sums of blocks, by the value of the product that reads them."""
    for node in graph.nodes if any(each.minima is not None for each in products.values()) else ():
        if not isinstance(node.what, Add):
            continue
        for value, other in (node.reads, node.reads[::-1]):
            maker, below = joins.made_for(value, node), joins.made_for(other, node)
            what = maker.what if maker is not None else None
            if maker is None or below is None or not isinstance(what, Product) or what.weights not in products:
                continue
            minima = products[what.weights].minima
            if minima is None or what != plain(what):
                continue
            sums = factor_of(graph, recording, ops, below, minima)
            summed = joins.makers.get(sums) if sums is not None else None
            if summed is not None and only_read(graph, recording, ops, summed) == multiplied(joins, maker):
                joins.join(replace(maker, what=replace(what, minima=minima)), node, maker, below)
                sums_of[node.writes[0]] = summed
                break
    joined = joins.joined()
    wanted = joined.readers().keys() | set(joined.last.values())
    idle = {id(node): node.origins for node in sums_of.values() if wanted.isdisjoint(node.writes)}
    nodes = [
        replace(node, origins=node.origins.union(*(idle.get(id(sums_of.get(value)), ()) for value in node.writes)))
        for node in joined.nodes
        if id(node) not in idle
    ]
    return replace(joined, nodes=tuple(nodes))


def plain(what: Product) -> Product:
    """The product by the same weights without joined operations."""
    if not isinstance(what, MatVec):
        return replace(what, up=None, minima=None)
    named = {name: getattr(what, name) for name in ("bits", "zeros", "rows", "rounded")}
    return MatVec(what.weights, what.scales, what.n, what.k, what.block, what.element, **named)


def multiplied(joins: Joins, product: Node) -> int:
    """The value that a product multiplies, in floats."""
    made = joins.makers.get(product.reads[0])
    return (made if made is not None and isinstance(made.what, Quantize) else product).reads[0]


def factor_of(graph: StepGraph, recording: Recording, ops: Sequence[Command], node: Node, weights: int) -> int | None:
    """The value that a product by dense weights multiplies; None if the node is not a product by `weights`."""
    if isinstance(node.what, Product):
        return node.reads[0] if node.what == plain(replace(node.what, weights=weights)) else None
    at = places(recording, ops, node)
    named = set(at) == {"a", "b", "output"} and at["b"] == weights
    return next((value for value in node.reads if named and graph.homes.get(value) == at["a"]), None)


def only_read(graph: StepGraph, recording: Recording, ops: Sequence[Command], node: Node) -> int | None:
    """The one value that a recorded operation reads; None if it reads several."""
    bindings = places(recording, ops, node).values()
    found = [value for value in node.reads if graph.homes.get(value) in bindings]
    return found[0] if len(found) == 1 else None


def places(recording: Recording, ops: Sequence[Command], node: Node) -> Mapping[str, int]:
    """The buffers that a recorded operation binds, by their names in its WGSL. The result is empty for an operation
    that is not recorded, and for a recorded operation whose bindings cannot be named.
    """
    met = bound(recording, ops[node.what.index], {}) if isinstance(node.what, Recorded) else None
    return met[0] if met is not None else {}


@dataclass
class MinimaSums(RunReader):
    """Recognises the sums in a recorded run of a model with minima, so that products can join them."""

    weights: Mapping[int, NBitsWeights]

    def read(self, index: int, reads: Mapping[int, int], writes: Mapping[int, int]) -> list[Node] | None:
        """The sum that a recorded operation computes; None if it computes something else."""
        if all(each.minima is None for each in self.weights.values()):
            return None
        return self.parts(index, reads, writes, (ADDS,))

    def joined(self, graph: StepGraph) -> StepGraph:
        return minima_joined(graph, self.recording, self.ops, self.weights)
