"""few_rows_q4.wgsl, few_rows_dense.wgsl, few_rows_matrices.wgsl and norm_rows.wgsl against float64, on the adapter
there is: float32, with and without subgroups.

Bounds are those of test_matvec.py: 8 roundings of an element relative to the sum of its absolute products. The kernels
for float16 are run with float32 in place of it, so that the bound of packed weights is what float16 leaves of x.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from capstan.tape.kernel_plan import MatrixSize, WorkgroupLimits
from capstan.tape.ops.few_rows import norm_constants, tune_dense_rows, tune_rows
from capstan.tape.ops.matrix_tiling import FewRowsTiling
from tests.browser.kernel_page import BOUND, EPSILON, UNTOUCHED, KernelPage, guarded, results
from tests.browser.packed_weights import PackedWeights
from tests.extended import pairwise

HALF_BOUND = 2.0**-10
EPSILON_BEHIND, FACTOR = 0.3, 2.5
LIMITS = [WorkgroupLimits(), WorkgroupLimits(software=True), *(WorkgroupLimits(lanes) for lanes in (4, 8, 16, 32, 64))]
"""Without subgroups, like the software adapter here, and with subgroups in the smallest workgroups of any adapter."""


@dataclass(frozen=True)
class Case:
    m: int
    k: int
    n: int
    bits: int = 0
    """Bits of a weight; 0 if weights are dense."""
    block: int = 32
    zeros: bool = False
    minima: bool = False
    of: int = 0
    """Elements of a row of y, whose last ones are the result, if it has more than those."""
    gated: bool = False
    times: bool = False
    """Whether the other half of a gated layer is given."""
    added: bool = False
    """Whether a bias and a factor, and two residuals if it is not gated, are added."""
    activated: bool = False

    @property
    def shader(self) -> str:
        return "few_rows_q4" if self.bits else "few_rows_dense"


class Problem:
    """A case with random contents, exact in float16."""

    def __init__(self, case: Case) -> None:
        random = np.random.default_rng(case.k * 7 + case.n * 3 + case.m)
        self.case = case
        self.x = random.normal(0.3, 1, (case.m, case.k)).astype(np.float16)
        matrices = 1 + case.gated
        if case.bits:
            sizes = matrices, case.n, case.k
            self.packed = PackedWeights(random, sizes, case.block, case.bits, zeros=case.zeros, minima=case.minima)
            self.weights = self.packed.numbers().transpose(0, 2, 1)
        else:
            self.dense = random.normal(0, 0.05, (matrices, case.k, case.n)).astype(np.float16)
            self.weights = self.dense.astype(np.float64)
        self.residual, self.second, self.up = random.normal(0, 3, (3, case.m, case.n)).astype(np.float32)
        self.bias, self.bias_up = random.normal(0, 3, (2, case.n)).astype(np.float32)

    def buffers(self, half: bool) -> dict[str, bytes]:
        """The kernel's bindings."""
        case = self.case
        buffers = {
            "x": self.x.astype(np.float16 if half else np.float32).tobytes(),
            "y": guarded(case.m * (case.of or case.n)),
        }
        if case.bits:
            buffers |= self.packed.buffers()
        else:
            kind = np.float16 if half else np.float32
            both = zip(("weights", "weights_up"), self.dense, strict=False)
            buffers |= {name: each.astype(kind).tobytes() for name, each in both}
        if case.added:
            added = {"bias": self.bias, "factor": np.float32(FACTOR)}
            added |= {"bias_up": self.bias_up} if case.gated else {"residual": self.residual, "second": self.second}
            buffers |= {name: data.tobytes() for name, data in added.items()}
        return buffers | ({"up": self.up.tobytes()} if case.times else {})

    def expected(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """y, and the sizes to which its errors are relative."""
        case, x = self.case, self.x.astype(np.float64)
        both = [(x @ w, np.abs(x) @ np.abs(w)) for w in self.weights]
        if case.added:
            both = [(y + b, s + np.abs(b)) for (y, s), b in zip(both, (self.bias, self.bias_up), strict=False)]
        y, size = both[0]
        if case.gated or case.times:
            up, up_size = both[1] if case.gated else (self.up, np.abs(self.up))
            y, size = y / (1 + np.exp(-y)) * up, size * up_size
        if case.activated:
            y = y / (1 + np.exp(-y))
        if case.added:
            y, size = y * FACTOR, size * FACTOR
        for residual in [self.residual, self.second] * (case.added and not case.gated):
            y, size = y + residual, size + np.abs(residual)
        return y, size


def check(page: KernelPage, case: Case, limits: WorkgroupLimits, half: bool = False, **other: Any) -> None:
    """With the tiling for these limits, `other` in place of some of it."""
    tuning: Any
    if case.bits:
        tuning = replace(tune_rows(case.k, case.n, case.m, case.gated, limits), **other)
    else:
        tuning = replace(tune_dense_rows(case.k, case.n, case.m, case.gated, half, limits), **other)
    compare(page, case, tuning, limits, half)


def check_matrices(page: KernelPage, case: Case, tiling: FewRowsTiling) -> None:
    """With subgroup matrices as kernel_page.ts computes them."""
    compare(page, case, tiling, WorkgroupLimits(tiling.lanes), True)


def compare(page: KernelPage, case: Case, tuning: Any, limits: WorkgroupLimits, half: bool) -> None:
    by_matrices = isinstance(tuning, FewRowsTiling)
    if by_matrices:
        shader, workgroups = "few_rows_matrices", (*tuning.workgroups(case.m, case.n, case.gated), 1)
        own = {"K": case.k, "N": case.n, "M": case.m, **tuning.constants(case.block, case.bits)}
    else:
        shader, own, workgroups = case.shader, tuning.constants(), tuning.workgroups
    width = case.of or case.n
    place = {"FIRST": width - case.n, "OF": width}
    constants: dict[str, int | float | bool] = {
        **dict.fromkeys(("GELU", "ERF", "DIVIDED", "CAPPED"), False),
        "ACTIVATED": case.activated,
        **place,
        **({"BLOCK": case.block, "BYTES": case.bits == 8} if case.bits else {}),
        **own,
    }
    problem = Problem(case)
    subgroups: dict[str, Any] = {"lanes": limits.lanes, "emulated": limits.lanes > 4 and not by_matrices}
    data = page.run(shader, constants, problem.buffers(half), workgroups, half=half, **subgroups)
    wanted, size = problem.expected()
    before, got = np.split(results(data, case.m * width).reshape(case.m, -1), [width - case.n], axis=1)
    assert np.all(before == UNTOUCHED)
    errors = np.nan_to_num(np.abs(got - wanted) / size, nan=np.inf)
    worst = np.unravel_index(int(np.argmax(errors)), errors.shape)
    bound = HALF_BOUND if half and case.bits else BOUND
    assert errors[worst] <= bound, f"y{worst} of {case} is {got[worst]}, not {wanted[worst]}, with {tuning}"


@pytest.mark.one_in
@pytest.mark.parametrize("limits", LIMITS, ids=lambda limits: f"{limits.lanes} lanes {limits.software}")
def test_the_tunings_for_every_subgroup_size(kernel_page: KernelPage, limits: WorkgroupLimits) -> None:
    """Rows that a thread's tiling holds, and one tiling and a part; weights that fill their tiles, and that do not."""
    check(kernel_page, Case(8, 576, 96, bits=4), limits, half=True)
    check(kernel_page, Case(11, 224, 53, bits=4, gated=True, zeros=True), limits)
    check(kernel_page, Case(8, 192, 96), limits)
    check(kernel_page, Case(11, 92, 72, gated=True), limits, half=True)


FORMS = [
    Case(2, 384, 21, bits=4, block=64, added=True),
    Case(3, 96, 37, bits=8, gated=True, added=True),
    Case(5, 96, 37, bits=4, block=16, zeros=True, times=True),
    Case(16, 96, 37, bits=8, block=16, zeros=True, activated=True),
    # The last block of a row is part empty, and its rows have an odd number of zero points.
    Case(4, 320, 21, bits=4, block=128, zeros=True),
    Case(32, 96, 21, bits=4, block=128),
    Case(3, 192, 37, bits=4, minima=True, of=48),
    Case(9, 96, 37, bits=8, gated=True, minima=True),
    Case(4, 96, 37, bits=4, block=16, minima=True, activated=True),
    Case(2, 92, 72, added=True),
    Case(3, 92, 72, of=80),
    Case(3, 92, 72, gated=True, added=True),
    Case(5, 92, 72, times=True),
    Case(32, 92, 72, activated=True),
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
    kernel_page: KernelPage, case: Case, tiling: FewRowsTiling
) -> None:
    check_matrices(kernel_page, case, tiling)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("lanes", [0, 4])
def test_every_tiling_gives_the_same(kernel_page: KernelPage, lanes: int) -> None:
    case = Case(6, 416, 53, bits=4, gated=True, zeros=True)
    for tall, rows, span, workgroup, batch in ((2, 1, 4, 8, 1), (4, 2, 8, 32, 4), (8, 1, 16, 16, 2), (2, 8, 32, 64, 1)):
        tiling: dict[str, Any] = {"tall": tall, "rows": rows, "span": span, "workgroup": workgroup, "batch": batch}
        check(kernel_page, case, WorkgroupLimits(lanes), **tiling)


NORMS = ["", "centered", "behind", "centered behind wide"]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("lanes", [0, 4, 32])
@pytest.mark.parametrize("asked", NORMS, ids=lambda asked: asked or "RMS")
def test_rows_are_normalised(kernel_page: KernelPage, asked: str, lanes: int) -> None:
    m, k = 3, 300
    random = np.random.default_rng(lanes)
    x, skip = random.normal(0.3, 1, (2, m, k)).astype(np.float32)
    gamma, gamma_behind, beta = random.uniform(0.5, 1.5, (3, k)).astype(np.float32)
    centered, behind, wide_x = ("centered" in asked, "behind" in asked, "wide" in asked)
    limits = WorkgroupLimits(lanes)
    constants = {"WIDE": wide_x, "EPSILON": EPSILON, "EPSILON_BEHIND": EPSILON_BEHIND, **norm_constants(k, limits)}
    given = {"x": x, "gamma": gamma, **({"beta": beta} if centered else {})}
    given |= {"gamma_behind": gamma_behind, "skip": skip} if behind else {}
    buffers = {name: data.tobytes() for name, data in given.items()}
    buffers |= dict.fromkeys(("total", "normed") if behind else ("normed",), guarded(m * k))

    def found(read: str) -> NDArray[np.float32]:
        about: dict[str, Any] = {"half": wide_x, "lanes": lanes, "emulated": lanes > 4}
        return results(kernel_page.run("norm_rows", constants, buffers, (m, 1, 1), read=read, **about), m * k).reshape(
            m, k
        )

    wide = x.astype(np.float64)
    if behind:
        wide = skip + wide / np.sqrt(np.mean(wide * wide, 1, keepdims=True) + EPSILON_BEHIND) * gamma_behind
        np.testing.assert_allclose(found("total"), wide, rtol=2**-18, atol=2**-20)
    wide = wide - wide.mean(1, keepdims=True) if centered else wide
    wide = wide / np.sqrt(np.mean(wide * wide, 1, keepdims=True) + EPSILON) * gamma
    np.testing.assert_allclose(found("normed"), wide + beta if centered else wide, rtol=2**-17, atol=2**-18)
