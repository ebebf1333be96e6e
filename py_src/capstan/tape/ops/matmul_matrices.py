"""Computes matrix products of many rows with subgroup matrices, from float16 activations: matmul_matrices.wgsl."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ..kernel_plan import KernelPlan, WorkgroupLimits
from ..operation import ELEMENT_BYTES, Binding, Buffer, Kernel, Operation, Value
from ..ort_kernels import RunReader, bound, element_of
from ..recording import Dispatch
from ..step_graph import Node
from .few_rows import MOST_ROWS
from .gemv import MatVec, fits_matvec
from .gemv_recorded import DENSE_LINES, dense_shape
from .matrix_tiling import MatrixTiling
from .packed import Half, weights_of

__all__ = ["DenseProducts", "MatrixMatMul", "fits_matrices", "plan_matrices", "tune_matrices"]


@dataclass(frozen=True)
class MatrixMatMul(Operation):
    """`rows` rows of x, each multiplied by W: [n, k] in integers of `bits` with one scale, one zero point if there are
    `zeros`, and one minimum if there are `minima`, for each `block` of a row; or, without scales, [k, n] in float16.

    reads[0] is x. With `up`, the result is silu(W x) * (W_up x). Then `bias` is added, the `activation` is applied, and
    reads[1] is added, if there is one. Buffers of weights are ids.
    """

    weights: int
    scales: int | None
    """The scales; None if the weights are dense."""
    rows: int
    n: int
    k: int
    block: int
    """Elements of a block of integer weights, else 0."""
    up: Half | None = None
    """The other half of a gated layer: see packed.py."""
    bits: int = 4
    zeros: int | None = None
    minima: int | None = None
    bias: int | None = None
    activation: str = ""
    """A name in ACTIVATIONS; "" for none."""

    def written_bytes(self, index: int) -> int:
        return self.rows * self.n * ELEMENT_BYTES["f16"]

    def kernels(self, reads: Sequence[int], writes: Sequence[int], limits: WorkgroupLimits) -> list[Kernel]:
        named = {name: Value(value) for name, value in zip(("x", "residual"), reads, strict=False)}
        bias = {} if self.bias is None else {"bias": Buffer(self.bias)}
        bindings: dict[str, Binding] = {**named, "y": Value(writes[0]), **weights_of(self), **bias}
        return [Kernel(plan_matrices(self, limits), True, bindings)]


ACTIVATIONS = {"gelu": {"GELU": True}, "gelu by erf": {"ERF": True}, "silu": {}}
"""The activations of activation.wgsl, each with its constants that are true."""
TILINGS = (
    ((4, 2), (2, 4), 32),
    ((2, 4), (4, 2), 32),
    ((4, 4), (2, 2), 32),
    ((2, 2), (2, 2), 32),
    ((1, 2), (2, 2), 32),
)
"""Matrix operations of a subgroup, subgroups, step: the best first, if there are enough workgroups."""
STEP = 32
"""Elements of k in a step of each."""
FILLED = 96
"""With this number of workgroups most processors of a large adapter have one: 96 tiles of 128 rows by 128 columns took
83 us on an H200, 192 of half the rows 94; 64 and 128 of these tiles took 82 and 48.
"""


def tune_matrices(rows: int, n: int, k: int, gated: bool, dense: bool, limits: WorkgroupLimits) -> MatrixTiling | None:
    """The tiling for `rows` rows and weights of `n` by `k`; None if none fits the adapter, or its subgroups have
    several sizes.

    It is the first of TILINGS that has FILLED workgroups, else the one with the most; measured on an H200, see
    benches/NOTES.md.
    """
    fitting = [
        tiling
        for size in (limits.matrices if limits.lanes else ())
        for shape in TILINGS
        if (tiling := MatrixTiling(size, limits.lanes, *shape)).fits(-(-k // STEP) * STEP, gated, dense, limits)
    ]
    for tiling in fitting:
        columns, tiles = tiling.workgroups(rows, n, gated)
        if columns * tiles >= FILLED:
            return tiling
    return max(fitting, key=lambda tiling: prod(tiling.workgroups(rows, n, gated)), default=None)


def fits_matrices(what: MatrixMatMul, limits: WorkgroupLimits) -> bool:
    """Whether matmul_matrices.wgsl covers these weights on this adapter."""
    whole = what.n % 8 == 0 and what.k % 8 == 0
    if what.scales is not None:
        last = what.k % STEP == 0 or what.block % STEP == 0
        whole = whole and last and what.block > 0 and what.block % 16 == 0 and what.bits in (4, 8)
    gated = what.up is not None
    return whole and tune_matrices(what.rows, what.n, what.k, gated, what.scales is None, limits) is not None


def plan_matrices(what: MatrixMatMul, limits: WorkgroupLimits) -> KernelPlan:
    """The kernel that computes a product, and its workgroups. Call fits_matrices first."""
    gated, dense = what.up is not None, what.scales is None
    tiling = tune_matrices(what.rows, what.n, what.k, gated, dense, limits)
    assert tiling is not None, "the caller checked fits_matrices"
    constants: dict[str, int | float | bool] = {"K": what.k, "N": what.n, "M": what.rows}
    if not dense:
        constants |= {"BYTES": what.bits == 8, "BLOCK": what.block}
    constants |= tiling.constants(gated, dense)
    if what.activation:
        constants |= {"ACTIVATED": True, "GELU": False, "ERF": False, **ACTIVATIONS[what.activation]}
    return KernelPlan("matmul_matrices", constants, (*tiling.workgroups(what.rows, what.n, gated), 1))


@dataclass
class DenseProducts(RunReader):
    """Reads a recorded run of `rows` positions: its products by dense weights, in float16 for many rows."""

    def read(self, index: int, reads: Mapping[int, int], writes: Mapping[int, int]) -> list[Node] | None:
        """The nodes that replace a recorded operation, given the values that it reads and writes, by buffer; None if it
        is not such a product.
        """
        op = self.ops[index]
        met = bound(self.recording, op, self.uploaded)
        if not isinstance(op, Dispatch) or met is None or tuple(met[0]) != ("a", "b", "output"):
            return None
        at, uniforms = met
        pipeline = self.recording.pipelines[op.pipeline]
        element = element_of(pipeline)
        if element is None or at["b"] in self.changed or not all(line in pipeline.code for line in DENSE_LINES):
            return None
        try:
            shape = dense_shape(uniforms, self.rows)
        except KeyError:
            return None  # The uniforms' fields differ from this kernel's: it is another version.
        if shape is None:
            return None
        k, n = shape
        few, many = (
            MatVec(at["b"], None, n, k, 0, element, rows=self.rows),
            MatrixMatMul(at["b"], None, self.rows, n, k, 0),
        )
        what: MatVec | MatrixMatMul
        if 1 < self.rows <= MOST_ROWS and fits_matvec(few):
            what = few
        elif element == "f16" and fits_matrices(many, self.limits):
            what = many
        else:
            return None
        return [Node(what, (reads[at["a"]],), (writes[at["output"]],), index, frozenset({index}))]
