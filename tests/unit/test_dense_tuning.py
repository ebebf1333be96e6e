"""The tuned constants keep the limits in the shader's header, for models' shapes and all subgroup sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from capstan.tape.kernel_plan import WorkgroupLimits
from capstan.tape.ops.gemv_dense import column_width, tune_dense
from tests.looped import looped
from tests.unit.shader_declarations import PLAIN, declared_constants, workgroup_bytes

SHAPES = [
    *[(256, 512), (256, 256), (256, 448), (448, 256), (256, 2048), (64, 128), (4, 8)],
    *[(576, 960), (576, 576), (576, 1536), (1536, 576), (576, 49152)],
    *[(896, 1152), (896, 896), (896, 4864), (4864, 896), (896, 151936)],
    *[(2048, 3072), (2048, 2048), (2048, 8192), (8192, 2048), (2048, 128256), (5120, 27648), (27648, 5120)],
]
LIMITS = [
    WorkgroupLimits(software=True),
    WorkgroupLimits(0, 1024, 49152),
    WorkgroupLimits(4, 1024),
    *[WorkgroupLimits(lanes, 256) for lanes in (4, 8, 16, 32, 64)],
    *[WorkgroupLimits(lanes, 1024, 49152) for lanes in (4, 8, 16, 32, 64)],
    WorkgroupLimits(32, 512, 32768),
]


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("k", "n"), SHAPES)
@looped("half", [False, True])
@looped("limits", LIMITS)
def test_a_cut_keeps_the_limits_of_the_shader_and_the_adapter(
    k: int, n: int, half: bool, limits: WorkgroupLimits
) -> None:
    tuning = tune_dense(k, n, False, half, limits)
    constants = tuning.constants()
    threads = tuning.columns * tuning.span
    assert threads <= limits.threads
    assert tuning.span % tuning.width == 0
    assert constants["SPLIT"] == (tuning.span > tuning.width)
    assert 2 ** int(constants["HALVINGS"]) == tuning.width
    if limits.lanes:
        assert tuning.columns * tuning.width == limits.lanes
        assert threads % limits.lanes == 0
    else:
        assert tuning.width == 1
    assert 1 <= tuning.workgroups <= 65535
    assert 0 <= tuning.workgroups * tuning.columns * column_width(half) - n < tuning.columns * column_width(half)
    given, has = {**PLAIN, **constants}, ("gamma", "weights", "weights_up")
    declared = declared_constants("matvec_dense", given, has, half=half, lanes=limits.lanes)
    assert declared["WORKGROUP"] == threads
    assert declared["VECTORS"] * column_width(half) == n
    memory = workgroup_bytes("matvec_dense", given, has, half=half, lanes=limits.lanes)
    assert memory == (tuning.memory if constants["SPLIT"] else 0)
    assert memory <= limits.memory


@pytest.mark.parametrize(("k", "n"), SHAPES)
def test_a_processor_without_subgroups_shares_no_columns(k: int, n: int) -> None:
    alone, shared, sized, other = (
        tune_dense(k, n, False, False, WorkgroupLimits(lanes, software=software))
        for lanes, software in ((0, True), (0, False), (8, True), (8, False))
    )
    assert alone.span == 1 < shared.span
    assert sized == other


@pytest.mark.parametrize(("k", "n"), [(k, n) for k, n in SHAPES if k >= 4096 or n >= 49152])
@looped("half", [False, True])
@looped("gated", [False, True])
@looped("limits", [limits for limits in LIMITS if limits.lanes])
def test_rows_are_read_in_pieces_as_long_as_leave_threads_for_a_large_adapter(
    k: int, n: int, limits: WorkgroupLimits, gated: bool, half: bool
) -> None:
    tuning = tune_dense(k, n, gated, half, limits)
    vectors = n // column_width(half)
    assert tuning.columns == 2 or vectors * tuning.span >= 65536


H200 = WorkgroupLimits(32, 1024, 49152)


@pytest.mark.parametrize(
    ("k", "n", "gated", "columns", "threads"),
    [
        (2048, 3072, False, 4, 1024),
        (2048, 2048, False, 4, 1024),
        (2048, 8192, True, 8, 512),
        (8192, 2048, False, 4, 1024),
        (2048, 128256, False, 32, 512),
    ],
)
def test_a_llama_of_1b_gets_what_was_fastest_on_an_h200(
    k: int, n: int, gated: bool, columns: int, threads: int
) -> None:
    tuning = tune_dense(k, n, gated, True, H200)
    assert (tuning.columns, tuning.columns * tuning.span) == (columns, threads)


@pytest.mark.parametrize(("k", "n"), SHAPES)
@looped("half", [False, True])
@looped("limits", [limits for limits in LIMITS if limits.lanes])
def test_subgroups_share_columns_until_a_limit_or_the_runs_of_four_rows_are_used_up(
    k: int, n: int, half: bool, limits: WorkgroupLimits
) -> None:
    tuning = tune_dense(k, n, True, half, limits)
    assert tuning.span == tuning.width or 4 * tuning.span <= k
    wider = replace(tuning, span=2 * tuning.span)
    assert wider.span * wider.columns > min(limits.threads, 512) or 4 * wider.span > k or wider.memory > limits.memory


@pytest.mark.parametrize("half", [False, True])
def test_a_cut_may_take_all_of_the_workgroup_memory(half: bool) -> None:
    wide = tune_dense(2048, 2048, False, half, WorkgroupLimits(8, 1024, 49152))
    assert tune_dense(2048, 2048, False, half, WorkgroupLimits(8, 1024, wide.memory)) == wide
    narrower = tune_dense(2048, 2048, False, half, WorkgroupLimits(8, 1024, wide.memory - 1))
    assert narrower.memory < wide.memory
