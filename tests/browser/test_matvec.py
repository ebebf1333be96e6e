"""matvec_q4.wgsl against float64, on the adapter there is: with float32, and with and without subgroups."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from capstan.tape.kernel_plan import WorkgroupLimits
from capstan.tape.ops.gemv_int4 import MatvecTuning, tune_matvec
from tests.browser.kernel_page import EPSILON, KernelPage
from tests.browser.product import EPSILON_INNER, MOST_SPLITS, Product, compare


def check(page: KernelPage, case: Product, tuning: MatvecTuning, half: bool = False) -> None:
    constants = {
        "BLOCK": case.block,
        "FIRST": case.first,
        "BYTES": case.bits == 8,
        "SIXTEENS": case.block == 16,
        "EPSILON": EPSILON,
        "EPSILON_INNER": EPSILON_INNER,
        "PREPARED": case.centered or case.behind or case.wide,
        "WIDE": case.wide,
        **case.attended(tuning.lanes),
        **case.activation(),
        **tuning.constants(),
    }
    compare(page, "matvec_q4", case, constants, (tuning.workgroups, 1, 1), half=half, lanes=tuning.lanes)


def cut(case: Product, lanes: int, rows: int, span: int, workgroup: int, **rest: Any) -> MatvecTuning:
    return MatvecTuning(case.k, case.n, case.gated, lanes, rows, span, workgroup, **rest)


REAL = [
    Product(576, 960, norm=True),
    Product(576, 300, norm=True, gated=True),
    Product(576, 300, norm=True, gated=True, gelu=True),
    Product(576, 300, norm=True, times=True, gelu=True),
    Product(1536, 576, residual=True),
    Product(896, 300, norm=True, bias=True),
    Product(4864, 100, residual=True),
    Product(2048, 301, norm=True),
    Product(3072, 150, norm=True, gated=True),
    Product(8192, 67, residual=True),
]


@pytest.mark.one_in(6)
@pytest.mark.parametrize("case", [Product(1024, 67, residual=True), Product(1024, 37, norm=True, gated=True)], ids=str)
def test_a_thread_takes_many_runs_of_a_long_row(kernel_page: KernelPage, case: Product) -> None:
    check(kernel_page, case, cut(case, 4, 2, 4, 16, staged=True))
    check(kernel_page, case, cut(case, 4, 1, 4, 16, most=3, staged=True))


@pytest.mark.one_in(6)
@pytest.mark.parametrize("case", REAL, ids=str)
def test_the_shapes_of_models_as_they_are_tuned(kernel_page: KernelPage, case: Product) -> None:
    check(kernel_page, case, tune_matvec(case.k, case.n, case.gated, False, case.bits, WorkgroupLimits(software=True)))


@pytest.mark.one_in(12)
@pytest.mark.parametrize("half", [False, True], ids=["float32", "float16"])
@pytest.mark.parametrize("lanes", [4, 8, 16, 32, 64])
def test_the_tunings_for_every_subgroup_size(kernel_page: KernelPage, lanes: int, half: bool) -> None:
    """In workgroups of 256 threads with 16 KiB, the minimum of every adapter."""
    for case in (
        Product(576, 96, norm=True),
        Product(896, 150, norm=True, gated=True),
        Product(3072, 67, residual=True),
        Product(576, 67, residual=True, splits=5),
        Product(1152, 150, norm=True, behind=True, gated=True, gelu=True, wide=half),
    ):
        check(kernel_page, case, tune_matvec(case.k, case.n, case.gated, half, case.bits, WorkgroupLimits(lanes)), half)


FUSED = [
    Product(96, 37),
    Product(96, 37, norm=True),
    Product(96, 37, residual=True),
    Product(96, 37, bias=True),
    Product(96, 37, gated=True),
    Product(96, 37, residual=True, bias=True),
    Product(96, 37, norm=True, gated=True),
    Product(96, 37, norm=True, times=True),
    Product(96, 37, norm=True, centered=True),
    Product(96, 37, norm=True, behind=True),
    Product(96, 37, norm=True, behind=True, gated=True, gelu=True),
    Product(96, 37, gated=True, bias=True),
    Product(96, 37, activated=True, bias=True, gelu=True),
    Product(96, 37, activated=True, bias=True, gelu=True, erf=True),
    Product(96, 37, activated=True, power=2),
    Product(96, 37, activated=True, power=3),
    Product(96, 37, factor="*", residual=True, second=True),
    Product(96, 37, factor="/"),
    Product(96, 37, factor="cap"),
    Product(96, 37, norm=True, first=5),
    Product(96, 37, residual=True, splits=2),
    Product(96, 37, residual=True, bias=True, splits=MOST_SPLITS),
]


@pytest.mark.one_in(6)
@pytest.mark.parametrize("lanes", [0, 4])
@pytest.mark.parametrize("case", FUSED, ids=str)
def test_what_surrounds_the_product(kernel_page: KernelPage, case: Product, lanes: int) -> None:
    check(kernel_page, case, cut(case, lanes, 2, 8, 32, staged=True))
    check(kernel_page, case, cut(case, lanes, 2, 8, 32))


@pytest.mark.one_in(8)
@pytest.mark.parametrize("lanes", [0, 4])
@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize(("rows", "span", "workgroup"), [(1, 4, 8), (4, 4, 32), (3, 8, 16), (1, 16, 64), (8, 32, 32)])
def test_every_cut_gives_the_same(
    kernel_page: KernelPage, lanes: int, staged: bool, rows: int, span: int, workgroup: int
) -> None:
    case = Product(224, 53, norm=True, gated=True)  # 7 runs of 32: no span divides them
    check(kernel_page, case, cut(case, lanes, rows, span, workgroup, staged=staged))
    check(kernel_page, case, cut(case, lanes, rows, span, workgroup, staged=staged, most=2))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("lanes", [0, 4])
@pytest.mark.parametrize("staged", [False, True])
def test_float16_is_taken_apart_as_float32_is(kernel_page: KernelPage, lanes: int, staged: bool) -> None:
    for case in (
        Product(224, 53, norm=True, gated=True),
        Product(224, 53, residual=True),
        Product(224, 53, norm=True, behind=True),
        Product(224, 53, norm=True, behind=True, wide=True),
        Product(224, 53, norm=True, centered=True, wide=True),
    ):
        check(kernel_page, case, cut(case, lanes, 2, 8, 32, staged=staged), half=True)


PACKED = [
    Product(384, 21, block=64),
    Product(384, 21, block=128, bits=8),
    Product(96, 37, zeros=True),
    Product(96, 37, bits=8),
    Product(96, 37, bits=8, zeros=True),
    Product(96, 37, block=16),
    Product(96, 37, block=16, zeros=True),
    Product(96, 37, block=16, bits=8, zeros=True),
    # The last block of a row is part empty, and its rows have an odd number of zero points.
    Product(320, 21, block=128, zeros=True),
    Product(96, 21, block=128),
    Product(576, 21, block=256, bits=8, zeros=True),
    Product(224, 53, norm=True, gated=True, zeros=True),
    Product(224, 53, norm=True, gated=True, bits=8, zeros=True),
    Product(160, 53, norm=True, gated=True, block=16, bits=8, zeros=True),
    Product(224, 53, residual=True, block=64, zeros=True),
    Product(96, 37, minima=True),
    Product(384, 21, block=64, minima=True),
    Product(96, 37, bits=8, minima=True, residual=True),
    Product(96, 37, block=16, minima=True),
    Product(160, 53, norm=True, gated=True, block=16, bits=8, minima=True),
    Product(224, 53, norm=True, gated=True, minima=True),
    Product(320, 21, block=128, zeros=True, minima=True),
]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("lanes", [0, 4])
def test_rows_may_end_within_a_run(kernel_page: KernelPage, lanes: int, half: bool) -> None:
    for case in (
        Product(200, 37, block=64, zeros=True),
        Product(72, 37, norm=True, bits=8),
        Product(80, 37, norm=True, gated=True),
        Product(200, 37, block=64, minima=True),
        Product(104, 37, norm=True, behind=True),
    ):
        check(kernel_page, case, cut(case, lanes, 2, 8, 32, staged=True), half=half)
        check(kernel_page, case, cut(case, lanes, 4, 4, 16, most=3), half=half)
        check(kernel_page, case, tune_matvec(case.k, case.n, case.gated, half, case.bits, WorkgroupLimits(lanes)), half)


@pytest.mark.one_in(22)
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("lanes", [0, 4])
@pytest.mark.parametrize("case", PACKED, ids=str)
def test_weights_in_every_form(kernel_page: KernelPage, case: Product, lanes: int, half: bool) -> None:
    check(kernel_page, case, cut(case, lanes, 2, 8, 32, staged=True), half=half)
    check(kernel_page, case, cut(case, lanes, 4, 4, 16, most=3), half=half)


def test_the_tuning_for_larger_subgroups_computes_the_same_without_them(kernel_page: KernelPage) -> None:
    for case in (Product(2048, 300, norm=True), Product(8192, 40, residual=True)):
        check(
            kernel_page,
            case,
            replace(tune_matvec(case.k, case.n, case.gated, False, case.bits, WorkgroupLimits(32)), lanes=0, most=3),
        )
