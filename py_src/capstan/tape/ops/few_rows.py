"""Chooses the tiling of few_rows_q4.wgsl and few_rows_dense.wgsl, which multiply a few rows and read the weights once
for up to eight rows. It also chooses that of norm_rows.wgsl, which computes the norms before them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log2

from ..kernel_plan import WorkgroupLimits
from .gemv_dense import DenseTuning, column_width, tune_dense

__all__ = [
    "FEWEST",
    "FEWEST_WIDE",
    "MOST_ROWS",
    "SIXTEEN",
    "TALL",
    "WIDE",
    "DenseRowsTuning",
    "RowsTuning",
    "norm_constants",
    "tune_dense_rows",
    "tune_rows",
]

MOST_ROWS = 32
"""The most rows of x in one product."""
FEWEST = 9
"""From this number of rows of x on, subgroup matrices multiply by integer weights faster."""
FEWEST_WIDE = 7
"""The same where the weights have WIDE rows, those of both matrices if the product is gated."""
WIDE = 16384
TALL = 8
"""The most rows of x for which a weight is unpacked once."""
LINES = 4
"""The rows of the weights of a thread, those of both matrices if the product is gated."""
FEWEST_THREADS = 24576
"""The number of threads above which no more of them share a row of the weights."""
SIXTEEN = 16
"""The only size of blocks below a run of 32 elements, which then has two scales."""
NORM_THREADS = 256


@dataclass(frozen=True)
class RowsTuning:
    """A shape, the subgroup size, and the tiling of few_rows_q4.wgsl, which changes the speed and the order of sums."""

    k: int
    n: int
    """Rows of the weights."""
    m: int
    """Rows of x."""
    gated: bool
    """Whether there are two such matrices, of a gated layer."""
    lanes: int
    """Threads of a subgroup; 0 if subgroups cannot be used."""
    tall: int
    """Rows of x for each thread."""
    rows: int
    """Rows of the weights for each thread."""
    span: int
    """The number of threads that share these rows."""
    workgroup: int
    """Threads of a workgroup."""

    @property
    def workgroups(self) -> tuple[int, int, int]:
        """The dispatch size."""
        return -(-self.n // (self.workgroup // self.span * self.rows)), -(-self.m // self.tall), 1

    @property
    def sums(self) -> int:
        """The sums of a thread, with room for a power of two of rows of x."""
        return self.rows * (1 + self.gated) * power_from(self.tall)

    def memory(self, half: bool) -> int:
        """Bytes of workgroup memory for x in float16 if `half`, else float32, and for sums."""
        parts = self.workgroup // min(self.span, max(self.lanes, 1)) * self.sums
        return self.tall * 4 * (self.span + 2) * (16 if half else 32) + 4 * parts

    def constants(self, block: int) -> dict[str, int | float | bool]:
        """The constants by their names in the shader, for weights in blocks of `block`."""
        halvings = int(log2(min(self.span, max(self.lanes, 1))))
        scales = 2 if block == SIXTEEN else 1
        return {
            "K": self.k,
            "N": self.n,
            "M": self.m,
            "TALL": self.tall,
            "HIGH": power_from(self.tall),
            "ROWS": self.rows,
            "SPAN": self.span,
            "WORKGROUP": self.workgroup,
            "STEPS": 1,
            "LINES": self.rows * (1 + self.gated),
            "SUMS": self.sums,
            "HALF_SUMS": self.sums // 2,
            "OWN": -(-self.tall * 4 * self.span // self.workgroup),
            "SIXTEENS": block == SIXTEEN,
            "PER": scales,
            "EACH": 4 // scales,
            "HALVINGS": halvings,
            "LEFT": max(1, self.sums >> halvings),
        }


def power_from(m: int) -> int:
    """The least power of two that is not below `m`."""
    return 1 << (m - 1).bit_length()


def tune_rows(k: int, n: int, m: int, gated: bool, half: bool, limits: WorkgroupLimits) -> RowsTuning:
    """The tiling for `m` rows of x, float16 if `half`, and weights of `n` rows of `k` integers (two such matrices if
    `gated`).

    Measured on an H200 ("Several rows" in benches/NOTES.md): a thread has LINES rows of the weights, and a subgroup
    shares them; more subgroups do where that leaves the GPU idle. Half of one does where there are many short rows, and
    fewer threads where x would not fit.
    """
    tall = max(2, -(-m // -(-m // TALL)))
    if limits.lanes == 0:
        span, workgroup = (4, 16) if limits.software else (16, 64)
        tuning = RowsTuning(k, n, m, gated, 0, tall, 2, span, workgroup)
    else:
        rows, span = LINES // (1 + gated), limits.lanes
        if n * (1 + gated) >= WIDE and k // 32 <= span:
            span //= 2
        while n // rows * span < FEWEST_THREADS and 2 * span <= min(128, k // 32):
            span *= 2
        tuning = RowsTuning(k, n, m, gated, limits.lanes, tall, rows, span, max(span, 128))
    while tuning.memory(half) > limits.memory:
        tuning = replace(tuning, span=tuning.span // 2)
    return tuning


@dataclass(frozen=True)
class DenseRowsTuning:
    """The tiling of few_rows_dense.wgsl."""

    m: int
    """Rows of x."""
    gated: bool
    tall: int
    """Rows of x for each thread."""
    columns: DenseTuning
    """The tiling of the weights."""

    @property
    def workgroups(self) -> tuple[int, int, int]:
        """The dispatch size."""
        return self.columns.workgroups, -(-self.m // self.tall), 1

    def constants(self) -> dict[str, int | float | bool]:
        """The constants by their names in the shader."""
        given = {name: value for name, value in self.columns.constants().items() if name != "SPLIT"}
        lines = 1 + self.gated
        return {**given, "M": self.m, "TALL": self.tall, "LINES": lines, "SUMS": lines * self.tall}


def tune_dense_rows(k: int, n: int, m: int, gated: bool, half: bool, limits: WorkgroupLimits) -> DenseRowsTuning:
    """The tiling for `m` rows of x and weights [k, n]; two such matrices if `gated`. A thread has up to 64 sums, so
    that workgroups have 256 threads at most.
    """
    tall = min(power_from(m), 64 // ((1 + gated) * column_width(half)))
    return DenseRowsTuning(
        m, gated, tall, tune_dense(k, n, gated, half, replace(limits, threads=min(limits.threads, 256)))
    )


def norm_constants(k: int, limits: WorkgroupLimits, first: int = 0, of: int = 0) -> dict[str, int | float | bool]:
    """The constants of norm_rows.wgsl for rows of `k`, written from element `first` of rows of `of` elements (0 for
    `k`).
    """
    workgroup = max(limits.lanes, 64) if limits.software else min(NORM_THREADS, limits.threads)
    return {"K": k, "WORKGROUP": workgroup, "ITEMS": -(-k // workgroup), "FIRST": first, "OF": of or k}
