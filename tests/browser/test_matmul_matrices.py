"""matmul_matrices.wgsl against float64, with subgroup matrices as kernel_page.ts computes them where
the adapter has none, and float32 in place of float16.

Staged values and y stay packed float16: an error counts relative to the sum of the absolute products of an element,
2^-11 for the one rounding of each weight q * scale + minimum and a sixteenth of that for sums, and 2^-11 of y for its
own rounding.
"""

from __future__ import annotations

import numpy as np
import pytest

from capstan.graph.encoder_layers import ACTIVATIONS as GRAPH_ACTIVATIONS
from capstan.tape.kernel_plan import MatrixSize
from capstan.tape.ops.matmul_matrices import ACTIVATIONS
from capstan.tape.ops.matrix_tiling import MatrixTiling
from tests.browser.kernel_page import KernelPage
from tests.browser.product import Problem, Product

GUARD = 64
UNTOUCHED = np.float16(77)
SIZE = MatrixSize(8, 8, 8)


def check(page: KernelPage, case: Product, tiling: MatrixTiling) -> None:
    problem, dense = Problem(case, half=True), not case.bits
    activation = "gelu by erf" if case.erf else "gelu" if case.gelu else "silu" if case.activated else ""
    constants = {
        "K": case.k,
        "N": case.n,
        "M": case.m,
        **({} if dense else {"BLOCK": case.block, "BYTES": case.bits == 8}),
        **tiling.constants(case.gated, dense),
        **({"ACTIVATED": True, "GELU": False, "ERF": False} if case.activated else {}),
        **ACTIVATIONS.get(activation, {}),
    }
    count = case.m * case.n
    residual, bias = problem.residual.astype(np.float16), problem.bias.astype(np.float16)
    buffers = {
        "x": problem.x.tobytes(),
        "y": np.full(count + GUARD, UNTOUCHED).tobytes(),
        **problem.weight_buffers(half=True),
        **({"residual": residual.tobytes()} if case.residual else {}),
        **({"bias": bias.tobytes()} if case.bias else {}),
    }
    workgroups = (*tiling.workgroups(case.m, case.n, case.gated), 1)
    data = page.run("matmul_matrices", constants, buffers, workgroups, half=True, lanes=tiling.lanes)
    found = np.frombuffer(data, np.float16)
    assert (found[count:] == UNTOUCHED).all(), "written past the results"
    got = found[:count].reshape(case.m, case.n).astype(np.float64)

    both = problem.multiplied(problem.x.astype(np.float64))
    y, size = both[0]
    slack = 2.0**-11 * 17 / 16
    bound = size * slack
    if case.gated:
        up, up_size = both[1]
        gate = y / (1 + np.exp(-y))
        # The slope of silu is at most 1.1.
        bound = slack * (1.1 * size * np.abs(up) + up_size * np.abs(gate) + 1.1 * slack * size * up_size)
        y = gate * up
    if case.activated:
        # The slope of each activation is at most 1.2; erf is off by 1.5e-7.
        y, bound = np.vectorize(GRAPH_ACTIVATIONS[activation])(y + bias), 1.2 * bound + 2.0**-21
    y = y + residual if case.residual else y
    bound = bound + np.abs(y) * 2.0**-11 + 2.0**-25
    errors = np.abs(got - y) / bound
    assert errors.max() <= 1, f"{case}: {errors.max()} at {np.unravel_index(errors.argmax(), y.shape)} with {tiling}"


CASES = [
    Product(64, 40, m=20),
    Product(64, 40, m=20, gated=True),
    Product(64, 40, m=20, bits=0),
    Product(64, 40, m=20, gated=True, bits=0),
    Product(128, 24, m=9, block=128),
    Product(96, 24, m=9, gated=True, block=16),
    Product(64, 40, m=20, bits=8),
    Product(96, 40, m=20, bits=8, zeros=True, gated=True),
    Product(96, 40, m=20, zeros=True),
    Product(64, 24, m=9, zeros=True, gated=True, block=128),
    Product(160, 24, m=9, bits=8, zeros=True, block=64),
    Product(96, 24, m=9, bits=8, zeros=True, block=16),
    Product(160, 24, m=9, minima=True, gated=True, block=64),
    Product(96, 40, m=20, minima=True),
    Product(96, 24, m=9, minima=True, block=16),
    Product(96, 40, m=20, bits=8, minima=True, gated=True),
    Product(96, 24, m=9, bits=8, minima=True, block=16),
    Product(160, 24, m=9, zeros=True, minima=True, block=128),
    Product(72, 40, m=20, bits=0, bias=True, activated=True, gelu=True),
    Product(72, 40, m=20, bias=True, activated=True, gelu=True, erf=True, residual=True),
    Product(56, 40, m=20, bits=0, bias=True, activated=True, residual=True),
]
"""Rows and columns end within a tile, some rows of weights within a step."""


@pytest.mark.one_in(4)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_products_that_end_within_a_tile(kernel_page: KernelPage, case: Product) -> None:
    tiling = MatrixTiling(SIZE, 4, matrices=(1, 2), subgroups=(2, 1), step=32)
    check(kernel_page, case, tiling)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dense", [False, True])
def test_a_subgroup_of_several_rows_and_steps_of_several_operations(kernel_page: KernelPage, dense: bool) -> None:
    tiling = MatrixTiling(SIZE, 4, matrices=(2, 2), subgroups=(1, 2), step=64)
    check(kernel_page, Product(128, 72, m=33, gated=True, bits=0 if dense else 4, minima=not dense), tiling)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("gated", [False, True])
def test_subgroups_that_share_a_tile_add_their_results(kernel_page: KernelPage, gated: bool) -> None:
    tiling = MatrixTiling(SIZE, 4, matrices=(1, 2), subgroups=(2, 1), step=64, slices=4)
    check(kernel_page, Product(192, 40, m=20, gated=gated, residual=not gated), tiling)
