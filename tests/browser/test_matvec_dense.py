"""matvec_dense.wgsl against float64, on the adapter there is: with float32, and with and without subgroups."""

from __future__ import annotations

import pytest

from capstan.tape.kernel_plan import WorkgroupLimits
from capstan.tape.ops.gemv_dense import DenseTuning, tune_dense
from tests.browser.kernel_page import EPSILON, KernelPage
from tests.browser.product import Product, compare


def check(page: KernelPage, case: Product, tuning: DenseTuning, half: bool = False) -> None:
    constants = {"FIRST": case.first, "EPSILON": EPSILON, **case.activation(), **tuning.constants()}
    compare(page, "matvec_dense", case, constants, (tuning.workgroups, 1, 1), half=half, lanes=tuning.lanes)


REAL = [
    Product(256, 512, bits=0, norm=True),
    Product(256, 448, bits=0, norm=True, gated=True),
    Product(256, 448, bits=0, norm=True, gated=True, gelu=True),
    Product(448, 256, bits=0, residual=True),
    Product(576, 960, bits=0, norm=True),
    Product(1536, 576, bits=0, residual=True),
    Product(896, 1152, bits=0, norm=True, residual=True),
    Product(4864, 104, bits=0, residual=True),
    Product(2048, 304, bits=0, norm=True, gated=True),
    Product(8192, 72, bits=0, residual=True),
]


@pytest.mark.one_in(6)
@pytest.mark.parametrize("case", REAL, ids=str)
def test_the_shapes_of_models_as_they_are_tuned(kernel_page: KernelPage, case: Product) -> None:
    check(kernel_page, case, tune_dense(case.k, case.n, case.gated, False, WorkgroupLimits(software=True)))


@pytest.mark.one_in(6)
@pytest.mark.parametrize("half", [False, True], ids=["float32", "float16"])
@pytest.mark.parametrize("lanes", [4, 8, 16, 32, 64])
def test_the_tunings_for_every_subgroup_size(kernel_page: KernelPage, lanes: int, half: bool) -> None:
    """In workgroups of 256 threads with 16 KiB, the minimum of every adapter."""
    for case in (
        Product(576, 96, bits=0, norm=True),
        Product(896, 152, bits=0, norm=True, gated=True),
        Product(3072, 72, bits=0, residual=True),
    ):
        check(kernel_page, case, tune_dense(case.k, case.n, case.gated, half, WorkgroupLimits(lanes)), half)


FUSED = [
    Product(92, 72, bits=0),
    Product(92, 72, bits=0, norm=True, first=24),
    Product(92, 72, bits=0, residual=True),
    Product(92, 72, bits=0, norm=True, residual=True),
    Product(92, 72, bits=0, gated=True),
    Product(92, 72, bits=0, norm=True, gated=True),
    Product(92, 72, bits=0, bias=True, activated=True, power=2, factor="*", second=True, residual=True),
    Product(92, 72, bits=0, bias=True, factor="*", second=True, gated=True),
]
"""23 runs of rows and 18 vectors of columns (9 of float16): hardly a cut divides them."""


@pytest.mark.one_in(10)
@pytest.mark.parametrize("half", [False, True], ids=["float32", "float16"])
@pytest.mark.parametrize("lanes", [0, 4])
@pytest.mark.parametrize("case", FUSED, ids=str)
def test_every_cut_computes_what_surrounds_the_product(
    kernel_page: KernelPage, case: Product, lanes: int, half: bool
) -> None:
    for columns, span in ((4, 1), (4, 8), (2, 2), (2, 32)):
        check(kernel_page, case, DenseTuning(case.k, case.n, half, lanes, columns, span), half)


def test_the_cuts_of_other_adapters_compute_the_same_without_subgroups(kernel_page: KernelPage) -> None:
    for case in (Product(576, 960, bits=0, norm=True), Product(2048, 72, bits=0, residual=True)):
        tuning = tune_dense(case.k, case.n, False, True, WorkgroupLimits(32))
        check(kernel_page, case, DenseTuning(case.k, case.n, True, 0, tuning.columns, tuning.span), half=True)
