"""Joins matrix products of one row with their neighbours in a recorded step, if no other operation reads the values
between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..ort_kernels import Met
from ..step_graph import Node, StepGraph
from .elementwise import Add, Cast, Gelu, Multiply, Power, Relu, Scale, Silu, Tanh
from .gemv import Factor, MatVec
from .norm import CenteredNorm, Norm, RmsNorm
from .packed import gated_by

__all__ = ["Joins", "gates_joined", "norms_joined", "sums_joined"]


@dataclass
class Joins:
    """A graph in which operations are being joined."""

    graph: StepGraph
    readers: Mapping[int, list[Node]] = field(init=False)
    makers: dict[int, Node] = field(init=False)
    """The node that makes each value at present."""
    lasting: frozenset[int] = field(init=False)
    gone: set[int] = field(default_factory=set)
    """Values that are no longer made."""

    def __post_init__(self) -> None:
        self.readers, self.makers = self.graph.readers(), self.graph.makers()
        self.lasting = frozenset(self.graph.last.values())

    def made_for(self, value: int, reader: Node) -> Node | None:
        """The node that makes a value, if the value's only reader is `reader`."""
        return self.makers.get(value) if value not in self.lasting and self.readers[value] == [reader] else None

    def join(self, by: Node, node: Node, *others: Node) -> None:
        """Replace `node` by `by`, which also does the work of `others`, whose values are no longer made."""
        origins = node.origins.union(*(each.origins for each in others))
        joined = replace(by, writes=node.writes, position=node.position, origins=by.origins | origins)
        for each in others:
            self.gone |= set(each.writes)
        self.makers[node.writes[0]] = joined

    def joined(self) -> StepGraph:
        nodes = [self.makers[node.writes[0]] if node.writes else node for node in self.graph.nodes]
        return replace(self.graph, nodes=tuple(node for node in nodes if self.gone.isdisjoint(node.writes)))


def product(node: Node | None) -> MatVec | None:
    return node.what if node is not None and isinstance(node.what, MatVec) else None


def with_inputs(node: Node, what: MatVec, named: Mapping[str, int]) -> Node:
    """The product's node with the operation `what`, which reads the values `named`."""
    return replace(node, what=what, reads=tuple(named[name] for name in what.inputs))


def inputs_of(node: Node, what: MatVec) -> dict[str, int]:
    return dict(zip(what.inputs, node.reads, strict=True))


def with_sum(node: Node, what: MatVec, other: int) -> Node | None:
    """The product with one more value added to its result; None if it already has two."""
    named = inputs_of(node, what)
    if what.up is not None:
        return None
    if not what.residual:
        return with_inputs(node, replace(what, residual=True), named | {"residual": other})
    if not (what.bias or what.second or what.activated or what.factor):
        named |= {"bias": named["residual"], "residual": other}
        return with_inputs(node, replace(what, bias=True), named)
    if not what.second:
        return with_inputs(node, replace(what, second=True), named | {"second": other})
    return None


def before_more(node: Node | None) -> Node | None:
    """A product that can take an activation or a factor: its added value becomes its bias."""
    what = product(node)
    if node is None or what is None or what.up is not None or what.activated or what.factor or what.second:
        return None
    if not what.residual:
        return node
    named = inputs_of(node, what)
    if what.bias:
        return None
    return with_inputs(node, replace(what, bias=True, residual=False), named | {"bias": named["residual"]})


def sums_joined(graph: StepGraph, _: Mapping[int, Met]) -> StepGraph:
    """Let products add residuals and biases, multiply or divide by a number, and bound their results."""
    joins = Joins(graph)
    for node in graph.nodes:
        if isinstance(node.what, Add):
            for result, other in (node.reads[::-1], node.reads):
                maker = joins.made_for(result, node) if result != other else None
                what = product(maker)
                summed = with_sum(maker, what, other) if maker is not None and what is not None else None
                if summed is not None and maker is not None:
                    joins.join(summed, node, maker)
                    break
        elif isinstance(node.what, Scale):
            maker = joins.made_for(node.reads[0], node)
            if maker is not None and isinstance(maker.what, Tanh):
                cap(joins, node, node.what, maker)
                continue
            scaled = before_more(maker)
            what = product(scaled)
            if scaled is not None and what is not None and maker is not None:
                by = Factor(node.what.factor, node.what.divides)
                joins.join(replace(scaled, what=replace(what, factor=by)), node, maker)
    return joins.joined()


def cap(joins: Joins, node: Node, scale: Scale, tanh: Node) -> None:
    """Join tanh(y / factor) * factor; the product before it already has the division."""
    maker = joins.made_for(tanh.reads[0], tanh)
    what = product(maker)
    if maker is None or what is None or scale.divides or what.factor != Factor(scale.factor, divides=True):
        return
    if not (what.residual or what.second):
        capped = replace(what, factor=Factor(scale.factor, capped=True))
        joins.join(replace(maker, what=capped), node, tanh, maker)


def gates_joined(graph: StepGraph, _: Mapping[int, Met]) -> StepGraph:
    """Let one product compute silu(W x) * (W_up x), or the same with GELU; and SiLU, GELU or a power of max(W x, 0)
    without a gate.
    """
    joins = Joins(graph)
    for node in graph.nodes:
        if isinstance(node.what, Multiply):
            for gate_value, up_value in (node.reads, node.reads[::-1]):
                silu, up = joins.made_for(gate_value, node), joins.made_for(up_value, node)
                if silu is None or up is None or not isinstance(silu.what, Silu | Gelu):
                    continue
                gate = joins.made_for(silu.reads[0], silu)
                if gate is not None and silu.what.size == node.what.size:
                    both = pair(gate, up, node.what.size, silu.what)
                    if both is not None:
                        joins.join(both, node, gate, up, silu)
                        break
    return activations_joined(joins.joined())


def pair(gate: Node, up: Node, size: int, by: Silu | Gelu) -> Node | None:
    """The gate of two products, if they differ only in their weights and biases, and have no other joined operation."""
    one, other = product(gate), product(up)
    if one is None or other is None or one.n != size or gate.reads[0] != up.reads[0]:
        return None
    both, plain = gated_by(one, other), replace(one, residual=False)
    if both is None or plain != MatVec(**{**vars(plain), **NOTHING_BESIDES}):
        return None
    erf = isinstance(by, Gelu) and by.erf
    what = replace(both, residual=False, bias=one.residual, gelu=isinstance(by, Gelu), erf=erf)
    return replace(gate, what=what, reads=(*gate.reads, *up.reads[1:]))


NOTHING_BESIDES = {
    "norm": None,
    "up": None,
    "gelu": False,
    "erf": False,
    "bias": False,
    "second": False,
    "activated": False,
    "factor": None,
    "inner": None,
}


def activations_joined(graph: StepGraph) -> StepGraph:
    joins = Joins(graph)
    for node in graph.nodes:
        if not isinstance(node.what, Silu | Gelu | Power):
            continue
        taken = [joins.made_for(node.reads[0], node)]
        if isinstance(node.what, Power):
            relu = taken[0]
            if relu is None or not isinstance(relu.what, Relu):
                continue
            taken.append(joins.made_for(relu.reads[0], relu))
        plain = before_more(taken[-1])
        what = product(plain)
        if plain is None or what is None or what.n != node.what.size:
            continue
        power = node.what.exponent if isinstance(node.what, Power) else None
        erf = isinstance(node.what, Gelu) and node.what.erf
        what = replace(what, activated=True, power=power, gelu=isinstance(node.what, Gelu), erf=erf)
        joins.join(replace(plain, what=what), node, *(each for each in taken if each is not None))
    return joins.joined()


def norms_joined(graph: StepGraph, _: Mapping[int, Met]) -> StepGraph:
    """Let products normalise their input themselves. If the input is the sum of a residual and a normalised vector, the
    first product computes and writes the sum, too. Casts between these are included.
    """
    joins = Joins(graph)
    changed: dict[int, Node] = {}
    """Products, by the value that they make."""
    for node in graph.nodes:
        if not isinstance(node.what, Norm):
            continue
        taken = [node]
        value, element = node.writes[0], node.what.element
        cast = only_cast(joins, value, "f16")
        if cast is not None:
            taken.append(cast)
            value = cast.writes[0]
        using = sorted(joins.readers.get(value, ()), key=lambda reader: reader.position)
        if value in joins.lasting or not using:
            continue
        alone = len(using) == 1
        if not all(takes_norm(reader, value, node.what, "f16" if cast else element, alone) for reader in using):
            continue
        inner = inner_sum(joins, node, using, wide=cast is not None)
        for place, reader in enumerate(using):
            what = product(reader)
            assert what is not None
            named = inputs_of(reader, what) | {"x": node.reads[0]}
            what = replace(what, norm=node.what.by, wide=cast is not None)
            origins = reader.origins.union(*(each.origins for each in taken))
            writes = reader.writes
            if inner is not None and place == 0:
                what = replace(what, inner=inner.by, total=inner.total)
                named |= {"x": inner.x, "skip": inner.skip}
                origins = origins.union(*(each.origins for each in inner.taken))
                writes = (*writes, node.reads[0]) if inner.total else writes
            changed[reader.writes[0]] = replace(with_inputs(reader, what, named), origins=origins, writes=writes)
        for each in (*taken, *(inner.taken if inner is not None else ())):
            joins.gone |= set(each.writes)
    nodes = [
        changed.get(node.writes[0], node) if node.writes else node
        for node in graph.nodes
        if joins.gone.isdisjoint(node.writes)
    ]
    return replace(graph, nodes=tuple(nodes))


def only_cast(joins: Joins, value: int, element: str) -> Node | None:
    """The cast to an element type that is the only reader of the value."""
    readers = joins.readers.get(value, [])
    if value in joins.lasting or len(readers) != 1:
        return None
    what = readers[0].what
    return readers[0] if isinstance(what, Cast) and what.element == element else None


def takes_norm(reader: Node, value: int, norm: Norm, element: str, alone: bool) -> bool:
    """Whether a product can normalise that input; with `alone` it is the only reader."""
    what = product(reader)
    if what is None or what.norm is not None or reader.reads[0] != value or value in reader.reads[1:]:
        return False
    # Kernels of dense weights normalise while they multiply, which works only for RMS norms in their own type; a
    # LayerNorm takes a kernel before a single product.
    plain = norm.element == what.element and (alone or not isinstance(norm.by, CenteredNorm))
    return what.element == element and what.k == norm.size and (plain or what.scales is not None)


@dataclass(frozen=True)
class InnerSum:
    """A sum of a residual and a normalised vector, before another norm."""

    by: RmsNorm
    x: int
    skip: int
    total: bool
    """Whether the sum has other readers."""
    taken: tuple[Node, ...]


def inner_sum(joins: Joins, norm: Node, using: Sequence[Node], *, wide: bool) -> InnerSum | None:
    """The sum that the first product reading `norm` can compute before the norm; None if it cannot."""
    first, value = using[0], norm.reads[0]
    what, added = product(first), joins.makers.get(value)
    if what is None or what.scales is None or added is None or not isinstance(added.what, Add):
        return None
    others = [reader for reader in joins.readers[value] if reader is not norm]
    if value in joins.lasting or any(reader.position <= first.position for reader in others):
        return None
    for inner_value, skip in (added.reads[::-1], added.reads):
        inner = joins.made_for(inner_value, added) if inner_value != skip else None
        if inner is None or not isinstance(inner.what, Norm) or isinstance(inner.what.by, CenteredNorm):
            continue
        taken, x = [inner, added], inner.reads[0]
        if wide:
            cast = joins.made_for(x, inner)
            if cast is None or not isinstance(cast.what, Cast) or cast.what.element != "f32":
                continue
            taken.append(cast)
            x = cast.reads[0]
        if inner.what.size == what.k:
            return InnerSum(inner.what.by, x, skip, bool(others) or len(using) > 1, tuple(taken))
    return None
