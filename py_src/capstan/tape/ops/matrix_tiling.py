"""The tiling of web/src/shaders/products/matmul_matrices.wgsl, and that for a few rows of x."""

from __future__ import annotations

from dataclasses import dataclass

from ..kernel_plan import MatrixSize, WorkgroupLimits

__all__ = ["MatrixTiling", "tune_few_matrices"]


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
        """Over columns and rows."""
        tile_rows, columns = self.tile
        return -(-n // (columns // 2 if gated else columns)), -(-rows // tile_rows)

    def constants(self, gated: bool, dense: bool) -> dict[str, int | float | bool]:
        """By their names in the shader."""
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
        }


Shape = tuple[tuple[int, int], tuple[int, int], int, int]
"""Matrix operations of a subgroup, subgroups, elements of a step, subgroups that share a tile."""

FEW: dict[str, tuple[Shape, ...]] = {
    "narrow": (((1, 1), (1, 1), 256, 8), ((1, 1), (1, 1), 128, 4)),
    "wide": (((1, 2), (1, 1), 64, 4),),
    "gated": (((1, 4), (1, 1), 64, 4), ((1, 2), (1, 2), 64, 2)),
}
"""For as many rows as a matrix has, the best first. Measured on an H200 with 16 rows of a 1B shape in int4, us, beside
the best of few_rows_q4.wgsl: QKV 10.1 and 11.2, output 6.9 and 9.4, gate and up 24 and 46, down 19 and 26, last 160
and 334."""
FEW_TWICE: dict[str, tuple[Shape, ...]] = {
    "narrow": (((2, 2), (1, 1), 128, 8), ((2, 1), (1, 1), 128, 4)),
    "wide": (((2, 4), (1, 2), 64, 4), ((2, 2), (1, 2), 32, 2)),
    "gated": (((2, 4), (1, 2), 64, 4), ((2, 2), (1, 1), 64, 4)),
}
"""For twice as many: with 32 rows 12.4 and 18.9, 12.3 and 15.2, 32 and 85, 38 and 45, 221 and 647 us."""
WIDE = 32768
"""Rows of the weights from which there are tiles enough of any size."""


def tune_few_matrices(
    rows: int, n: int, k: int, gated: bool, dense: bool, limits: WorkgroupLimits
) -> MatrixTiling | None:
    """The tiling for a few rows of x, whose k several subgroups share; None where none fits the adapter."""
    kind = "gated" if gated else "wide" if n >= WIDE else "narrow"
    for size in limits.matrices if limits.lanes else ():
        shapes = FEW[kind] if rows <= size.m else FEW_TWICE[kind]
        for matrices, subgroups, step, slices in shapes:
            tiling = MatrixTiling(size, limits.lanes, matrices, subgroups, step, slices)
            if rows <= matrices[0] * size.m and tiling.fits(k, gated, dense, limits):
                return tiling
    return None
