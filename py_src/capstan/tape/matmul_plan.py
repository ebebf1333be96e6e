"""How the products of a prefill run are computed: the kernels of web/src/shaders, and how they are cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import TapeError
from .kernel_plan import KernelPlan, WorkgroupLimits
from .matmul import MatMul, Quantize
from .step_graph import Node

__all__ = ["MatMulTuning", "matmul_bindings", "plan_matmul", "plan_quantize", "tune_matmul"]

RUN = 32
"""Elements of a row that share a scale in int8."""


@dataclass(frozen=True)
class MatMulTuning:
    """The cut of matmul_q4.wgsl; it changes its speed alone."""

    thread: tuple[int, int]
    """Rows and columns of a thread."""
    threads: tuple[int, int]
    """Threads over rows and columns of a tile."""
    slices: int
    """Sets of such threads, each for a part of k."""
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

    @property
    def memory(self) -> int:
        """Bytes of workgroup memory."""
        return 16 * self.vectors + 8 * self.runs * sum(self.tile)

    def constants(self, gated: bool) -> dict[str, int | float | bool]:
        """By their names in the shader."""
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
"""For an odd number of runs."""
SMALL = MatMulTuning((8, 8), (4, 8), slices=1, runs=1)
"""Where workgroups have little memory, or the adapter is a processor."""


def tune_matmul(k: int, limits: WorkgroupLimits) -> MatMulTuning:
    """For rows of `k` elements. Raises TapeError if no cut fits the adapter's workgroups."""
    for tuning in (LARGE, ODD, SMALL):
        fits = tuning.memory <= limits.memory and tuning.workgroup <= limits.threads
        if fits and k % (RUN * tuning.runs) == 0 and not (limits.software and tuning is not SMALL):
            return tuning
    raise TapeError(
        f"no cut of the matrix product fits rows of {k} and workgroups of {limits.threads} threads with "
        f"{limits.memory} bytes of memory"
    )


def plan_matmul(what: MatMul, limits: WorkgroupLimits) -> KernelPlan:
    """The kernel that computes a product of many rows, and its workgroups."""
    gated = what.up is not None
    tuning = tune_matmul(what.k, limits)
    constants = {
        "K": what.k,
        "N": what.n,
        "M": what.rows,
        "BLOCK": what.block,
        "GATED": gated,
        "RESIDUAL": False,
        "BIAS": False,
        **tuning.constants(gated),
    }
    rows, columns = tuning.tile
    counts = (-(-what.n // (columns // 2 if gated else columns)), -(-what.rows // rows), 1)
    return KernelPlan("matmul_q4", constants, counts)


def plan_quantize(what: Quantize) -> KernelPlan:
    """The kernel that makes int8 of activations, and its workgroups."""
    constants = {"K": what.k, "M": what.rows, "GROUPED": what.group > RUN}
    return KernelPlan("quantize_rows", constants, (-(-what.rows // 8), -(-what.k // (8 * RUN)), 1))


def matmul_bindings(node: Node, at: Callable[[int], list[Any]]) -> list[list[Any]]:
    """As matmul_q4.wgsl and quantize_rows.wgsl declare them."""
    bindings = [at(value) for value in node.reads]
    if isinstance(node.what, MatMul):
        bindings += [["recorded", node.what.weights], ["recorded", node.what.scales]]
        bindings += [["recorded", buffer] for buffer in node.what.up or ()]
    return [*bindings, *(at(value) for value in node.writes)]
