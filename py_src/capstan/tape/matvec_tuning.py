"""How web/src/shaders/matvec_q4.wgsl is cut into workgroups for a shape of the weights and an adapter."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MatvecTuning", "tune_matvec"]

STEPS = 3
"""Runs of x that a thread takes at most, if workgroups can be that large: 16 registers each."""
WORKGROUP_BYTES = 15872
"""Workgroup memory for x: what every adapter has, less room for the sums."""


@dataclass(frozen=True)
class MatvecTuning:
    """A shape of the weights, the subgroup size, and how the shader is to cut it; the cut changes its speed alone."""

    k: int
    n: int
    """Rows of the weights."""
    gated: bool
    """Whether there are two such matrices."""
    lanes: int
    """Threads of a subgroup; 0 where there are none to rely on."""
    rows: int
    """Rows of the weights that a thread works on at a time."""
    span: int
    """Threads that share a row."""
    workgroup: int
    """Threads of a workgroup."""
    staged: bool = False
    """Whether x goes through workgroup memory; else each thread holds its part of it in registers."""
    most: int | None = None
    """Workgroups to dispatch at most, each of which then takes several tiles."""

    @property
    def steps(self) -> int:
        """Runs of 32 elements of a row that a thread takes."""
        return -(-self.k // (32 * self.span))

    @property
    def workgroups(self) -> int:
        """What to dispatch."""
        tiles = -(-self.n // (self.workgroup // self.span * self.rows))
        return tiles if self.most is None else min(tiles, self.most)

    @property
    def split(self) -> bool:
        """Whether the sums of a row meet in workgroup memory; else shuffles are enough."""
        return self.span > self.lanes

    def constants(self) -> dict[str, int | float | bool]:
        """By their names in the shader."""
        return {
            "K": self.k,
            "N": self.n,
            "GATED": self.gated,
            "ROWS": self.rows,
            "SPAN": self.span,
            "WORKGROUP": self.workgroup,
            "STAGED": self.staged,
            "SPLIT": self.split,
            "LOOP": self.most is not None,
            "STEPS": self.steps,
            "SUMS": self.rows * (1 + self.gated),
            "OWN": -(-4 * self.steps * self.span // self.workgroup),
            "HALVINGS": min(self.span, max(self.lanes, 1)).bit_length() - 1,
        }


def tune_matvec(k: int, n: int, gated: bool, lanes: int, half: bool, software: bool = False) -> MatvecTuning:
    """For weights of `n` rows of `k` int4 (two such matrices if `gated`), and subgroups of `lanes` threads.

    `software`: the adapter is a processor, where few small workgroups are best (SwiftShader: 6 ms where 20 were). Else
    measured on an H200; see benches/NOTES.md. Workgroups that take several tiles spare the reading and normalising of
    x, and request the next weights before they use the present ones; their number suits GPUs of up to 132 processors,
    and smaller ones run them in turns.
    """
    if lanes == 0 and software:
        return MatvecTuning(k, n, gated, lanes, rows=2, span=4, workgroup=16, most=32)
    if lanes == 0:
        return MatvecTuning(k, n, gated, lanes, rows=2, span=16, workgroup=64)
    runs = k // 32
    span = lanes
    while span // 2 >= max(runs, 4):
        span //= 2
    while runs > STEPS * span and span < 256:
        span *= 2
    if span > lanes or -(-runs // span) * span * (64 if half else 128) > WORKGROUP_BYTES:
        span = max(span, min(128, 2 * span))
        return MatvecTuning(k, n, gated, lanes, rows=2, span=span, workgroup=max(span, 128), most=528)
    if n >= 32768:
        return MatvecTuning(k, n, gated, lanes, rows=4, span=span, workgroup=256, staged=True, most=264)
    if gated and n >= 8192:
        return MatvecTuning(k, n, gated, lanes, rows=2, span=span, workgroup=256, staged=True, most=132)
    return MatvecTuning(k, n, gated, lanes, rows=2, span=span, workgroup=128 if n < 2048 else 256, staged=True)
