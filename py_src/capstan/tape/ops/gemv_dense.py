"""Chooses the tiling of web/src/worker/shaders/products/matvec_dense.wgsl for a shape of the weights and an adapter."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..kernel_plan import WorkgroupLimits

__all__ = ["DenseTuning", "column_width", "tune_dense"]

THREADS = 65536
"""The smallest number of threads for a large adapter: 512 for each of 128 processors, since its memory needs that many
pending 16-byte loads.
"""
WIDEST = 32
"""The most vectors of 16 bytes side by side."""


def column_width(half: bool) -> int:
    """Columns in the 16 bytes of a row that a thread loads at a time."""
    return 8 if half else 4


@dataclass(frozen=True)
class DenseTuning:
    """A shape of the weights, the subgroup size, and the tiling, which changes only the speed."""

    k: int
    n: int
    """Columns of the weights, which are [k, n]."""
    half: bool
    """Whether the weights are float16."""
    lanes: int
    """Threads of a subgroup; 0 if subgroups cannot be used."""
    columns: int
    """Threads side by side, each with 16 bytes of a row."""
    span: int
    """Threads that share columns."""

    @property
    def workgroups(self) -> int:
        """The number of workgroups."""
        return -(-self.n // (column_width(self.half) * self.columns))

    @property
    def width(self) -> int:
        """Threads that share columns and a subgroup."""
        return self.lanes // self.columns if self.lanes else 1

    @property
    def memory(self) -> int:
        """Bytes of workgroup memory, if the product is gated and normalised."""
        parts = self.span // self.width
        return (2 * 4 * column_width(self.half) * self.columns + 4) * parts

    def constants(self) -> dict[str, int | float | bool]:
        """The constants by their names in the shader."""
        return {
            "K": self.k,
            "N": self.n,
            "COLUMNS": self.columns,
            "SPAN": self.span,
            "WIDTH": self.width,
            "HALVINGS": self.width.bit_length() - 1,
            "SPLIT": self.span > self.width,
            "WIDE": column_width(self.half),
        }


def tune_dense(k: int, n: int, gated: bool, half: bool, limits: WorkgroupLimits) -> DenseTuning:
    """The tiling for weights [k, n] of float32, or float16 if `half`; two such matrices if `gated`.

    Measured on an H200; see benches/NOTES.md. With subgroups it takes the largest number of columns side by side that
    leaves THREADS threads in all, so that a row's bytes are read in the longest possible pieces (pieces of 32 bytes are
    read at half the speed of 128). Workgroups have 1024 threads, or 512 if there are many workgroups or each thread has
    pending loads of two matrices. On a CPU adapter without subgroups, threads do not share columns.
    """
    vectors = n // column_width(half)
    if limits.lanes == 0:
        return DenseTuning(k, n, half, 0, 16, 1) if limits.software else DenseTuning(k, n, half, 0, 4, 16)
    widest = min(limits.lanes, WIDEST)
    threads = 512 if gated or vectors * 512 >= THREADS * widest else 1024
    while threads > limits.threads:
        threads //= 2

    def tiling(columns: int) -> DenseTuning:
        tuning = DenseTuning(k, n, half, limits.lanes, columns, threads // columns)
        while tuning.span > tuning.width and (tuning.span > k // 4 or tuning.memory > limits.memory):
            tuning = replace(tuning, span=tuning.span // 2)
        return tuning

    columns = widest
    while columns > 2 and vectors * tiling(columns).span < THREADS:
        columns //= 2
    return tiling(columns)
