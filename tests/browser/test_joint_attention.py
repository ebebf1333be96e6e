"""Attention of several sequences, positions or tokens in one dispatch, and over turned heads, against float64."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from capstan.tape.kernel_plan import WorkgroupLimits
from capstan.tape.operation import Kernel, Shared
from capstan.tape.ops.attention import Attention, HeadNorms
from capstan.tape.ops.attention_plan import (
    plan_append,
    plan_attention,
)
from tests.browser.attention_steps import (
    BOUND,
    BOUNDS,
    GAMMAS,
    JOINED,
    READ,
    Array,
    Plans,
    Run,
    Shape,
    Step,
    check,
    contents,
    dispatched,
    workgroups,
)
from tests.browser.kernel_page import KernelPage
from tests.browser.quantized_rows import LEVELS, unpacked_rows


@pytest.mark.one_in(2)
@pytest.mark.parametrize("lengths", [(1, 65, 300), (300, 7, 40)])
def test_sequences_of_different_lengths_in_one_dispatch(kernel_page: KernelPage, lengths: tuple[int, ...]) -> None:
    """Each as if it were alone, with the workgroups of the longest."""
    for lanes in {0, kernel_page.lanes}:
        attend_together(kernel_page, Shape(4, 2, 16, capacity=303), lengths, lanes)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("shape", "subgroups"),
    [
        (Shape(4, 2, 16, capacity=303), (0, 4, 32)),
        (Shape(6, 2, 32, capacity=303, window=70, cache_bits=8), (0, 32)),
    ],
    ids=["plain", "window of 8 bits"],
)
def test_sequences_read_each_others_caches_by_a_table(
    kernel_page: KernelPage, shape: Shape, subgroups: tuple[int, ...]
) -> None:
    for lanes in subgroups:
        for lengths in ((1, 65, 300), (130, 130, 130, 130)):
            attend_together(kernel_page, shape, lengths, lanes, tabled=True)


def attend_together(
    kernel_page: KernelPage, shape: Shape, lengths: Sequence[int], lanes: int, tabled: bool = False
) -> None:
    """Check sequences in one dispatch, each of whose positions may lie in the caches of any, as a table says."""
    count = len(lengths)
    attention, join, partial_bytes = plan_attention(shape, lanes, rows=count)
    steps = [replace(Step.random(shape), qkv=np.roll(Step.random(shape).qkv, 3 * i)) for i in range(count)]
    if tabled:
        steps = [replace(Step.random(shape, seed=1 + i), cos=steps[0].cos, sin=steps[0].sin) for i in range(count)]
    table = np.tile(np.arange(count, dtype=np.uint32)[:, None], shape.capacity)
    if tabled:
        # A sequence writes its own caches at its last position.
        inner = [at for at in range(shape.capacity) if at + 1 not in lengths]
        table[:, inner] = np.random.default_rng(3).permuted(table[:, inner], axis=0)
    where = np.arange(shape.capacity)
    state = np.zeros((count, 8), np.uint32)
    state[:, 0] = lengths
    caches = [step.caches(length) for step, length in zip(steps, lengths, strict=True)]
    keys, values = (np.empty_like(np.stack([pair[i] for pair in caches])) for i in (0, 1))
    for i, (own_keys, own_values) in enumerate(caches):
        # With an index in front and one behind, numpy has the positions first.
        keys[table[i], :, where], values[table[i], :, where] = own_keys.swapaxes(0, 1), own_values.swapaxes(0, 1)
    partials = np.full(partial_bytes // 4, np.nan, np.float32)
    result = np.full((count, shape.heads, shape.head), np.nan, shape.dtype)
    qkv = np.stack([step.qkv for step in steps])
    buffers = {**replace(steps[0], qkv=qkv).buffers(state, keys, values, partials, result), "table": table}
    bound = [*BOUND, "y", *(["table"] if tabled else [])]
    dispatches = [
        dispatched(attention, shape, lanes, bound, workgroups(attention, max(lengths))),
        dispatched(join, shape, lanes, JOINED, workgroups(join, max(lengths))),
    ]
    found = contents(kernel_page, buffers, dispatches, READ)
    for i, (step, length) in enumerate(zip(steps, lengths, strict=True)):
        own = [np.ascontiguousarray(cache[table[i], :, where].swapaxes(0, 1)) for cache in found[1:]]
        check(step, Run(found[0][i], *own), length)


FORMS = pytest.mark.parametrize(
    ("shape", "subgroups"),
    [
        (Shape(4, 2, 16, capacity=303), (0, 4, 64)),
        (Shape(6, 2, 16, capacity=303, epsilon=0.5, normed_values=True, rotary=8, interleaved=True), (0, 8)),
        (Shape(4, 2, 32, capacity=303, window=70, softcap=5.0, sinks=0), (0, 16, 32)),
        (Shape(4, 2, 64, capacity=303, epsilon=0.5, rotary=24, gated=True), (0, 32)),
    ],
    ids=["plain", "norms", "window", "gates"],
)


@pytest.mark.extended
@FORMS
def test_positions_of_one_sequence_in_one_dispatch(
    kernel_page: KernelPage, shape: Shape, subgroups: tuple[int, ...]
) -> None:
    """Each as if those before it had been steps of their own, also where the last ones have more splits than the
    first."""
    count = 5
    for lanes in subgroups:
        plans = plan_attention(shape, lanes, shape.epsilon, normed_values=shape.normed_values, rows=count, along=True)
        for first in (1, 126, 290):
            last = first + count - 1
            step = Step.random(shape)
            qkv = np.stack([np.roll(step.qkv, 3 * i) for i in range(count)])
            found = attend_along(kernel_page, replace(step, qkv=qkv), plans, first, lanes)
            keys, values = step.keys.copy(), step.values.copy()
            for i, length in enumerate(range(first, last + 1)):
                alone = replace(step, qkv=qkv[i], keys=keys, values=values)
                result, new_keys, new_values = alone.expected(length)
                bound = BOUNDS[shape.element]
                assert np.abs(found.result[i] - result).max() <= bound, f"lanes {lanes}, position {length}"
                assert np.abs(found.keys[:, length - 1] - new_keys).max() <= 4 * bound, f"position {length}"
                assert np.abs(found.values[:, length - 1] - new_values).max() <= 4 * bound, f"position {length}"
                keys[:, length - 1], values[:, length - 1] = new_keys, new_values
            outside = np.r_[0 : first - 1, last : shape.capacity]
            before = step.caches(first)
            assert found.keys[:, outside].tobytes() == before[0][:, outside].tobytes()
            assert found.values[:, outside].tobytes() == before[1][:, outside].tobytes()


def attend_along(kernel_page: KernelPage, step: Step, plans: Plans, first: int, lanes: int) -> Run:
    """Run all three kernels over positions of one sequence; `qkv` of the step has a row for each."""
    state = np.array([first, *[7] * 7], np.uint32)
    return attend_after(kernel_page, step, plans, step.caches(first), state, first + len(step.qkv) - 1, lanes)


def attend_after(
    kernel_page: KernelPage, step: Step, plans: Plans, caches: Sequence[Any], state: Any, last: int, lanes: int
) -> Run:
    """Run all three kernels over these caches, with workgroups for `last` positions."""
    shape = step.shape
    attention, join, partial_bytes = plans
    partials = np.full(partial_bytes // 4, np.nan, np.float32)
    result = np.full((len(step.qkv), shape.heads, shape.head), np.nan, shape.dtype)
    keys, values = caches
    buffers = step.buffers(state, keys, values, partials, result)
    gammas = [] if shape.epsilon is None else [*GAMMAS] if shape.normed_values else [*GAMMAS[:2]]
    sinks = [] if shape.sinks is None else ["head_sink"]
    # As above: ten buffers at most.
    many = len(gammas) + len(sinks) > 2
    bound, joined = ([*BOUND, *gammas], sinks) if many else ([*BOUND, "y", *gammas, *sinks], [])
    append = plan_append(attention)
    assert isinstance(append.counts, tuple)
    dispatches = [
        dispatched(append, shape, lanes, bound, append.counts),
        dispatched(attention, shape, lanes, bound, workgroups(attention, last)),
        dispatched(join, shape, lanes, [*JOINED, *joined], workgroups(join, last)),
    ]
    return Run(*contents(kernel_page, buffers, dispatches, READ))


@pytest.mark.one_in(3)
@FORMS
def test_tokens_of_several_sequences_in_one_dispatch(
    kernel_page: KernelPage, shape: Shape, subgroups: tuple[int, ...]
) -> None:
    """Each as if it had been a step of its own sequence; the last one, which comes twice, too."""
    firsts, rows = {2: 126, 0: 290, 3: 1}, [2, 0, 0, 3, 0, 2, 3, 3]
    for lanes in subgroups:
        plans = plan_attention(
            shape, lanes, shape.epsilon, normed_values=shape.normed_values, rows=len(rows), packed=True
        )
        steps = {row: replace(Step.random(shape, seed=1 + row), sinks=Step.random(shape).sinks) for row in range(4)}
        one = steps[0]
        for step in steps.values():
            step.cos, step.sin, step.gammas = one.cos, one.sin, one.gammas
        lengths, ahead = [], dict(firsts)
        for row in rows[:-1]:
            lengths.append(ahead[row])
            ahead[row] += 1
        lengths.append(lengths[-1])
        qkv = np.stack([np.roll(steps[row].qkv, 3 * length) for row, length in zip(rows, lengths, strict=True)])
        state = np.full((len(rows), 8), 7, np.uint32)
        state[:, 0], state[:, 1] = lengths, rows
        before = [steps[row].caches(firsts.get(row, 1)) for row in range(4)]
        caches = [np.stack([pair[i] for pair in before]) for i in (0, 1)]
        found = attend_after(kernel_page, replace(one, qkv=qkv), plans, caches, state, max(lengths), lanes)
        bound = BOUNDS[shape.element]
        keys, values = [{row: getattr(steps[row], name).copy() for row in steps} for name in ("keys", "values")]
        for place, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            alone = replace(steps[row], qkv=qkv[place], keys=keys[row], values=values[row])
            result, new_keys, new_values = alone.expected(length)
            assert np.abs(found.result[place] - result).max() <= bound, f"lanes {lanes}, token {place}"
            assert np.abs(found.keys[row, :, length - 1] - new_keys).max() <= 4 * bound, f"token {place}"
            assert np.abs(found.values[row, :, length - 1] - new_values).max() <= 4 * bound, f"token {place}"
            keys[row][:, length - 1], values[row][:, length - 1] = new_keys, new_values
        for row in steps:
            outside = np.r_[0 : firsts.get(row, 1) - 1, ahead.get(row, 1) - 1 : shape.capacity]
            for cache, was in zip((found.keys, found.values), before[row], strict=True):
                assert cache[row][:, outside].tobytes() == was[:, outside].tobytes(), f"row {row}"


def hadamard(size: int) -> Array:
    """Sylvester's matrix, of length 1 in each row."""
    made = np.ones((1, 1))
    while len(made) < size:
        made = np.block([[made, made], [made, -made]])
    return made / math.sqrt(size)


TURNED = {
    "plain": (Shape(4, 2, 16, 303, cache_bits=4), (0, 32), 8),
    "norms": (Shape(6, 2, 32, 303, epsilon=0.5, normed_values=True, rotary=16, cache_bits=4), (0,), 10),
    "neighbours, sinks": (Shape(4, 1, 128, 303, rotary=64, interleaved=True, sinks=0, cache_bits=4), (32,), 8),
    "few buffers, window": (Shape(4, 2, 64, 303, epsilon=0.5, window=70, cache_bits=4), (0, 32), 8),
}


@pytest.mark.one_in
@pytest.mark.parametrize("name", TURNED)
@pytest.mark.parametrize("way", ["several", "one", "along"])
def test_heads_are_turned_before_and_behind_caches_of_4_bits(kernel_page: KernelPage, name: str, way: str) -> None:
    """Results are those over the turned caches turned back, and the new rows are the nearest that 4 bits allow."""
    shape, subgroups, buffers = TURNED[name]
    lengths = {"one": (130,), "several": (5, 130, 300), "along": (298, 299, 300)}[way]
    count, along, turn = len(lengths), way == "along", hadamard(shape.head)
    sinks = None if shape.sinks is None else 5
    norms = None if shape.epsilon is None else HeadNorms(6, 7, shape.epsilon, 8 if shape.normed_values else None)
    what = Attention(
        *(shape.heads, shape.kv_heads, shape.head, shape.capacity, shape.scale, 1, 2, 3, 4, shape.element),
        *(norms, shape.rotary, shape.interleaved, sinks, shape.window),
        cache_bits=4,
        rows=count,
        along=along,
    )
    first = Step.random(shape)
    steps = [
        replace(each, qkv=np.roll(first.qkv, 3 * i), cos=first.cos, sin=first.sin, gammas=first.gammas)
        for i in range(count)
        for each in [first if along else Step.random(shape, seed=1 + i)]
    ]
    caches = [step.caches(length) for step, length in zip(steps, lengths, strict=True)][: 1 if along else count]
    state = np.zeros((count, 8), np.uint32)
    state[:, 0] = lengths
    keys, values = (np.stack([pair[i] for pair in caches]) for i in (0, 1))
    for lanes in subgroups:
        made = what.kernels([1], [2], WorkgroupLimits(lanes, buffers=buffers))
        given = replace(first, qkv=np.stack([step.qkv for step in steps])).buffers(state, keys, values, [], [])
        queries = np.full((count, shape.heads, shape.head), np.nan, shape.dtype)
        before = {**given, "queries": queries}
        wanted = ("queries", "key_cache", "value_cache")
        run = [each for each in made if each.plan.shader == "attention_turn"]
        assert len(run) == (2 if name.startswith("few") else 1)
        turned = played(kernel_page, before, run, shape, lanes, lengths[-1], wanted)
        partials = next(binding.bytes for binding in made[-1].bindings.values() if isinstance(binding, Shared))
        result = np.full_like(queries, np.nan)
        behind = {**before, "qkv": turned[0], "key_cache": turned[1], "value_cache": turned[2], "y": result}
        behind |= {"partials": np.full(partials // 4, np.nan, np.float32)}
        last = made[len(run) :]
        [y] = played(kernel_page, behind, last, shape, lanes, lengths[-1], ("y",))
        for i, (step, length) in enumerate(zip(steps, lengths, strict=True)):
            own = [cache[0 if along else i] for cache in turned[1:]]
            read = [unpacked_rows(np.ascontiguousarray(cache), 4) @ turn for cache in own]
            rows = [cache[:, length - 1] for cache in read]
            plain = replace(step, keys=read[0], values=read[1])
            expected, *new = plain.expected(length, rows)
            assert np.abs(y[i] - expected).max() < 1e-5, f"{length} of {name}, lanes {lanes}"
            for cache, row in zip(own, new, strict=True):
                near_levels(np.ascontiguousarray(cache[:, length - 1]), row @ turn)
        for cache, was in zip(turned[1:], (keys, values), strict=True):
            touched = cache.copy()
            for i, length in enumerate(lengths):
                at = 0 if along else i
                touched[at, :, length - 1] = was[at, :, length - 1]
            assert touched.tobytes() == was.tobytes(), "rows of other positions changed"


def near_levels(words: npt.NDArray[Any], row: Array) -> None:
    """Each element has the level next to it, or one of two that are as near, and the row its length."""
    length = np.linalg.norm(row, axis=-1, keepdims=True)
    assert np.allclose(words[:, :1].view(np.float32), length, rtol=1e-5)
    found = unpacked_rows(words, 4) / length
    nearest = np.abs(row[..., None] / length[..., None] - LEVELS).min(axis=-1)
    assert (np.abs(found - row / length) <= nearest + 2e-4).all()


def played(
    kernel_page: KernelPage,
    buffers: Mapping[str, Any],
    made: Sequence[Kernel],
    shape: Shape,
    lanes: int,
    length: int,
    wanted: Sequence[str],
) -> list[npt.NDArray[Any]]:
    """The wanted buffers after these kernels, which call what they bind by the names of `buffers`."""
    names = {name for kernel in made for name in kernel.bindings}
    dispatches = []
    for kernel in made:
        groups = kernel.plan.counts if isinstance(kernel.plan.counts, tuple) else workgroups(kernel.plan, length)
        dispatches.append(dispatched(kernel.plan, shape, lanes, kernel.bindings, groups))
    return contents(kernel_page, {name: buffers[name] for name in names}, dispatches, wanted)
