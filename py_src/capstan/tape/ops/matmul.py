"""Defines products of many rows with int4 or int8 weights, from int8 activations: matmul_q4.wgsl and
quantize_rows.wgsl. If the device has subgroup matrices, matmul_matrices.py computes these products from float16.
gemv.py computes products of few rows.

onnxruntime-web multiplies by int4 weights in several ways, depending on adapter and shape. A product's dispatch is
recognised by the weights that it binds; the dispatch that converts its activations, by its only input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...errors import TapeError
from ..kernel_plan import KernelPlan, WorkgroupLimits
from ..operation import ELEMENT_BYTES, Binding, Kernel, Operation, Value
from ..ort_kernels import RunReader, bound
from ..recording import Dispatch, Recording
from ..step_graph import Node, StepGraph
from .few_rows import MOST_ROWS
from .gemv import MatVec, fits_matvec
from .matmul_matrices import MatrixMatMul, fits_matrices
from .packed import Half, weights_of

__all__ = [
    "NBitsWeights",
    "MatMul",
    "MatMulTuning",
    "Product",
    "Products",
    "Quantize",
    "plan_matmul",
    "plan_quantize",
    "tune_matmul",
]

RUN = 32
"""Elements of a row that share a scale in int8."""
QUANTIZED = 128
"""Elements of a row that share a scale where onnxruntime-web computes in int8."""
MATRICES_FULL = 192
"""From this number of workgroups on, onnxruntime-web's products by subgroup matrices, of 128 rows by 128 columns each,
fill a large GPU: 256 of them took 161 us on an H200 (ours 223), 96 took 128 us (ours 89).
"""


@dataclass(frozen=True)
class NBitsWeights:
    """Weights [n, k] of a MatMulNBits node, on the device."""

    scales: int
    """The recorded id of the buffer of their scales."""
    n: int
    k: int
    block: int
    int8: bool
    """Whether the model allows activations in int8 (accuracy_level 4)."""
    bits: int = 4
    zeros: int | None = None
    """The recorded id of their zero points' buffer, if they have any."""
    minima: int | None = None
    """The recorded id of the buffer of their minima, [k / block, n], if the graph adds the product of the blocks' sums
    with the minima.
    """


PRODUCTS = (
    ("input_a", "scales_a", "input_b", "scales_b"),
    ("input_a", "input_b", "scales_b"),
    ("input_a", "input_b", "scales"),
)
"""The bindings of a product's kernels before zero points and the output, without uniforms: from int8, by subgroup
matrices or without them, and in tiles.
"""


@dataclass(frozen=True)
class Quantize(Operation):
    """`rows` rows of `k` elements as int8, and their scales: two values. `group` elements share a scale."""

    rows: int
    k: int
    group: int
    element: str

    def written_bytes(self, index: int) -> int:
        return self.rows * self.k if index == 0 else self.rows * self.k // 8

    def kernels(self, reads: Sequence[int], writes: Sequence[int], limits: WorkgroupLimits) -> list[Kernel]:
        names = ("x", "words", "factors")
        bindings = dict(zip(names, map(Value, (*reads, *writes)), strict=True))
        return [Kernel(plan_quantize(self), self.element == "f16", bindings)]


@dataclass(frozen=True)
class MatMul(Operation):
    """`rows` rows of x, each multiplied by W [n, k] in integers of `bits` with one scale, one zero point if there are
    `zeros`, and one minimum if there are `minima`, for each `block` of a row.

    reads are x in int8 and its scales. With `up`, the result is silu(W x) * (W_up x). Buffers of weights are ids.
    """

    weights: int
    scales: int
    rows: int
    n: int
    k: int
    block: int
    element: str
    up: Half | None = None
    """The other half of a gated layer: see packed.py."""
    bits: int = 4
    zeros: int | None = None
    minima: int | None = None

    @property
    def shifted(self) -> bool:
        """Whether a number is added to each weight of a block, in addition to integer times scale."""
        return self.zeros is not None or self.minima is not None

    def written_bytes(self, index: int) -> int:
        return self.rows * self.n * ELEMENT_BYTES[self.element]

    def kernels(self, reads: Sequence[int], writes: Sequence[int], limits: WorkgroupLimits) -> list[Kernel]:
        bindings: dict[str, Binding] = {"x": Value(reads[0]), "x_scales": Value(reads[1]), "y": Value(writes[0])}
        return [Kernel(plan_matmul(self, limits), self.element == "f16", {**bindings, **weights_of(self)})]


@dataclass(frozen=True)
class MatMulTuning:
    """The cut of matmul_q4.wgsl, which changes only the speed."""

    thread: tuple[int, int]
    """Rows and columns of a thread."""
    threads: tuple[int, int]
    """Threads over rows and columns of a tile."""
    slices: int
    """The number of sets of these threads, each for a part of k."""
    runs: int
    """Runs of 32 elements of k in a step."""

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of a workgroup."""
        return self.thread[0] * self.threads[0], self.thread[1] * self.threads[1]

    @property
    def workgroup(self) -> int:
        """Threads."""
        return self.threads[0] * self.threads[1] * self.slices

    @property
    def vectors(self) -> int:
        """16-byte words of x and weights in workgroup memory."""
        rows, columns = self.tile
        return 4 * self.runs * (rows + columns + 2)

    def memory(self, shifted: bool) -> int:
        """Bytes of workgroup memory; see `MatMul.shifted`."""
        rows, columns = self.tile
        return 16 * self.vectors + 8 * self.runs * (rows + (2 if shifted else 1) * columns)

    def constants(self, gated: bool) -> dict[str, int | float | bool]:
        """The constants by their names in the shader."""
        rows, columns = self.tile
        meeting = self.thread[0]
        while meeting * self.thread[1] // 4 * self.threads[0] * self.threads[1] > self.vectors:
            meeting //= 2
        return {
            "TM": self.thread[0],
            "TN": self.thread[1],
            "WM": self.threads[0],
            "WN": self.threads[1],
            "SLICES": self.slices,
            "RUNS": self.runs,
            "SUMS": self.thread[0] * self.thread[1],
            "A_LOADS": 2 * self.runs * rows // self.workgroup,
            "B_LOADS": self.runs * columns // self.workgroup,
            "S_LOADS": -(-self.runs * rows // self.workgroup),
            "FOURS": self.thread[1] // 4,
            "OUT_FOURS": self.thread[1] // (8 if gated else 4),
            "MEETING": meeting,
            "PARTS": self.thread[0] // meeting,
            "SLICED": self.slices > 1,
        }


LARGE = MatMulTuning((8, 8), (8, 8), slices=2, runs=2)
"""The best of 15 for each shape of a Llama of 1B at 512 rows on an H200."""
ODD = MatMulTuning((8, 8), (8, 8), slices=1, runs=1)
"""The tiling for an odd number of runs."""
SMALL = MatMulTuning((8, 8), (4, 8), slices=1, runs=1)
"""The tiling for adapters with little workgroup memory, and for CPU adapters."""


def tune_matmul(k: int, limits: WorkgroupLimits, *, shifted: bool = False) -> MatMulTuning:
    """The tiling for rows of `k` elements; see `MatMul.shifted`. Raises TapeError if no cut fits the adapter's
    workgroups.
    """
    for tuning in (LARGE, ODD, SMALL):
        fits = tuning.memory(shifted) <= limits.memory and tuning.workgroup <= limits.threads
        if fits and k % (RUN * tuning.runs) == 0 and not (limits.software and tuning is not SMALL):
            return tuning
    raise TapeError(
        f"no tiling of the matrix product fits rows of {k} elements and workgroups of {limits.threads} threads with "
        f"{limits.memory} bytes of memory"
    )


def plan_matmul(what: MatMul, limits: WorkgroupLimits) -> KernelPlan:
    """The kernel that computes a product of many rows, and its workgroups."""
    gated = what.up is not None
    tuning = tune_matmul(what.k, limits, shifted=what.shifted)
    constants = {
        "K": what.k,
        "N": what.n,
        "M": what.rows,
        "BLOCK": what.block,
        "BYTES": what.bits == 8,
        "SHIFTED": what.shifted,
        **tuning.constants(gated),
    }
    rows, columns = tuning.tile
    counts = (-(-what.n // (columns // 2 if gated else columns)), -(-what.rows // rows), 1)
    return KernelPlan("matmul_q4", constants, counts)


def plan_quantize(what: Quantize) -> KernelPlan:
    """The kernel that rounds activations to int8, and its workgroups."""
    constants = {"K": what.k, "M": what.rows, "GROUPED": what.group > RUN}
    return KernelPlan("quantize_rows", constants, (-(-what.rows // 8), -(-what.k // (8 * RUN)), 1))


def _fits(weights: NBitsWeights) -> bool:
    """Whether web/src/worker/shaders/products/matmul_q4.wgsl covers these weights."""
    whole = weights.k % RUN == 0 and weights.block > 0 and weights.block % RUN == 0
    return whole and weights.n % 4 == 0 and weights.bits in (4, 8)


def _converts(recording: Recording, op: Dispatch, at: Mapping[str, int]) -> bool:
    """Whether the dispatch only converts activations to the form that a product needs: int8, or another order."""
    if tuple(at) == ("input_a", "output_a"):
        return True
    return tuple(at) == ("input_a", "output", "scales") and "pack4x8snorm(" in recording.pipelines[op.pipeline].code


@dataclass
class Products(RunReader):
    """Reads a recorded run of `rows` positions: each of its int4 products becomes two nodes, the conversion of the
    input to int8 and the product.
    """

    weights: Mapping[int, NBitsWeights]
    origin: dict[int, tuple[int, int]] = field(default_factory=dict)
    """For each converted value its source, and the operation that converted it."""

    def read(self, index: int, reads: Mapping[int, int], writes: Mapping[int, int]) -> list[Node] | None:
        """The nodes that replace a recorded operation, given the values that it reads and writes, by buffer; None if
        Capstan's kernels do not cover it.
        """
        op, rows = self.ops[index], self.rows
        met = bound(self.recording, op, self.uploaded)
        if not isinstance(op, Dispatch) or met is None:
            return None
        at, uniforms = met
        if _converts(self.recording, op, at):
            self.origin.update(dict.fromkeys(writes.values(), (reads[at["input_a"]], index)))
            return None
        found = self.weights.get(at.get("input_b", -1))
        if found is None or at["input_b"] in self.changed or uniforms.get("M", rows) != rows:
            return None
        zeros = () if found.zeros is None else ("zero_points",)
        if tuple(at) not in [(*names, *zeros, "output") for names in PRODUCTS] or at.get("zero_points") != found.zeros:
            return None
        scales = at.get("scales_b", at.get("scales"))
        element = "f16" if "<f16>" in self.recording.pipelines[op.pipeline].code else "f32"
        size = rows * found.n * ELEMENT_BYTES[element]
        quantized = "scales_a" in at
        if scales != found.scales or self.recording.sizes[at["output"]] < size:
            return None
        x, position = self.origin.get(reads[at["input_a"]], (reads[at["input_a"]], index))
        if quantized and position == index:
            return None  # Activations that are already in int8, by an unknown rule, cannot be converted.
        origins = frozenset({index})
        n, k, block, bits = found.n, found.k, found.block, found.bits
        few = MatVec(at["input_b"], scales, n, k, block, element, bits=bits, zeros=found.zeros, rows=rows)
        if 1 < rows <= MOST_ROWS and fits_matvec(few):
            return [Node(few, (x,), (writes[at["output"]],), index, origins)]
        if element == "f16":
            by_matrices = MatrixMatMul(
                at["input_b"], scales, rows, found.n, found.k, found.block, bits=found.bits, zeros=found.zeros
            )
            if fits_matrices(by_matrices, self.limits):
                return [Node(by_matrices, (x,), (writes[at["output"]],), index, origins)]
        if not _fits(found) or not (quantized or found.int8) or (quantized and found.k % QUANTIZED):
            return None
        if position != index and not quantized and op.x * op.y * op.z >= MATRICES_FULL:
            return None
        group = QUANTIZED if quantized else RUN
        words, factors = self.values.fresh(), self.values.fresh()
        what = MatMul(
            at["input_b"], scales, rows, found.n, found.k, found.block, element, bits=found.bits, zeros=found.zeros
        )
        return [
            Node(Quantize(rows, found.k, group, element), (x,), (words, factors), position, origins),
            Node(what, (words, factors), (writes[at["output"]],), index, origins),
        ]

    def joined(self, graph: StepGraph) -> StepGraph:
        """The graph in which each input is converted to int8 only once."""
        return _share(graph)


Product = MatMul | MatrixMatMul | MatVec
"""A product of any number of rows."""


def _share(graph: StepGraph) -> StepGraph:
    """Convert each value to int8 once, for all products that read it."""
    first: dict[tuple[Any, ...], Node] = {}
    instead: dict[int, int] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        if isinstance(node.what, Quantize):
            same = first.setdefault((node.what, node.reads), node)
            if same is not node:
                instead |= dict(zip(node.writes, same.writes, strict=True))
                continue
        nodes.append(replace(node, reads=tuple(instead.get(value, value) for value in node.reads)))
    return replace(graph, nodes=tuple(nodes))
