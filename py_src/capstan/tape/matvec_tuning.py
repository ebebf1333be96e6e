"""How web/src/shaders/matvec_q4.wgsl is cut into workgroups for a shape of the weights and an adapter."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MatvecTuning", "tune_matvec"]


@dataclass(frozen=True)
class MatvecTuning:
    """The constants of the shader that change its speed and not what it computes."""

    rows: int
    """Rows of the weights that a thread works on at a time."""
    span: int
    """Threads that share a row."""
    workgroup: int
    """Threads of a workgroup."""
    staged: bool
    """Whether x goes through workgroup memory; else each thread holds its part of it in registers."""
    workgroups: int
    """What to dispatch."""
    loop: bool = False
    """Whether a workgroup takes more than one tile."""

    @property
    def tile(self) -> int:
        """Rows of a workgroup at a time."""
        return self.workgroup // self.span * self.rows

    def constants(self) -> dict[str, int | float | bool]:
        """By their names in the shader."""
        return {
            "ROWS": self.rows,
            "SPAN": self.span,
            "WORKGROUP": self.workgroup,
            "STAGED": self.staged,
            "LOOP": self.loop,
        }


def tune_matvec(k: int, n: int, gated: bool, lanes: int) -> MatvecTuning:
    """For weights of `n` rows of `k` int4 (two such matrices if `gated`) and subgroups of `lanes` threads.

    `lanes` is 0 where there are no subgroups to rely on: then sums meet in workgroup memory.
    """
    runs = k // 32
    if lanes == 0:
        span, rows, workgroup = 8, 2, 64
    else:
        span = lanes * (4 if runs >= 8 * lanes else 1)
        rows = 2
        workgroup = max(span, 128)
    tile = workgroup // span * rows
    return MatvecTuning(rows, span, workgroup, False, -(-n // tile))
