"""web/src/shaders/matvec_q4.wgsl against float64, on the adapter there is: float32, with and without subgroups.

An error counts relative to the sum of the absolute products of its row, which is what rounding scales with. In float32
a bound of 2^-20 is 8 roundings of 2^-23; sums of 32 and more products stay far below it. The kernel for float16 is run
with float32 in place of it, which no software adapter has: how it takes x and the weights apart is then seen, and the
bound is what float16 leaves of x.
"""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from playwright.sync_api import Browser, Page

from buildtools.server import SiteServer
from capstan.tape.kernel_plan import WorkgroupLimits
from capstan.tape.matvec_tuning import MatvecTuning, tune_matvec
from tests.harness import watch

ROOT = Path(__file__).parents[2]
BOUND = 2.0**-20
HALF_BOUND = 2.0**-10
EPSILON = 0.1
GUARD = 64
"""Elements after y that must keep what they hold."""

Float = NDArray[np.float32]


@dataclass(frozen=True)
class Case:
    k: int
    n: int
    block: int = 32
    norm: bool = False
    residual: bool = False
    bias: bool = False
    gated: bool = False


@pytest.fixture(scope="module")
def kernels(browser: Browser, site: SiteServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    script = tmp_path_factory.mktemp("kernel") / "page.js"
    esbuild = ["node", str(ROOT / "node_modules/esbuild/bin/esbuild"), "--bundle", "--loader:.wgsl=text"]
    source = str(Path(__file__).with_name("kernel_page.ts"))
    subprocess.run([*esbuild, "--log-level=error", source, f"--outfile={script}"], check=True)
    page = browser.new_page()
    errors = watch(page, [])
    page.goto(site.url + "blank.html")
    page.add_script_tag(path=script)
    yield page
    page.close()
    assert not errors, f"the page reported {errors}"


def packed(nibbles: NDArray[np.uint8]) -> bytes:
    """Low nibbles first, as MatMulNBits has them."""
    return (nibbles[:, ::2] | nibbles[:, 1::2] << 4).astype(np.uint8).tobytes()


class Problem:
    """A case with random contents."""

    def __init__(self, case: Case) -> None:
        random = np.random.default_rng(case.k * 7 + case.n)
        self.case = case
        matrices = 2 if case.gated else 1
        self.nibbles = random.integers(0, 16, (matrices, case.n, case.k), np.uint8)
        shape = (matrices, case.n, case.k // case.block)
        self.scales = random.uniform(0.005, 0.02, shape).astype(np.float32)
        self.x = random.normal(0.3, 1, case.k).astype(np.float16).astype(np.float32)
        self.gamma = random.uniform(0.5, 1.5, case.k).astype(np.float16).astype(np.float32)
        self.residual = random.normal(0, 3, case.n).astype(np.float32)
        self.bias = random.normal(0, 3, case.n).astype(np.float32)

    def buffers(self, half: bool) -> list[bytes]:
        """What the kernel binds, y last. x and gamma are exact in float16."""
        case = self.case
        wide = np.float16 if half else np.float32
        x, gamma = self.x.astype(wide).tobytes(), self.gamma.astype(wide).tobytes()
        pairs = [(packed(w), s.tobytes()) for w, s in zip(self.nibbles, self.scales, strict=True)]
        buffers = [x, *pairs[0]]
        buffers += [gamma] * case.norm + [self.residual.tobytes()] * case.residual
        buffers += [self.bias.tobytes()] * case.bias + [*pairs[-1]] * case.gated
        return [*buffers, np.full(case.n + GUARD, 77, np.float32).tobytes()]

    def expected(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """y, and what its errors count relative to."""
        case = self.case
        x = self.x.astype(np.float64)
        if case.norm:
            x = x / np.sqrt(np.mean(x * x) + EPSILON) * self.gamma
        weights = (self.nibbles.astype(np.float64) - 8) * np.repeat(self.scales, case.block, axis=2)
        y, size = weights[0] @ x, np.abs(weights[0]) @ np.abs(x)
        if case.bias:
            y, size = y + self.bias, size + np.abs(self.bias)
        if case.gated:
            up, up_size = weights[1] @ x, np.abs(weights[1]) @ np.abs(x)
            y, size = y / (1 + np.exp(-y)) * up, size * up_size
        if case.residual:
            y, size = y + self.residual, size + np.abs(self.residual)
        return y, size


def run(page: Page, case: Case, tuning: MatvecTuning, half: bool) -> Float:
    constants = {
        "BLOCK": case.block,
        "EPSILON": EPSILON,
        "NORM": case.norm,
        "RESIDUAL": case.residual,
        "BIAS": case.bias,
        **tuning.constants(),
    }
    buffers = Problem(case).buffers(half)
    request: dict[str, Any] = {
        "kernel": {
            "shader": "matvec_q4",
            "constants": constants,
            "floats": ["EPSILON"],
            "half": half,
            "lanes": tuning.lanes,
        },
        "widened": half,
        "buffers": [base64.b64encode(data).decode() for data in buffers],
        "workgroups": [tuning.workgroups, 1, 1],
        "read": len(buffers) - 1,
    }
    return np.frombuffer(base64.b64decode(page.evaluate("request => runKernel(request)", request)), np.float32)


def check(page: Page, case: Case, tuning: MatvecTuning, half: bool = False) -> None:
    got = run(page, case, tuning, half)
    wanted, size = Problem(case).expected()
    errors = np.abs(got[: case.n] - wanted) / size
    worst = int(np.argmax(np.nan_to_num(errors, nan=np.inf)))
    assert errors[worst] <= (HALF_BOUND if half else BOUND), (
        f"y[{worst}] of {case} is {got[worst]}, not {wanted[worst]}, with {tuning}"
    )
    assert (got[case.n :] == 77).all(), f"{case} writes past its {case.n} elements with {tuning}"


def cut(case: Case, lanes: int, rows: int, span: int, workgroup: int, **rest: Any) -> MatvecTuning:
    return MatvecTuning(case.k, case.n, case.gated, lanes, rows, span, workgroup, **rest)


REAL = [
    Case(576, 960, norm=True),
    Case(576, 300, norm=True, gated=True),
    Case(1536, 576, residual=True),
    Case(896, 300, norm=True, bias=True),
    Case(4864, 100, residual=True),
    Case(2048, 301, norm=True),
    Case(3072, 150, norm=True, gated=True),
    Case(8192, 67, residual=True),
]


@pytest.mark.parametrize("case", REAL, ids=str)
def test_the_shapes_of_models_as_they_are_tuned(kernels: Page, case: Case) -> None:
    check(kernels, case, tune_matvec(case.k, case.n, case.gated, False, WorkgroupLimits(software=True)))


FUSED = [
    Case(96, 37),
    Case(96, 37, norm=True),
    Case(96, 37, residual=True),
    Case(96, 37, bias=True),
    Case(96, 37, gated=True),
    Case(96, 37, residual=True, bias=True),
    Case(96, 37, norm=True, gated=True),
]


@pytest.mark.parametrize("lanes", [0, 4])
@pytest.mark.parametrize("case", FUSED, ids=str)
def test_what_surrounds_the_product(kernels: Page, case: Case, lanes: int) -> None:
    check(kernels, case, cut(case, lanes, 2, 8, 32, staged=True))
    check(kernels, case, cut(case, lanes, 2, 8, 32))


@pytest.mark.parametrize("lanes", [0, 4])
@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize(("rows", "span", "workgroup"), [(1, 4, 8), (4, 4, 32), (3, 8, 16), (1, 16, 64), (8, 32, 32)])
def test_every_cut_gives_the_same(
    kernels: Page, lanes: int, staged: bool, rows: int, span: int, workgroup: int
) -> None:
    case = Case(224, 53, norm=True, gated=True)  # 7 runs of 32: no span divides them
    check(kernels, case, cut(case, lanes, rows, span, workgroup, staged=staged))
    check(kernels, case, cut(case, lanes, rows, span, workgroup, staged=staged, most=2))


@pytest.mark.parametrize("lanes", [0, 4])
@pytest.mark.parametrize("staged", [False, True])
def test_float16_is_taken_apart_as_float32_is(kernels: Page, lanes: int, staged: bool) -> None:
    for case in (Case(224, 53, norm=True, gated=True), Case(224, 53, residual=True)):
        check(kernels, case, cut(case, lanes, 2, 8, 32, staged=staged), half=True)


@pytest.mark.parametrize("block", [32, 64, 128])
def test_blocks_of_several_runs_share_a_scale(kernels: Page, block: int) -> None:
    case = Case(384, 21, block=block)
    check(kernels, case, cut(case, 0, 2, 8, 32))


def test_the_tuning_for_larger_subgroups_computes_the_same_without_them(kernels: Page) -> None:
    for case in (Case(2048, 300, norm=True), Case(8192, 40, residual=True)):
        check(
            kernels, case, replace(tune_matvec(case.k, case.n, case.gated, False, WorkgroupLimits(32)), lanes=0, most=3)
        )
