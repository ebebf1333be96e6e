"""Recognises gated layers, silu(W x) * (W_up x), in a recorded prefill run, and replaces each by one of Capstan's
matrix products.

onnxruntime-web runs SiLU and the multiplication as one kernel if it fused the layer, else as two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ..ort_kernels import RunReader, bound
from ..recording import Dispatch
from ..step_graph import Node, Recorded, StepGraph
from .elementwise import GATES, Multiply, Silu
from .gemv_joins import Joins
from .matmul import Product
from .matmul_matrices import MatrixMatMul, fits_matrices
from .packed import gated_by

__all__ = ["GatedProducts"]

GATED = (
    "let activated_value = gate_value * (one / (one + exp(-gate_value)));",
    "output[global_idx]=activated_value * up_value;",
)
"""Lines of the kernel that joins the halves of a gated layer."""


@dataclass
class GatedProducts(RunReader):
    """Lets one product compute both halves of a gated layer and their gate, if the halves have no other reader."""

    def read(self, index: int, reads: Mapping[int, int], writes: Mapping[int, int]) -> list[Node] | None:
        """SiLU or a product of two values; None for any other operation."""
        return self.parts(index, reads, writes, GATES)

    def joined(self, graph: StepGraph) -> StepGraph:
        joins = Joins(graph)
        for node in graph.nodes:
            for gate_value, up_value, silu in self.halves(joins, node):
                gate, up = joins.made_for(gate_value, silu or node), joins.made_for(up_value, node)
                both = self.gated(gate, up, node)
                if gate is not None and up is not None and both is not None:
                    joins.join(replace(gate, what=both), node, gate, up, *([silu] if silu else []))
                    break
        return joins.joined()

    def halves(self, joins: Joins, node: Node) -> Iterator[tuple[int, int, Node | None]]:
        """The values that a gate may join: the value for SiLU, the other value, and the SiLU if it is a node of its
        own.
        """
        if isinstance(node.what, Multiply):
            for activated, up in (node.reads, node.reads[::-1]):
                silu = joins.made_for(activated, node)
                if silu is not None and isinstance(silu.what, Silu):
                    yield silu.reads[0], up, silu
        elif isinstance(node.what, Recorded) and len(node.writes) == 1:
            op = self.ops[node.what.index]
            met = bound(self.recording, op, {})
            if met is None or not isinstance(op, Dispatch) or tuple(met[0]) != ("gate", "up", "output"):
                return
            code = self.recording.pipelines[op.pipeline].code
            value = {joins.graph.homes.get(each): each for each in node.reads}
            gate, other = (value.get(met[0][name]) for name in ("gate", "up"))
            if gate is not None and other is not None and all(line in code for line in GATED):
                yield gate, other, None

    def gated(self, gate: Node | None, up: Node | None, node: Node) -> Product | None:
        """Both halves as one product that writes what `node` writes; None if they differ in shape or no kernel fits."""
        if gate is None or up is None or gate is up or gate.reads != up.reads:
            return None
        one, other = gate.what, up.what
        if not (isinstance(one, Product) and isinstance(other, Product)):
            return None
        both = gated_by(one, other)
        if both is None or (isinstance(both, MatrixMatMul) and not fits_matrices(both, self.limits)):
            return None
        if isinstance(node.what, Multiply) and node.what.size != both.rows * both.n:
            return None
        kernels = both.kernels(gate.reads, node.writes, self.limits)
        return both if all(len(each.bindings) <= self.limits.buffers for each in kernels) else None
