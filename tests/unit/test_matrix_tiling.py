"""The constants keep the limits in the header of matmul_matrices.wgsl, for shapes of models and kinds of adapters."""

from __future__ import annotations

from dataclasses import replace

import pytest

from capstan.tape.kernel_plan import MatrixSize, WorkgroupLimits
from capstan.tape.ops.matmul_matrices import MatrixMatMul, fits_matrices, plan_matrices, tune_matrices
from tests.looped import looped
from tests.unit.shader_declarations import PACKED, declared_constants, workgroup_bytes

SHAPES = [(576, 960), (1536, 576), (896, 1152), (4864, 896), (2048, 3072), (2048, 8192), (8192, 2048), (256, 40)]
"""k and n."""
WHOLE = MatrixSize(16, 16, 16)
LIMITS = [
    *[WorkgroupLimits(lanes, 1024, 49152, matrices=(WHOLE,)) for lanes in (8, 16, 32, 64)],
    WorkgroupLimits(32, 256, 32768, matrices=(WHOLE, MatrixSize(16, 8, 16))),
    WorkgroupLimits(32, 256, 16384, matrices=(WHOLE,)),
    WorkgroupLimits(32, 1024, 32768, matrices=(MatrixSize(8, 8, 8),)),
    WorkgroupLimits(16, 1024, 65536, matrices=(MatrixSize(8, 16, 16),)),
]


@pytest.mark.parametrize(("k", "n"), SHAPES)
@looped("dense", [False, True])
@looped("gated", [False, True])
@looped("limits", LIMITS)
def test_a_tiling_keeps_the_limits_of_the_shader_and_the_adapter(
    k: int, n: int, limits: WorkgroupLimits, gated: bool, dense: bool
) -> None:
    rows = 512
    scales = None if dense else 1
    up = ((2,) if dense else (2, 3)) if gated else None
    what = MatrixMatMul(0, scales, rows, n, k, 0 if dense else 32, up)
    assert fits_matrices(what, limits)
    plan = plan_matrices(what, limits)
    has = PACKED[: 1 if dense else 2]
    has += tuple(f"{name}_up" for name in has) * gated
    found = declared_constants(plan.shader, plan.constants, has, half=True, lanes=limits.lanes)
    assert found["WORKGROUP"] <= limits.threads
    assert k % found["STEP"] == 0
    assert found["STEP"] % found["SIZE_K"] == 0
    # The threads load exactly one staged tile.
    assert found["A_LOADS"] * found["WORKGROUP"] * 8 == found["TILE_M"] * found["STEP"]
    assert found["B_LOADS"] * found["WORKGROUP"] * (8 if dense else 16) == found["TILE_N"] * found["STEP"]
    assert MatrixSize(found["SIZE_M"], found["SIZE_N"], found["SIZE_K"]) in limits.matrices
    assert workgroup_bytes(plan.shader, plan.constants, has, half=True, lanes=limits.lanes) <= limits.memory
    # Results of all subgroups fit in the workgroup memory of the operands.
    assert 8 * found["SIZE_M"] * found["SIZE_N"] * found["WM"] * found["WN"] * found["WK"] <= 32 * found["SIZE"]
    assert not callable(plan.counts)
    columns, tiles, _ = plan.counts
    assert 0 <= columns * found["COLUMNS"] - n < found["COLUMNS"]
    assert 0 <= tiles * found["TILE_M"] - rows < found["TILE_M"]


def test_memory_is_what_the_shader_declares() -> None:
    limits = WorkgroupLimits(32, 1024, 49152, matrices=(WHOLE,))
    for dense in (False, True):
        what = MatrixMatMul(0, None if dense else 1, 512, 2048, 2048, 0 if dense else 32)
        tiling = tune_matrices(512, 2048, 2048, False, dense, limits)
        assert tiling is not None
        constants, has = plan_matrices(what, limits).constants, PACKED[: 1 if dense else 2]
        declared = workgroup_bytes("matmul_matrices", constants, has, half=True, lanes=32)
        assert tiling.memory(dense) == declared


def test_small_products_are_cut_into_small_tiles_so_that_processors_are_busy() -> None:
    limits = WorkgroupLimits(32, 1024, 49152, matrices=(WHOLE,))
    large, small = (tune_matrices(rows, 8192, 2048, False, False, limits) for rows in (2048, 64))
    assert large is not None
    assert small is not None
    assert large.tile[0] * large.tile[1] > small.tile[0] * small.tile[1]


@pytest.mark.parametrize(
    "what",
    [
        MatrixMatMul(0, 1, 512, 2044, 2048, 32),
        MatrixMatMul(0, 1, 512, 2048, 2000, 16),
        MatrixMatMul(0, 1, 512, 2048, 2048, 24),
        MatrixMatMul(0, 1, 512, 2048, 2048, 32, bits=2),
        MatrixMatMul(0, None, 512, 2044, 2048, 0),
    ],
    ids=str,
)
def test_shapes_that_the_kernel_does_not_cover_do_not_fit(what: MatrixMatMul) -> None:
    limits = WorkgroupLimits(32, 1024, 49152, matrices=(WHOLE,))
    assert fits_matrices(replace(what, n=2048, k=2048, block=0 if what.scales is None else 32, bits=4), limits)
    assert not fits_matrices(what, limits)


def test_without_matrices_or_memory_nothing_fits() -> None:
    what = MatrixMatMul(0, 1, 512, 2048, 2048, 32)
    limits = WorkgroupLimits(32, 1024, 49152, matrices=(WHOLE,))
    assert fits_matrices(what, limits)
    assert not fits_matrices(what, replace(limits, matrices=()))
    assert not fits_matrices(what, replace(limits, lanes=0)), "subgroups come in several sizes"
    assert not fits_matrices(what, replace(limits, memory=8192))
    assert not fits_matrices(what, replace(limits, threads=64))
