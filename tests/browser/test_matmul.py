"""web/src/worker/shaders/products/matmul_q4.wgsl and quantize_rows.wgsl against float64, on the adapter there is:
float32.

Products and sums of a run of 32 are exact integers, so that y is compared with what the int8 values give: errors count
relative to the sum of the absolute products of an element, as in test_matvec. How far int8 is from float32 is bounded
apart: half a step of each element.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from capstan.tape.kernel_plan import KernelPlan, WorkgroupLimits
from capstan.tape.ops.matmul import LARGE, ODD, SMALL, MatMul, MatMulTuning, Quantize, plan_matmul, plan_quantize
from tests.browser.kernel_page import BOUND, KernelPage, guarded, results
from tests.browser.packed_weights import PackedWeights

RUN = 32


@dataclass(frozen=True)
class Case:
    rows: int
    k: int
    n: int
    block: int = 32
    gated: bool = False
    group: int = 32
    bits: int = 4
    zeros: bool = False
    minima: bool = False


class Problem:
    """A case with random contents; one row of x is zero."""

    def __init__(self, case: Case) -> None:
        random = np.random.default_rng(case.k * 7 + case.n)
        self.case = case
        sizes = 1 + case.gated, case.n, case.k
        self.weights = PackedWeights(random, sizes, case.block, case.bits, zeros=case.zeros, minima=case.minima)
        self.x = random.normal(0.3, 1, (case.rows, case.k)).astype(np.float32)
        self.x[case.rows // 2] = 0


def run(page: KernelPage, plan: KernelPlan, buffers: dict[str, bytes], read: str = "y") -> bytes:
    assert not callable(plan.counts)
    return page.run(plan.shader, plan.constants, buffers, plan.counts, read=read)


def quantized(page: KernelPage, problem: Problem) -> tuple[bytes, bytes]:
    """x as the kernel makes it: words and factors."""
    case = problem.case
    plan = plan_quantize(Quantize(case.rows, case.k, case.group, "f32"))
    sizes = {"words": case.rows * case.k, "factors": case.rows * case.k // 8}
    buffers = {"x": problem.x.tobytes(), **{name: bytes(size) for name, size in sizes.items()}}
    return run(page, plan, buffers, "words"), run(page, plan, buffers, "factors")


def as_floats(case: Case, words: bytes, factors: bytes) -> NDArray[np.float64]:
    """The int8 rows, dequantized: [rows, k]."""
    halves = np.frombuffer(words, np.int8).reshape(case.k // 16, case.rows, 2, 2, 4)
    # In each eight elements the even ones come first.
    values = halves.transpose(1, 0, 2, 4, 3).reshape(case.rows, case.k).astype(np.float64)
    scales = np.frombuffer(factors, np.float32).reshape(case.k // RUN, case.rows).T.astype(np.float64) * 16
    return values * np.repeat(scales, RUN, axis=1)


def check(page: KernelPage, case: Case, tuning: MatMulTuning | None = None) -> None:
    problem = Problem(case)
    words, factors = quantized(page, problem)
    held = (0, 0, 0 if case.zeros else None, 0 if case.minima else None)
    up = held if case.gated else None
    what = MatMul(0, 0, case.rows, case.n, case.k, case.block, "f32", up, case.bits, *held[2:])
    limits = WorkgroupLimits(threads=256, memory=32768, software=tuning in (None, SMALL))
    plan = plan_matmul(what, limits)
    if tuning is not None:
        assert plan.constants["SLICES"] == tuning.slices
        assert plan.constants["RUNS"] == tuning.runs
    count = case.rows * case.n
    buffers = {"x": words, "x_scales": factors, "y": guarded(count)}
    buffers |= problem.weights.buffers()
    got = results(run(page, plan, buffers), count)

    x = as_floats(case, words, factors)
    weights = problem.weights.numbers()
    y, size = x @ weights[0].T, np.abs(x) @ np.abs(weights[0]).T
    if case.gated:
        up, up_size = x @ weights[1].T, np.abs(x) @ np.abs(weights[1]).T
        y, size = y / (1 + np.exp(-y)) * up, size * up_size
    errors = np.abs(got.reshape(y.shape) - y) / np.maximum(size, 1e-30)
    errors[case.rows // 2] = np.abs(got.reshape(-1)[case.rows // 2 * case.n :][: case.n])
    assert errors.max() <= BOUND, f"{case}: {errors.max()} at {np.unravel_index(errors.argmax(), y.shape)}"


@pytest.mark.one_in(2)
@pytest.mark.parametrize("group", [32, 128])
def test_rows_in_int8_are_within_half_a_step(kernel_page: KernelPage, group: int) -> None:
    case = Case(rows=19, k=384, n=4, group=group)
    problem = Problem(case)
    got = as_floats(case, *quantized(kernel_page, problem))
    step = np.abs(problem.x.reshape(case.rows, -1, group)).max(axis=2, keepdims=True) / 127
    errors = np.abs(got - problem.x).reshape(case.rows, -1, group)
    assert (errors <= step * 0.5001).all()
    assert (got[case.rows // 2] == 0).all()


SHAPES = [
    Case(40, 576, 100),
    Case(40, 96, 68, gated=True),
    Case(33, 256, 192, block=64),
    Case(70, 128, 132, block=128, gated=True),
    Case(40, 96, 68, bits=8),
    Case(40, 96, 68, zeros=True),
    Case(40, 160, 68, block=128, zeros=True, gated=True),
    Case(40, 192, 68, block=64, bits=8, zeros=True, gated=True),
    Case(40, 96, 68, minima=True),
    Case(40, 192, 68, block=64, minima=True, gated=True),
    Case(40, 192, 68, bits=8, minima=True, gated=True),
    Case(40, 160, 68, block=128, bits=8, minima=True),
    Case(40, 160, 68, block=64, zeros=True, minima=True),
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", SHAPES, ids=str)
def test_products_that_end_within_a_tile(kernel_page: KernelPage, case: Case) -> None:
    check(kernel_page, case)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(("tuning", "k"), [(LARGE, 192), (ODD, 96)])
def test_the_cuts_of_gpus_compute_the_same(kernel_page: KernelPage, tuning: MatMulTuning, k: int, gated: bool) -> None:
    check(kernel_page, Case(70, k, 68, gated=gated), tuning)
    check(kernel_page, Case(70, k, 68, gated=gated, block=64, bits=8, zeros=True), tuning)
    check(kernel_page, Case(70, k, 68, gated=gated, minima=True), tuning)
