"""Tensors of GGUF files: what becomes of them is what the package `gguf` reads, for random bytes of every type."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from capstan.device.reference.unpacked import unpacked
from capstan.graph import Unpack
from capstan.graph.gguf.gguf_types import DENSE, PACKED
from capstan.model_files.gguf.header import GgmlType
from tests.gguf_tensors import float32_of, random_tensor, ways

ROWS, COLUMNS = 24, 768


@pytest.mark.parametrize("kind", list(GgmlType), ids=lambda kind: kind.name)
def test_values_are_those_of_the_file(kind: GgmlType) -> None:
    data = random_tensor(kind, ROWS, COLUMNS, seed=kind)
    wanted = float32_of(kind, data, ROWS)
    found = unpacked(Unpack(kind, "values", ROWS, COLUMNS, 32), data)
    assert np.array_equal(found, wanted)
    narrow = unpacked(Unpack(kind, "values", ROWS, COLUMNS, 16, stride=ROWS), data)
    assert np.array_equal(narrow, wanted.astype(np.float16).T)
    turned = unpacked(Unpack(kind, "values", ROWS, COLUMNS, 32, halves=8), data).reshape(3, 2, 4, COLUMNS)
    assert np.array_equal(turned, wanted.reshape(3, 4, 2, COLUMNS).swapaxes(1, 2))


@pytest.mark.parametrize("kind", list(PACKED), ids=lambda kind: kind.name)
def test_a_product_s_weights_are_the_values_but_for_one_rounding(kind: GgmlType) -> None:
    """(Q - zero) d + m in float64, where d is exact and m was rounded to float32 once."""
    data = random_tensor(kind, ROWS, COLUMNS, seed=kind)
    packing = PACKED[kind]
    quants, scales, *minima = held(kind, data)
    assert quants.shape == (ROWS, COLUMNS * packing.bits // 8)
    if packing.bits == 4:
        quants = np.stack([quants & 15, quants >> 4], axis=2).reshape(ROWS, COLUMNS)
    centred = quants.astype(np.float64).reshape(ROWS, -1, packing.block) - (1 << (packing.bits - 1))
    found = centred * scales[:, :, None]
    allowed = np.zeros_like(scales)
    if minima:
        found += minima[0].T[:, :, None]
        allowed = np.spacing(np.abs(minima[0].T)) / 2
    wanted = float32_of(kind, data, ROWS).reshape(found.shape)
    assert np.all(np.abs(found - wanted) <= (allowed[:, :, None] + np.spacing(np.abs(wanted)) / 2) * bool(minima))


@pytest.mark.parametrize(
    "kind", [kind for kind, held in PACKED.items() if held.shift is None], ids=lambda kind: kind.name
)
def test_experts_have_the_values_in_more_bits_and_smaller_blocks(kind: GgmlType) -> None:
    data = random_tensor(kind, ROWS, COLUMNS, seed=kind)
    quants = unpacked(Unpack(kind, "quants", ROWS, COLUMNS, 8), data).astype(np.float32) - 128
    scales = unpacked(Unpack(kind, "scales", ROWS, COLUMNS, 32, 16), data)
    assert np.array_equal(quants * np.repeat(scales, 16, axis=1), float32_of(kind, data, ROWS))


def held(kind: GgmlType, data: bytes) -> list[NDArray[Any]]:
    """A tensor's quants, scales and minima, if it has any."""
    found = {how.what: unpacked(how, data) for how in ways(kind, ROWS, COLUMNS) if how.bits != 16}
    return [found[what] for what in ("quants", "scales", "minima") if what in found]


def test_every_type_of_a_file_is_dense_or_packed() -> None:
    assert sorted([*DENSE, *PACKED]) == sorted(GgmlType)
