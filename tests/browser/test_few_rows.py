"""few_rows_q4.wgsl, few_rows_dense.wgsl, few_rows_matrices.wgsl and norm_rows.wgsl against float64, on the adapter
there is: float32, with and without subgroups."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from capstan.tape.kernel_plan import MatrixSize, WorkgroupLimits
from capstan.tape.ops.few_rows import norm_constants, tune_dense_rows, tune_rows
from capstan.tape.ops.matrix_tiling import FewRowsTiling
from tests.browser.kernel_page import EPSILON, KernelPage, guarded, results
from tests.browser.product import EPSILON_INNER, Product, compare
from tests.extended import pairwise

LIMITS = [WorkgroupLimits(), WorkgroupLimits(software=True), *(WorkgroupLimits(lanes) for lanes in (4, 8, 16, 32, 64))]
"""Without subgroups, like the software adapter here, and with subgroups in the smallest workgroups of any adapter."""


def check(page: KernelPage, case: Product, limits: WorkgroupLimits, half: bool = False, **other: Any) -> None:
    """With the tiling for these limits, `other` in place of some of it."""
    tuning: Any
    if case.bits:
        tuning = replace(tune_rows(case.k, case.n, case.m, case.gated, half, limits), **other)
    else:
        tuning = replace(tune_dense_rows(case.k, case.n, case.m, case.gated, half, limits), **other)
    run(page, case, tuning, limits, half)


def check_matrices(page: KernelPage, case: Product, tiling: FewRowsTiling) -> None:
    """With subgroup matrices as kernel_page.ts computes them."""
    run(page, case, tiling, WorkgroupLimits(tiling.lanes), True)


def run(page: KernelPage, case: Product, tuning: Any, limits: WorkgroupLimits, half: bool) -> None:
    if isinstance(tuning, FewRowsTiling):
        shader, workgroups = "few_rows_matrices", (*tuning.workgroups(case.m, case.n, case.gated), 1)
        own = {"K": case.k, "N": case.n, "M": case.m, **tuning.constants(case.block, case.bits)}
    else:
        shader, workgroups = "few_rows_q4" if case.bits else "few_rows_dense", tuning.workgroups
        own = tuning.constants(case.block) if case.bits else tuning.constants()
    packed = {"BLOCK": case.block, "BYTES": case.bits == 8} if case.bits else {}
    constants = {**case.activation(), "FIRST": case.first, "OF": case.first + case.n, **packed, **own}
    compare(page, shader, case, constants, workgroups, half=half, lanes=limits.lanes)


@pytest.mark.one_in
@pytest.mark.parametrize("limits", LIMITS, ids=lambda limits: f"{limits.lanes} lanes {limits.software}")
def test_the_tunings_for_every_subgroup_size(kernel_page: KernelPage, limits: WorkgroupLimits) -> None:
    """Rows that a thread's tiling holds, and one tiling and a part; weights that fill their tiles, and that do not."""
    check(kernel_page, Product(576, 96, m=8), limits, half=True)
    check(kernel_page, Product(224, 53, m=11, gated=True, zeros=True), limits)
    check(kernel_page, Product(192, 96, m=8, bits=0), limits)
    check(kernel_page, Product(92, 72, m=11, bits=0, gated=True), limits, half=True)


FORMS = [
    Product(384, 21, m=2, block=64, bias=True, factor="*", residual=True, second=True),
    Product(96, 37, m=3, bits=8, gated=True, bias=True, factor="*"),
    Product(96, 37, m=5, block=16, zeros=True, times=True),
    Product(96, 37, m=16, bits=8, block=16, zeros=True, activated=True),
    # The last block of a row is part empty, and its rows have an odd number of zero points.
    Product(320, 21, m=4, block=128, zeros=True),
    Product(96, 21, m=32, block=128),
    Product(192, 37, m=3, minima=True, first=11),
    Product(96, 37, m=9, bits=8, gated=True, minima=True),
    Product(96, 37, m=4, block=16, minima=True, activated=True),
    Product(92, 72, m=2, bits=0, bias=True, factor="*", residual=True, second=True),
    Product(92, 72, m=3, bits=0, first=8),
    Product(92, 72, m=3, bits=0, gated=True, bias=True, factor="*"),
    Product(92, 72, m=5, bits=0, times=True),
    Product(92, 72, m=32, bits=0, activated=True),
]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("half", [False, True], ids=["float32", "float16"])
@pytest.mark.parametrize("lanes", [0, 4])
def test_weights_in_every_form_and_what_is_behind_them(kernel_page: KernelPage, lanes: int, half: bool) -> None:
    for case in FORMS:
        check(kernel_page, case, WorkgroupLimits(lanes), half)


TILINGS = [
    FewRowsTiling(MatrixSize(8, 8, 8), 4, (2, 1), 1, 1),
    FewRowsTiling(MatrixSize(8, 8, 8), 8, (4, 2), 2, 1),
    FewRowsTiling(MatrixSize(8, 8, 16), 4, (2, 1), 2, 2),
    FewRowsTiling(MatrixSize(4, 16, 16), 4, (4, 2), 1, 4),
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("case", "tiling"), pairwise([(case,) for case in FORMS if case.bits], [], TILINGS), ids=str)
def test_subgroup_matrices_multiply_weights_in_every_form(
    kernel_page: KernelPage, case: Product, tiling: FewRowsTiling
) -> None:
    check_matrices(kernel_page, case, tiling)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("lanes", [0, 4])
def test_every_tiling_gives_the_same(kernel_page: KernelPage, lanes: int) -> None:
    case = Product(416, 53, m=6, gated=True, zeros=True)
    for tall, rows, span, workgroup in ((2, 1, 4, 8), (3, 2, 8, 32), (6, 1, 16, 16), (4, 4, 32, 64)):
        tiling: dict[str, Any] = {"tall": tall, "rows": rows, "span": span, "workgroup": workgroup}
        check(kernel_page, case, WorkgroupLimits(lanes), **tiling)


NORMS = ["", "centered", "behind", "centered behind wide"]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("lanes", [0, 4, 32])
@pytest.mark.parametrize("asked", NORMS, ids=lambda asked: asked or "RMS")
def test_rows_are_normalised(kernel_page: KernelPage, asked: str, lanes: int) -> None:
    m, k = 3, 300
    random = np.random.default_rng(lanes)
    x, skip = random.normal(0.3, 1, (2, m, k)).astype(np.float32)
    gamma, gamma_inner, beta = random.uniform(0.5, 1.5, (3, k)).astype(np.float32)
    centered, behind, wide_x = ("centered" in asked, "behind" in asked, "wide" in asked)
    limits = WorkgroupLimits(lanes)
    constants = {"WIDE": wide_x, "EPSILON": EPSILON, "EPSILON_INNER": EPSILON_INNER, **norm_constants(k, limits)}
    given = {"x": x, "gamma": gamma, **({"beta": beta} if centered else {})}
    given |= {"gamma_inner": gamma_inner, "skip": skip} if behind else {}
    buffers = {name: data.tobytes() for name, data in given.items()}
    buffers |= dict.fromkeys(("total", "normed") if behind else ("normed",), guarded(m * k))

    def found(read: str) -> NDArray[np.float32]:
        about: dict[str, Any] = {"half": wide_x, "lanes": lanes}
        return results(kernel_page.run("norm_rows", constants, buffers, (m, 1, 1), read=read, **about), m * k).reshape(
            m, k
        )

    wide = x.astype(np.float64)
    if behind:
        wide = skip + wide / np.sqrt(np.mean(wide * wide, 1, keepdims=True) + EPSILON_INNER) * gamma_inner
        np.testing.assert_allclose(found("total"), wide, rtol=2**-18, atol=2**-20)
    wide = wide - wide.mean(1, keepdims=True) if centered else wide
    wide = wide / np.sqrt(np.mean(wide * wide, 1, keepdims=True) + EPSILON) * gamma
    np.testing.assert_allclose(found("normed"), wide + beta if centered else wide, rtol=2**-17, atol=2**-18)
