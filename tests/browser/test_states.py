"""Convolutions and linear attention with states, and the gates of heads, against float64 and the formulas of LFM2 and
Qwen3.5 in transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from capstan.tape import WorkgroupLimits
from capstan.tape.operation import Operation
from capstan.tape.ops.convolution import Convolution
from capstan.tape.ops.delta_rule import DeltaRule, GatedHeadNorm
from capstan.tape.ops.head_gate import HeadGate
from capstan.tape.ops.normed_recurrence import NormedDeltaRule
from tests.attention import rms_norm
from tests.browser.kernel_page import KernelPage, dispatch

Array = NDArray[Any]
BOUNDS = {"f32": 1e-5, "f16": 4e-3}
"""Largest relative and absolute errors, for numbers of about 1."""
DTYPES: Mapping[str, type[np.floating[Any]]] = {"f32": np.float32, "f16": np.float16}
SINGLE, SEVERAL = 1, 5
WEIGHT, BIAS, PAST, PRESENT, RATE, FACTOR, GAMMA = range(11, 18)


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def played(
    page: KernelPage, what: Operation, reads: Sequence[int], given: Mapping[str, Array], *wanted: str
) -> list[Array]:
    """The wanted buffers after the kernel of an operation, which binds buffers of these names."""
    [kernel] = what.kernels(reads, [97, 98, 99], WorkgroupLimits())
    counts = kernel.plan.counts
    assert isinstance(counts, tuple)
    one = dispatch(kernel.plan.shader, kernel.plan.constants, kernel.bindings, counts, half=kernel.half, lanes=0)
    found = page.run_all({name: given[name].tobytes() for name in kernel.bindings}, [one], wanted)
    named = zip(wanted, found, strict=True)
    return [np.frombuffer(data, given[name].dtype).reshape(given[name].shape) for name, data in named]


def room(rows: int, *shape: int, dtype: type[np.floating[Any]]) -> Array:
    """NaN for these rows, and for one that nothing may write."""
    return np.full((rows + 1, *shape), np.nan, dtype)


def close(found: Array, expected: Array, element: str) -> None:
    """The rows are the expected ones; one more is as `room` made it."""
    assert np.isnan(found[-1]).all(), "written past the last row"
    np.testing.assert_allclose(found[:-1].astype(np.float64), expected, rtol=BOUNDS[element], atol=BOUNDS[element])


def require(page: KernelPage, element: str) -> type[np.floating[Any]]:
    if element == "f16" and not page.half:
        pytest.skip("the adapter has no float16")
    return DTYPES[element]


@pytest.mark.parametrize("element", DTYPES)
@pytest.mark.parametrize("positions", [SINGLE, SEVERAL])
@pytest.mark.parametrize("family", ["lfm2", "qwen3_5"])
def test_a_convolution_and_its_state(kernel_page: KernelPage, family: str, positions: int, element: str) -> None:
    """LFM2's with gates, Qwen3.5's with a bias and silu; after several positions there is a state for each."""
    dtype, gated = require(kernel_page, element), family == "lfm2"
    # Not a whole number of workgroups.
    channels, taps = 150, 3 if gated else 4
    random = np.random.default_rng(5)

    def drawn(*shape: int) -> Array:
        return random.normal(size=shape).astype(dtype)

    x, weight, bias = drawn(positions, 3 if gated else 1, channels), drawn(channels, taps), drawn(channels)
    past = drawn(channels, taps - 1)
    what = Convolution(channels, taps, WEIGHT, None if gated else BIAS, PAST, PRESENT, element, gated, not gated)
    y, kept = (room(positions, *shape, dtype=dtype) for shape in ((channels,), past.shape))
    given = {"x": x, "weight": weight, "bias": bias, "past": past, "y": y, "kept": kept}
    wanted = ["y", "past", *(["kept"] if positions > 1 else [])]
    found = played(kernel_page, replace(what, positions=positions), [1, 2], given, *wanted)

    parts = x.astype(np.float64)
    # The product is rounded to the state's type.
    entering = (parts[:, 0] * parts[:, 2]).astype(dtype) if gated else x[:, 0]
    line = np.concatenate([past.astype(np.float64), entering.T], axis=1)
    windows = np.stack([line[:, place : place + taps] for place in range(positions)])
    sums = (windows * weight.astype(np.float64)).sum(axis=2)
    expected = parts[:, 1] * sums if gated else (sums + bias) * sigmoid(sums + bias)
    close(found[0], expected, element)
    if positions == 1:
        np.testing.assert_array_equal(found[1], windows[0, :, 1:])
    else:
        np.testing.assert_array_equal(found[1], past)
        np.testing.assert_array_equal(found[2][:-1], windows[:, :, 1:])


@pytest.mark.parametrize("element", DTYPES)
@pytest.mark.parametrize("positions", [SINGLE, SEVERAL])
@pytest.mark.parametrize(
    ("key_heads", "heads", "key", "value", "factor", "turns"),
    [(2, 4, 24, 96, True, False), (3, 3, 128, 20, False, False), (2, 6, 24, 16, True, True)],
    ids=["two heads of v for each of k", "one each", "three for each, in turns"],
)
def test_linear_attention_and_its_state(
    kernel_page: KernelPage,
    key_heads: int,
    heads: int,
    key: int,
    value: int,
    factor: bool,
    turns: bool,
    positions: int,
    element: str,
) -> None:
    """The recurrent gated delta rule, of which the state is float32; after several positions there is one for each."""
    dtype, epsilon, scale = require(kernel_page, element), 1e-3, 1.0 if factor else key**-0.5
    random = np.random.default_rng(6)
    q, k = (random.normal(size=(positions, key_heads, key)).astype(dtype) for _ in range(2))
    v = random.normal(size=(positions, heads, value)).astype(dtype)
    x = np.concatenate([part.reshape(positions, -1) for part in (q, k, v)], axis=1)
    # Also sums whose exponentials overflow, and decays that leave all or nothing.
    a = (8 * random.normal(size=(positions, heads)) + np.linspace(-60, 60, heads)).astype(dtype)
    b = (2 * random.normal(size=(positions, heads))).astype(dtype)
    bias, rate = (random.normal(size=heads).astype(np.float32) for _ in range(2))
    rate = -np.exp(rate - 4)
    past = random.normal(size=(heads, key, value)).astype(np.float32)
    by = np.array([key**-0.5], dtype)
    what = DeltaRule(
        *(key_heads, heads, key, value, scale, epsilon, BIAS, RATE, FACTOR if factor else None, PAST, PRESENT),
        element,
        "f32",
        turns,
    )
    given = {"x": x, "decay": a, "step": b, "bias": bias, "rate": rate, "factor": by, "past": past}
    given |= {"y": room(positions, heads, value, dtype=dtype), "kept": room(positions, *past.shape, dtype=np.float32)}
    wanted = ["y", "past", *(["kept"] if positions > 1 else [])]
    found = played(kernel_page, replace(what, positions=positions), [1, 2, 3, 4], given, *wanted)

    def unit(rows: Array) -> Array:
        wide = rows.astype(np.float64)
        made = wide / np.sqrt((wide**2).sum(axis=-1, keepdims=True) + epsilon * key)
        times = heads // key_heads
        return np.asarray(np.tile(made, (1, times, 1)) if turns else np.repeat(made, times, axis=1))

    queries = unit(q) * (by.astype(np.float64) if factor else scale)
    shrink = np.exp(rate.astype(np.float64) * np.logaddexp(0, a.astype(np.float64) + bias))
    strength = sigmoid(b.astype(np.float64))
    state, states, results = past.astype(np.float64), [], []
    for query, one_key, one_value, fall, share in zip(queries, unit(k), v, shrink, strength, strict=True):
        state = state * fall[:, None, None]
        learned = share[:, None] * (one_value - np.einsum("hkv,hk->hv", state, one_key))
        state = state + one_key[:, :, None] * learned[:, None]
        states.append(state)
        results.append(np.einsum("hkv,hk->hv", state, query))
    close(found[0], np.stack(results), element)
    if positions == 1:
        np.testing.assert_allclose(found[1], states[0], rtol=1e-5, atol=1e-5)
        # Its inputs in one vector, and its heads normalised, in one kernel.
        gate, gamma = random.normal(size=(1, heads, value)).astype(dtype), random.normal(size=value).astype(dtype)
        whole = NormedDeltaRule(replace(what, paired=True), GatedHeadNorm(heads, value, GAMMA, epsilon, element))
        given |= {"decay": np.concatenate([a, b], axis=1), "gate": gate, "gamma": gamma}
        found = played(kernel_page, whole, [1, 2, 3, 4], given | {"normed": given["y"]}, "normed", "past", "y")
        wide = gate.astype(np.float64)
        normed = rms_norm(np.stack(results), gamma.astype(np.float64), epsilon) * wide * sigmoid(wide)
        for got, expected in zip((found[0], found[2]), (normed, np.stack(results)), strict=True):
            close(got, expected, element)
        np.testing.assert_allclose(found[1], states[0], rtol=1e-5, atol=1e-5)
    else:
        np.testing.assert_array_equal(found[1], past)
        close(found[2], np.stack(states), "f32")


@pytest.mark.parametrize("element", DTYPES)
@pytest.mark.parametrize("rows", [SINGLE, 3])
def test_heads_are_normed_and_gated(kernel_page: KernelPage, rows: int, element: str) -> None:
    dtype, heads, head, epsilon = require(kernel_page, element), 3, 100, 0.25
    random = np.random.default_rng(7)
    x, gate = (random.normal(size=(rows, heads, head)).astype(dtype) for _ in range(2))
    gamma = random.normal(size=head).astype(dtype)
    what = GatedHeadNorm(heads, head, GAMMA, epsilon, element, rows)
    given = {"x": x, "gate": gate, "gamma": gamma, "y": room(rows, heads, head, dtype=dtype)}
    [found] = played(kernel_page, what, [1, 2], given, "y")
    wide = gate.astype(np.float64)
    close(found, rms_norm(x.astype(np.float64), gamma.astype(np.float64), epsilon) * wide * sigmoid(wide), element)


@pytest.mark.parametrize("element", DTYPES)
@pytest.mark.parametrize("rows", [SINGLE, 3])
def test_a_gate_follows_each_query(kernel_page: KernelPage, rows: int, element: str) -> None:
    dtype, heads, kv_heads, head = require(kernel_page, element), 3, 1, 80
    random = np.random.default_rng(8)
    x = random.normal(size=(rows, heads, head)).astype(dtype)
    qkv = random.normal(size=(rows, 2 * heads + 2 * kv_heads, head)).astype(dtype)
    what = HeadGate(heads, head, qkv[0].size, element, rows)
    given = {"x": x, "qkv": qkv, "y": room(rows, heads, head, dtype=dtype)}
    [found] = played(kernel_page, what, [1, 2], given, "y")
    close(found, x * sigmoid(qkv[:, 1 : 2 * heads : 2].astype(np.float64)), element)
