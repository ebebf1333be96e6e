"""web/src/shaders/matmul_matrices.wgsl against float64, with subgroup matrices as kernel_page.ts computes them where
the adapter has none, and float32 in place of float16.

What is staged, and y, stay packed float16: an error counts relative to the sum of the absolute products of an element,
2^-11 for the rounding of each weight q * scale and a sixteenth of that for sums, and 2^-11 of y for its own rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from capstan.tape.kernel_plan import MatrixSize
from capstan.tape.ops.matmul_matrices import MatrixTiling
from tests.browser.kernel_page import KernelPage, packed

GUARD = 64
UNTOUCHED = np.float16(77)
SIZE = MatrixSize(8, 8, 8)


@dataclass(frozen=True)
class Case:
    rows: int
    k: int
    n: int
    gated: bool = False
    dense: bool = False
    block: int = 32


def check(page: KernelPage, case: Case, tiling: MatrixTiling) -> None:
    random = np.random.default_rng(case.k * 7 + case.n)
    matrices = 1 + case.gated
    x = random.normal(0.3, 1, (case.rows, case.k)).astype(np.float16)
    if case.dense:
        weights = random.normal(0, 0.05, (matrices, case.k, case.n)).astype(np.float16).astype(np.float64)
        pairs = [[w.astype(np.float16).tobytes()] for w in weights]
    else:
        nibbles = random.integers(0, 16, (matrices, case.n, case.k), np.uint8)
        scales = random.uniform(0.005, 0.02, (matrices, case.n, case.k // case.block)).astype(np.float16)
        spread = np.repeat(scales.astype(np.float64), case.block, axis=2)
        weights = ((nibbles.astype(np.float64) - 8) * spread).transpose(0, 2, 1)
        wide = scales.astype(np.float32)
        pairs = [[packed(q), s.tobytes()] for q, s in zip(nibbles, wide, strict=True)]
    constants = {
        "K": case.k,
        "N": case.n,
        "M": case.rows,
        "GATED": case.gated,
        "DENSE": case.dense,
        **({} if case.dense else {"BLOCK": case.block}),
        **tiling.constants(case.gated, case.dense),
    }
    count = case.rows * case.n
    guarded = np.full(count + GUARD, UNTOUCHED).tobytes()
    buffers = [x.tobytes(), *(part for pair in pairs for part in pair), guarded]
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
]
"""Rows and columns end within a tile."""


@pytest.mark.parametrize("case", CASES, ids=str)
def test_products_that_end_within_a_tile(kernel_page: KernelPage, case: Case) -> None:
    tiling = MatrixTiling(SIZE, 4, matrices=(1, 2), subgroups=(2, 1), step=32)
    check(kernel_page, case, tiling)


@pytest.mark.parametrize("dense", [False, True])
def test_a_subgroup_of_several_rows_and_steps_of_several_operations(kernel_page: KernelPage, dense: bool) -> None:
    tiling = MatrixTiling(SIZE, 4, matrices=(2, 2), subgroups=(1, 2), step=64)
    check(kernel_page, Case(33, 128, 72, gated=True, dense=dense), tiling)
