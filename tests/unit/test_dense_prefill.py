"""Which products of a recorded prefill run by dense weights become ours: those of float16, by subgroup matrices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from capstan.tape import MatVec, Recorded, Recording, WorkgroupLimits, fuse_prefill
from capstan.tape.kernel_plan import MatrixSize
from capstan.tape.ops.matmul_matrices import MatrixMatMul
from capstan.tape.recording import BindGroup, Dispatch, Pipeline, Write
from tests.unit.recorded_kernels import KERNELS, Number, pack_uniforms

ROWS, K, N = 64, 256, 512
MATMUL = KERNELS["matmul"]
UNIFORMS: dict[str, Number] = {
    "a_shape": (1, ROWS, K // 4),
    "b_shape": (K, N // 4),
    "output_shape": (1, ROWS, N // 4),
    "dim_a_outer": ROWS,
    "dim_b_outer": N,
    "dim_inner": K,
}
LIMITS = WorkgroupLimits(32, 1024, 49152, matrices=(MatrixSize(16, 16, 16),))
X, W, Y, UPLOADED = 1, 2, 3, 4


def fused(
    code: str,
    uniforms: dict[str, Number] = UNIFORMS,
    limits: WorkgroupLimits = LIMITS,
    *,
    names: tuple[str, ...] = ("a", "b", "output"),
    changed: bool = False,
    rows: int = ROWS,
) -> list[Any]:
    """The operations that replace one recorded product and, if `changed`, an operation that then writes its weights."""
    access = {(0, i): "read_write" if i == 2 else "read" for i in range(3)}
    bound = {(0, i): name for i, name in enumerate(names)} | {(0, 3): "uniforms"}
    pipelines = {0: Pipeline("product", access | {(0, 3): "uniform"}, code, bound)}
    groups = {0: BindGroup(((0, X, 0, 1 << 20), (1, W, 0, 1 << 20), (2, Y, 0, 1 << 20), (3, UPLOADED, 0, 128)))}
    ops = [Dispatch(0, (0,), 16, 2, 1)]
    if changed:
        pipelines[1] = Pipeline("change", {(0, 0): "read_write"}, "", {(0, 0): "z"})
        groups[1] = BindGroup(((0, W, 0, 1 << 20),))
        ops.append(Dispatch(1, (1,), 1, 1, 1))
    write = Write(UPLOADED, 0, pack_uniforms(MATMUL.fields, uniforms))
    recording = Recording(1, (write, *ops), pipelines, groups, dict.fromkeys((X, W, Y, UPLOADED), 1 << 20))
    placement = fuse_prefill(recording, ops, [Y, W] if changed else [Y], {}, rows, limits)
    return [node.what for node in placement.nodes]


CODE = MATMUL.code.replace("f32", "f16")


def test_a_product_of_all_rows_becomes_ours() -> None:
    assert fused(CODE) == [MatrixMatMul(W, None, ROWS, N, K, 0)]


@pytest.mark.parametrize("code", [CODE, MATMUL.code], ids=["float16", "float32"])
def test_a_product_of_few_rows_is_that_of_decode_steps(code: str) -> None:
    uniforms = UNIFORMS | {"dim_a_outer": 8, "a_shape": (1, 8, K // 4), "output_shape": (1, 8, N // 4)}
    element = "f16" if code == CODE else "f32"
    limits = replace(LIMITS, matrices=())
    assert fused(code, uniforms, limits=limits, rows=8) == [MatVec(W, None, N, K, 0, element, rows=8)]


@pytest.mark.parametrize("line", MATMUL.lines)
def test_a_kernel_that_lacks_a_line_is_another(line: str) -> None:
    assert [type(what) for what in fused(MATMUL.without(line).code.replace("f32", "f16"))] == [Recorded]


@pytest.mark.parametrize(
    "other",
    [
        {"dim_a_outer": ROWS // 2, "a_shape": (2, ROWS // 2, K // 4), "output_shape": (2, ROWS // 2, N // 4)},
        {"a_shape": (1, 2 * ROWS, K // 4)},
        {"output_shape": (1, 1, N // 4)},
        {"b_shape": (K, N // 2)},
        {"dim_inner": K + 2},
    ],
    ids=str,
)
def test_other_shapes_stay_as_recorded(other: dict[str, Number]) -> None:
    assert [type(what) for what in fused(CODE, UNIFORMS | other)] == [Recorded]


def test_float32_and_adapters_without_subgroup_matrices_stay_as_recorded() -> None:
    assert [type(what) for what in fused(MATMUL.code)] == [Recorded]
    assert [type(what) for what in fused(CODE, limits=replace(LIMITS, matrices=()))] == [Recorded]


def test_other_bindings_are_another_kernel() -> None:
    assert [type(what) for what in fused(CODE, names=("a", "b", "sums"))] == [Recorded]


def test_weights_that_the_run_writes_are_not_taken_for_constant() -> None:
    assert [type(what) for what in fused(CODE, changed=True)] == [Recorded, Recorded]


def test_another_version_of_the_uniforms_is_another_kernel() -> None:
    assert [type(what) for what in fused(CODE.replace("dim_inner", "dim_k"))] == [Recorded]
