"""One step of attention on the GPU and in float64: a shape, its inputs, the run of its kernels, the comparison."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from capstan.tape.kernel_plan import KernelPlan
from capstan.tape.ops.attention_plan import (
    join_rows,
    plan_attention,
)
from tests.attention import attended, rms_norm, rotated
from tests.browser.kernel_page import KernelPage, dispatch
from tests.browser.quantized_rows import packed_rows, unpacked_rows

__all__ = [
    "BOUND",
    "BOUNDS",
    "GAMMAS",
    "JOINED",
    "READ",
    "Array",
    "Plans",
    "Run",
    "Shape",
    "Step",
    "attend",
    "check",
    "contents",
    "dispatched",
    "planned",
    "workgroups",
]

BOUNDS = {"f32": 4e-6, "f16": 2e-3}
"""Largest error of a result, for values of about 1; for f16 half a unit of the last place of 4 is 2e-3. Scores of heads
above 128 are sums of so many more terms. That of f32 is twice what SwiftShader comes to on one processor, 1.8e-6: on
another one the last place of a sum may be another."""
BOUND = ("qkv", "state", "cos_cache", "sin_cache", "key_cache", "value_cache", "partials")
GAMMAS = ("q_gamma", "k_gamma", "v_gamma")
JOINED = ("partials", "state", "y")
NAN_WORD = 0xFFFFFFFF
"""A scale that is NaN."""
READ = ("y", "key_cache", "value_cache")

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Shape:
    heads: int
    kv_heads: int
    head: int
    capacity: int = 1037
    element: str = "f32"
    epsilon: float | None = None
    """The epsilon of the norms of q and k; None for no norms."""
    normed_values: bool = False
    """Whether v is normalised, too."""
    rotary: int = 0
    interleaved: bool = False
    sinks: int | None = None
    """0 for sinks of every size."""
    window: int = 0
    softcap: float = 0.0
    cache_bits: int = 0
    prepared: bool = False
    whole: bool = False
    shares: bool = False
    slides: bool = False
    gated: bool = False
    """Whether other numbers follow each query."""

    @property
    def written(self) -> bool:
        return self.prepared or self.shares

    @property
    def scale(self) -> float:
        return 1 / math.sqrt(self.head)

    @property
    def dtype(self) -> type[np.floating[Any]]:
        return np.float16 if self.element == "f16" else np.float32


@dataclass
class Step:
    """The inputs of one step of a shape, as its buffers hold them."""

    shape: Shape
    qkv: npt.NDArray[Any]
    """The heads of q, k and v, without what may follow the queries."""
    cos: npt.NDArray[Any]
    sin: npt.NDArray[Any]
    keys: npt.NDArray[Any]
    values: npt.NDArray[Any]
    gammas: npt.NDArray[Any]
    """The factors of the norms of q, k and v: [3, head]."""
    sinks: npt.NDArray[Any]
    stored: Sequence[npt.NDArray[Any]]
    """Keys and values as the caches have them."""

    @classmethod
    def random(cls, shape: Shape, seed: int = 1) -> Step:
        source = np.random.default_rng(seed)
        cached = (shape.kv_heads, shape.capacity, shape.head)
        rotary = shape.rotary or shape.head
        frequencies = 10000.0 ** (-2 * np.arange(rotary // 2) / rotary)
        angles = np.arange(shape.capacity)[:, None] * frequencies

        def rounded(numbers: Array) -> npt.NDArray[Any]:
            return numbers.astype(shape.dtype)

        qkv = rounded(source.normal(size=(shape.heads + 2 * shape.kv_heads, shape.head)) * 2)
        drawn = source.normal(size=cached) * 2, source.normal(size=cached)
        bits = shape.cache_bits
        stored = [packed_rows(each, bits) if bits else rounded(each) for each in drawn]
        keys, values = (unpacked_rows(each, bits) if bits else each for each in stored)
        return cls(
            shape,
            qkv,
            rounded(np.cos(angles)),
            rounded(np.sin(angles)),
            keys,
            values,
            rounded(1 + 0.3 * source.normal(size=(3, shape.head))),
            rounded(np.linspace(-40, 20, shape.heads)),
            stored,
        )

    @property
    def packed(self) -> npt.NDArray[Any]:
        """q, k and v as the kernels read them; numbers that nothing may read follow each query if the shape is so."""
        if not self.shape.gated:
            return self.qkv
        heads = self.shape.heads
        followed = np.repeat(self.qkv[..., :heads, :], 2, axis=-2)
        followed[..., 1::2, :] = np.nan
        return np.concatenate([followed, self.qkv[..., heads:, :]], axis=-2)

    def buffers(self, state: Any, keys: Any, values: Any, partials: Any, y: Any) -> dict[str, npt.NDArray[Any]]:
        """All that a kernel may bind, by its names."""
        bound = zip(BOUND, (self.packed, state, self.cos, self.sin, keys, values, partials), strict=True)
        return {**dict(bound), "y": y, **dict(zip(GAMMAS, self.gammas, strict=True)), "head_sink": self.sinks}

    def caches(self, length: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """The caches before the step, as their buffers have them: NaN before the window, at the new position and past
        it, which nothing may read."""
        shown = range(self.first(length), length - (not self.shape.written))

        def hidden(cache: npt.NDArray[Any]) -> npt.NDArray[Any]:
            made = np.full_like(cache, NAN_WORD if cache.dtype == np.uint32 else np.nan)
            made[:, shown] = cache[:, shown]
            return made

        return hidden(self.stored[0]), hidden(self.stored[1])

    def first(self, length: int) -> int:
        """The first position in sight."""
        return max(0, length - self.shape.window) if self.shape.window else 0

    def expected(self, length: int, read: Sequence[Array] | None = None) -> tuple[Array, Array, Array]:
        """The result, and the new rows of the key and the value cache; the result is over `read` in their place, if
        given."""
        shape = self.shape
        qkv, cos, sin = (tensor.astype(np.float64) for tensor in (self.qkv, self.cos[length - 1], self.sin[length - 1]))
        turned = qkv
        if shape.epsilon is not None:
            gammas = np.repeat(self.gammas.astype(np.float64), (shape.heads, shape.kv_heads, shape.kv_heads), axis=0)
            turned = rms_norm(qkv, gammas, shape.epsilon)
        heads = rotated(turned, cos, sin, shape.interleaved)
        new_keys = heads[shape.heads : shape.heads + shape.kv_heads]
        new_values = (turned if shape.normed_values else qkv)[shape.heads + shape.kv_heads :]
        keys = self.keys[:, self.first(length) : length].astype(np.float64)
        values = self.values[:, self.first(length) : length].astype(np.float64)
        if not shape.written:
            keys[:, -1], values[:, -1] = read or (new_keys, new_values)
        queries = (qkv if shape.prepared else heads)[None, : shape.heads]
        sinks = None if shape.sinks is None else self.sinks.astype(np.float64)
        result, _ = attended(queries, keys, values, shape.scale, softcap=shape.softcap, sinks=sinks)
        return result[0], new_keys, new_values


def dispatched(
    plan: KernelPlan, shape: Shape, lanes: int, names: Iterable[str], workgroups: Sequence[int]
) -> dict[str, Any]:
    half = shape.element == "f16"
    return dispatch(plan.shader, plan.constants, names, workgroups, half=half, lanes=lanes)


def contents(
    kernel_page: KernelPage,
    buffers: Mapping[str, npt.NDArray[Any]],
    dispatches: Sequence[dict[str, Any]],
    wanted: Sequence[str],
) -> list[npt.NDArray[Any]]:
    """The wanted buffers after the dispatches, in the types and shapes given."""
    given = {name: data.tobytes() for name, data in buffers.items()}
    found = kernel_page.run_all(given, dispatches, wanted)
    return [
        np.frombuffer(bytearray(data), buffers[name].dtype).reshape(buffers[name].shape)
        for name, data in zip(wanted, found, strict=True)
    ]


def workgroups(plan: KernelPlan, length: int) -> tuple[int, int, int]:
    return plan.counts(length) if callable(plan.counts) else plan.counts


Plans = tuple[KernelPlan, KernelPlan, int]


@dataclass
class Run:
    result: npt.NDArray[Any]
    keys: npt.NDArray[Any]
    values: npt.NDArray[Any]


def attend(
    kernel_page: KernelPage,
    step: Step,
    plans: Plans,
    length: int,
    lanes: int = 0,
    reach: int | None = None,
    tokens: int | None = None,
) -> Run:
    """Run both kernels with the workgroups for `reach` positions; partials and result are NaN before. `tokens`
    is the length in the state if it is another one."""
    shape = step.shape
    attention, join, partial_bytes = plans
    state = np.array([tokens or length, 0, 0, 0], dtype=np.uint32)
    partials = np.full(partial_bytes // 4, np.nan, dtype=np.float32)
    result = np.full((shape.heads, shape.head), np.nan, dtype=shape.dtype)
    keys, values = step.caches(length)
    buffers = step.buffers(state, keys, values, partials, result)
    gammas = [] if shape.epsilon is None else [*GAMMAS] if shape.normed_values else [*GAMMAS[: 2 - shape.shares]]
    sinks = [] if shape.sinks is None else ["head_sink"]
    # If that makes more than ten buffers, the join writes the result, and adds the sinks.
    many = len(gammas) + len(sinks) > 2
    left = (["cos_cache", "sin_cache"] if shape.prepared else []) + (["state"] if shape.whole else [])
    taken = [name for name in BOUND if name not in left]
    first, second = ([*taken, *gammas], sinks) if many else ([*taken, "y", *gammas, *sinks], [])
    dispatches = [
        dispatched(attention, shape, lanes, first, workgroups(attention, reach or length)),
        dispatched(
            join,
            shape,
            lanes,
            [*(name for name in JOINED if name not in left), *second],
            workgroups(join, reach or length),
        ),
    ]
    return Run(*contents(kernel_page, buffers, dispatches, READ))


def check(step: Step, run: Run, length: int) -> None:
    """The result within its bound; the caches as they were but for the new rows, byte for byte."""
    bound = BOUNDS[step.shape.element] * max(1, step.shape.head / 128)
    bits = step.shape.cache_bits
    at = length - 1
    read = None
    if bits == 8:
        read = [unpacked_rows(cache[:, at], bits).astype(np.float64) for cache in (run.keys, run.values)]
    result, new_keys, new_values = step.expected(length, read)
    error = np.abs(run.result.astype(np.float64) - result).max()
    assert error <= bound, f"length {length}: {error} away from float64 ({step.shape})"
    keys, values = step.caches(length)
    if read is not None:
        for found, wanted, cache in zip(read, (new_keys, new_values), (run.keys, run.values), strict=True):
            largest = np.abs(wanted).max(axis=1, keepdims=True)
            scale = np.ascontiguousarray(cache[:, at, :1]).view(np.float32)
            assert np.allclose(scale * 127, largest, rtol=1e-5), f"length {length}: the new scales"
            assert (np.abs(found - wanted) <= scale * 0.5001).all(), f"length {length}: the new rows"
    elif step.shape.written:
        pass  # No row is new.
    elif np.abs(run.keys[:, at] - new_keys).max() > bound * 4:
        pytest.fail(f"length {length}: the new keys")
    elif step.shape.normed_values:
        assert np.abs(run.values[:, at] - new_values).max() <= bound * 4, f"length {length}: the new values"
    else:
        assert (run.values[:, at] == new_values).all(), f"length {length}: the new values"
    keys[:, at], values[:, at] = run.keys[:, at], run.values[:, at]
    assert run.keys.tobytes() == keys.tobytes(), f"length {length}: keys of other positions changed"
    assert run.values.tobytes() == values.tobytes(), f"length {length}: values of other positions changed"


def planned(kernel_page: KernelPage, shape: Shape, lengths: Sequence[int], lanes: int = 0, **constants: int) -> None:
    """Check lengths with the plan of a shape, or with constants of both kernels replaced."""
    plans = plan_attention(shape, lanes, shape.epsilon, normed_values=shape.normed_values)
    if constants:
        plans = replaced(plans, **constants)
    step = Step.random(shape)
    for length in lengths:
        check(step, attend(kernel_page, step, plans, length, lanes), length)


def replaced(plans: Plans, **constants: int) -> Plans:
    """The plans with other constants, and the workgroups that these need."""
    attention, join, _ = plans
    chosen = {**attention.constants, **constants}
    block, alone, most, tile = (int(chosen[name]) for name in ("BLOCK", "ALONE", "MAX_SPLITS", "TILE"))
    heads, kv_heads, head = (int(chosen[name]) for name in ("HEADS", "KV_HEADS", "HEAD"))

    def splits(length: int) -> int:
        blocks = -(-min(length, int(chosen["WINDOW"])) // block)
        return 1 if blocks <= alone else min(blocks, most)

    tiles, alone_writes = -(-(heads // kv_heads) // tile), join.constants["ALONE_WRITES"]
    joined = {**join.constants, "BLOCK": block, "ALONE": alone, "MAX_SPLITS": most, **join_rows(head, most)}
    return (
        replace(attention, constants=chosen, counts=lambda length: (splits(length), kv_heads * tiles, 1)),
        replace(
            join, constants=joined, counts=lambda length: (0 if alone_writes and splits(length) == 1 else heads, 1, 1)
        ),
        heads * most * (4 + head) * 4,
    )
