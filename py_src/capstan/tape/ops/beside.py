"""Defines matrix products whose results lie one after another in one vector. These are q, k and v with weights of
several types, or parts of a product whose weights exceed a binding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from math import prod

from ..kernel_plan import WorkgroupLimits
from ..operation import Kernel, Operation
from ..ort_kernels import Met, OrtKernel, Rules, Signature
from ..step_graph import Node, StepGraph
from ..witness import Witness
from .elementwise import Loose
from .gemv import MatVec
from .gemv_joins import Joins

__all__ = ["RULES", "Beside", "Concat"]

MOST = 7
"""The inputs of a Concat kernel of onnxruntime-web on an adapter with WebGPU's smallest number of storage buffers."""


@dataclass(frozen=True)
class Concat(Loose):
    """Vectors of these sizes, one after another."""

    sizes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Beside(Operation):
    """Products that write parts of one vector. The node reads the inputs of one product after those of the other, and
    writes the vector and, if a product has one, its total.
    """

    products: tuple[MatVec, ...]
    """The products in the order in which they run; a product with a total is first."""
    within: frozenset[int] = frozenset()
    """The indices of the products whose x is the total of the first product instead of one of the reads."""

    @property
    def title(self) -> str:
        return " beside ".join(each.title for each in self.products)

    @property
    def terms(self) -> int:
        return max(each.terms for each in self.products)

    @property
    def rounded(self) -> bool:
        return any(each.rounded for each in self.products)

    def written_bytes(self, index: int) -> int:
        return next(each for each in self.products if index == 0 or each.total).written_bytes(index)

    def apart(
        self, reads: Sequence[int], writes: Sequence[int]
    ) -> Iterator[tuple[MatVec, Sequence[int], Sequence[int]]]:
        """Each product with its reads and writes."""
        start = 0
        for index, each in enumerate(self.products):
            own = tuple(writes[1:]) if index in self.within else ()
            end = start + len(each.inputs) - len(own)
            yield each, (*own, *reads[start:end]), writes if each.total else writes[:1]
            start = end

    def kernels(self, reads: Sequence[int], writes: Sequence[int], limits: WorkgroupLimits) -> list[Kernel]:
        apart = self.apart(reads, writes)
        return [kernel for each, read, write in apart for kernel in each.kernels(read, write, limits)]

    def truth(self, witness: Witness, reads: Sequence[int], writes: Sequence[int]) -> None:
        first = self.products[0]
        if first.rows > 1:
            return
        y, truth = witness.keep(writes[0], self.written_bytes(0)), witness.truths(first.of)
        for each, read, write in self.apart(reads, writes):
            each.compute_truth(witness, read, write, y, truth)
        if witness.is_made(writes[0]):
            witness.judge("result", first.element, y, truth)


def joined(graph: StepGraph, _: Mapping[int, Met]) -> StepGraph:
    """Let products of one row write their results directly side by side, if these are joined afterwards."""
    joins = Joins(graph)
    for node in graph.nodes:
        if not isinstance(node.what, Concat) or len(set(node.reads)) < len(node.reads):
            continue
        makers = [joins.made_for(value, node) for value in node.reads]
        found = [(each, each.what) for each in makers if each is not None and isinstance(each.what, MatVec)]
        fits = all(what.of == 0 for _, what in found)
        if [what.n for _, what in found] != list(node.what.sizes) or not fits:
            continue
        ends = list(accumulate(node.what.sizes))
        placed = [
            (maker, replace(what, first=end - what.n, of=ends[-1]))
            for (maker, what), end in zip(found, ends, strict=True)
        ]
        placed.sort(key=lambda each: not each[1].total)
        others = placed[0][0].writes[1:]
        if sum(what.total for _, what in placed) > 1:
            continue
        within = frozenset(i for i, (maker, _) in enumerate(placed) if maker.reads[0] in others)
        whole = Beside(tuple(what for _, what in placed), within)
        reads = tuple(value for maker, _ in placed for value in maker.reads if value not in others)
        by, written = replace(node, what=whole, reads=reads), replace(node, writes=(*node.writes, *others))
        joins.join(by, written, *(maker for maker, _ in found))
        joins.gone -= set(others)
    return joins.joined()


def placed_after(kernel: OrtKernel, count: int) -> bool:
    """Whether the inputs of a Concat are vectors."""
    shapes = [kernel.uniforms[f"input_{i}_shape"] for i in range(count)]
    vectors = all(isinstance(shape, tuple) and shape[:-1] == (1, 1) for shape in shapes)
    return vectors and sum(sizes(kernel, count)) == kernel.uniforms["output_size"]


def sizes(kernel: OrtKernel, count: int) -> tuple[int, ...]:
    shapes = (kernel.uniforms[f"input_{i}_shape"] for i in range(count))
    return tuple(prod(shape) for shape in shapes if isinstance(shape, tuple))


def concat(met: Met, count: int) -> list[Node]:
    what = Concat(met.kernel.number("output_size"), met.kernel.element, sizes(met.kernel, count))
    return [met.node(what, tuple(met.read(f"input_{i}") for i in range(count)), met.written("output"))]


RULES = Rules(
    tuple(
        Signature(
            "concat",
            "matvec",
            (*(f"input_{i}" for i in range(count)), "output"),
            has=(
                "input_0: array<f",
                "output_indices[2] += uniforms.sizes_in_concat_axis[0];",
                f"(output_indices, input_{count - 1}[global_idx - uniforms.offsets[input_index]]);",
            ),
            asked=("output_size",),
            holds=partial(placed_after, count=count),
            parts=partial(concat, count=count),
        )
        for count in range(2, MOST + 1)
    ),
    folds={"matvec": joined},
)
