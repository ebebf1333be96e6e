"""Chooses the tiling of web/src/worker/shaders/products/matvec_q4.wgsl for a shape of the weights and an adapter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..kernel_plan import WorkgroupLimits

__all__ = ["MatvecTuning", "tune_matvec"]

STEPS = 3
"""The most runs of x in a thread, if workgroups can be large enough: 16 registers each."""
WORDS = 32
"""The most pending words of weights, of 16 bytes, of a thread: 4 registers each."""
PROCESSORS = 132
"""The number of processors of the GPU on which the tables were measured."""
SPARE = 512
"""Bytes of workgroup memory that x leaves for sums."""


@dataclass(frozen=True)
class MatvecTuning:
    """A shape of the weights, the subgroup size, and the shader's cut, which changes only the speed."""

    k: int
    n: int
    """Rows of the weights."""
    gated: bool
    """Whether there are two such matrices, of a gated layer."""
    lanes: int
    """Threads of a subgroup; 0 if subgroups cannot be used."""
    rows: int
    """Rows of the weights that a thread works on at a time."""
    span: int
    """Threads that share a row."""
    workgroup: int
    """Threads of a workgroup."""
    staged: bool = False
    """Whether x goes through workgroup memory; else each thread holds its part of it in registers."""
    most: int | None = None
    """The most workgroups to dispatch; each then takes several tiles."""

    @property
    def steps(self) -> int:
        """Runs of 32 elements of a row that a thread takes."""
        return -(-self.k // (32 * self.span))

    @property
    def workgroups(self) -> int:
        """The number of workgroups."""
        tiles = -(-self.n // (self.workgroup // self.span * self.rows))
        return tiles if self.most is None else min(tiles, self.most)

    @property
    def split(self) -> bool:
        """Whether the sums of a row are added up in workgroup memory; else shuffles are enough."""
        return self.span > self.lanes

    def memory(self, half: bool) -> int:
        """Bytes of workgroup memory for x and the sums of a product that is not gated and has no norm, at most."""
        octets = 4 * (-(-self.steps * self.span // 8) * 8 + 2) if self.staged else 0
        sums = self.workgroup * self.rows * (2 if self.most is not None else 1) if self.split else 0
        return octets * (16 if half else 32) + 4 * sums

    def constants(self) -> dict[str, int | float | bool]:
        """The constants by their names in the shader."""
        own = -(-4 * self.steps * self.span // self.workgroup)
        return {
            "K": self.k,
            "N": self.n,
            "ROWS": self.rows,
            "SPAN": self.span,
            "WORKGROUP": self.workgroup,
            "STAGED": self.staged,
            "SPLIT": self.split,
            "LOOP": self.most is not None,
            "RAGGED": self.k % 32 > 0,
            "STEPS": self.steps,
            "SUMS": self.rows * (1 + self.gated),
            "OWN": own,
            "MINE": own if self.staged else 4 * self.steps,
            "HALVINGS": min(self.span, max(self.lanes, 1)).bit_length() - 1,
        }


def tune_matvec(k: int, n: int, gated: bool, half: bool, bits: int, limits: WorkgroupLimits) -> MatvecTuning:
    """The tiling for weights of `n` rows of `k` integers of `bits` (two such matrices if `gated`), and activations of
    float16 if `half`.

    Measured on an H200; see benches/NOTES.md. A workgroup that takes several tiles reads and normalises x only once,
    and requests the next weights before it uses the present ones. The number of workgroups keeps up to 132 processors
    busy; fewer processors run them in turns. On a CPU adapter few small workgroups are best (SwiftShader: 6 ms instead
    of 20).
    """
    lanes, runs = limits.lanes, -(-k // 32)

    def cut(rows: int, span: int, workgroup: int, most: int | None = None, *, staged: bool = False) -> MatvecTuning:
        return MatvecTuning(k, n, gated, lanes, rows, span, workgroup, staged, most)

    def slots(span: int) -> int:
        return -(-runs // span) * span

    if limits.software and lanes == 0:
        return cut(2, 4, 16, 32)
    if lanes == 0:
        return cut(2, 16, 64)
    room = (limits.memory - SPARE) // (64 if half else 128)
    large = limits.threads >= 512
    if large and slots(lanes) <= room:
        if n >= 32768:
            # This cut leaves the fewest threads idle in the last turn: 36 runs are 5 turns of 8, 80 are 5 of 16.
            span = min((max(4, lanes // part) for part in (1, 2, 4)), key=slots)
            rows = max(8 // -(-runs // span) // 2 * 2, 1)
            return cut(min(rows, span), span, 512, PROCESSORS, staged=True)
        if runs > STEPS * lanes and lanes >= 32:
            long = cut_long(cut, k, n, gated, bits // 4, lanes)
            if long.rows * (1 + gated) * long.steps * bits // 4 <= WORDS:
                return long
    span = lanes
    while span // 2 >= max(runs, 4):
        span //= 2
    while runs > STEPS * span and span < 256:
        span *= 2
    if span >= 8 and -(-2 * runs // span) <= STEPS and slots(span // 2) < slots(span):
        # With half as many threads the last turn leaves fewer of them idle: 36 runs are 3 turns of 16, not 2 of 32.
        span //= 2
    steps = -(-runs // span)
    if span > lanes or slots(span) > room:
        span = max(span, min(128, 2 * span))
        return cut(2, span, max(span, 128), 528)
    if n >= 32768:
        return cut(min(4 if steps > 1 else 8, span), span, 128, 1056, staged=True)
    if gated and large and steps > 1:
        return cut(1, span, 512, 2 * PROCESSORS if steps == 2 else PROCESSORS, staged=True)
    if gated:
        return cut(2, span, 128, 264 if steps > 1 else 528, staged=True)
    if n > k and large:
        return cut(1, span, 512, staged=True)
    return cut(2, span, 128, 528, staged=True)


def cut_long(cut: Callable[..., MatvecTuning], k: int, n: int, gated: bool, words: int, span: int) -> MatvecTuning:
    """The cut for rows of more than 3072 elements: x is staged, and each row has a subgroup. A run has `words` words of
    16 bytes.
    """
    if gated:
        return cut(1, span, 512, PROCESSORS, staged=True)
    if n > k:
        return cut(2, span, 128, 2 * PROCESSORS, staged=True)
    if k < 8192:
        return cut(2 if n >= 2048 else 1, span, 128, staged=True)
    two = cut(2, span, 512, staged=True)
    # Two rows are faster if there are enough workgroups and registers.
    return two if two.workgroups >= 80 and 2 * two.steps * words <= WORDS else cut(1, span, 512, staged=True)
