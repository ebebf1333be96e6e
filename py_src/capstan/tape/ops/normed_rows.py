"""Computes norms in a separate kernel, norm_rows.wgsl: those of many rows, and those of a step that no product
computes, because something else needs them, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from ..kernel_plan import KernelPlan, WorkgroupLimits
from ..operation import ELEMENT_BYTES, Binding, Buffer, Kernel, Operation, Value
from ..ort_kernels import Met, Rules
from ..step_graph import Node, StepGraph
from .beside import Concat
from .few_rows import norm_constants
from .gemv_joins import Joins
from .norm import CenteredNorm, Norm, RmsNorm

__all__ = ["RULES", "NormedRows", "NormsBeside"]


@dataclass(frozen=True)
class NormedRows(Operation):
    """The norm of each of `rows` rows of `k` elements."""

    rows: int
    k: int
    by: RmsNorm
    element: str = "f16"
    first: int = 0
    """The element of a row of the result at which the norm begins."""
    of: int = 0
    """Elements of a row of the result, if other norms write to it, too."""

    @property
    def title(self) -> str:
        return f"the norm of {self.k} elements"

    def written_bytes(self, index: int) -> int:
        return self.rows * (self.of or self.k) * ELEMENT_BYTES[self.element]

    def kernels(self, reads: Sequence[int], writes: Sequence[int], limits: WorkgroupLimits) -> list[Kernel]:
        constants = {
            "WIDE": False,
            "EPSILON": self.by.epsilon,
            **norm_constants(self.k, limits, self.first, self.of),
        }
        bindings: dict[str, Binding] = {
            "x": Value(reads[0]),
            "normed": Value(writes[0]),
            "gamma": Buffer(self.by.gamma),
        }
        if isinstance(self.by, CenteredNorm):
            bindings["beta"] = Buffer(self.by.beta)
        return [Kernel(KernelPlan("norm_rows", constants, (self.rows, 1, 1)), self.element == "f16", bindings)]


@dataclass(frozen=True)
class NormsBeside(Operation):
    """Norms that write parts of one vector, each of one of the reads."""

    norms: tuple[NormedRows, ...]

    def widened(self, rows: int) -> NormsBeside:
        """The same of several rows."""
        return NormsBeside(tuple(replace(each, rows=rows) for each in self.norms))

    def written_bytes(self, index: int) -> int:
        return self.norms[0].written_bytes(0)

    def kernels(self, reads: Sequence[int], writes: Sequence[int], limits: WorkgroupLimits) -> list[Kernel]:
        pairs = zip(self.norms, reads, strict=True)
        return [kernel for norm, read in pairs for kernel in norm.kernels([read], writes, limits)]


def norms_alone(graph: StepGraph, _: Mapping[int, Met]) -> StepGraph:
    """Compute the norms that outlive the step, or of which only a concatenation is read, in kernels of their own; those
    of one concatenation are side by side.
    """
    readers, lasting = graph.readers(), set(graph.last.values())
    norms = {
        node.writes[0]: alone(node, node.what)
        for node in graph.nodes
        if isinstance(node.what, Norm)
        if node.writes[0] in lasting or concatenated(readers.get(node.writes[0], ()))
    }
    nodes = (norms.get(node.writes[0], node) if node.writes else node for node in graph.nodes)
    joins = Joins(replace(graph, nodes=tuple(nodes)))
    for node in joins.graph.nodes:
        if isinstance(node.what, Concat):
            makers = [joins.made_for(value, node) for value in node.reads]
            parts = [each for each in makers if each is not None and isinstance(each.what, NormedRows)]
            if len(parts) == len(node.reads) == len(set(node.reads)):
                joins.join(beside(node, node.what, parts), node, *parts)
    return joins.joined()


def concatenated(readers: Sequence[Node]) -> bool:
    """Whether only concatenations read a value."""
    return bool(readers) and all(isinstance(each.what, Concat) for each in readers)


def alone(node: Node, norm: Norm) -> Node:
    return replace(node, what=NormedRows(1, norm.size, norm.by, norm.element))


def beside(node: Node, whole: Concat, parts: Sequence[Node]) -> Node:
    """The concatenation with the norms that make its parts."""
    ends = accumulate(whole.sizes)
    norms = [part.what for part in parts if isinstance(part.what, NormedRows)]
    placed = (replace(norm, first=end - norm.k, of=whole.size) for norm, end in zip(norms, ends, strict=True))
    return replace(node, what=NormsBeside(tuple(placed)), reads=tuple(part.reads[0] for part in parts))


RULES = Rules(folds={"norm": norms_alone})
