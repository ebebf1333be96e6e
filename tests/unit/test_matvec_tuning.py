"""The tuned constants keep the limits in the shader's header, for models' shapes and all subgroup sizes."""

from __future__ import annotations

import pytest

from capstan.tape.kernel_plan import WorkgroupLimits
from capstan.tape.ops.gemv_int4 import tune_matvec
from tests.looped import looped
from tests.unit.shader_declarations import PACKED, PLAIN, declared_constants, workgroup_bytes

SHAPES = [
    *[(576, 960, False), (576, 576, False), (576, 1536, True), (1536, 576, False), (576, 49152, False)],
    *[(896, 1152, False), (896, 896, False), (896, 4864, True), (4864, 896, False), (896, 151936, False)],
    *[(1152, 1536, False), (1024, 1152, False), (1152, 6912, True), (6912, 1152, False), (1152, 262144, False)],
    *[(2048, 3072, False), (2048, 2048, False), (2048, 8192, True), (8192, 2048, False), (2048, 128256, False)],
    *[(2560, 6144, False), (4096, 2560, False), (2560, 9728, True), (9728, 2560, False), (2560, 151936, False)],
    *[(4096, 6144, False), (4096, 4096, False), (4096, 14336, True), (4096, 128256, False), (18944, 3584, False)],
    *[(3072, 5120, False), (3072, 3072, False), (3072, 8192, True), (8192, 3072, False), (3072, 128256, False)],
    *[
        (32, 1, False),
        (64, 65, True),
        (128, 32768, False),
        (128, 32768, True),
        (5120, 27648, True),
        (27648, 5120, False),
        (14336, 4096, False),
    ],
]


LIMITS = [
    WorkgroupLimits(software=True),
    WorkgroupLimits(0, 1024, 49152),
    *[WorkgroupLimits(lanes, 256) for lanes in (8, 16, 32, 64)],
    *[WorkgroupLimits(lanes, 1024, 49152) for lanes in (8, 16, 32, 64)],
    WorkgroupLimits(32, 1024),
]


@pytest.mark.one_in(5)
@pytest.mark.parametrize(("k", "n", "gated"), SHAPES)
@looped("half", [False, True])
@looped("bits", [4, 8])
@looped("limits", LIMITS)
def test_a_cut_keeps_the_limits_of_the_shader_and_the_adapter(
    k: int, n: int, gated: bool, half: bool, bits: int, limits: WorkgroupLimits
) -> None:
    tuning = tune_matvec(k, n, gated, half, bits, limits)
    lanes = limits.lanes
    span, workgroup = tuning.span, tuning.workgroup
    assert workgroup % span == 0
    assert span % 4 == 0
    assert tuning.rows <= span
    assert 8 <= workgroup <= limits.threads
    assert tuning.split == (lanes == 0 or span > lanes)
    if lanes:
        assert workgroup % lanes == 0
        assert span % lanes == 0 or (span < lanes and span.bit_count() == 1)
    assert 1 <= tuning.workgroups <= 65535
    assert tuning.steps * span * 32 >= k
    staging = 4 * tuning.steps * span
    assert tuning.constants()["OWN"] == -(-staging // workgroup)
    assert not tuning.staged or staging * (16 if half else 32) < limits.memory
    constants = {**PLAIN, "BLOCK": 32, **tuning.constants()}
    has = ("gamma", *PACKED, *[f"{name}_up" for name in PACKED] * gated)
    assert constants["SUMS"] == tuning.rows * (2 if gated else 1)
    assert 1 << int(constants["HALVINGS"]) == min(span, lanes or 1)
    declared = declared_constants("matvec_q4", constants, has, half=half, lanes=lanes)
    tiles = declared["TILES"]
    assert declared["TILE"] * (tiles - 1) < n <= declared["TILE"] * tiles
    assert tuning.workgroups == tiles or (tuning.workgroups < tiles and constants["LOOP"])
    assert workgroup_bytes("matvec_q4", constants, has, half=half, lanes=lanes) <= limits.memory


def test_a_processor_without_subgroups_gets_fewer_threads() -> None:
    software, other = (tune_matvec(2048, 8192, True, False, 4, WorkgroupLimits(software=s)) for s in (True, False))
    assert software.workgroup * software.workgroups < other.workgroup * other.workgroups


@pytest.mark.parametrize("k", [1024, 1152, 1280, 1536, 2048, 3072])
@pytest.mark.parametrize(("n", "gated"), [(1536, False), (6912, True), (262144, False)])
def test_of_the_threads_that_share_a_row_a_quarter_idles_at_most(k: int, n: int, gated: bool) -> None:
    tuning = tune_matvec(k, n, gated, True, 4, WorkgroupLimits(32, 1024, 49152))
    assert k >= 0.75 * 32 * tuning.steps * tuning.span


@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_what_a_thread_keeps_of_x_and_of_sums_does_not_grow_with_the_weights(limits: WorkgroupLimits) -> None:
    for k, n, gated in SHAPES:
        for bits in (4, 8):
            tuning = tune_matvec(k, n, gated, True, bits, limits)
            sums = int(tuning.constants()["SUMS"])
            if limits.lanes and k <= 3 * 32 * 256:
                assert tuning.steps <= 3 or tuning.staged
            assert sums <= 16
            assert not tuning.staged or sums * tuning.steps * bits // 4 <= 32, "words of weights under way"
