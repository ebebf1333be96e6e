"""Defines the product of one row vector, or of a few rows, with a weight matrix. The neighbours of the product in a
decoder are joined to it.

The kernels are matvec_q4.wgsl for weights in int4 or int8 and matvec_dense.wgsl for dense ones; gemv_int4.py and
gemv_dense.py choose their tiling, gemv_recorded.py recognises products in a recorded step, gemv_joins.py joins the
surrounding operations to them. Several rows use few_rows_q4.wgsl and few_rows_dense.wgsl, tiled by few_rows.py, after
norm_rows.wgsl if x is normalised; with subgroup matrices few_rows_matrices.wgsl and matmul_matrices.wgsl, tiled by
matrix_tiling.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

from ..kernel_plan import KernelPlan, WorkgroupLimits
from ..operation import ELEMENT_BYTES, Binding, Buffer, Kernel, Operation, Shared, Value
from ..witness import Witness
from .few_rows import FEWEST, FEWEST_WIDE, SIXTEEN, TALL, WIDE, norm_constants, tune_dense_rows, tune_rows
from .gemv_dense import column_width, tune_dense
from .gemv_int4 import tune_matvec
from .matrix_tiling import tune_few_dense, tune_few_rows
from .norm import CenteredNorm, RmsNorm
from .packed import PACKED, Half, weights_of

__all__ = ["Factor", "MatVec", "fits_matvec", "unfit_matvec"]

RUN = 32
"""Elements of a row that a thread takes at a time."""
OCTET = 8
"""Elements of a row that a kernel reads at a time."""


@dataclass(frozen=True)
class Factor:
    """A factor or divisor of a result: the first element of a buffer of weights."""

    buffer: int
    divides: bool = False
    capped: bool = False
    """Whether it bounds the result instead: factor * tanh(y / factor)."""


@dataclass(frozen=True)
class MatVec(Operation):
    """W x with the operations joined before and after it; `inputs` names the values that it reads.

    W is [n, k] in integers of `bits` with a scale, a zero point if there are `zeros`, and a minimum that is added to
    each weight if there are `minima`, for each `block` of a row; or, without scales, [k, n] of numbers like those of x.

    With `norm`, x is normalised first; with `inner`, the sum skip + inner(x) is normalised, and also written if it is a
    `total`. Then follow, in this order: `bias` (of `up` as well), silu(W x) * (W_up x) with `up`, silu(W x) if
    `activated` (`gelu`: GELU in place of SiLU, in the form with tanh or, if `erf`, with erf; `power`: max(W x, 0) to a
    power), `factor`, `residual` and `second`. Buffers of weights are ids.
    """

    weights: int
    scales: int | None
    """The scales; None if the weights are dense."""
    n: int
    k: int
    block: int
    """Elements of a block of integer weights, else 0."""
    element: str
    norm: RmsNorm | None = None
    residual: bool = False
    up: Half | None = None
    """The other half of a gated layer: see packed.py."""
    bits: int = 4
    """Bits of integer weights: 4 or 8."""
    zeros: int | None = None
    """Zero points, packed like the weights; None if each is half of the range."""
    gelu: bool = False
    erf: bool = False
    bias: bool = False
    second: bool = False
    """Whether another residual is added."""
    activated: bool = False
    power: int | None = None
    """A buffer with the exponent, an i32."""
    factor: Factor | None = None
    inner: RmsNorm | None = None
    total: bool = False
    wide: bool = False
    """Whether the norm's input is float32 although `element` is f16: x (skip and total if `inner`), gammas, beta."""
    rows: int = 1
    """Rows of x, and of all values that are added or written."""
    rounded: bool = False
    """Whether the recorded kernel rounds x to int8 first."""
    minima: int | None = None
    """Minima [k / block, n], of the type of x."""
    first: int = 0
    """The element of a row of y at which its results begin."""
    of: int = 0
    """Elements of a row of y, if other products write to it too."""
    paired: bool = False
    """Whether `up` is no half of a gated layer: its product follows W x in y. Only for dense weights."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """The template's name of each read."""
        asked = {
            "bias": self.bias,
            "bias_up": self.bias and self.up is not None,
            "residual": self.residual,
            "second": self.second,
            "skip": self.inner is not None,
        }
        return ("x", *(name for name, wanted in asked.items() if wanted))

    @property
    def stream(self) -> str:
        """The element type of the norm's input."""
        return "f32" if self.wide else self.element

    @property
    def prepared(self) -> bool:
        """Whether the part before the product is more than an RMS norm in the product's type."""
        return self.inner is not None or self.wide or isinstance(self.norm, CenteredNorm)

    @property
    def normed_apart(self) -> bool:
        """Whether a separate kernel normalises one row: the kernel of dense weights computes only RMS norms."""
        return self.scales is None and isinstance(self.norm, CenteredNorm)

    @property
    def title(self) -> str:
        kind = "dense" if self.scales is None else f"int{self.bits}"
        several = f" of {self.rows} rows" if self.rows > 1 else ""
        return f"the {kind} product {self.k} -> {self.n}{several}"

    @property
    def terms(self) -> int:
        return self.k

    def written_bytes(self, index: int) -> int:
        width = self.of or self.n
        return self.rows * (self.k * ELEMENT_BYTES[self.stream] if index else width * ELEMENT_BYTES[self.element])

    def kernels(self, reads: Sequence[int], writes: Sequence[int], limits: WorkgroupLimits) -> list[Kernel]:
        """One kernel; two if a gated product binds more buffers than the adapter allows: the second half of the layer,
        then the first half, multiplied by the second. Before several rows with a norm, and before dense weights with a
        LayerNorm, a kernel normalises x.
        """
        values: dict[str, Binding] = {name: Value(read) for name, read in zip(self.inputs, reads, strict=True)}
        values |= {name: Value(write) for name, write in zip(("y", "total"), writes, strict=False)}
        if self.norm is None or (self.rows == 1 and not self.normed_apart):
            return self._products(values, limits)
        # The buffer between the halves of a gated layer is alive at the same time and has another size.
        normed = Shared(-(-self.rows * self.k * ELEMENT_BYTES[self.element] // 16) * 16 + 16)
        plain = replace(self, norm=None, inner=None, total=False, wide=False)
        return [self._norm(values, normed, limits), *plain._products({**values, "x": normed}, limits)]

    def _norm(self, values: Mapping[str, Binding], normed: Shared, limits: WorkgroupLimits) -> Kernel:
        """The kernel that normalises rows."""
        names = ("x", *(["skip"] if self.inner else []), *(["total"] if self.total else []))
        bindings = {name: values[name] for name in names} | {"normed": normed}
        bindings |= {name: Buffer(buffer) for name, buffer in self._norm_weights().items()}
        constants = {"WIDE": self.wide, **epsilons(self), **norm_constants(self.k, limits)}
        plan = KernelPlan("norm_rows", constants, (self.rows, 1, 1))
        return Kernel(plan, self.element == "f16", bindings)

    def _products(self, values: Mapping[str, Binding], limits: WorkgroupLimits) -> list[Kernel]:
        """The kernels of the product; `values` has its reads and writes by name."""
        half = self.element == "f16"
        bindings = self._bindings(values)
        if self.up is None or len(bindings) <= limits.buffers:
            return [Kernel(plan_matvec(self, limits), half, bindings)]
        weights, scales, zeros, minima = (*self.up, None, None, None)[:4]
        assert weights is not None
        first = replace(self, weights=weights, scales=scales, zeros=zeros, minima=minima, up=None)
        second = replace(self, up=None, total=False)
        between = Shared(-(-self.written_bytes(0) // 16) * 16)
        given = {**values, "y": between}
        if self.bias:
            given["bias"] = values["bias_up"]
        return [
            Kernel(plan_matvec(first, limits), half, first._bindings(given)),
            Kernel(plan_matvec(second, limits), half, {**second._bindings(values), "up": between}),
        ]

    def _bindings(self, values: Mapping[str, Binding]) -> dict[str, Binding]:
        """The bindings of one kernel, by the names of the template; `values` has its reads and writes."""
        names = (*self.inputs, "y", *(["total"] if self.total else []))
        bindings = {name: values[name] for name in names}
        return bindings | {name: Buffer(buffer) for name, buffer in self._weights().items()}

    def _weights(self) -> dict[str, int]:
        """The buffers of weights by the names of the template."""
        named = {
            **{name: buffer.id for name, buffer in weights_of(self).items()},
            "exponent": self.power,
            "factor": self.factor.buffer if self.factor else None,
            **self._norm_weights(),
        }
        return {name: buffer for name, buffer in named.items() if buffer is not None}

    def _norm_weights(self) -> dict[str, int]:
        norm, inner = self.norm, self.inner
        return {
            **({"gamma": norm.gamma} if norm else {}),
            **({"beta": norm.beta} if isinstance(norm, CenteredNorm) else {}),
            **({"gamma_inner": inner.gamma} if inner else {}),
        }

    def truth(self, witness: Witness, reads: Sequence[int], writes: Sequence[int]) -> None:
        """Products of several rows have no truth: the comparison of whole runs checks them."""
        if self.rows > 1:
            return
        y, truth = witness.keep(writes[0], self.written_bytes(0)), witness.truths(self.of or self.n)
        self.compute_truth(witness, reads, writes, y, truth)
        if witness.is_made(writes[0]):
            witness.judge("result", self.element, y, truth)

    def compute_truth(
        self, witness: Witness, reads: Sequence[int], writes: Sequence[int], y: list[Any], truth: list[Any]
    ) -> None:
        """Have `witness` compute this product's part of `truth`, and `y` if the step does not make it.

        The half of a gated layer that multiplies the other is computed first, so that no kernel binds more than 8
        buffers."""
        each, given = ELEMENT_BYTES[self.element], not witness.is_made(writes[0])
        wide = ELEMENT_BYTES[self.stream]
        sizes = {"x": self.k * (each if self.inner else wide), "skip": self.k * wide}
        kept = {
            name: witness.keep(read, sizes.get(name, self.n * each))
            for name, read in zip(self.inputs, reads, strict=True)
        }
        constants: dict[str, int | float | bool] = {
            "K": self.k,
            "BLOCK": self.block or gcd(self.k, 64),
            "BYTES": self.bits == 8,
            "HALF_STREAM": self.stream == "f16",
            "HALF_X": (self.element if self.inner else self.stream) == "f16",
            **epsilons(self),
        }
        own = {name: ["recorded", buffer] for name, buffer in self._weights().items()}
        shared = {name: own[name] for name in self._norm_weights()}
        shared |= {name: kept[name] for name in ("x", "skip") if name in kept}

        def run(rows: int, flags: Mapping[str, bool], bindings: Mapping[str, list[Any]], first: int = 0) -> None:
            named = {**constants, "N": rows, "FIRST": first, **flags}
            witness.run("truth_gemv", named, self.element == "f16", bindings, (-(-rows // 64), 1, 1))

        inner = epilogue_flags(self)
        nothing = dict.fromkeys(inner, False)
        up: dict[str, list[Any]] = {}
        if self.up is not None:
            up = {"up": witness.scores(self.n)}
            taken = {name: own[f"{name}_up"] for name in PACKED if f"{name}_up" in own}
            bias = {"bias": kept["bias_up"]} if self.bias else {}
            if not self.paired:
                run(self.n, nothing, {**shared, **taken, **bias, "truth": up["up"]})
        made: dict[str, list[Any]] = {"truth": truth, **({"y": y} if given else {})}
        if self.paired:
            run(self.n, nothing, {**shared, **taken, **made}, self.first + self.n)
            up = {}
        taken = {name: buffer for name, buffer in own.items() if not name.endswith("_up")}
        added: dict[str, list[Any]] = {name: kept[name] for name in ("bias", "residual", "second") if name in kept}
        run(self.n, inner, {**shared, **taken, **added, **up, **made}, self.first)
        if self.total:
            truth, y = witness.truths(self.k), witness.keep(writes[1], self.k * wide)
            sums = {name: shared[name] for name in ("x", "skip", "gamma_inner")}
            run(self.k, nothing, {**sums, "truth": truth})
            witness.judge("sum", self.stream, y, truth)


def epsilons(what: MatVec) -> dict[str, float]:
    """The epsilons of its norms, by the names of the templates."""
    by = {"EPSILON": what.norm, "EPSILON_INNER": what.inner}
    return {name: norm.epsilon for name, norm in by.items() if norm is not None}


def plan_few_matrices(what: MatVec, limits: WorkgroupLimits) -> KernelPlan | None:
    """The kernel on subgroup matrices that computes a product of several rows; None if there is none or another kernel
    is faster.
    """
    if what.element != "f16" or what.norm is not None:
        return None
    return plan_few_dense(what, limits) if what.scales is None else plan_few_packed(what, limits)


def plan_few_packed(what: MatVec, limits: WorkgroupLimits) -> KernelPlan | None:
    """The kernel of few_rows_matrices.wgsl, from FEWEST or FEWEST_WIDE rows on."""
    gated = what.up is not None
    fewest = FEWEST_WIDE if what.n * (1 + gated) >= WIDE else FEWEST
    tiling = tune_few_rows(what.rows, what.n, what.k, gated, limits) if what.rows >= fewest else None
    if tiling is None:
        return None
    constants = {"K": what.k, "N": what.n, "M": what.rows, "FIRST": what.first, "OF": what.of or what.n}
    form = {**epilogue_flags(what), **packing(what), **tiling.constants(what.block, what.bits)}
    return KernelPlan("few_rows_matrices", constants | form, (*tiling.workgroups(what.rows, what.n, gated), 1))


def plan_few_dense(what: MatVec, limits: WorkgroupLimits) -> KernelPlan | None:
    """The kernel of matmul_matrices.wgsl, above TALL rows."""
    gated = what.up is not None
    more = what.paired or what.bias or what.second or what.activated or what.factor is not None or what.gelu
    if what.rows <= TALL or more or what.of or what.n % 8:
        return None
    tiling = tune_few_dense(what.rows, what.n, what.k, gated, limits)
    if tiling is None:
        return None
    constants = {"K": what.k, "N": what.n, "M": what.rows, **tiling.constants(gated, True)}
    return KernelPlan("matmul_matrices", constants, (*tiling.workgroups(what.rows, what.n, gated), 1))


def packing(what: MatVec) -> dict[str, int | float | bool]:
    """The packing of integer weights, by the names of the templates."""
    return {"BLOCK": what.block, "BYTES": what.bits == 8}


def epilogue_flags(what: MatVec) -> dict[str, bool]:
    """The flags for operations after the product that bindings do not show, by the names of the templates."""
    factor = what.factor
    return {
        "ACTIVATED": what.activated,
        "GELU": what.gelu,
        "ERF": what.erf,
        "DIVIDED": factor is not None and factor.divides,
        "CAPPED": factor is not None and factor.capped,
    }


def plan_matvec(what: MatVec, limits: WorkgroupLimits) -> KernelPlan:
    """The kernel that computes a product, and its workgroups."""
    fused: dict[str, int | float | bool] = {**epilogue_flags(what), **epsilons(what)}
    half, gated = what.element == "f16", what.up is not None
    if what.rows > 1:
        return plan_rows(what, limits)
    if what.scales is None:
        dense = tune_dense(what.k, what.n, gated, half, limits)
        constants = {**fused, "FIRST": what.first, "PAIRED": what.paired, **dense.constants()}
        return KernelPlan("matvec_dense", constants, (dense.workgroups, 1, 1))
    tuning = tune_matvec(what.k, what.n, gated, half, what.bits, limits)
    constants = {
        **fused,
        "PREPARED": what.prepared,
        "WIDE": what.wide,
        **packing(what),
        "FIRST": what.first,
        "SIXTEENS": what.block == SIXTEEN,
        **tuning.constants(),
    }
    return KernelPlan("matvec_q4", constants, (tuning.workgroups, 1, 1))


def plan_rows(what: MatVec, limits: WorkgroupLimits) -> KernelPlan:
    """The kernel that computes a product of several rows, and its workgroups."""
    by_matrices = plan_few_matrices(what, limits)
    if by_matrices is not None:
        return by_matrices
    fused = epilogue_flags(what)
    half, gated = what.element == "f16", what.up is not None
    place = {"FIRST": what.first, "OF": what.of or what.n}
    if what.scales is None:
        dense = tune_dense_rows(what.k, what.n, what.rows, gated, half, limits)
        constants = {**fused, **place, "PAIRED": what.paired, **dense.constants()}
        return KernelPlan("few_rows_dense", constants, dense.workgroups)
    tuning = tune_rows(what.k, what.n, what.rows, gated, half, limits)
    return KernelPlan(
        "few_rows_q4", {**fused, **packing(what), **place, **tuning.constants(what.block)}, tuning.workgroups
    )


def fits_matvec(what: MatVec) -> bool:
    """Whether a kernel covers these weights."""
    return not unfit_matvec(what)


def unfit_matvec(what: MatVec) -> str:
    """The reason why web/src/worker/shaders/products/matvec_q4.wgsl (matvec_dense.wgsl for dense weights) does not
    cover these weights; empty if it covers them.
    """
    if what.scales is None:
        width = column_width(what.element == "f16")
        fits = what.k % 4 == 0 and what.n % width == 0
        return "" if fits else f"{what.k} rows of {what.n} weights are not multiples of 4 and {width}"
    if what.bits not in (4, 8):
        return f"weights have {what.bits} bits, not 4 or 8"
    if what.block != SIXTEEN and what.block % RUN:
        return f"blocks of {what.block} elements are neither {SIXTEEN} nor a multiple of {RUN}"
    least, given = (RUN, f" in blocks of {SIXTEEN}") if what.block == SIXTEEN else (OCTET, "")
    if what.rows > 1:
        least, given = RUN, ", several of them,"
    return f"rows of {what.k} elements{given} are not a multiple of {least}" if what.k % least else ""
