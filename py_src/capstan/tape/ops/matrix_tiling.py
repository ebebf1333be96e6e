"""Chooses the tilings of web/src/worker/shaders/products/matmul_matrices.wgsl and few_rows_matrices.wgsl."""

from __future__ import annotations

from dataclasses import dataclass

from ..kernel_plan import MatrixSize, WorkgroupLimits

__all__ = ["FewRowsTiling", "MatrixTiling", "tune_few_dense", "tune_few_rows"]


@dataclass(frozen=True)
class MatrixTiling:
    """The tiling of matmul_matrices.wgsl; it changes the speed, and the order of sums."""

    size: MatrixSize
    """The size of one matrix operation."""
    lanes: int
    matrices: tuple[int, int]
    """Operations of a subgroup over rows and columns."""
    subgroups: tuple[int, int]
    """Subgroups of a workgroup, over rows and columns."""
    step: int
    """Elements of k that are staged at a time."""
    slices: int = 1
    """Subgroups that share a tile, each for a part of every step."""

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of a workgroup; columns of both matrices, if the product is gated."""
        rows, columns = (a * b for a, b in zip(self.matrices, self.subgroups, strict=True))
        return rows * self.size.m, columns * self.size.n

    @property
    def workgroup(self) -> int:
        """Threads."""
        return self.lanes * self.subgroups[0] * self.subgroups[1] * self.slices

    def memory(self, dense: bool) -> int:
        """Bytes of workgroup memory: two steps of x and W, each row with 16 bytes to spare."""
        rows, columns = self.tile
        octets = self.step // 8 + 1
        return 2 * 16 * (rows * octets + (self.step * (columns // 8 + 1) if dense else columns * octets))

    def fits(self, k: int, gated: bool, dense: bool, limits: WorkgroupLimits) -> bool:
        """Whether the shader's header and the adapter allow it."""
        rows, columns = self.tile
        whole = k % self.step == 0 and self.step % 32 == 0 and self.step % (self.size.k * self.slices) == 0
        loads = rows * self.step // 8 % self.workgroup == 0
        loads = loads and columns * self.step // (8 if dense else 16) % self.workgroup == 0
        halves = not gated or self.matrices[1] % 2 == 0
        results = 8 * self.size.m * self.size.n * self.workgroup // self.lanes
        memory = results <= self.memory(dense) <= limits.memory
        return whole and loads and halves and memory and self.workgroup <= limits.threads

    def workgroups(self, rows: int, n: int, gated: bool) -> tuple[int, int]:
        """The workgroups over columns and rows."""
        tile_rows, columns = self.tile
        return -(-n // (columns // 2 if gated else columns)), -(-rows // tile_rows)

    def constants(self, gated: bool, dense: bool) -> dict[str, int | float | bool]:
        """The constants by their names in the shader."""
        rows, columns = self.tile
        return {
            "SIZE_M": self.size.m,
            "SIZE_N": self.size.n,
            "SIZE_K": self.size.k,
            "MM": self.matrices[0],
            "MN": self.matrices[1],
            "WM": self.subgroups[0],
            "WN": self.subgroups[1],
            "WK": self.slices,
            "STEP": self.step,
            "A_LOADS": rows * self.step // 8 // self.workgroup,
            "B_LOADS": columns * self.step // (8 if dense else 16) // self.workgroup,
            "MATRICES": self.matrices[0] * self.matrices[1],
            "HALF_MN": self.matrices[1] // 2,
            "K_PARTS": self.step // self.size.k // self.slices,
            "OUT": self.matrices[1] // 2 if gated else self.matrices[1],
            "ACTIVATED": False,
        }


Shape = tuple[tuple[int, int], tuple[int, int], int, int]
"""Matrix operations of a subgroup, subgroups, elements of a step, subgroups that share a tile."""

FEW: dict[str, tuple[Shape, ...]] = {
    "narrow": (((1, 1), (1, 1), 256, 8), ((1, 1), (1, 1), 128, 4)),
    "wide": (((1, 2), (1, 1), 64, 4),),
    "gated": (((1, 4), (1, 1), 64, 4), ((1, 2), (1, 2), 64, 2)),
}
"""The tilings for dense weights if x has as many rows as a matrix, the best first."""
FEW_TWICE: dict[str, tuple[Shape, ...]] = {
    "narrow": (((2, 2), (1, 1), 128, 8), ((2, 1), (1, 1), 128, 4)),
    "wide": (((2, 4), (1, 2), 64, 4), ((2, 2), (1, 2), 32, 2)),
    "gated": (((2, 4), (1, 2), 64, 4), ((2, 2), (1, 1), 64, 4)),
}
"""The tilings for twice that number of rows: see "Several rows" in benches/NOTES.md."""
WIDE = 32768
"""From this number of rows of the weights on, there are enough tiles of any size."""


def tune_few_dense(rows: int, n: int, k: int, gated: bool, limits: WorkgroupLimits) -> MatrixTiling | None:
    """The tiling of matmul_matrices.wgsl for a few rows of x and dense weights; several subgroups share k. None if no
    tiling fits the adapter.
    """
    kind = "gated" if gated else "wide" if n >= WIDE else "narrow"
    for size in limits.matrices if limits.lanes else ():
        shapes = FEW[kind] if rows <= size.m else FEW_TWICE[kind]
        for matrices, subgroups, step, slices in shapes:
            tiling = MatrixTiling(size, limits.lanes, matrices, subgroups, step, slices)
            if rows <= matrices[0] * size.m and tiling.fits(k, gated, True, limits):
                return tiling
    return None


RUN, TEAM, OCTET_BYTES = 32, 4, 16
"""The number of elements of a row of weights that a thread requests, and the number of threads with neighbouring
elements: few_rows_matrices.wgsl.
"""
SIDES = (8, 6, 4, 2, 1)
"""Subgroups that may share the k of a tile."""
SUBGROUPS = {8: (768, 4), 16: (768, 8), 32: (384, 4)}
"""By rows of x: the best numbers of subgroups on an NVIDIA H200, in all and in a workgroup."""


@dataclass(frozen=True)
class FewRowsTiling:
    """The tiling of few_rows_matrices.wgsl; it changes the speed, and the order of sums."""

    size: MatrixSize
    """The size of one matrix operation; its rows are those of the weights."""
    lanes: int
    matrices: tuple[int, int]
    """Operations of a subgroup over rows of the weights (of both matrices, if the product is gated), and over rows of
    x.
    """
    sides: int
    """The number of subgroups that share k."""
    neighbours: int
    """The number of subgroups side by side over rows of the weights, for each part of k."""

    @property
    def tile(self) -> int:
        """Rows of the weights of a subgroup."""
        return self.matrices[0] * self.size.m

    @property
    def octets(self) -> int:
        """Workgroup memory, in units of 16 bytes."""
        rows, subgroups = self.matrices[1] * self.size.n, self.sides * self.neighbours
        staged = subgroups * self.tile * (2 * TEAM + 1) + self.sides * rows * (4 * TEAM + 1)
        return max(staged, subgroups * self.tile * rows // 4)

    def fits(self, gated: bool, limits: WorkgroupLimits) -> bool:
        """Whether the shader's header and the adapter allow it."""
        whole = self.size.k in (8, 16) and self.lanes % TEAM == 0 and self.tile % (self.lanes // TEAM) == 0
        whole = whole and self.matrices[1] * self.size.n * 4 * TEAM % (self.lanes * self.neighbours) == 0
        halves = not gated or self.matrices[0] % 2 == 0
        threads = self.lanes * self.sides * self.neighbours
        return whole and halves and threads <= limits.threads and self.octets * OCTET_BYTES <= limits.memory

    def workgroups(self, rows: int, n: int, gated: bool) -> tuple[int, int]:
        """The workgroups over rows of the weights and of x."""
        own = self.tile // (1 + gated) * self.neighbours
        return -(-n // own), -(-rows // (self.matrices[1] * self.size.n))

    def constants(self, block: int, bits: int) -> dict[str, int | float | bool]:
        """The constants by their names in the shader."""
        over_weights, over_x = self.matrices
        return {
            "SIZE_M": self.size.m,
            "SIZE_N": self.size.n,
            "SIZE_K": self.size.k,
            "MN": over_weights,
            "MM": over_x,
            "WK": self.sides,
            "WN": self.neighbours,
            "LOADS": self.tile * TEAM // self.lanes,
            "X_LOADS": over_x * self.size.n * 4 * TEAM // (self.lanes * self.neighbours),
            "MATRICES": over_weights * over_x,
            "CUTS": 16 // self.size.k,
            "PER": 2 if block < RUN else 1,
            "WORDS": bits // 4,
            "SIZE": self.octets,
        }


def tune_few_rows(rows: int, n: int, k: int, gated: bool, limits: WorkgroupLimits) -> FewRowsTiling | None:
    """The tiling of few_rows_matrices.wgsl for a few rows of x and integer weights of `n` by `k`; None if no tiling
    fits the adapter.

    Measured on an H100 and an H200 ("Several rows" in benches/NOTES.md): more subgroups share a tile's k until the GPU
    has enough work, as long as each has a run to request. Then the smallest operation over rows of x that needs no more
    subgroups is taken.
    """
    if not limits.lanes or rows > max(SUBGROUPS):
        return None
    wanted, together = SUBGROUPS[next(most for most in SUBGROUPS if rows <= most)]
    wide = 16 if rows > 16 else 8
    sizes = sorted(limits.matrices, key=lambda size: (-(-rows // size.n) * size.n, -size.k, size.n != wide))
    for size in sizes:
        matrices = ((2 if gated or n >= WIDE else 1) * max(1, 16 // size.m), -(-rows // size.n))
        tiles = -(-n * (1 + gated) // (matrices[0] * size.m))
        useful = [sides for sides in SIDES if sides == 1 or k >= RUN * TEAM * sides]
        most = next((sides for sides in (1, 2, 4) if tiles * sides >= wanted), SIDES[0])
        for sides in (each for each in useful if each <= most):
            for neighbours in (max(1, together // sides), 1):
                tiling = FewRowsTiling(size, limits.lanes, matrices, sides, neighbours)
                if tiling.fits(gated, limits):
                    return tiling
    return None
