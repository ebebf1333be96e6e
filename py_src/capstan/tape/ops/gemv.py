"""A row vector times a matrix of weights, with what surrounds it in a decoder joined to it.

The kernels are matvec_q4.wgsl for weights in int4 or int8 and matvec_dense.wgsl for dense ones; gemv_int4.py and
gemv_dense.py choose their tiling, gemv_recorded.py recognises products in a recorded step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

from ..kernel_plan import KernelPlan, WorkgroupLimits
from ..operation import ELEMENT_BYTES, Binding, Buffer, Kernel, Operation, Shared, Value
from ..ort_kernels import Met
from ..step_graph import Node, StepGraph
from ..witness import Witness
from .elementwise import Add, Gelu, Multiply, Silu
from .gemv_dense import column_width, tune_dense
from .gemv_int4 import tune_matvec
from .norm import Norm, RmsNorm

__all__ = ["MatVec", "fits_matvec", "gates_joined", "norms_joined", "residuals_joined"]

RUN = 32
"""Elements of a row that a thread takes at a time."""
SIXTEEN = 16
"""The one size of blocks below a run: a run has two scales."""


@dataclass(frozen=True)
class MatVec(Operation):
    """W x; reads[0] is x, reads[1] the residual if added.

    W is [n, k] in integers of `bits` with a scale, and a zero point if there are `zeros`, for each `block` of a row;
    or, without scales, [k, n] of numbers like those of x.

    With `norm`, x is normalised first. With `up`, the result is silu(W x) * (W_up x), or with `gelu` gelu(W x) *
    (W_up x). Buffers of weights by id.
    """

    weights: int
    scales: int | None
    """None where the weights are dense."""
    n: int
    k: int
    block: int
    """Of weights in integers, else 0."""
    element: str
    norm: RmsNorm | None = None
    residual: bool = False
    up: tuple[int, ...] | None = None
    """The other half of a gated layer: weights, and scales and zero points if there are."""
    bits: int = 4
    """Of weights in integers: 4 or 8."""
    zeros: int | None = None
    """Zero points, packed as the weights are; None where each is half of the range."""
    gelu: bool = False

    @property
    def title(self) -> str:
        kind = "dense" if self.scales is None else f"int{self.bits}"
        return f"the {kind} product {self.k} -> {self.n}"

    @property
    def terms(self) -> int:
        return self.k

    def written_bytes(self, index: int) -> int:
        return self.n * ELEMENT_BYTES[self.element]

    def kernels(self, reads: Sequence[int], writes: Sequence[int], limits: WorkgroupLimits) -> list[Kernel]:
        """One kernel; two where a gated one binds more buffers than the adapter allows: the second half of the layer,
        then the first, multiplied by it."""
        half = self.element == "f16"
        bindings = self._bindings(reads, writes)
        if self.up is None or len(bindings) <= limits.buffers:
            return [Kernel(plan_matvec(self, limits), half, bindings)]
        weights, scales, zeros = (*self.up, None, None)[:3]
        assert weights is not None
        first = replace(self, weights=weights, scales=scales, zeros=zeros, up=None)
        second = replace(self, up=None)
        between = Shared(-(-self.written_bytes(0) // 16) * 16)
        plan = plan_matvec(second, limits)
        return [
            Kernel(plan_matvec(first, limits), half, {**first._bindings(reads, writes), "y": between}),
            Kernel(
                replace(plan, constants={**plan.constants, "TIMES": True}),
                half,
                {**second._bindings(reads, writes), "up": between},
            ),
        ]

    def _bindings(self, reads: Sequence[int], writes: Sequence[int]) -> dict[str, Binding]:
        """Of one kernel, by the names of the template."""
        bindings: dict[str, Binding] = {"x": Value(reads[0]), "weights": Buffer(self.weights), "y": Value(writes[0])}
        if self.scales is not None:
            bindings["scales"] = Buffer(self.scales)
        if self.zeros is not None:
            bindings["zeros"] = Buffer(self.zeros)
        if self.norm is not None:
            bindings["gamma"] = Buffer(self.norm.gamma)
        if self.residual:
            bindings["residual"] = Value(reads[1])
        for name, buffer in zip(("weights_up", "scales_up", "zeros_up"), self.up or (), strict=False):
            bindings[name] = Buffer(buffer)
        return bindings

    def truth(self, witness: Witness, reads: Sequence[int], writes: Sequence[int]) -> None:
        """The half of a gated layer that multiplies the other is computed first, so that no kernel binds more than 8
        buffers."""
        each, given = ELEMENT_BYTES[self.element], not witness.is_made(writes[0])
        constants: dict[str, int | float | bool] = {
            "N": self.n,
            "K": self.k,
            "BLOCK": self.block or gcd(self.k, 64),
            "DENSE": self.scales is None,
            "BYTES": self.bits == 8,
            "ZEROS": self.zeros is not None,
            "NORM": self.norm is not None,
        }
        shared = {"x": witness.keep(reads[0], self.k * each)}
        if self.norm is not None:
            constants["EPSILON"] = self.norm.epsilon
            shared["gamma"] = ["recorded", self.norm.gamma]

        def run(weights: Sequence[int | None], flags: Mapping[str, bool], bindings: Mapping[str, list[Any]]) -> None:
            names = ("weights", "scales", "zeros")
            taken = {
                name: ["recorded", buffer] for name, buffer in zip(names, weights, strict=False) if buffer is not None
            }
            flags = {"RESIDUAL": False, "GATED": False, "GELU": False, "GIVEN": False, **flags}
            counts = (-(-self.n // 64), 1, 1)
            witness.run(
                "truth_gemv", {**constants, **flags}, self.element == "f16", {**shared, **taken, **bindings}, counts
            )

        up: dict[str, list[Any]] = {}
        if self.up is not None:
            up = {"up": witness.scores(self.n)}
            run(self.up, {}, {"truth": up["up"]})
        residual = {"residual": witness.keep(reads[1], self.n * each)} if self.residual else {}
        truth, y = witness.truths(self.n), witness.keep(writes[0], self.n * each)
        made = {"truth": truth, "y": y} if given else {"truth": truth}
        flags = {"RESIDUAL": self.residual, "GATED": self.up is not None, "GELU": self.gelu, "GIVEN": given}
        run((self.weights, self.scales, self.zeros), flags, {**residual, **up, **made})
        if not given:
            witness.judge("result", self.element, y, truth)


def plan_matvec(what: MatVec, limits: WorkgroupLimits) -> KernelPlan:
    """The kernel that computes a product, and its workgroups."""
    fused: dict[str, int | float | bool] = {
        "NORM": what.norm is not None,
        "RESIDUAL": what.residual,
        "GATED": what.up is not None,
        "GELU": what.gelu,
    }
    if what.norm is not None:
        fused["EPSILON"] = what.norm.epsilon
    if what.scales is None:
        dense = tune_dense(what.k, what.n, what.up is not None, what.element == "f16", limits)
        return KernelPlan("matvec_dense", {**fused, **dense.constants()}, (dense.workgroups, 1, 1))
    tuning = tune_matvec(what.k, what.n, what.up is not None, what.element == "f16", limits)
    packed = {"BYTES": what.bits == 8, "ZEROS": what.zeros is not None, "SIXTEENS": what.block == SIXTEEN}
    constants = {**fused, "BLOCK": what.block, "BIAS": False, "TIMES": False, **packed, **tuning.constants()}
    return KernelPlan("matvec_q4", constants, (tuning.workgroups, 1, 1))


def fits_matvec(what: MatVec) -> bool:
    """Whether web/src/shaders/matvec_q4.wgsl or, for dense ones, matvec_dense.wgsl covers these weights."""
    if what.scales is None:
        return what.k % 4 == 0 and what.n % column_width(what.element == "f16") == 0
    return what.k % RUN == 0 and (what.block == SIXTEEN or what.block % RUN == 0) and what.bits in (4, 8)


def gates_joined(graph: StepGraph, _: Mapping[int, Met]) -> StepGraph:
    """Let one product compute silu(W x) * (W_up x), or that with GELU, where nobody else reads what passes between."""
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
            if silu is None or up is None or not isinstance(silu.what, Silu | Gelu):
                continue
            gate = made_for(silu.reads[0], silu)
            if gate is None or gate.reads != up.reads:
                continue
            if not (isinstance(gate.what, MatVec) and isinstance(up.what, MatVec) and _pair(gate.what, up.what)):
                continue
            if silu.what.size == node.what.size == gate.what.n:
                weights = [up.what.weights, up.what.scales, up.what.zeros]
                other = tuple(buffer for buffer in weights if buffer is not None)
                joined[node.writes[0]] = replace(
                    gate,
                    what=replace(gate.what, up=other, gelu=isinstance(silu.what, Gelu)),
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
    alike = replace(gate, weights=up.weights, scales=up.scales, zeros=up.zeros) == up
    alike = alike and (gate.scales is None) == (up.scales is None) and (gate.zeros is None) == (up.zeros is None)
    return alike and gate.up is None and gate.norm is None and not gate.residual


def residuals_joined(graph: StepGraph, _: Mapping[int, Met]) -> StepGraph:
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


def norms_joined(graph: StepGraph, _: Mapping[int, Met]) -> StepGraph:
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
