"""How web/src/shaders/matvec_dense.wgsl is cut into workgroups for a shape of the weights and an adapter."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..kernel_plan import WorkgroupLimits

__all__ = ["DenseTuning", "column_width", "tune_dense"]

BUSY = 264
"""Workgroups that a large adapter wants at least: two for each of 132 processors."""


def column_width(half: bool) -> int:
    """Columns in the 16 bytes of a row that a thread loads at a time."""
    return 8 if half else 4


@dataclass(frozen=True)
class DenseTuning:
    """A shape of the weights, the subgroup size, and how the shader is to cut it; the cut changes its speed alone."""

    k: int
    n: int
    """Columns of the weights, which are [k, n]."""
    half: bool
    """Whether they are float16."""
    lanes: int
    """Threads of a subgroup; 0 where there are none to rely on."""
    columns: int
    """Threads side by side, each with 16 bytes of a row."""
    span: int
    """Threads that share columns."""

    @property
    def workgroups(self) -> int:
        """What to dispatch."""
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
        """By their names in the shader."""
        return {
            "K": self.k,
            "N": self.n,
            "COLUMNS": self.columns,
            "SPAN": self.span,
            "WIDTH": self.width,
            "HALVINGS": self.width.bit_length() - 1,
            "SPLIT": self.span > self.width,
        }


def tune_dense(k: int, n: int, half: bool, limits: WorkgroupLimits) -> DenseTuning:
    """For weights [k, n] of float32, or float16 if `half`.

    With subgroups, as many columns side by side as leave enough workgroups to keep a large adapter busy, and the rest
    of a large workgroup along k: all of a layer's weights are then requested at about the same time. On a processor
    threads that share columns only meet in vain.
    """
    vectors = n // column_width(half)
    if limits.software and limits.lanes == 0:
        return DenseTuning(k, n, half, 0, 16, 1)
    if limits.lanes == 0:
        return DenseTuning(k, n, half, 0, 4, 16)
    columns = min(16, limits.lanes // 2)
    while columns > 2 and vectors < BUSY * columns:
        columns //= 2
    span = (512 if limits.threads >= 512 else 256) // columns
    tuning = DenseTuning(k, n, half, limits.lanes, columns, span)
    while tuning.span > tuning.width and (tuning.span > k // 4 or tuning.memory > limits.memory):
        tuning = replace(tuning, span=tuning.span // 2)
    return tuning
