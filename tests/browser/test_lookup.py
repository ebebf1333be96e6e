"""Rows of tables by ids (gather_rows.wgsl), with the factor and the cast behind them, and by positions
(add_position.wgsl), against numpy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from capstan.tape import WorkgroupLimits
from capstan.tape.operation import Buffer, Value
from capstan.tape.ops.gemv import Factor
from capstan.tape.ops.lookup import Lookup
from capstan.tape.ops.position_row import PositionRow
from tests.browser.kernel_page import KernelPage, guarded, packed, results

VOCABULARY, K, BLOCK, FACTOR = 24, 96, 32, 4.5
IDS = [17, 0, 23, 5]
TABLE, SCALES, BY = 11, 21, 31
PLAIN = Lookup((TABLE,), K, "f32", len(IDS))
PACKED = replace(PLAIN, scales=(SCALES,), block=BLOCK)
FORMS = {
    "plain": PLAIN,
    "scaled": replace(PLAIN, factor=Factor(BY)),
    "divided": replace(PLAIN, factor=Factor(BY, divides=True)),
    "4 bits": PACKED,
    "signed 4 bits": replace(PACKED, signed=True),
    "4 bits scaled": replace(PACKED, factor=Factor(BY)),
    "in parts": replace(PLAIN, tables=(TABLE, TABLE + 1), size=16, factor=Factor(BY)),
    "4 bits in parts": replace(PACKED, tables=(TABLE, TABLE + 1), scales=(SCALES, SCALES + 1), size=16),
    "wide": replace(PLAIN, element="f16", wide=True),
    "4 bits scaled and wide": replace(PACKED, element="f16", wide=True, factor=Factor(BY)),
}


@pytest.mark.parametrize("form", FORMS)
def test_rows_are_those_of_the_ids(form: str, kernel_page: KernelPage) -> None:
    what, random = FORMS[form], np.random.default_rng(3)
    floats = (random.integers(-64, 64, (VOCABULARY, K)) / 8).astype(np.float32)
    numbers = random.integers(0, 16, (VOCABULARY, K)).astype(np.uint8)
    scales = (random.integers(1, 16, (VOCABULARY, K // BLOCK)) / 8).astype(np.float32)
    size = what.size or VOCABULARY
    held: dict[int, bytes] = {BY: np.float32(FACTOR).tobytes()}
    for part in range(len(what.tables)):
        rows = slice(part * size, (part + 1) * size)
        held[TABLE + part] = packed(numbers[rows]) if what.scales else floats[rows].tobytes()
        held[SCALES + part] = scales[rows].tobytes()
    found = guarded(len(IDS) * K)
    for kernel in what.kernels([1], [2], WorkgroupLimits()):
        given: dict[str, Any] = {"ids": np.array(IDS, np.int64).tobytes(), "y": found}
        for name, binding in kernel.bindings.items():
            if isinstance(binding, Buffer):
                given[name] = held[binding.id]
            else:
                assert isinstance(binding, Value)
        assert isinstance(kernel.plan.counts, tuple)
        found = kernel_page.run("gather_rows", kernel.plan.constants, given, kernel.plan.counts, half=kernel.half)
    quantized = (numbers ^ 8 if what.signed else numbers) - 8.0
    whole = quantized * np.repeat(scales, BLOCK, axis=1) if what.scales else floats
    by = 1.0 if what.factor is None else 1 / FACTOR if what.factor.divides else FACTOR
    np.testing.assert_allclose(results(found, len(IDS) * K).reshape(len(IDS), K), whole[IDS] * by, rtol=1e-6)


@pytest.mark.parametrize("along", [False, True])
def test_the_row_of_each_position_is_added(along: bool, kernel_page: KernelPage) -> None:
    lengths, random = [7, 1, VOCABULARY, 0], np.random.default_rng(4)
    x, table = ((random.integers(-64, 64, (rows, K)) / 8).astype(np.float32) for rows in (len(lengths), VOCABULARY))
    [kernel] = PositionRow(TABLE, K, "f32", len(lengths), along).kernels([1], [2], WorkgroupLimits())
    state = np.zeros((len(lengths), 8), np.uint32)
    state[:, 0] = lengths
    given: dict[str, Any] = {"x": x.tobytes(), "table": table.tobytes(), "state": state.tobytes(), "y": guarded(x.size)}
    assert isinstance(kernel.plan.counts, tuple)
    found = kernel_page.run("add_position", kernel.plan.constants, given, kernel.plan.counts, half=kernel.half)
    # A row without a sequence takes the first position.
    at = [6, 7, 8, 9] if along else [6, 0, VOCABULARY - 1, 0]
    np.testing.assert_array_equal(results(found, x.size).reshape(x.shape), x + table[at])
