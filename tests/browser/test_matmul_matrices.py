"""matmul_matrices.wgsl against float64, with subgroup matrices as kernel_page.ts computes them where
the adapter has none, and float32 in place of float16.

Staged values and y stay packed float16: an error counts relative to the sum of the absolute products of an element,
2^-11 for the one rounding of each weight q * scale + minimum and a sixteenth of that for sums, and 2^-11 of y for its
own rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from capstan.graph.encoder_layers import ACTIVATIONS as GRAPH_ACTIVATIONS
from capstan.tape.kernel_plan import MatrixSize
from capstan.tape.ops.matmul_matrices import ACTIVATIONS
from capstan.tape.ops.matrix_tiling import MatrixTiling
from tests.browser.kernel_page import KernelPage
from tests.browser.packed_weights import PackedWeights

GUARD = 64
UNTOUCHED = np.float16(77)
SIZE = MatrixSize(8, 8, 8)
HALVES = ("", "_up")
"""Endings of the names of weights."""


@dataclass(frozen=True)
class Case:
    rows: int
    k: int
    n: int
    gated: bool = False
    dense: bool = False
    block: int = 32
    bits: int = 4
    zeros: bool = False
    minima: bool = False
    residual: bool = False
    activation: str = ""
    """With a bias before it."""


def check(page: KernelPage, case: Case, tiling: MatrixTiling) -> None:
    random = np.random.default_rng(case.k * 7 + case.n)
    matrices = 1 + case.gated
    x = random.normal(0.3, 1, (case.rows, case.k)).astype(np.float16)
    if case.dense:
        weights = random.normal(0, 0.05, (matrices, case.k, case.n)).astype(np.float16).astype(np.float64)
        bound = {f"weights{ending}": w.astype(np.float16).tobytes() for ending, w in zip(HALVES, weights, strict=False)}
    else:
        sizes = matrices, case.n, case.k
        made = PackedWeights(random, sizes, case.block, case.bits, zeros=case.zeros, minima=case.minima, half=True)
        weights, bound = made.numbers().transpose(0, 2, 1), made.buffers()
    constants = {
        "K": case.k,
        "N": case.n,
        "M": case.rows,
        **({} if case.dense else {"BLOCK": case.block, "BYTES": case.bits == 8}),
        **tiling.constants(case.gated, case.dense),
        **({"ACTIVATED": True, "GELU": False, "ERF": False} if case.activation else {}),
        **ACTIVATIONS.get(case.activation, {}),
    }
    count = case.rows * case.n
    guarded = np.full(count + GUARD, UNTOUCHED).tobytes()
    residual = random.normal(0, 3, (case.rows, case.n)).astype(np.float16)
    buffers = {"x": x.tobytes(), "y": guarded, **bound, **({"residual": residual.tobytes()} if case.residual else {})}
    bias = random.normal(0, 1, case.n).astype(np.float16)
    if case.activation:
        buffers["bias"] = bias.tobytes()
    workgroups = (*tiling.workgroups(case.rows, case.n, case.gated), 1)
    data = page.run("matmul_matrices", constants, buffers, workgroups, half=True, lanes=tiling.lanes)
    found = np.frombuffer(data, np.float16)
    assert (found[count:] == UNTOUCHED).all(), "written past the results"
    got = found[:count].reshape(case.rows, case.n).astype(np.float64)

    wide_x = x.astype(np.float64)
    y, size = wide_x @ weights[0], np.abs(wide_x) @ np.abs(weights[0])
    slack = 2.0**-11 * 17 / 16
    bound = size * slack
    if case.gated:
        up, up_size = wide_x @ weights[1], np.abs(wide_x) @ np.abs(weights[1])
        gate = y / (1 + np.exp(-y))
        # The slope of silu is at most 1.1.
        bound = slack * (1.1 * size * np.abs(up) + up_size * np.abs(gate) + 1.1 * slack * size * up_size)
        y = gate * up
    if case.activation:
        # The slope of each activation is at most 1.2; erf is off by 1.5e-7.
        y, bound = np.vectorize(GRAPH_ACTIVATIONS[case.activation])(y + bias), 1.2 * bound + 2.0**-21
    y = y + residual if case.residual else y
    bound = bound + np.abs(y) * 2.0**-11 + 2.0**-25
    errors = np.abs(got - y) / bound
    assert errors.max() <= 1, f"{case}: {errors.max()} at {np.unravel_index(errors.argmax(), y.shape)} with {tiling}"


CASES = [
    Case(20, 64, 40),
    Case(20, 64, 40, gated=True),
    Case(20, 64, 40, dense=True),
    Case(20, 64, 40, gated=True, dense=True),
    Case(9, 128, 24, block=128),
    Case(9, 96, 24, gated=True, block=16),
    Case(20, 64, 40, bits=8),
    Case(20, 96, 40, bits=8, zeros=True, gated=True),
    Case(20, 96, 40, zeros=True),
    Case(9, 64, 24, zeros=True, gated=True, block=128),
    Case(9, 160, 24, bits=8, zeros=True, block=64),
    Case(9, 96, 24, bits=8, zeros=True, block=16),
    Case(9, 160, 24, minima=True, gated=True, block=64),
    Case(20, 96, 40, minima=True),
    Case(9, 96, 24, minima=True, block=16),
    Case(20, 96, 40, bits=8, minima=True, gated=True),
    Case(9, 96, 24, bits=8, minima=True, block=16),
    Case(9, 160, 24, zeros=True, minima=True, block=128),
    Case(20, 72, 40, dense=True, activation="gelu"),
    Case(20, 72, 40, activation="gelu by erf", residual=True),
    Case(20, 56, 40, dense=True, activation="silu", residual=True),
]
"""Rows and columns end within a tile, some rows of weights within a step."""


@pytest.mark.one_in(4)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_products_that_end_within_a_tile(kernel_page: KernelPage, case: Case) -> None:
    tiling = MatrixTiling(SIZE, 4, matrices=(1, 2), subgroups=(2, 1), step=32)
    check(kernel_page, case, tiling)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dense", [False, True])
def test_a_subgroup_of_several_rows_and_steps_of_several_operations(kernel_page: KernelPage, dense: bool) -> None:
    tiling = MatrixTiling(SIZE, 4, matrices=(2, 2), subgroups=(1, 2), step=64)
    check(kernel_page, Case(33, 128, 72, gated=True, dense=dense, minima=not dense), tiling)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("gated", [False, True])
def test_subgroups_that_share_a_tile_add_their_results(kernel_page: KernelPage, gated: bool) -> None:
    tiling = MatrixTiling(SIZE, 4, matrices=(1, 2), subgroups=(2, 1), step=64, slices=4)
    check(kernel_page, Case(20, 192, 40, gated=gated, residual=not gated), tiling)
