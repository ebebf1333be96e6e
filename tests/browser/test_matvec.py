"""matvec_q4.wgsl against float64, on the adapter there is: float32, with and without subgroups.

An error counts relative to the sum of the absolute products of its row, as rounding grows with that sum. In float32 a
bound of 2^-20 is 8 roundings of 2^-23; sums of 32 and more products stay far below it. No software adapter has float16,
so the kernel for float16 runs with float32 in its place: this shows how it unpacks x and the weights, and the bound is
the precision of float16 x.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import erf
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from capstan.tape.kernel_plan import WorkgroupLimits
from capstan.tape.ops.gemv_int4 import MatvecTuning, tune_matvec
from tests.browser.kernel_page import BOUND, EPSILON, UNTOUCHED, KernelPage, guarded, results
from tests.browser.packed_weights import PackedWeights

HALF_BOUND = 2.0**-10
EPSILON_BEHIND, FACTOR = 0.3, 2.5
HEAD, MOST_SPLITS, POSITIONS = 32, 6, 64
"""Elements of a head of attention, the most splits of its positions, and positions of a split."""


@dataclass(frozen=True)
class Case:
    k: int
    n: int
    block: int = 32
    bits: int = 4
    zeros: bool = False
    minima: bool = False
    first: int = 0
    """The element of y at which the result begins."""
    norm: bool = False
    residual: bool = False
    bias: bool = False
    gated: bool = False
    times: bool = False
    """Whether the other half of a gated layer is given."""
    gelu: bool = False
    erf: bool = False
    activated: bool = False
    power: int = 0
    factor: str = ""
    """'*', '/' or 'cap'."""
    second: bool = False
    centered: bool = False
    behind: bool = False
    """Whether x is normalised and added to `skip` first."""
    wide: bool = False
    """Whether what is normalised is float32 in the kernel for float16 too."""
    splits: int = 0
    """The splits of attention of which x is joined; 0 where x is given."""

    @property
    def prepared(self) -> bool:
        return self.centered or self.behind or self.wide


class Problem:
    """A case with random contents."""

    def __init__(self, case: Case) -> None:
        random = np.random.default_rng(case.k * 7 + case.n)
        self.case = case
        sizes = 1 + case.gated, case.n, case.k
        self.weights = PackedWeights(random, sizes, case.block, case.bits, zeros=case.zeros, minima=case.minima)
        self.x = random.normal(0.3, 1, case.k).astype(np.float16).astype(np.float32)
        self.gamma = random.uniform(0.5, 1.5, case.k).astype(np.float16).astype(np.float32)
        self.residual = random.normal(0, 3, case.n).astype(np.float32)
        self.bias = random.normal(0, 3, case.n).astype(np.float32)
        self.up = random.normal(0, 3, case.n).astype(np.float32)
        self.bias_up, self.second = random.normal(0, 3, (2, case.n)).astype(np.float32)
        given = random.normal(0.3, 1, (3, case.k)).astype(np.float16).astype(np.float32)
        self.beta, self.gamma_behind, self.skip = given
        self.partials = np.full((case.k // HEAD, MOST_SPLITS, 4 + HEAD), np.nan, np.float32)
        if case.splits:
            parts = self.partials[:, : case.splits]
            parts[...] = random.uniform(0.5, 2, parts.shape)
            weights = np.exp2(parts[..., :1].astype(np.float64))
            sums = (weights * parts[..., 1:2]).sum(1)
            self.x = ((weights * parts[..., 4:]).sum(1) / sums).reshape(-1).astype(np.float32)

    def buffers(self, half: bool) -> dict[str, bytes]:
        """The kernel's bindings. x and gamma are exact in float16."""
        case = self.case
        wide = np.float16 if half else np.float32
        stream = np.float32 if case.wide else wide
        x = self.x.astype(wide if case.behind else stream).tobytes()
        gamma, beta, gamma_behind, skip = (
            each.astype(stream).tobytes() for each in (self.gamma, self.beta, self.gamma_behind, self.skip)
        )
        buffers = {"x": x, "y": guarded(case.first + case.n), **self.weights.buffers()}
        if case.splits:
            del buffers["x"]
            records, values = self.partials[..., :4], self.partials[..., 4:]
            buffers["partials"] = records.tobytes() + values.tobytes()
            buffers["state"] = np.uint32([case.splits * POSITIONS]).tobytes()
            buffers["attended"] = guarded(case.k // 2 if half else case.k)
        asked = {
            "gamma": (case.norm, gamma),
            "beta": (case.centered, beta),
            "gamma_behind": (case.behind, gamma_behind),
            "skip": (case.behind, skip),
            "total": (case.behind, guarded(case.k if case.wide or not half else case.k // 2)),
            "residual": (case.residual, self.residual.tobytes()),
            "second": (case.second, self.second.tobytes()),
            "bias": (case.bias, self.bias.tobytes()),
            "bias_up": (case.gated and case.bias, self.bias_up.tobytes()),
            "exponent": (case.power > 0, np.int32(case.power).tobytes()),
            "factor": (case.factor != "", np.float32(FACTOR).tobytes()),
            "up": (case.times, self.up.tobytes()),
        }
        return buffers | {name: data for name, (wanted, data) in asked.items() if wanted}

    def total(self) -> NDArray[np.float64]:
        """The sum that the norm before the product reads."""
        x = self.x.astype(np.float64)
        return np.asarray(self.skip + x / np.sqrt(np.mean(x * x) + EPSILON_BEHIND) * self.gamma_behind)

    def expected(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """y, and the sizes to which its errors are relative."""
        case = self.case
        x = self.total() if case.behind else self.x.astype(np.float64)
        x = x - x.mean() if case.centered else x
        if case.norm:
            x = x / np.sqrt(np.mean(x * x) + EPSILON) * self.gamma
        x = x + self.beta if case.centered else x
        weights = self.weights.numbers()
        y, size = weights[0] @ x, np.abs(weights[0]) @ np.abs(x)
        if case.bias:
            y, size = y + self.bias, size + np.abs(self.bias)
        bent = y * (1.5957691216 + 0.0713548163 * y * y) if case.gelu else y
        if case.gated:
            up, up_size = weights[1] @ x, np.abs(weights[1]) @ np.abs(x)
            up, up_size = (up + self.bias_up, up_size + np.abs(self.bias_up)) if case.bias else (up, up_size)
            y, size = y / (1 + np.exp(-bent)) * up, size * up_size
        if case.times:
            y, size = y / (1 + np.exp(-bent)) * self.up, size * np.abs(self.up)
        if case.activated:
            slope = case.power * np.maximum(y, 0) ** (case.power - 1) + 1 if case.power else 1
            gate = y * (1 + np.vectorize(erf)(y / 2**0.5)) / 2 if case.erf else y / (1 + np.exp(-bent))
            y, size = np.maximum(y, 0) ** case.power if case.power else gate, size * slope
        if case.factor == "cap":
            y, size = np.tanh(y / FACTOR) * FACTOR, size + FACTOR
        elif case.factor:
            by = FACTOR if case.factor == "*" else 1 / FACTOR
            y, size = y * by, size * by
        for added in [self.residual] * case.residual + [self.second] * case.second:
            y, size = y + added, size + np.abs(added)
        return y, size


def check(page: KernelPage, case: Case, tuning: MatvecTuning, half: bool = False) -> None:
    constants = {
        "BLOCK": case.block,
        "FIRST": case.first,
        "BYTES": case.bits == 8,
        "SIXTEENS": case.block == 16,
        "EPSILON": EPSILON,
        "EPSILON_BEHIND": EPSILON_BEHIND,
        "PREPARED": case.prepared,
        "WIDE": case.wide,
        "ACTIVATED": case.activated,
        "GELU": case.gelu,
        "ERF": case.erf,
        "DIVIDED": case.factor == "/",
        "CAPPED": case.factor == "cap",
        **tuning.constants(),
    }
    if case.splits:
        constants |= {"HEADS": case.k // HEAD, "HEAD": HEAD, "MAX_SPLITS": MOST_SPLITS, "POSITIONS": POSITIONS}
        constants |= {"WINDOW": 1000, "ALONE": 1}
    problem, workgroups = Problem(case), (tuning.workgroups, 1, 1)
    subgroups: dict[str, Any] = {"lanes": tuning.lanes, "emulated": tuning.lanes > 4}
    found = page.run("matvec_q4", constants, problem.buffers(half), workgroups, half=half, **subgroups)
    before, got = np.split(results(found, case.first + case.n), [case.first])
    assert np.all(before == UNTOUCHED)
    wanted, size = problem.expected()
    errors = np.abs(got - wanted) / size
    worst = int(np.argmax(np.nan_to_num(errors, nan=np.inf)))
    assert errors[worst] <= (HALF_BOUND if half else BOUND), (
        f"y[{worst}] of {case} is {got[worst]}, not {wanted[worst]}, with {tuning}"
    )
    if case.splits:
        data = page.run(
            "matvec_q4", constants, problem.buffers(half), workgroups, read="attended", half=half, **subgroups
        )
        attended = results(data, case.k // 2).view(np.float16) if half else results(data, case.k)
        np.testing.assert_allclose(attended, problem.x, rtol=2**-10 if half else 2**-20)
    if case.behind:
        data = page.run("matvec_q4", constants, problem.buffers(half), workgroups, read="total", half=half, **subgroups)
        narrow = half and not case.wide
        total = results(data, case.k // 2).view(np.float16) if narrow else results(data, case.k)
        np.testing.assert_allclose(total, problem.total(), rtol=2**-10 if narrow else 2**-20, atol=2**-20)


def cut(case: Case, lanes: int, rows: int, span: int, workgroup: int, **rest: Any) -> MatvecTuning:
    return MatvecTuning(case.k, case.n, case.gated, lanes, rows, span, workgroup, **rest)


REAL = [
    Case(576, 960, norm=True),
    Case(576, 300, norm=True, gated=True),
    Case(576, 300, norm=True, gated=True, gelu=True),
    Case(576, 300, norm=True, times=True, gelu=True),
    Case(1536, 576, residual=True),
    Case(896, 300, norm=True, bias=True),
    Case(4864, 100, residual=True),
    Case(2048, 301, norm=True),
    Case(3072, 150, norm=True, gated=True),
    Case(8192, 67, residual=True),
]


@pytest.mark.one_in(6)
@pytest.mark.parametrize("case", [Case(1024, 67, residual=True), Case(1024, 37, norm=True, gated=True)], ids=str)
def test_a_thread_takes_many_runs_of_a_long_row(kernel_page: KernelPage, case: Case) -> None:
    check(kernel_page, case, cut(case, 4, 2, 4, 16, staged=True))
    check(kernel_page, case, cut(case, 4, 1, 4, 16, most=3, staged=True))


@pytest.mark.one_in(6)
@pytest.mark.parametrize("case", REAL, ids=str)
def test_the_shapes_of_models_as_they_are_tuned(kernel_page: KernelPage, case: Case) -> None:
    check(kernel_page, case, tune_matvec(case.k, case.n, case.gated, False, case.bits, WorkgroupLimits(software=True)))


@pytest.mark.one_in(12)
@pytest.mark.parametrize("half", [False, True], ids=["float32", "float16"])
@pytest.mark.parametrize("lanes", [4, 8, 16, 32, 64])
def test_the_tunings_for_every_subgroup_size(kernel_page: KernelPage, lanes: int, half: bool) -> None:
    """In workgroups of 256 threads with 16 KiB, the minimum of every adapter."""
    for case in (
        Case(576, 96, norm=True),
        Case(896, 150, norm=True, gated=True),
        Case(3072, 67, residual=True),
        Case(576, 67, residual=True, splits=5),
        Case(1152, 150, norm=True, behind=True, gated=True, gelu=True, wide=half),
    ):
        check(kernel_page, case, tune_matvec(case.k, case.n, case.gated, half, case.bits, WorkgroupLimits(lanes)), half)


FUSED = [
    Case(96, 37),
    Case(96, 37, norm=True),
    Case(96, 37, residual=True),
    Case(96, 37, bias=True),
    Case(96, 37, gated=True),
    Case(96, 37, residual=True, bias=True),
    Case(96, 37, norm=True, gated=True),
    Case(96, 37, norm=True, times=True),
    Case(96, 37, norm=True, centered=True),
    Case(96, 37, norm=True, behind=True),
    Case(96, 37, norm=True, behind=True, gated=True, gelu=True),
    Case(96, 37, gated=True, bias=True),
    Case(96, 37, activated=True, bias=True, gelu=True),
    Case(96, 37, activated=True, bias=True, gelu=True, erf=True),
    Case(96, 37, activated=True, power=2),
    Case(96, 37, activated=True, power=3),
    Case(96, 37, factor="*", residual=True, second=True),
    Case(96, 37, factor="/"),
    Case(96, 37, factor="cap"),
    Case(96, 37, norm=True, first=5),
    Case(96, 37, residual=True, splits=2),
    Case(96, 37, residual=True, bias=True, splits=MOST_SPLITS),
]


@pytest.mark.one_in(6)
@pytest.mark.parametrize("lanes", [0, 4])
@pytest.mark.parametrize("case", FUSED, ids=str)
def test_what_surrounds_the_product(kernel_page: KernelPage, case: Case, lanes: int) -> None:
    check(kernel_page, case, cut(case, lanes, 2, 8, 32, staged=True))
    check(kernel_page, case, cut(case, lanes, 2, 8, 32))


@pytest.mark.one_in(8)
@pytest.mark.parametrize("lanes", [0, 4])
@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize(("rows", "span", "workgroup"), [(1, 4, 8), (4, 4, 32), (3, 8, 16), (1, 16, 64), (8, 32, 32)])
def test_every_cut_gives_the_same(
    kernel_page: KernelPage, lanes: int, staged: bool, rows: int, span: int, workgroup: int
) -> None:
    case = Case(224, 53, norm=True, gated=True)  # 7 runs of 32: no span divides them
    check(kernel_page, case, cut(case, lanes, rows, span, workgroup, staged=staged))
    check(kernel_page, case, cut(case, lanes, rows, span, workgroup, staged=staged, most=2))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("lanes", [0, 4])
@pytest.mark.parametrize("staged", [False, True])
def test_float16_is_taken_apart_as_float32_is(kernel_page: KernelPage, lanes: int, staged: bool) -> None:
    for case in (
        Case(224, 53, norm=True, gated=True),
        Case(224, 53, residual=True),
        Case(224, 53, norm=True, behind=True),
        Case(224, 53, norm=True, behind=True, wide=True),
        Case(224, 53, norm=True, centered=True, wide=True),
    ):
        check(kernel_page, case, cut(case, lanes, 2, 8, 32, staged=staged), half=True)


PACKED = [
    Case(384, 21, block=64),
    Case(384, 21, block=128, bits=8),
    Case(96, 37, zeros=True),
    Case(96, 37, bits=8),
    Case(96, 37, bits=8, zeros=True),
    Case(96, 37, block=16),
    Case(96, 37, block=16, zeros=True),
    Case(96, 37, block=16, bits=8, zeros=True),
    # The last block of a row is part empty, and its rows have an odd number of zero points.
    Case(320, 21, block=128, zeros=True),
    Case(96, 21, block=128),
    Case(576, 21, block=256, bits=8, zeros=True),
    Case(224, 53, norm=True, gated=True, zeros=True),
    Case(224, 53, norm=True, gated=True, bits=8, zeros=True),
    Case(160, 53, norm=True, gated=True, block=16, bits=8, zeros=True),
    Case(224, 53, residual=True, block=64, zeros=True),
    Case(96, 37, minima=True),
    Case(384, 21, block=64, minima=True),
    Case(96, 37, bits=8, minima=True, residual=True),
    Case(96, 37, block=16, minima=True),
    Case(160, 53, norm=True, gated=True, block=16, bits=8, minima=True),
    Case(224, 53, norm=True, gated=True, minima=True),
    Case(320, 21, block=128, zeros=True, minima=True),
]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("lanes", [0, 4])
def test_rows_may_end_within_a_run(kernel_page: KernelPage, lanes: int, half: bool) -> None:
    for case in (
        Case(200, 37, block=64, zeros=True),
        Case(72, 37, norm=True, bits=8),
        Case(80, 37, norm=True, gated=True),
        Case(200, 37, block=64, minima=True),
        Case(104, 37, norm=True, behind=True),
    ):
        check(kernel_page, case, cut(case, lanes, 2, 8, 32, staged=True), half=half)
        check(kernel_page, case, cut(case, lanes, 4, 4, 16, most=3), half=half)
        check(kernel_page, case, tune_matvec(case.k, case.n, case.gated, half, case.bits, WorkgroupLimits(lanes)), half)


@pytest.mark.one_in(22)
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("lanes", [0, 4])
@pytest.mark.parametrize("case", PACKED, ids=str)
def test_weights_in_every_form(kernel_page: KernelPage, case: Case, lanes: int, half: bool) -> None:
    check(kernel_page, case, cut(case, lanes, 2, 8, 32, staged=True), half=half)
    check(kernel_page, case, cut(case, lanes, 4, 4, 16, most=3), half=half)


def test_the_tuning_for_larger_subgroups_computes_the_same_without_them(kernel_page: KernelPage) -> None:
    for case in (Case(2048, 300, norm=True), Case(8192, 40, residual=True)):
        check(
            kernel_page,
            case,
            replace(tune_matvec(case.k, case.n, case.gated, False, case.bits, WorkgroupLimits(32)), lanes=0, most=3),
        )
