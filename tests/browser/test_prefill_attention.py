"""prefill_attention.wgsl against float64, with subgroup matrices and subgroups of any size as
kernel_page.ts computes them where the adapter has none.

Queries, keys, values and weights are float16, and all sums float32. Rounding a weight changes a result by 2^-11 of its
product with the value, rounding the scores by what their error is; both count relative to the weighted sum of the
absolute values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from capstan.tape.kernel_plan import MatrixSize
from capstan.tape.ops.prefill_attention import AttentionTiling
from tests.attention import attended
from tests.browser.kernel_page import KernelPage
from tests.browser.quantized_rows import packed_rows, unpacked_rows

GUARD = 64
UNTOUCHED = np.float16(77)
NAN_WORD = 0xFFFFFFFF
"""A scale that is NaN."""
SIZE = MatrixSize(8, 8, 8)


@dataclass(frozen=True)
class Case:
    rows: int
    past: int
    group: int = 1
    kv_heads: int = 1
    head: int = 16
    capacity: int = 80
    outliers: bool = False
    rising: bool = False
    """Whether scores grow along the positions, by more than the slack of the kernel."""
    window: int = 0
    softcap: float = 0.0
    sinks: bool = False
    cache_bits: int = 0
    whole: bool = False
    """Whether all positions see all."""


def check(page: KernelPage, case: Case, tiling: AttentionTiling) -> None:
    random = np.random.default_rng(case.rows * 7 + case.past)
    heads, total = case.kv_heads * case.group, case.past + case.rows
    q = random.normal(0, 1, (case.rows, heads, case.head))
    keys = random.normal(0, 1, (case.kv_heads, case.capacity, case.head))
    values = random.normal(0.5, 1, keys.shape)
    if case.outliers:
        q[..., 3] *= 30
        keys[..., 3] *= 10
        values[..., 5] *= 300
    if case.rising:
        q[..., 2] = 8
        keys[..., 2] = np.arange(case.capacity) * random.uniform(0.5, 1.5, case.capacity)
    # Positions past the filled ones, and in steps before the first window, must not be read.
    first = max(0, case.past + 1 - case.window) // tiling.block * tiling.block if case.window else 0
    held = [array.astype(np.float16) for array in (q, keys, values)]
    bits = case.cache_bits
    stored: list[Any] = [packed_rows(cache, bits) for cache in held[1:]] if bits else [*map(np.copy, held[1:])]
    if bits:
        held[1:] = [unpacked_rows(cache, bits).astype(np.float16) for cache in stored]
    for cache in stored:
        cache[:, total:] = cache[:, :first] = NAN_WORD if bits else np.nan
    scale = case.head**-0.5
    constants = {
        "M": case.rows,
        "GROUP": case.group,
        "KV_HEADS": case.kv_heads,
        "HEAD": case.head,
        "CAPACITY": case.capacity,
        "SCALE": scale,
        "WINDOWED": case.window != 0,
        **({"WINDOW": case.window} if case.window else {}),
        "SOFTCAPPED": case.softcap != 0,
        "QUANTIZED": case.cache_bits != 0,
        "FOUR_BITS": case.cache_bits == 4,
        **({"SOFTCAP": case.softcap} if case.softcap else {}),
        **tiling.constants(case.head),
    }
    count = case.rows * heads * case.head
    lengths = np.array([total - 1, 0], np.int32).tobytes()
    buffers = {name: array.tobytes() for name, array in zip(("q", "keys", "values"), [held[0], *stored], strict=True)}
    buffers["y"] = np.full(count + GUARD, UNTOUCHED).tobytes()
    if case.whole:
        buffers |= {
            name: np.moveaxis(cache, 0, 1).tobytes() for name, cache in zip(("keys", "values"), stored, strict=True)
        }
    else:
        buffers["lengths"] = lengths
    sinks = np.linspace(-40, 20, heads).astype(np.float16)
    if case.sinks:
        buffers["head_sink"] = np.append(sinks, [UNTOUCHED] * (heads % 2)).astype(np.float16).tobytes()
    workgroups = tiling.workgroups(case.rows, case.group, case.kv_heads)
    about: dict[str, Any] = {"half": True, "lanes": tiling.lanes, "emulated": True}
    data = page.run("prefill_attention", constants, buffers, workgroups, **about)
    found = np.frombuffer(data, np.float16)
    assert (found[count:] == UNTOUCHED).all(), "written past the results"
    got = found[:count].reshape(case.rows, heads, case.head).astype(np.float64)

    wide_q, wide_keys, wide_values = (array.astype(np.float64) for array in held)
    wide_keys, wide_values = wide_keys[:, :total], wide_values[:, :total]
    sizes = np.einsum("mhd,hpd->hmp", np.abs(wide_q), np.abs(np.repeat(wide_keys, case.group, axis=0))) * scale
    back = case.past + np.arange(case.rows)[:, None] - np.arange(total)[None, :]
    seen = ((back >= 0) & (back < (case.window or total))) | case.whole
    wide_sinks = sinks.astype(np.float64) if case.sinks else None
    wanted, weights = attended(wide_q, wide_keys, wide_values, scale, seen=seen, softcap=case.softcap, sinks=wide_sinks)
    spread = np.abs(np.repeat(wide_values, case.group, axis=0))
    # float32 scores are off by a few 2^-23 of the sum of their absolute products.
    off = 2.0**-11 + 4 * 2.0**-23 * np.where(seen, sizes, 0)
    magnitude = np.einsum("hmp,hpd->mhd", weights * off, spread)
    lost = 2.0**-25 * np.where(seen[None, :, :, None], spread[:, None], 0).sum(axis=2).transpose(1, 0, 2)
    bound = 1.25 * magnitude + np.abs(wanted) * 2.0**-11 + lost + 2.0**-25
    errors = np.abs(got - wanted) / bound
    assert errors.max() <= 1, f"{case}: {errors.max()} at {np.unravel_index(errors.argmax(), got.shape)} with {tiling}"


SMALL = AttentionTiling(SIZE, 4, matrices=1, subgroups=2, block=16)

CASES = [
    Case(16, 0),
    Case(21, 0),
    Case(5, 30, group=3),
    Case(9, 7, group=4, kv_heads=2),
    Case(3, 60, kv_heads=3, head=24, capacity=63),
    Case(24, 24, outliers=True),
    Case(20, 25, rising=True),
    Case(1, 0),
    Case(9, 40, window=1),
    Case(21, 0, window=7),
    Case(9, 47, group=3, window=16, kv_heads=2),
    Case(9, 47, group=3, window=17, rising=True),
    Case(40, 35, window=30, sinks=True, group=3),
    Case(20, 45, window=33, softcap=0.5),
    Case(20, 25, softcap=30.0, rising=True),
    Case(21, 3, sinks=True, kv_heads=5),
    Case(21, 20, group=3, kv_heads=2, cache_bits=8),
    Case(9, 47, group=3, window=16, kv_heads=2, cache_bits=8),
    Case(21, 20, group=3, kv_heads=2, cache_bits=4),
    Case(37, 0, kv_heads=3, head=24, capacity=37, whole=True),
    Case(37, 0, kv_heads=2, head=24, capacity=37, whole=True, rising=True, outliers=True),
]
"""Rows end within a tile, positions within a step; several heads share a tile."""


@pytest.mark.one_in
@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention_of_runs_that_end_anywhere(kernel_page: KernelPage, case: Case) -> None:
    check(kernel_page, case, SMALL)


TILINGS = [
    AttentionTiling(SIZE, 4, matrices=2, subgroups=1, block=8),
    AttentionTiling(SIZE, 4, matrices=1, subgroups=2, block=32),
    AttentionTiling(SIZE, 16, matrices=1, subgroups=2, block=16),
    AttentionTiling(SIZE, 16, matrices=1, subgroups=1, block=32),
    AttentionTiling(SIZE, 8, matrices=1, subgroups=3, block=16),
    AttentionTiling(MatrixSize(8, 8, 16), 4, matrices=1, subgroups=2, block=16),
]
"""A row of scores is one thread's, or several rows are, or several threads share one; or heads end within a matrix."""


@pytest.mark.one_in
@pytest.mark.parametrize("tiling", TILINGS, ids=str)
@pytest.mark.parametrize(
    "case", [Case(13, 19, group=2, head=24), Case(40, 25, rising=True, window=11, sinks=True)], ids=str
)
def test_any_tiling(kernel_page: KernelPage, case: Case, tiling: AttentionTiling) -> None:
    check(kernel_page, case, tiling)
