"""Products of several rows: what their kernels bind and pass on, and tilings that keep the limits of the shaders."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from capstan.tape.kernel_plan import MatrixSize, WorkgroupLimits
from capstan.tape.operation import Buffer, Kernel, Shared, Value
from capstan.tape.ops.few_rows import norm_constants, tune_dense_rows, tune_rows
from capstan.tape.ops.gemv import MatVec
from capstan.tape.ops.norm import RmsNorm
from capstan.tape.ops.packed import PACKED
from tests.looped import looped
from tests.unit.shader_declarations import PLAIN, declared_bindings, declared_constants, workgroup_bytes

WEIGHTS, SCALES, ZEROS, UP, UP_SCALES, UP_ZEROS, GAMMA, INNER, MINIMA = range(21, 30)
LIMITS = [
    WorkgroupLimits(),
    WorkgroupLimits(software=True),
    *(WorkgroupLimits(lanes) for lanes in (4, 8, 16, 32, 64)),
    WorkgroupLimits(32, 1024, 49152),
]
SHAPES = [(64, 96), (576, 960), (576, 49152), (2048, 8192), (8192, 2048), (2048, 128256), (896, 151936)]


def product(gated: bool, *more: str) -> list[str]:
    """The bindings of weights."""
    return [name + ending for ending in ("", "_up")[: 1 + gated] for name in ("weights", *more)]


def kernels(limits: WorkgroupLimits, reads: int = 1, writes: int = 1, **asked: Any) -> list[Kernel]:
    what = MatVec(WEIGHTS, SCALES, 96, 64, 32, "f16", rows=5, **asked)
    made = what.kernels(tuple(range(1, 1 + reads)), tuple(range(10, 10 + writes)), limits)
    for kernel in made:
        plan = kernel.plan
        described = {**vars(plan), "half": kernel.half, "lanes": limits.lanes, "bindings": kernel.bindings}
        assert {name for name, _ in declared_bindings(described)} == set(kernel.bindings)
        assert len(kernel.bindings) <= limits.buffers
    return made


@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_a_norm_is_a_kernel_before_the_product(limits: WorkgroupLimits) -> None:
    norm, product = kernels(limits, norm=RmsNorm(GAMMA, 0.5))
    assert (norm.plan.shader, norm.plan.counts) == ("norm_rows", (5, 1, 1))
    assert norm.bindings["x"] == Value(1)
    assert product.bindings["x"] == norm.bindings["normed"]
    assert isinstance(product.bindings["x"], Shared)
    assert product.bindings["x"].bytes >= 5 * 64 * 2
    assert product.bindings["y"] == Value(10)


def test_a_sum_that_others_read_is_written_by_the_norm() -> None:
    asked: dict[str, Any] = {"norm": RmsNorm(GAMMA, 0.5), "inner": RmsNorm(INNER, 0.25), "total": True}
    norm, product = kernels(LIMITS[0], 2, 2, **asked)
    assert (norm.bindings["skip"], norm.bindings["total"]) == (Value(2), Value(11))
    assert norm.bindings["gamma_inner"] == Buffer(INNER)
    assert product.bindings["y"] == Value(10)


def test_a_gated_product_that_binds_too_many_buffers_is_two_after_its_norm() -> None:
    asked: dict[str, Any] = {"norm": RmsNorm(GAMMA, 0.5), "zeros": ZEROS, "up": (UP, UP_SCALES, UP_ZEROS), "bias": True}
    norm, first, second = kernels(WorkgroupLimits(buffers=8), 3, **asked)
    assert first.bindings["x"] == second.bindings["x"] == norm.bindings["normed"]
    assert first.bindings["weights"] == Buffer(UP)
    assert second.bindings["up"] == first.bindings["y"] != norm.bindings["normed"]


def test_of_what_is_written_there_is_a_row_each() -> None:
    one, five = (MatVec(WEIGHTS, SCALES, 96, 64, 32, "f16", total=True, rows=rows) for rows in (1, 5))
    assert [five.written_bytes(i) for i in (0, 1)] == [5 * one.written_bytes(i) for i in (0, 1)] == [960, 640]


SIZES = (MatrixSize(16, 16, 16), MatrixSize(16, 8, 16), MatrixSize(16, 8, 8))
"""Those of NVIDIA's GPUs."""
MATRICES = WorkgroupLimits(32, 1024, 49152, buffers=10, matrices=SIZES)


def one_kernel(what: MatVec, limits: WorkgroupLimits) -> Kernel:
    [kernel] = what.kernels(tuple(range(1, 1 + len(what.inputs))), (10,), limits)
    described = {**vars(kernel.plan), "half": True, "lanes": limits.lanes, "bindings": kernel.bindings}
    assert {name for name, _ in declared_bindings(described)} == set(kernel.bindings)
    return kernel


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("k", "n"), [(2048, 3072), (8192, 2048), (2048, 128256), (576, 960), (576, 53)])
@pytest.mark.parametrize("rows", [9, 16, 17, 32])
@looped("held", [(WEIGHTS, SCALES), (WEIGHTS, SCALES, None, MINIMA)])
@looped("gated", [False, True])
@looped("sizes", [SIZES, SIZES[:1], (MatrixSize(8, 8, 8),)])
def test_integer_weights_meet_several_rows_on_subgroup_matrices(
    rows: int, k: int, n: int, gated: bool, held: tuple[int | None, ...], sizes: tuple[MatrixSize, ...]
) -> None:
    limits = replace(MATRICES, matrices=sizes)
    up = held if gated else None
    weights: dict[str, Any] = dict(zip(PACKED, held, strict=False))
    kernel = one_kernel(
        MatVec(**weights, n=n, k=k, block=32, element="f16", rows=rows, up=up, residual=not gated), limits
    )
    plan = kernel.plan
    assert plan.shader == "few_rows_matrices"
    optional = set(kernel.bindings) - {"x", "y"}
    found = declared_constants(plan.shader, plan.constants, optional, half=True, lanes=32)
    assert workgroup_bytes(plan.shader, plan.constants, optional, half=True, lanes=32) <= limits.memory
    assert found["LOADS"] * found["ROWS"] == found["TILE"]
    assert found["X_LOADS"] * 32 * found["WN"] == found["X_ROWS"] * 4 * found["TEAM"]
    staged = found["WK"] * (found["WN"] * found["TILE"] * found["STRIDE"] + found["X_ROWS"] * found["X_STRIDE"])
    results = found["WK"] * found["WN"] * found["MATRICES"] * found["AREA"]
    assert found["SIZE"] == max(staged, results)
    assert not callable(plan.counts)
    columns = found["OWN"] * found["WN"]
    assert 0 <= plan.counts[0] * columns - n < columns
    assert (plan.counts[1], plan.counts[2]) == (1, 1)
    assert found["X_ROWS"] >= rows


@pytest.mark.parametrize("rows", [9, 16, 17, 32])
@pytest.mark.parametrize(("k", "n"), [(2048, 3072), (8192, 2048), (2048, 128256)])
@looped("gated", [False, True])
def test_more_rows_of_dense_weights_go_to_subgroup_matrices(rows: int, k: int, n: int, gated: bool) -> None:
    up = (UP,) if gated else None
    kernel = one_kernel(
        MatVec(WEIGHTS, None, n, k, 0, "f16", rows=rows, up=up, residual=not gated), replace(MATRICES, matrices=SIZES)
    )
    plan = kernel.plan
    assert plan.shader == "matmul_matrices"
    optional = set(kernel.bindings) - {"x", "y"}
    found = declared_constants(plan.shader, plan.constants, optional, half=True, lanes=32)
    assert found["TILE_M"] >= rows
    assert k % found["STEP"] == 0
    assert workgroup_bytes(plan.shader, plan.constants, optional, half=True, lanes=32) <= MATRICES.memory
    assert not callable(plan.counts)
    assert 0 <= plan.counts[0] * found["COLUMNS"] - n < found["COLUMNS"]
    assert plan.counts[1] == 1


@pytest.mark.parametrize(
    ("other", "fewest"),
    [({}, 9), ({"n": 128256}, 7), ({"up": (UP, UP_SCALES)}, 9), ({"n": 8192, "up": (UP, UP_SCALES)}, 7)],
    ids=str,
)
def test_from_how_many_rows_on_subgroup_matrices_multiply(other: dict[str, Any], fewest: int) -> None:
    for rows, shader in ((fewest - 1, "few_rows_q4"), (fewest, "few_rows_matrices")):
        what = MatVec(WEIGHTS, SCALES, k=2048, block=32, element="f16", rows=rows, **{"n": 2048, **other})
        assert one_kernel(what, MATRICES).plan.shader == shader


@pytest.mark.parametrize("other", [{"rows": 8}, {"element": "f32"}, {"rows": 33}], ids=str)
def test_fewer_rows_and_float32_stay_with_threads(other: dict[str, Any]) -> None:
    what = MatVec(WEIGHTS, SCALES, k=2048, n=2048, block=32, **{"rows": 16, "element": "f16", **other})
    assert one_kernel(what, MATRICES).plan.shader == "few_rows_q4"


@pytest.mark.parametrize("other", [{"rows": 8}, {"element": "f32"}, {"bias": True}, {"activated": True}, {"n": 2044}])
def test_dense_products_of_another_form_stay_with_threads(other: dict[str, Any]) -> None:
    what = MatVec(WEIGHTS, None, k=2048, block=0, **{"rows": 16, "element": "f16", "n": 2048, **other})
    assert one_kernel(what, MATRICES).plan.shader == "few_rows_dense"


def test_matrices_that_no_workgroup_holds_are_not_taken() -> None:
    what = MatVec(WEIGHTS, SCALES, 2048, 2048, 32, "f16", rows=32)
    for limits in (replace(MATRICES, memory=8192), replace(MATRICES, threads=16), replace(MATRICES, matrices=())):
        assert one_kernel(what, limits).plan.shader == "few_rows_q4"


@pytest.mark.one_in(5)
@pytest.mark.parametrize("rows", [2, 3, 8, 32])
@pytest.mark.parametrize(("k", "n"), SHAPES)
@looped("gated", [False, True])
@looped("half", [False, True])
@looped("limits", LIMITS)
def test_tilings_keep_the_limits_of_the_shader_and_the_adapter(
    k: int, n: int, limits: WorkgroupLimits, half: bool, rows: int, gated: bool
) -> None:
    tuning = tune_rows(k, n, rows, gated, half, limits)
    given, has = {**PLAIN, "BLOCK": 32, **tuning.constants(32)}, product(gated, "scales")
    found = declared_constants("few_rows_q4", given, has, half=half, lanes=limits.lanes)
    assert found["WORKGROUP"] <= limits.threads
    assert found["WORKGROUP"] % found["SPAN"] == 0
    assert found["WORKGROUP"] % max(limits.lanes, 1) == 0
    assert 2 ** found["HALVINGS"] == found["WIDTH"]
    taken = workgroup_bytes("few_rows_q4", given, has, half=half, lanes=limits.lanes)
    assert taken == tuning.memory(half) <= limits.memory
    columns, tops, _ = tuning.workgroups
    assert 0 <= columns * found["TILE"] - n < found["TILE"]
    assert columns <= 65535
    assert 0 <= tops * found["TALL"] - rows < found["TALL"]


@pytest.mark.parametrize("limits", LIMITS, ids=str)
@looped("half", [False, True])
@looped("gated", [False, True])
def test_dense_tilings_keep_the_limits_too(limits: WorkgroupLimits, gated: bool, half: bool) -> None:
    for k, n in SHAPES:
        tuning = tune_dense_rows(k, n, 8, gated, half, limits)
        given, has = {**PLAIN, **tuning.constants()}, product(gated)
        found = declared_constants("few_rows_dense", given, has, half=half, lanes=limits.lanes)
        assert found["WORKGROUP"] <= limits.threads
        assert found["SUMS"] * found["WIDE"] <= 64
        assert workgroup_bytes("few_rows_dense", given, has, half=half, lanes=limits.lanes) <= limits.memory
        assert tuning.workgroups[1] * found["TALL"] >= 8


@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_a_norms_threads_hold_a_row(limits: WorkgroupLimits) -> None:
    for k in (64, 576, 8192):
        constants = norm_constants(k, limits)
        assert int(constants["ITEMS"]) * int(constants["WORKGROUP"]) >= k
        assert int(constants["WORKGROUP"]) % max(limits.lanes, 1) == 0
        assert int(constants["WORKGROUP"]) <= limits.threads
