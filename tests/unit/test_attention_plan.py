"""The attention kernels' plans keep the limits in their headers, for every shape, element type and subgroup size."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from capstan.tape.kernel_plan import KernelPlan, WorkgroupLimits
from capstan.tape.ops.attention import Attention, HeadNorms
from capstan.tape.ops.attention_plan import by_length, fits_attention, plan_attention
from tests.looped import looped
from tests.unit.shader_declarations import declared_bindings


@dataclass(frozen=True)
class Shape:
    heads: int
    kv_heads: int
    head: int
    element: str = "f16"
    capacity: int = 4096
    scale: float = 0.125
    rotary: int = 0
    interleaved: bool = False
    sinks: int | None = None
    window: int = 0
    softcap: float = 0.0
    cache_bits: int = 0
    written: bool = False
    prepared: bool = False
    whole: bool = False
    slides: bool = False
    gated: bool = False


SIZES = [
    (32, 8, 64),
    (9, 3, 64),
    (14, 2, 64),
    (24, 8, 128),
    (32, 32, 96),
    (32, 32, 80),
    (71, 1, 64),
    (4, 4, 256),
    (14, 2, 256),
    (32, 2, 256),
    (16, 1, 512),
    (8, 2, 400),
]
SHAPES = [Shape(*size, element=element) for size in SIZES for element in ("f16", "f32")]
LANES = (0, 16, 32, 64)


def splits(plan: KernelPlan, length: int) -> int:
    assert callable(plan.counts)
    return plan.counts(length)[0]


@pytest.mark.parametrize("lanes", LANES)
@looped("shape", SHAPES)
def test_constants_are_as_the_kernels_ask(shape: Shape, lanes: int) -> None:
    attention, join, partial_bytes = plan_attention(shape, lanes)
    constants = {name: int(value) for name, value in attention.constants.items() if name != "SCALE"}
    workgroup, block, tile, most = (constants[name] for name in ("WORKGROUP", "BLOCK", "TILE", "MAX_SPLITS"))
    per = 8 if shape.element == "f16" else 4
    chunks = shape.head // per
    if constants["SHUFFLED"]:
        team, batch = constants["TEAM"], constants["BATCH"]
        assert chunks <= team <= lanes
        assert lanes % team == 0
        assert team % batch == 0
        assert workgroup % lanes == 0
        assert block == workgroup // team * batch
        assert constants["WARPS"] == workgroup // lanes
        assert 1 << constants["HALVINGS"] == batch
        assert batch << constants["FOLDS"] == team
        assert constants["HALF_SCORES"] == (batch // 2) * tile
        shared = workgroup // lanes * tile * (shape.head + 2) * 4
    else:
        assert lanes < 64 or chunks > lanes
        assert block == workgroup >= chunks
        assert workgroup >= tile
        rows = workgroup // chunks
        shared = tile * shape.head * 4 + 2 * chunks * 16 + block * tile * 4 + 2 * workgroup * 4
        shared += rows * tile * chunks * per * 4
    assert workgroup <= 256
    assert shared <= 16384
    group = shape.heads // shape.kv_heads
    assert callable(attention.counts)
    assert (
        attention.counts(100)[1] * tile >= shape.kv_heads * group > (attention.counts(100)[1] - shape.kv_heads) * tile
    )
    assert partial_bytes == shape.heads * most * (shape.head + 4) * 4
    joined = {name: int(value) for name, value in join.constants.items()}
    assert joined["WORKGROUP"] == joined["ROWS"] * shape.head // 4
    assert joined["SHARE"] * joined["ROWS"] >= most > (joined["SHARE"] - 1) * joined["ROWS"]
    assert most <= joined["WORKGROUP"] <= 256
    assert {name: joined[name] for name in ("BLOCK", "ALONE", "MAX_SPLITS", "HEADS", "HEAD")} == {
        name: constants[name] for name in ("BLOCK", "ALONE", "MAX_SPLITS", "HEADS", "HEAD")
    }


@pytest.mark.parametrize("lanes", LANES)
@looped("shape", SHAPES)
def test_workgroups_grow_with_the_length_up_to_the_splits_that_partials_hold(shape: Shape, lanes: int) -> None:
    attention, join, _ = plan_attention(shape, lanes)
    counts = [splits(attention, length) for length in range(1, 20_000, 7)]
    assert counts == sorted(counts)
    assert counts[0] == 1
    assert counts[-1] == attention.constants["MAX_SPLITS"]
    for length in (1, 16, 128, 256, 257, 1000, 4096):
        alone = splits(attention, length) == 1
        assert splits(join, length) == (0 if alone else shape.heads)


@pytest.mark.parametrize("lanes", LANES)
@looped("shape", SHAPES)
def test_workgroups_are_as_many_as_the_kernels_count_themselves_at_every_length(shape: Shape, lanes: int) -> None:
    attention, join, _ = plan_attention(shape, lanes)
    block, alone, most, tile = (int(attention.constants[name]) for name in ("BLOCK", "ALONE", "MAX_SPLITS", "TILE"))
    tiles = -(-shape.heads // shape.kv_heads // tile)
    assert callable(attention.counts)
    assert callable(join.counts)
    for length in range(1, block * (most + 2)):
        # count_splits of attention.wgsl and attention_join.wgsl.
        blocks = (length + block - 1) // block
        splits = 1 if blocks <= alone else min(blocks, most)
        assert attention.counts(length) == (splits, shape.kv_heads * tiles, 1), length
        assert join.counts(length) == (shape.heads if splits > 1 else 0, 1, 1), length


@pytest.mark.parametrize("lanes", LANES)
@looped("shape", SHAPES)
def test_a_window_has_the_workgroups_of_a_sequence_as_long(shape: Shape, lanes: int) -> None:
    plans = [plan_attention(replace(shape, window=window), lanes) for window in (0, 3000)]
    for whole, windowed in list(zip(*plans, strict=True))[:2]:
        assert isinstance(whole, KernelPlan)
        assert isinstance(windowed, KernelPlan)
        assert (whole.constants["WINDOW"], windowed.constants["WINDOW"]) == (shape.capacity, 3000)
        counts = [splits(windowed, length) for length in (1, 700, 2999, 3000, 3001, 20_000)]
        assert counts == [splits(whole, length) for length in (1, 700, 2999, 3000, 3000, 3000)]


@pytest.mark.parametrize("window", [0, 300, 3000])
def test_each_length_has_one_kernel_whose_workgroups_cover_it(window: int) -> None:
    shape = Shape(32, 8, 128, window=window)
    plan, *_ = plan_attention(shape, 32)
    short, long = by_length(plan)
    assert (short.constants["TILE"], long) == (1, replace(plan, counts=long.counts))
    block, alone = int(short.constants["BLOCK"]), int(short.constants["ALONE"])
    assert block == short.constants["WORKGROUP"] // short.constants["TEAM"] * short.constants["BATCH"]
    for length in (1, 128, 300, 384, 385, 1000, 5000):
        seen = min(length, window or length)
        assert callable(short.counts)
        assert callable(long.counts)
        assert callable(plan.counts)
        if splits(plan, length) == 1:
            assert (short.counts(length), long.counts(length)[0]) == ((1, 32, 1), 0), length
            assert seen <= block * alone, "one split takes all positions"
        else:
            assert (short.counts(length)[0], long.counts(length)) == (0, plan.counts(length)), length


def test_one_kernel_serves_all_lengths_where_no_other_cut_is_faster() -> None:
    one_head, *_ = plan_attention(Shape(9, 3, 64), 32)
    unshuffled, *_ = plan_attention(Shape(32, 8, 64), 0)
    several, *_ = plan_attention(Shape(32, 8, 64), 32, rows=4)
    assert [by_length(plan) for plan in (one_head, unshuffled, several)] == [[one_head], [unshuffled], [several]]


def test_a_long_head_leaves_memory_for_256_threads() -> None:
    for heads, kv_heads in (4, 1), (8, 1), (8, 4):
        attention, _, _ = plan_attention(Shape(heads, kv_heads, 256), 32)
        assert (attention.constants["TILE"], attention.constants["WORKGROUP"]) == (1, 256)
        assert callable(attention.counts)
        assert attention.counts(1)[1] == heads


def test_few_key_heads_have_as_many_workgroups_as_their_groups_allow() -> None:
    for heads, kv_heads, workgroups in (9, 3, 9), (14, 2, 8), (32, 8, 16), (4, 1, 4), (16, 8, 8), (32, 2, 12):
        attention, _, _ = plan_attention(Shape(heads, kv_heads, 64), 32)
        assert callable(attention.counts)
        assert attention.counts(1)[1] == workgroups


def test_layers_of_one_shape_share_their_counts() -> None:
    first, first_join, _ = plan_attention(Shape(32, 8, 64), 32)
    second, second_join, _ = plan_attention(Shape(32, 8, 64), 32)
    assert first.counts is second.counts
    assert first_join.counts is second_join.counts


def test_heads_whose_halves_are_not_whole_chunks_do_not_fit() -> None:
    fits = {
        (element, head): fits_attention(Shape(4, 2, head, element))
        for element in ("f16", "f32")
        for head in (8, 16, 40, 72, 80, 256, 512, 528)
    }
    assert [head for (element, head), fit in fits.items() if fit and element == "f16"] == [16, 80, 256, 512]
    assert [head for (element, head), fit in fits.items() if fit and element == "f32"] == [8, 16, 40, 72, 80, 256, 512]
    assert not fits_attention(Shape(9, 2, 64))
    assert [rotary for rotary in range(4, 68, 4) if fits_attention(Shape(4, 2, 64, rotary=rotary))] == [16, 32, 48, 64]


@pytest.mark.parametrize(
    ("epsilon", "values", "sinks", "buffers", "always"),
    [
        (None, False, None, 8, False),
        (None, False, 3, 9, False),
        (None, False, 3, 8, True),
        (1e-6, False, None, 10, False),
        (1e-6, False, None, 9, True),
        (1e-6, False, 3, 11, False),
        (1e-6, False, 3, 10, True),
        (1e-6, True, None, 11, False),
        (1e-6, True, None, 10, True),
        (1e-6, True, 3, 10, True),
    ],
)
def test_the_join_writes_every_result_where_a_kernel_binds_fewer_buffers(
    epsilon: float | None, values: bool, sinks: int | None, buffers: int, always: bool
) -> None:
    shape = Shape(32, 8, 64, sinks=sinks)
    attention, join, _ = plan_attention(shape, 32, epsilon, buffers, values)
    assert splits(attention, 1) == 1
    assert splits(join, 1) == (shape.heads if always else 0)
    norms = None if epsilon is None else HeadNorms(1, 2, epsilon, 3 if values else None)
    what = Attention(32, 8, 64, shape.capacity, 0.125, 21, 22, 23, 24, "f16", norms, sinks=sinks)
    kernels = what.kernels((1,), (2,), WorkgroupLimits(32, buffers=buffers))
    asked = sinks is not None
    attends = [(not always, asked and not always)] * 2
    assert [("y" in each.bindings, "head_sink" in each.bindings) for each in kernels] == [
        *attends,
        (True, asked and always),
    ]
    for each in kernels:
        described = {**vars(each.plan), "half": True, "lanes": 32, "bindings": each.bindings}
        assert len(declared_bindings(described)) == len(each.bindings) <= buffers, each.plan.shader


@pytest.mark.parametrize(("buffers", "always"), [(9, False), (8, True)])
def test_a_table_takes_a_buffer_of_the_kernel(buffers: int, always: bool) -> None:
    what = Attention(32, 8, 64, 1037, 0.125, 21, 22, 23, 24, "f16", rows=4, tabled=True)
    attention, join = what.kernels((1,), (2,), WorkgroupLimits(32, buffers=buffers))
    assert ("y" in attention.bindings, len(attention.bindings)) == (not always, buffers)
    assert "table" in attention.bindings
    assert splits(join.plan, 1) == (what.heads if always else 0)
