"""The fused attention kernels on the GPU against float64 sums in NumPy, with the plans that tapes use and others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from capstan.tape.ops.attention_plan import (
    by_length,
    fits_attention,
    plan_attention,
    team_constants,
)
from tests.browser.attention_steps import (
    JOINED,
    Shape,
    Step,
    attend,
    check,
    contents,
    dispatched,
    planned,
    workgroups,
)
from tests.browser.kernel_page import KernelPage
from tests.extended import pairwise

LENGTHS = (1, 2, 63, 64, 65, 255, 256, 257, 511, 512, 513, 1000)
LONG = (4096, 5000)


@pytest.mark.one_in
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head"),
    [(4, 2, 64), (9, 3, 64), (7, 1, 64), (3, 1, 128), (2, 2, 80), (16, 1, 16), (8, 1, 256), (8, 2, 512), (2, 2, 400)],
)
def test_results_and_caches(kernel_page: KernelPage, heads: int, kv_heads: int, head: int) -> None:
    planned(kernel_page, Shape(heads, kv_heads, head, capacity=303), (1, 65, 300))


@pytest.mark.one_in
@pytest.mark.parametrize("element", ["f32", "f16"])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head", "more"),
    [
        (4, 2, 64, {}),
        (9, 3, 64, {"rotary": 32}),
        (2, 2, 80, {"epsilon": 0.5, "normed_values": True}),
        (8, 1, 256, {"window": 40, "sinks": 0}),
    ],
)
def test_caches_of_8_bits(
    kernel_page: KernelPage, heads: int, kv_heads: int, head: int, more: dict[str, Any], element: str
) -> None:
    if element == "f16" and not kernel_page.half:
        pytest.skip("the adapter has no float16")
    shape = Shape(heads, kv_heads, head, capacity=303, element=element, cache_bits=8, **more)
    for lanes in (0, 32):
        planned(kernel_page, shape, (1, 2, 65, 300), lanes)


@pytest.mark.one_in
@pytest.mark.parametrize("element", ["f32", "f16"])
@pytest.mark.parametrize(("heads", "kv_heads", "head", "sinks"), [(4, 2, 64, None), (5, 1, 128, 0), (9, 3, 16, None)])
def test_prepared_queries_over_caches_of_4_bits(
    kernel_page: KernelPage, heads: int, kv_heads: int, head: int, sinks: int | None, element: str
) -> None:
    """The kernels of onnxruntime-web before it have rotated the queries and written the new rows."""
    if element == "f16" and not kernel_page.half:
        pytest.skip("the adapter has no float16")
    shape = Shape(heads, kv_heads, head, 303, element, cache_bits=4, prepared=True, sinks=sinks)
    for lanes in (0, 32):
        planned(kernel_page, shape, (1, 2, 65, 300), lanes)


@pytest.mark.one_in
@pytest.mark.parametrize(("heads", "kv_heads", "head", "window"), [(8, 1, 256, 40), (4, 2, 64, 0), (8, 2, 512, 0)])
def test_caches_of_an_earlier_layer(kernel_page: KernelPage, heads: int, kv_heads: int, head: int, window: int) -> None:
    """That layer has written the new rows, and nothing is written but the result."""
    shape = Shape(heads, kv_heads, head, capacity=303, epsilon=0.5, window=window, shares=True)
    for lanes in {0, kernel_page.lanes, 32}:
        planned(kernel_page, shape, (1, 65, 300), lanes)
        planned(kernel_page, replace(shape, epsilon=None, sinks=0), (65, 300), lanes)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("heads", "head", "capacity"), [(6, 64, 1500), (2, 16, 90)])
def test_an_encoders_outputs_are_all_in_sight(kernel_page: KernelPage, heads: int, head: int, capacity: int) -> None:
    """At any length of the sequence, and nothing is written but the result."""
    shape = Shape(heads, heads, head, capacity, prepared=True, whole=True)
    step = Step.random(shape)
    for lanes in {0, kernel_page.lanes, 32}:
        for tokens in (1, 300):
            check(
                step, attend(kernel_page, step, plan_attention(shape, lanes), capacity, lanes, tokens=tokens), capacity
            )


@pytest.mark.one_in(8)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head"), [(4, 2, 64), (7, 1, 64), (2, 2, 80), (16, 1, 16), (8, 1, 256), (4, 1, 512)]
)
def test_norms_of_q_and_k(kernel_page: KernelPage, heads: int, kv_heads: int, head: int) -> None:
    for lanes in {0, kernel_page.lanes}:
        shape = Shape(heads, kv_heads, head, capacity=303, epsilon=0.5)
        planned(kernel_page, shape, (1, 65, 300), lanes)
        planned(kernel_page, replace(shape, normed_values=True), (1, 65, 300), lanes)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head", "rotary", "interleaved"),
    pairwise(
        [(4, 2, 16, 8), (3, 1, 128, 96)],
        [(4, 2, 16, 0), (7, 1, 64, 40), (2, 2, 80, 32), (2, 1, 20, 16)],
        (False, True),
    ),
)
def test_heads_that_are_rotated_in_part_or_by_neighbours(
    kernel_page: KernelPage, heads: int, kv_heads: int, head: int, rotary: int, interleaved: bool
) -> None:
    shape = Shape(heads, kv_heads, head, capacity=303, rotary=rotary, interleaved=interleaved)
    assert fits_attention(shape)
    for lanes in {0, kernel_page.lanes, 32}:
        for epsilon in (None, 0.5):
            planned(kernel_page, replace(shape, epsilon=epsilon), (1, 65, 300), lanes)


@pytest.mark.parametrize(("heads", "kv_heads", "head", "rotary"), [(4, 2, 64, 24), (2, 1, 256, 64)])
def test_a_gate_follows_each_query(kernel_page: KernelPage, heads: int, kv_heads: int, head: int, rotary: int) -> None:
    """The kernels of attention do not read it."""
    shape = Shape(heads, kv_heads, head, capacity=303, epsilon=0.5, rotary=rotary, gated=True)
    for lanes in {0, kernel_page.lanes, 32}:
        planned(kernel_page, shape, (1, 65, 300), lanes)


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    ("window", "epsilon"), pairwise([(1,), (64,), (300,)], [(2,), (63,), (65,), (100,)], (None, 0.5))
)
def test_what_lies_before_the_window_is_not_read(kernel_page: KernelPage, window: int, epsilon: float | None) -> None:
    for lanes in {0, kernel_page.lanes}:
        shape = Shape(4, 2, 16, capacity=703, epsilon=epsilon, window=window)
        lengths = {1, window - 1, window, window + 1, 2 * window + 5, 703} - {0}
        planned(kernel_page, shape, sorted(lengths), lanes)
        planned(kernel_page, shape, (window + 1, 703), lanes, ALONE=1, MAX_SPLITS=4)


@pytest.mark.extended
@pytest.mark.parametrize("softcap", [0.5, 5.0, 50.0])
def test_soft_caps(kernel_page: KernelPage, softcap: float) -> None:
    for lanes in {0, kernel_page.lanes}:
        for window in (0, 70):
            shape = Shape(4, 2, 16, capacity=703, softcap=softcap, window=window)
            planned(kernel_page, shape, (1, 65, 700), lanes)


@pytest.mark.extended
def test_sinks(kernel_page: KernelPage) -> None:
    for lanes in {0, kernel_page.lanes, 32}:
        for window in (0, 70):
            for epsilon in (None, 0.5):
                shape = Shape(6, 2, 16, capacity=703, sinks=0, window=window, epsilon=epsilon)
                planned(kernel_page, shape, (1, 65, 700), lanes)
                planned(kernel_page, shape, (700,), lanes, ALONE=1, MAX_SPLITS=4)


@pytest.mark.extended
def test_norms_where_a_split_takes_several_blocks(kernel_page: KernelPage) -> None:
    shape = Shape(4, 2, 32, capacity=703, epsilon=1e-6)
    planned(kernel_page, shape, (65, 129, 700), ALONE=2, MAX_SPLITS=4)
    if kernel_page.lanes >= 4:
        wide = Shape(6, 2, 4 * kernel_page.lanes, epsilon=0.5)
        assert plan_attention(wide, kernel_page.lanes)[0].constants["SHUFFLED"]
        planned(kernel_page, wide, LENGTHS, kernel_page.lanes)


@pytest.mark.extended
def test_lengths_around_blocks(kernel_page: KernelPage) -> None:
    planned(kernel_page, Shape(4, 2, 32), LENGTHS)


def test_lengths_where_a_split_takes_several_blocks(kernel_page: KernelPage) -> None:
    planned(kernel_page, Shape(2, 1, 32, capacity=5003), LONG)
    planned(kernel_page, Shape(2, 1, 32), (65, 129, 257, 321, 700), ALONE=2, MAX_SPLITS=4)


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    ("tile", "workgroup", "batch", "team"), [(2, 32, 4, 4), (1, 32, 2, 4), (3, 16, 1, 4), (5, 64, 2, 2)]
)
@pytest.mark.parametrize("epsilon", [None, 0.5], ids=["plain", "norms"])
def test_subgroups_give_the_same(
    kernel_page: KernelPage, tile: int, workgroup: int, batch: int, team: int, epsilon: float | None
) -> None:
    """With subgroups of the adapter's size, of which a team is all or a half."""
    if kernel_page.lanes < 4:
        pytest.skip("the adapter's subgroups come in several sizes or are too small")
    shape = Shape(10, 2, team * 4, epsilon=epsilon)
    block = workgroup // team * batch
    sizes = team_constants(team, batch, tile) | {"TILE": tile, "WORKGROUP": workgroup, "BLOCK": block, "SHUFFLED": True}
    sizes["WARPS"] = workgroup // kernel_page.lanes
    lengths = (1, 2, block, block + 1, 2 * block, 2 * block + 1, 200, 1000)
    planned(kernel_page, shape, lengths, kernel_page.lanes, **sizes, ALONE=tile % 2 + 1, MAX_SPLITS=4)


@pytest.mark.one_in(6)
@pytest.mark.parametrize(("lanes", "head"), [(8, 32), (16, 64), (32, 64), (64, 128), (128, 512)])
def test_subgroups_of_other_sizes_as_planned(kernel_page: KernelPage, lanes: int, head: int) -> None:
    """Teams of all or half of a subgroup, in workgroups of 256 threads with 16 KiB, the minimum of every adapter."""
    shape = Shape(6, 2, head, capacity=703, epsilon=0.5)
    assert plan_attention(shape, lanes)[0].constants["SHUFFLED"]
    planned(kernel_page, shape, (1, 129, 700), lanes)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("epsilon", [0.5, None], ids=["norms", "plain"])
def test_the_kernel_of_few_positions_gives_the_same(kernel_page: KernelPage, epsilon: float | None) -> None:
    """Up to the positions that one split takes alone, in blocks of its own."""
    shape = Shape(32, 8, 128, capacity=503, epsilon=epsilon)
    plan, join, partial_bytes = plan_attention(shape, 32, epsilon)
    short, _ = by_length(plan)
    step = Step.random(shape)
    for length in (1, 65, 384):
        check(step, attend(kernel_page, step, (short, join, partial_bytes), length, 32), length)


@pytest.mark.extended
def test_subgroups_as_planned(kernel_page: KernelPage) -> None:
    if kernel_page.lanes < 4:
        pytest.skip("the adapter's subgroups come in several sizes or are too small")
    shape = Shape(6, 2, 4 * kernel_page.lanes)
    assert plan_attention(shape, kernel_page.lanes)[0].constants["SHUFFLED"]
    planned(kernel_page, shape, LENGTHS, kernel_page.lanes)


def test_float16(kernel_page: KernelPage) -> None:
    if not kernel_page.half:
        pytest.skip("the adapter has no shader-f16")
    for lanes in {0, kernel_page.lanes}:
        for shape in (Shape(8, 2, 64), Shape(7, 1, 64), Shape(6, 2, 128), Shape(2, 2, 80)):
            for epsilon in (None, 1e-6):
                planned(kernel_page, replace(shape, element="f16", epsilon=epsilon), LENGTHS, lanes)
            planned(kernel_page, replace(shape, element="f16", window=100, softcap=5.0), LENGTHS, lanes)
            for interleaved in (False, True):
                turned = replace(shape, rotary=32, interleaved=interleaved, epsilon=1e-6)
                planned(kernel_page, replace(turned, element="f16"), LENGTHS, lanes)


def test_workgroups_for_a_longer_sequence_do_nothing(kernel_page: KernelPage) -> None:
    shape = Shape(4, 2, 16)
    plans = plan_attention(shape, 0)
    step = Step.random(shape)
    for length, reach in ((1, 1000), (65, 1000), (200, 1000), (200, 201), (300, 1037)):
        check(step, attend(kernel_page, step, plans, length, reach=reach), length)


@pytest.mark.extended
def test_where_one_split_is_alone_the_join_writes_nothing(kernel_page: KernelPage) -> None:
    shape = Shape(4, 2, 64)
    attention, join, partial_bytes = plan_attention(shape, 0)
    length = int(attention.constants["BLOCK"]) * int(attention.constants["ALONE"])
    assert workgroups(join, length) == (0, 1, 1)
    for state, written in ((length, False), (length + 1, True)):
        before = np.arange(shape.heads * shape.head, dtype=np.float32)
        partials = np.ones(partial_bytes // 4, dtype=np.float32)
        buffers = {"partials": partials, "state": np.array([state], dtype=np.uint32), "y": before}
        [after] = contents(kernel_page, buffers, [dispatched(join, shape, 0, JOINED, (shape.heads, 1, 1))], ["y"])
        assert (after.tobytes() != before.tobytes()) == written


@pytest.mark.extended
def test_scores_of_any_size_keep_the_softmax_finite(kernel_page: KernelPage) -> None:
    """Scores of thousands, below and above: exp of them is 0 or infinite without the largest taken off."""
    shape = Shape(4, 2, 16)
    for lanes in {0, kernel_page.lanes}:
        for sign in (-1, 1):
            step = Step.random(shape)
            step.qkv[: shape.heads] = 30
            step.keys[:] = sign * 30 + step.keys
            step.cos[:], step.sin[:] = 1, 0
            for length in (3, 100, 700):
                result = attend(kernel_page, step, plan_attention(shape, lanes), length, lanes).result
                expected = step.expected(length)[0]
                assert np.abs(result - expected).max() < 2e-2, f"lanes {lanes}, length {length}"
