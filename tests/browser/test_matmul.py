"""web/src/worker/shaders/products/matmul_q4.wgsl and quantize_rows.wgsl against float64, on the adapter there is:
float32.

Products and sums of a run of 32 are exact integers, so that y is compared with what the int8 values give: errors count
relative to the sum of the absolute products of an element, as in test_matvec. How far int8 is from float32 is bounded
apart: half a step of each element.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from capstan.tape.kernel_plan import KernelPlan, WorkgroupLimits
from capstan.tape.ops.matmul import LARGE, ODD, SMALL, MatMul, MatMulTuning, Quantize, plan_matmul, plan_quantize
from tests.browser.kernel_page import BOUND, KernelPage, guarded, results
from tests.browser.product import Problem, Product

RUN = 32


def problem_of(case: Product) -> Problem:
    """With x in float32, of which one row is zero."""
    problem = Problem(case)
    problem.x = np.random.default_rng(case.k).normal(0.3, 1, problem.x.shape).astype(np.float32)
    problem.x[case.m // 2] = 0
    return problem


def run(page: KernelPage, plan: KernelPlan, buffers: dict[str, bytes], read: str = "y") -> bytes:
    assert not callable(plan.counts)
    return page.run(plan.shader, plan.constants, buffers, plan.counts, read=read)


def quantized(page: KernelPage, problem: Problem, group: int = RUN) -> tuple[bytes, bytes]:
    """x as the kernel makes it: words and factors."""
    case = problem.product
    plan = plan_quantize(Quantize(case.m, case.k, group, "f32"))
    sizes = {"words": case.m * case.k, "factors": case.m * case.k // 8}
    buffers = {"x": problem.x.tobytes(), **{name: bytes(size) for name, size in sizes.items()}}
    return run(page, plan, buffers, "words"), run(page, plan, buffers, "factors")


def as_floats(case: Product, words: bytes, factors: bytes) -> NDArray[np.float64]:
    """The int8 rows, dequantized: [rows, k]."""
    halves = np.frombuffer(words, np.int8).reshape(case.k // 16, case.m, 2, 2, 4)
    # In each eight elements the even ones come first.
    values = halves.transpose(1, 0, 2, 4, 3).reshape(case.m, case.k).astype(np.float64)
    scales = np.frombuffer(factors, np.float32).reshape(case.k // RUN, case.m).T.astype(np.float64) * 16
    return values * np.repeat(scales, RUN, axis=1)


def check(page: KernelPage, case: Product, tuning: MatMulTuning | None = None) -> None:
    problem = problem_of(case)
    words, factors = quantized(page, problem)
    held = (0, 0, 0 if case.zeros else None, 0 if case.minima else None)
    up = held if case.gated else None
    what = MatMul(0, 0, case.m, case.n, case.k, case.block, "f32", up, case.bits, *held[2:])
    limits = WorkgroupLimits(threads=256, memory=32768, software=tuning in (None, SMALL))
    plan = plan_matmul(what, limits)
    if tuning is not None:
        assert plan.constants["SLICES"] == tuning.slices
        assert plan.constants["RUNS"] == tuning.runs
    count = case.m * case.n
    buffers = {"x": words, "x_scales": factors, "y": guarded(count)}
    buffers |= problem.weight_buffers(half=False)
    got = results(run(page, plan, buffers), count)

    y, size = problem.expected(as_floats(case, words, factors))
    errors = np.abs(got.reshape(y.shape) - y) / np.maximum(size, 1e-30)
    errors[case.m // 2] = np.abs(got.reshape(-1)[case.m // 2 * case.n :][: case.n])
    assert errors.max() <= BOUND, f"{case}: {errors.max()} at {np.unravel_index(errors.argmax(), y.shape)}"


@pytest.mark.one_in(2)
@pytest.mark.parametrize("group", [32, 128])
def test_rows_in_int8_are_within_half_a_step(kernel_page: KernelPage, group: int) -> None:
    case = Product(384, 4, m=19)
    problem = problem_of(case)
    got = as_floats(case, *quantized(kernel_page, problem, group))
    step = np.abs(problem.x.reshape(case.m, -1, group)).max(axis=2, keepdims=True) / 127
    errors = np.abs(got - problem.x).reshape(case.m, -1, group)
    assert (errors <= step * 0.5001).all()
    assert (got[case.m // 2] == 0).all()


SHAPES = [
    Product(576, 100, m=40),
    Product(96, 68, m=40, gated=True),
    Product(256, 192, m=33, block=64),
    Product(128, 132, m=70, block=128, gated=True),
    Product(96, 68, m=40, bits=8),
    Product(96, 68, m=40, zeros=True),
    Product(160, 68, m=40, block=128, zeros=True, gated=True),
    Product(192, 68, m=40, block=64, bits=8, zeros=True, gated=True),
    Product(96, 68, m=40, minima=True),
    Product(192, 68, m=40, block=64, minima=True, gated=True),
    Product(192, 68, m=40, bits=8, minima=True, gated=True),
    Product(160, 68, m=40, block=128, bits=8, minima=True),
    Product(160, 68, m=40, block=64, zeros=True, minima=True),
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", SHAPES, ids=str)
def test_products_that_end_within_a_tile(kernel_page: KernelPage, case: Product) -> None:
    check(kernel_page, case)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(("tuning", "k"), [(LARGE, 192), (ODD, 96)])
def test_the_cuts_of_gpus_compute_the_same(kernel_page: KernelPage, tuning: MatMulTuning, k: int, gated: bool) -> None:
    check(kernel_page, Product(k, 68, m=70, gated=gated), tuning)
    check(kernel_page, Product(k, 68, m=70, gated=gated, block=64, bits=8, zeros=True), tuning)
    check(kernel_page, Product(k, 68, m=70, gated=gated, minima=True), tuning)
