"""What the shader's header asks of its constants, for the shapes of models and the subgroup sizes there are."""

from __future__ import annotations

import pytest

from capstan.tape.kernel_plan import WorkgroupLimits
from capstan.tape.matvec_tuning import tune_matvec

SHAPES = [
    *[(576, 960, False), (576, 576, False), (576, 1536, True), (1536, 576, False), (576, 49152, False)],
    *[(896, 1152, False), (896, 896, False), (896, 4864, True), (4864, 896, False), (896, 151936, False)],
    *[(2048, 3072, False), (2048, 2048, False), (2048, 8192, True), (8192, 2048, False), (2048, 128256, False)],
    *[(3072, 5120, False), (3072, 3072, False), (3072, 8192, True), (8192, 3072, False), (3072, 128256, False)],
    *[(32, 1, False), (64, 65, True), (5120, 27648, True), (27648, 5120, False), (14336, 4096, False)],
]


LIMITS = [
    WorkgroupLimits(software=True),
    WorkgroupLimits(0, 1024, 49152),
    *[WorkgroupLimits(lanes, 256) for lanes in (8, 16, 32, 64)],
    *[WorkgroupLimits(lanes, 1024, 49152) for lanes in (8, 16, 32, 64)],
]


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("limits", LIMITS, ids=str)
@pytest.mark.parametrize(("k", "n", "gated"), SHAPES)
def test_a_cut_keeps_the_limits_of_the_shader_and_the_adapter(
    k: int, n: int, gated: bool, half: bool, limits: WorkgroupLimits
) -> None:
    tuning = tune_matvec(k, n, gated, half, limits)
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
