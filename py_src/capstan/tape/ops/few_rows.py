"""Chooses the tiling of few_rows_q4.wgsl and few_rows_dense.wgsl, which multiply a few rows and read the weights once
for up to eight rows. It also chooses that of norm_rows.wgsl, which computes the norms before them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log2

from ..kernel_plan import WorkgroupLimits
from .gemv_dense import THREADS, DenseTuning, column_width, tune_dense

__all__ = [
    "FEWEST",
    "MOST_ROWS",
    "TALL",
    "DenseRowsTuning",
    "RowsTuning",
    "norm_constants",
    "tune_dense_rows",
    "tune_rows",
]

MOST_ROWS = 32
"""The most rows of x in one product."""
FEWEST = 5
"""From this number of rows of x on, subgroup matrices multiply by integer weights faster."""
TALL = 8
"""The most rows of x for which a weight is unpacked once."""
SUMS = 32
"""The most sums that a thread holds."""
REQUESTS = 16
"""The most words of weights that a thread requests at once."""
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
    batch: int
    """Pending requests of a thread for each row of the weights."""

    @property
    def workgroups(self) -> tuple[int, int, int]:
        """The dispatch size."""
        return -(-self.n // (self.workgroup // self.span * self.rows)), -(-self.m // self.tall), 1

    def constants(self) -> dict[str, int | float | bool]:
        """The constants by their names in the shader."""
        lines = self.rows * (1 + self.gated)
        sums = lines * self.tall
        halvings = int(log2(min(self.span, max(self.lanes, 1))))
        return {
            "K": self.k,
            "N": self.n,
            "M": self.m,
            "TALL": self.tall,
            "ROWS": self.rows,
            "SPAN": self.span,
            "WORKGROUP": self.workgroup,
            "BATCH": self.batch,
            "LINES": lines,
            "SUMS": sums,
            "HALF_SUMS": sums // 2,
            "HALF_TALL": self.tall // 2,
            "REQUESTS": self.batch * lines,
            "HALVINGS": halvings,
            "LEFT": max(1, sums >> halvings),
        }


def tall_for(m: int, most: int = TALL) -> int:
    """The power of two that `m` rows need, at most `most`."""
    return min(most, 1 << (m - 1).bit_length())


def tune_rows(k: int, n: int, m: int, gated: bool, limits: WorkgroupLimits) -> RowsTuning:
    """The tiling for `m` rows of x and weights of `n` rows of `k` integers (two such matrices if `gated`).

    With subgroups a thread has up to SUMS sums. More subgroups share a row of the weights until a large adapter has
    THREADS threads, as long as each thread has two requests.
    """
    tall = tall_for(m)
    if limits.lanes == 0:
        span, workgroup = (4, 16) if limits.software else (16, 64)
        return RowsTuning(k, n, m, gated, 0, tall, 2, span, workgroup, 1)
    rows = max(1, min(4, SUMS // (tall * (1 + gated))))
    octets, span = k // 8, limits.lanes
    while 2 * span <= min(128, limits.threads) and n // rows * span < THREADS and octets >= 4 * span:
        span *= 2
    batch = 1
    while 2 * batch * rows * (1 + gated) <= REQUESTS and 2 * batch * span <= octets:
        batch *= 2
    return RowsTuning(k, n, m, gated, limits.lanes, tall, rows, span, max(span, 128), batch)


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
    tall = tall_for(m, 64 // ((1 + gated) * column_width(half)))
    return DenseRowsTuning(
        m, gated, tall, tune_dense(k, n, gated, half, replace(limits, threads=min(limits.threads, 256)))
    )


def norm_constants(k: int, limits: WorkgroupLimits) -> dict[str, int | float | bool]:
    """The constants of norm_rows.wgsl for rows of `k`."""
    workgroup = max(limits.lanes, 64) if limits.software else min(NORM_THREADS, limits.threads)
    return {"K": k, "WORKGROUP": workgroup, "ITEMS": -(-k // workgroup)}
