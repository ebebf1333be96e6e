"""matvec_dense.wgsl against float64, on the adapter there is: float32, with and without subgroups.

An error counts relative to the sum of the absolute products of its column, which is what rounding scales with: 2^-20 is
8 roundings of 2^-23. The kernel for float16 is run with float32 in place of it, which no software adapter has: how it
takes x and the weights apart is then seen, exactly, for nothing is rounded to float16.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from capstan.tape.kernel_plan import WorkgroupLimits
from capstan.tape.ops.gemv_dense import DenseTuning, tune_dense
from tests.browser.kernel_page import BOUND, EPSILON, UNTOUCHED, KernelPage, guarded, results

FACTOR = 2.5


@dataclass(frozen=True)
class Case:
    k: int
    n: int
    norm: bool = False
    residual: bool = False
    gated: bool = False
    gelu: bool = False
    surrounded: bool = False
    """Whether there are a bias, a square of what is above zero if not gated, a factor and a second residual."""
    first: int = 0
    """Results of another product before its own."""


class Problem:
    """A case with random contents, exact in float16."""

    def __init__(self, case: Case) -> None:
        random = np.random.default_rng(case.k * 7 + case.n)
        self.case = case
        self.weights = random.normal(0, 0.05, (1 + case.gated, case.k, case.n)).astype(np.float16)
        self.x = random.normal(0.3, 1, case.k).astype(np.float16)
        self.gamma = random.uniform(0.5, 1.5, case.k).astype(np.float16)
        self.residual, self.second, self.bias, self.bias_up = random.normal(0, 3, (4, case.n)).astype(np.float32)

    def buffers(self, half: bool) -> dict[str, bytes]:
        """The kernel's bindings."""
        case = self.case
        wide = np.float16 if half else np.float32
        x, gamma, *weights = (a.astype(wide).tobytes() for a in (self.x, self.gamma, *self.weights))
        buffers = {
            "x": x,
            "y": guarded(case.first + case.n),
            **dict(zip(("weights", "weights_up"), weights, strict=False)),
        }
        asked = {
            "gamma": (case.norm, gamma),
            "residual": (case.residual, self.residual.tobytes()),
            "second": (case.surrounded, self.second.tobytes()),
            "bias": (case.surrounded, self.bias.tobytes()),
            "bias_up": (case.surrounded and case.gated, self.bias_up.tobytes()),
            "exponent": (case.surrounded and not case.gated, np.int32(2).tobytes()),
            "factor": (case.surrounded, np.float32(FACTOR).tobytes()),
        }
        return buffers | {name: data for name, (wanted, data) in asked.items() if wanted}

    def expected(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """y, and the sizes to which its errors are relative."""
        case = self.case
        x = self.x.astype(np.float64)
        if case.norm:
            x = x / np.sqrt(np.mean(x * x) + EPSILON) * self.gamma
        weights = self.weights.astype(np.float64)
        y, size = x @ weights[0], np.abs(x) @ np.abs(weights[0])
        if case.surrounded:
            y, size = y + self.bias, size + np.abs(self.bias)
            if not case.gated:
                y, size = np.maximum(y, 0) ** 2, size * (1 + 2 * np.maximum(y, 0))
        if case.gated:
            up, up_size = x @ weights[1], np.abs(x) @ np.abs(weights[1])
            if case.surrounded:
                up, up_size = up + self.bias_up, up_size + np.abs(self.bias_up)
            bent = y * (1.5957691216 + 0.0713548163 * y * y) if case.gelu else y
            y, size = y / (1 + np.exp(-bent)) * up, size * up_size
        y, size = (y * FACTOR, size * FACTOR) if case.surrounded else (y, size)
        for added in [self.residual] * case.residual + [self.second] * case.surrounded:
            y, size = y + added, size + np.abs(added)
        return y, size


def check(page: KernelPage, case: Case, tuning: DenseTuning, half: bool = False) -> None:
    constants = {
        "FIRST": case.first,
        "EPSILON": EPSILON,
        "ACTIVATED": case.surrounded and not case.gated,
        "DIVIDED": False,
        "CAPPED": False,
        "GELU": case.gelu,
        "ERF": False,
        **tuning.constants(),
    }
    problem, workgroups = Problem(case), (tuning.workgroups, 1, 1)
    subgroups: dict[str, Any] = {"lanes": tuning.lanes, "emulated": tuning.lanes > 4}
    found = page.run("matvec_dense", constants, problem.buffers(half), workgroups, half=half, **subgroups)
    before, got = np.split(results(found, case.first + case.n), [case.first])
    assert np.all(before == UNTOUCHED)
    wanted, size = problem.expected()
    errors = np.abs(got - wanted) / size
    worst = int(np.argmax(np.nan_to_num(errors, nan=np.inf)))
    assert errors[worst] <= BOUND, f"y[{worst}] of {case} is {got[worst]}, not {wanted[worst]}, with {tuning}"


REAL = [
    Case(256, 512, norm=True),
    Case(256, 448, norm=True, gated=True),
    Case(256, 448, norm=True, gated=True, gelu=True),
    Case(448, 256, residual=True),
    Case(576, 960, norm=True),
    Case(1536, 576, residual=True),
    Case(896, 1152, norm=True, residual=True),
    Case(4864, 104, residual=True),
    Case(2048, 304, norm=True, gated=True),
    Case(8192, 72, residual=True),
]


@pytest.mark.one_in(6)
@pytest.mark.parametrize("case", REAL, ids=str)
def test_the_shapes_of_models_as_they_are_tuned(kernel_page: KernelPage, case: Case) -> None:
    check(kernel_page, case, tune_dense(case.k, case.n, case.gated, False, WorkgroupLimits(software=True)))


@pytest.mark.one_in(6)
@pytest.mark.parametrize("half", [False, True], ids=["float32", "float16"])
@pytest.mark.parametrize("lanes", [4, 8, 16, 32, 64])
def test_the_tunings_for_every_subgroup_size(kernel_page: KernelPage, lanes: int, half: bool) -> None:
    """In workgroups of 256 threads with 16 KiB, the minimum of every adapter."""
    for case in (Case(576, 96, norm=True), Case(896, 152, norm=True, gated=True), Case(3072, 72, residual=True)):
        check(kernel_page, case, tune_dense(case.k, case.n, case.gated, half, WorkgroupLimits(lanes)), half)


FUSED = [
    Case(92, 72),
    Case(92, 72, norm=True, first=24),
    Case(92, 72, residual=True),
    Case(92, 72, norm=True, residual=True),
    Case(92, 72, gated=True),
    Case(92, 72, norm=True, gated=True),
    Case(92, 72, surrounded=True, residual=True),
    Case(92, 72, surrounded=True, gated=True),
]
"""23 runs of rows and 18 vectors of columns (9 of float16): hardly a cut divides them."""


@pytest.mark.one_in(10)
@pytest.mark.parametrize("half", [False, True], ids=["float32", "float16"])
@pytest.mark.parametrize("lanes", [0, 4])
@pytest.mark.parametrize("case", FUSED, ids=str)
def test_every_cut_computes_what_surrounds_the_product(
    kernel_page: KernelPage, case: Case, lanes: int, half: bool
) -> None:
    for columns, span in ((4, 1), (4, 8), (2, 2), (2, 32)):
        check(kernel_page, case, DenseTuning(case.k, case.n, half, lanes, columns, span), half)


def test_the_cuts_of_other_adapters_compute_the_same_without_subgroups(kernel_page: KernelPage) -> None:
    for case in (Case(576, 960, norm=True), Case(2048, 72, residual=True)):
        tuning = tune_dense(case.k, case.n, False, True, WorkgroupLimits(32))
        check(kernel_page, case, DenseTuning(case.k, case.n, True, 0, tuning.columns, tuning.span), half=True)
