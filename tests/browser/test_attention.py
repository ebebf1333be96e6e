"""The fused attention kernels on the GPU against float64 sums in NumPy, with the plans that tapes use and others."""

from __future__ import annotations

import base64
import math
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from playwright.sync_api import Browser, Page

from capstan.tape.kernel_plan import KernelPlan, WorkgroupLimits
from capstan.tape.operation import Kernel, Shared
from capstan.tape.ops.attention import Attention, HeadNorms
from capstan.tape.ops.attention_plan import (
    by_length,
    fits_attention,
    join_rows,
    plan_append,
    plan_attention,
    team_constants,
)
from capstan_host.site_server import SiteServer
from capstan_host.testing.harness import watch
from tests.browser.quantized_rows import LEVELS, packed_rows, unpacked_rows
from tests.extended import pairwise

ROOT = Path(__file__).parents[2]
BOUNDS = {"f32": 4e-6, "f16": 2e-3}
"""Largest error of a result, for values of about 1; for f16 half a unit of the last place of 4 is 2e-3. Scores of heads
above 128 are sums of so many more terms. That of f32 is twice what SwiftShader comes to on one processor, 1.8e-6: on
another one the last place of a sum may be another."""
LENGTHS = (1, 2, 63, 64, 65, 255, 256, 257, 511, 512, 513, 1000)
LONG = (4096, 5000)
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

    def buffers(self, state: Any, keys: Any, values: Any, partials: Any, y: Any) -> dict[str, npt.NDArray[Any]]:
        """All that a kernel may bind, by its names."""
        bound = zip(BOUND, (self.qkv, state, self.cos, self.sin, keys, values, partials), strict=True)
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
            q_gamma, k_gamma, v_gamma = self.gammas.astype(np.float64)
            gammas = [q_gamma] * shape.heads + [k_gamma] * shape.kv_heads + [v_gamma] * shape.kv_heads
            turned = qkv / np.sqrt(np.mean(qkv**2, axis=1, keepdims=True) + shape.epsilon) * np.array(gammas)
        half = (shape.rotary or shape.head) // 2
        low, high = slice(half), slice(half, 2 * half)
        if shape.interleaved:
            low, high = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
        rotated = turned.copy()
        rotated[:, low] = turned[:, low] * cos - turned[:, high] * sin
        rotated[:, high] = turned[:, low] * sin + turned[:, high] * cos
        new_keys = rotated[shape.heads : shape.heads + shape.kv_heads]
        new_values = (turned if shape.normed_values else qkv)[shape.heads + shape.kv_heads :]
        keys = self.keys[:, self.first(length) : length].astype(np.float64)
        values = self.values[:, self.first(length) : length].astype(np.float64)
        if not shape.written:
            keys[:, -1], values[:, -1] = read or (new_keys, new_values)
        queries = (qkv if shape.prepared else rotated)[: shape.heads].reshape(shape.kv_heads, -1, shape.head)
        scores = queries @ keys.transpose(0, 2, 1) * shape.scale
        if shape.softcap:
            scores = shape.softcap * np.tanh(scores / shape.softcap)
        largest = scores.max(axis=2, keepdims=True)
        total = np.exp(scores - largest).sum(axis=2, keepdims=True)
        if shape.sinks is not None:
            total += np.exp(self.sinks.astype(np.float64).reshape(shape.kv_heads, -1, 1) - largest)
        result = np.exp(scores - largest) / total @ values
        return result.reshape(shape.heads, shape.head), new_keys, new_values


class KernelPage:
    """The page with the bundled test script."""

    def __init__(self, page: Page) -> None:
        self.page = page
        offers = page.evaluate("() => adapterOffers()")
        self.half: bool = offers["half"]
        self.lanes: int = offers["lanes"]

    def run(
        self,
        buffers: Mapping[str, npt.NDArray[Any]],
        dispatches: Sequence[dict[str, Any]],
        wanted: Sequence[str],
        emulated: bool,
    ) -> list[bytearray]:
        """The contents of the wanted buffers afterwards; buffers are called as the kernels call what they bind."""
        encoded = {
            name: base64.b64encode(data.tobytes() + bytes(-data.nbytes % 4)).decode() for name, data in buffers.items()
        }
        request = {"buffers": encoded, "dispatches": dispatches, "wanted": wanted, "emulated": emulated}
        found = map(base64.b64decode, self.page.evaluate("run => runKernels(run)", request))
        return [bytearray(data[: buffers[name].nbytes]) for name, data in zip(wanted, found, strict=True)]


@pytest.fixture(scope="module")
def kernels(browser: Browser, site: SiteServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KernelPage]:
    script = tmp_path_factory.mktemp("kernels") / "page.js"
    esbuild = ["node", str(ROOT / "node_modules/esbuild/bin/esbuild"), "--bundle", "--loader:.wgsl=text"]
    source = str(Path(__file__).with_name("kernels_page.ts"))
    subprocess.run([*esbuild, "--log-level=error", source, f"--outfile={script}"], check=True)
    page = browser.new_page()
    errors = watch(page, [])
    page.goto(site.url + "blank.html")
    page.add_script_tag(path=script)
    yield KernelPage(page)
    page.close()
    assert not errors, f"the page reported {errors}"


def dispatch(
    plan: KernelPlan, shape: Shape, lanes: int, names: Iterable[str], workgroups: Sequence[int]
) -> dict[str, Any]:
    text = {
        "shader": plan.shader,
        "constants": dict(plan.constants),
        "floats": [name for name, value in plan.constants.items() if isinstance(value, float)],
        "half": shape.element == "f16",
        "lanes": lanes,
        "bindings": dict.fromkeys(names),
    }
    return {"kernel": text, "workgroups": list(workgroups)}


def workgroups(plan: KernelPlan, length: int) -> tuple[int, int, int]:
    return plan.counts(length) if callable(plan.counts) else plan.counts


Plans = tuple[KernelPlan, KernelPlan, int]


@dataclass
class Run:
    result: npt.NDArray[Any]
    keys: npt.NDArray[Any]
    values: npt.NDArray[Any]


def attend(
    kernels: KernelPage,
    step: Step,
    plans: Plans,
    length: int,
    lanes: int = 0,
    dispatched: int | None = None,
    tokens: int | None = None,
) -> Run:
    """Run both kernels with the workgroups of `dispatched` positions; partials and result are NaN before. Subgroups of
    another size than the adapter's are emulated. `tokens` is the length in the state if it is another one."""
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
        dispatch(attention, shape, lanes, first, workgroups(attention, dispatched or length)),
        dispatch(
            join,
            shape,
            lanes,
            [*(name for name in JOINED if name not in left), *second],
            workgroups(join, dispatched or length),
        ),
    ]
    emulated = lanes not in (0, kernels.lanes)
    got = kernels.run(buffers, dispatches, READ, emulated)
    y, *caches = [np.frombuffer(data, dtype=was.dtype) for data, was in zip(got, (result, keys, values), strict=True)]
    return Run(y.reshape(shape.heads, shape.head), caches[0].reshape(keys.shape), caches[1].reshape(values.shape))


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


def planned(kernels: KernelPage, shape: Shape, lengths: Sequence[int], lanes: int = 0, **constants: int) -> None:
    """Check lengths with the plan of a shape, or with constants of both kernels replaced."""
    plans = plan_attention(shape, lanes, shape.epsilon, normed_values=shape.normed_values)
    if constants:
        plans = replaced(plans, **constants)
    step = Step.random(shape)
    for length in lengths:
        check(step, attend(kernels, step, plans, length, lanes), length)


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


@pytest.mark.one_in
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head"),
    [(4, 2, 64), (9, 3, 64), (7, 1, 64), (3, 1, 128), (2, 2, 80), (16, 1, 16), (8, 1, 256), (8, 2, 512), (2, 2, 400)],
)
def test_results_and_caches(kernels: KernelPage, heads: int, kv_heads: int, head: int) -> None:
    planned(kernels, Shape(heads, kv_heads, head, capacity=303), (1, 65, 300))


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
    kernels: KernelPage, heads: int, kv_heads: int, head: int, more: dict[str, Any], element: str
) -> None:
    if element == "f16" and not kernels.half:
        pytest.skip("the adapter has no float16")
    shape = Shape(heads, kv_heads, head, capacity=303, element=element, cache_bits=8, **more)
    for lanes in (0, 32):
        planned(kernels, shape, (1, 2, 65, 300), lanes)


@pytest.mark.one_in
@pytest.mark.parametrize("element", ["f32", "f16"])
@pytest.mark.parametrize(("heads", "kv_heads", "head", "sinks"), [(4, 2, 64, None), (5, 1, 128, 0), (9, 3, 16, None)])
def test_prepared_queries_over_caches_of_4_bits(
    kernels: KernelPage, heads: int, kv_heads: int, head: int, sinks: int | None, element: str
) -> None:
    """The kernels of onnxruntime-web before it have rotated the queries and written the new rows."""
    if element == "f16" and not kernels.half:
        pytest.skip("the adapter has no float16")
    shape = Shape(heads, kv_heads, head, 303, element, cache_bits=4, prepared=True, sinks=sinks)
    for lanes in (0, 32):
        planned(kernels, shape, (1, 2, 65, 300), lanes)


@pytest.mark.one_in
@pytest.mark.parametrize(("heads", "kv_heads", "head", "window"), [(8, 1, 256, 40), (4, 2, 64, 0), (8, 2, 512, 0)])
def test_caches_of_an_earlier_layer(kernels: KernelPage, heads: int, kv_heads: int, head: int, window: int) -> None:
    """That layer has written the new rows, and nothing is written but the result."""
    shape = Shape(heads, kv_heads, head, capacity=303, epsilon=0.5, window=window, shares=True)
    for lanes in {0, kernels.lanes, 32}:
        planned(kernels, shape, (1, 65, 300), lanes)
        planned(kernels, replace(shape, epsilon=None, sinks=0), (65, 300), lanes)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("heads", "head", "capacity"), [(6, 64, 1500), (2, 16, 90)])
def test_an_encoders_outputs_are_all_in_sight(kernels: KernelPage, heads: int, head: int, capacity: int) -> None:
    """At any length of the sequence, and nothing is written but the result."""
    shape = Shape(heads, heads, head, capacity, prepared=True, whole=True)
    step = Step.random(shape)
    for lanes in {0, kernels.lanes, 32}:
        for tokens in (1, 300):
            check(step, attend(kernels, step, plan_attention(shape, lanes), capacity, lanes, tokens=tokens), capacity)


@pytest.mark.one_in(8)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head"), [(4, 2, 64), (7, 1, 64), (2, 2, 80), (16, 1, 16), (8, 1, 256), (4, 1, 512)]
)
def test_norms_of_q_and_k(kernels: KernelPage, heads: int, kv_heads: int, head: int) -> None:
    for lanes in {0, kernels.lanes}:
        shape = Shape(heads, kv_heads, head, capacity=303, epsilon=0.5)
        planned(kernels, shape, (1, 65, 300), lanes)
        planned(kernels, replace(shape, normed_values=True), (1, 65, 300), lanes)


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
    kernels: KernelPage, heads: int, kv_heads: int, head: int, rotary: int, interleaved: bool
) -> None:
    shape = Shape(heads, kv_heads, head, capacity=303, rotary=rotary, interleaved=interleaved)
    assert fits_attention(shape)
    for lanes in {0, kernels.lanes, 32}:
        for epsilon in (None, 0.5):
            planned(kernels, replace(shape, epsilon=epsilon), (1, 65, 300), lanes)


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    ("window", "epsilon"), pairwise([(1,), (64,), (300,)], [(2,), (63,), (65,), (100,)], (None, 0.5))
)
def test_what_lies_before_the_window_is_not_read(kernels: KernelPage, window: int, epsilon: float | None) -> None:
    for lanes in {0, kernels.lanes}:
        shape = Shape(4, 2, 16, capacity=703, epsilon=epsilon, window=window)
        lengths = {1, window - 1, window, window + 1, 2 * window + 5, 703} - {0}
        planned(kernels, shape, sorted(lengths), lanes)
        planned(kernels, shape, (window + 1, 703), lanes, ALONE=1, MAX_SPLITS=4)


@pytest.mark.extended
@pytest.mark.parametrize("softcap", [0.5, 5.0, 50.0])
def test_soft_caps(kernels: KernelPage, softcap: float) -> None:
    for lanes in {0, kernels.lanes}:
        for window in (0, 70):
            shape = Shape(4, 2, 16, capacity=703, softcap=softcap, window=window)
            planned(kernels, shape, (1, 65, 700), lanes)


@pytest.mark.extended
def test_sinks(kernels: KernelPage) -> None:
    for lanes in {0, kernels.lanes, 32}:
        for window in (0, 70):
            for epsilon in (None, 0.5):
                shape = Shape(6, 2, 16, capacity=703, sinks=0, window=window, epsilon=epsilon)
                planned(kernels, shape, (1, 65, 700), lanes)
                planned(kernels, shape, (700,), lanes, ALONE=1, MAX_SPLITS=4)


@pytest.mark.extended
def test_norms_where_a_split_takes_several_blocks(kernels: KernelPage) -> None:
    shape = Shape(4, 2, 32, capacity=703, epsilon=1e-6)
    planned(kernels, shape, (65, 129, 700), ALONE=2, MAX_SPLITS=4)
    if kernels.lanes >= 4:
        wide = Shape(6, 2, 4 * kernels.lanes, epsilon=0.5)
        assert plan_attention(wide, kernels.lanes)[0].constants["SHUFFLED"]
        planned(kernels, wide, LENGTHS, kernels.lanes)


@pytest.mark.extended
def test_lengths_around_blocks(kernels: KernelPage) -> None:
    planned(kernels, Shape(4, 2, 32), LENGTHS)


def test_lengths_where_a_split_takes_several_blocks(kernels: KernelPage) -> None:
    planned(kernels, Shape(2, 1, 32, capacity=5003), LONG)
    planned(kernels, Shape(2, 1, 32), (65, 129, 257, 321, 700), ALONE=2, MAX_SPLITS=4)


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    ("tile", "workgroup", "batch", "team"), [(2, 32, 4, 4), (1, 32, 2, 4), (3, 16, 1, 4), (5, 64, 2, 2)]
)
@pytest.mark.parametrize("epsilon", [None, 0.5], ids=["plain", "norms"])
def test_subgroups_give_the_same(
    kernels: KernelPage, tile: int, workgroup: int, batch: int, team: int, epsilon: float | None
) -> None:
    """With subgroups of the adapter's size, of which a team is all or a half."""
    if kernels.lanes < 4:
        pytest.skip("the adapter's subgroups come in several sizes or are too small")
    shape = Shape(10, 2, team * 4, epsilon=epsilon)
    block = workgroup // team * batch
    sizes = team_constants(team, batch, tile) | {"TILE": tile, "WORKGROUP": workgroup, "BLOCK": block, "SHUFFLED": True}
    sizes["WARPS"] = workgroup // kernels.lanes
    lengths = (1, 2, block, block + 1, 2 * block, 2 * block + 1, 200, 1000)
    planned(kernels, shape, lengths, kernels.lanes, **sizes, ALONE=tile % 2 + 1, MAX_SPLITS=4)


@pytest.mark.one_in(6)
@pytest.mark.parametrize(("lanes", "head"), [(8, 32), (16, 64), (32, 64), (64, 128), (128, 512)])
def test_subgroups_of_other_sizes_as_planned(kernels: KernelPage, lanes: int, head: int) -> None:
    """Teams of all or half of a subgroup, in workgroups of 256 threads with 16 KiB, the minimum of every adapter."""
    shape = Shape(6, 2, head, capacity=703, epsilon=0.5)
    assert plan_attention(shape, lanes)[0].constants["SHUFFLED"]
    planned(kernels, shape, (1, 129, 700), lanes)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("epsilon", [0.5, None], ids=["norms", "plain"])
def test_the_kernel_of_few_positions_gives_the_same(kernels: KernelPage, epsilon: float | None) -> None:
    """Up to the positions that one split takes alone, in blocks of its own."""
    shape = Shape(32, 8, 128, capacity=503, epsilon=epsilon)
    plan, join, partial_bytes = plan_attention(shape, 32, epsilon)
    short, _ = by_length(plan)
    step = Step.random(shape)
    for length in (1, 65, 384):
        check(step, attend(kernels, step, (short, join, partial_bytes), length, 32), length)


@pytest.mark.extended
def test_subgroups_as_planned(kernels: KernelPage) -> None:
    if kernels.lanes < 4:
        pytest.skip("the adapter's subgroups come in several sizes or are too small")
    shape = Shape(6, 2, 4 * kernels.lanes)
    assert plan_attention(shape, kernels.lanes)[0].constants["SHUFFLED"]
    planned(kernels, shape, LENGTHS, kernels.lanes)


def test_float16(kernels: KernelPage) -> None:
    if not kernels.half:
        pytest.skip("the adapter has no shader-f16")
    for lanes in {0, kernels.lanes}:
        for shape in (Shape(8, 2, 64), Shape(7, 1, 64), Shape(6, 2, 128), Shape(2, 2, 80)):
            for epsilon in (None, 1e-6):
                planned(kernels, replace(shape, element="f16", epsilon=epsilon), LENGTHS, lanes)
            planned(kernels, replace(shape, element="f16", window=100, softcap=5.0), LENGTHS, lanes)
            for interleaved in (False, True):
                turned = replace(shape, rotary=32, interleaved=interleaved, epsilon=1e-6)
                planned(kernels, replace(turned, element="f16"), LENGTHS, lanes)


def test_workgroups_for_a_longer_sequence_do_nothing(kernels: KernelPage) -> None:
    shape = Shape(4, 2, 16)
    plans = plan_attention(shape, 0)
    step = Step.random(shape)
    for length, dispatched in ((1, 1000), (65, 1000), (200, 1000), (200, 201), (300, 1037)):
        check(step, attend(kernels, step, plans, length, dispatched=dispatched), length)


@pytest.mark.extended
def test_where_one_split_is_alone_the_join_writes_nothing(kernels: KernelPage) -> None:
    shape = Shape(4, 2, 64)
    attention, join, partial_bytes = plan_attention(shape, 0)
    length = int(attention.constants["BLOCK"]) * int(attention.constants["ALONE"])
    assert workgroups(join, length) == (0, 1, 1)
    for state, written in ((length, False), (length + 1, True)):
        before = np.arange(shape.heads * shape.head, dtype=np.float32)
        partials = np.ones(partial_bytes // 4, dtype=np.float32)
        buffers = {"partials": partials, "state": np.array([state], dtype=np.uint32), "y": before}
        [after] = kernels.run(buffers, [dispatch(join, shape, 0, JOINED, (shape.heads, 1, 1))], ["y"], False)
        assert (bytes(after) != before.tobytes()) == written


@pytest.mark.extended
def test_scores_of_any_size_keep_the_softmax_finite(kernels: KernelPage) -> None:
    """Scores of thousands, below and above: exp of them is 0 or infinite without the largest taken off."""
    shape = Shape(4, 2, 16)
    for lanes in {0, kernels.lanes}:
        for sign in (-1, 1):
            step = Step.random(shape)
            step.qkv[: shape.heads] = 30
            step.keys[:] = sign * 30 + step.keys
            step.cos[:], step.sin[:] = 1, 0
            for length in (3, 100, 700):
                result = attend(kernels, step, plan_attention(shape, lanes), length, lanes).result
                expected = step.expected(length)[0]
                assert np.abs(result - expected).max() < 2e-2, f"lanes {lanes}, length {length}"


@pytest.mark.one_in(2)
@pytest.mark.parametrize("lengths", [(1, 65, 300), (300, 7, 40)])
def test_sequences_of_different_lengths_in_one_dispatch(kernels: KernelPage, lengths: tuple[int, ...]) -> None:
    """Each as if it were alone, with the workgroups of the longest."""
    for lanes in {0, kernels.lanes}:
        attend_together(kernels, Shape(4, 2, 16, capacity=303), lengths, lanes)


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
    kernels: KernelPage, shape: Shape, subgroups: tuple[int, ...]
) -> None:
    for lanes in subgroups:
        for lengths in ((1, 65, 300), (130, 130, 130, 130)):
            attend_together(kernels, shape, lengths, lanes, tabled=True)


def attend_together(
    kernels: KernelPage, shape: Shape, lengths: Sequence[int], lanes: int, tabled: bool = False
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
        dispatch(attention, shape, lanes, bound, workgroups(attention, max(lengths))),
        dispatch(join, shape, lanes, JOINED, workgroups(join, max(lengths))),
    ]
    got = kernels.run(buffers, dispatches, READ, lanes not in (0, kernels.lanes))
    read = [np.frombuffer(data, was.dtype) for data, was in zip(got, (result, keys, values), strict=True)]
    found = read[0].reshape(result.shape), read[1].reshape(keys.shape), read[2].reshape(values.shape)
    for i, (step, length) in enumerate(zip(steps, lengths, strict=True)):
        own = [np.ascontiguousarray(cache[table[i], :, where].swapaxes(0, 1)) for cache in found[1:]]
        check(step, Run(found[0][i], *own), length)


FORMS = pytest.mark.parametrize(
    ("shape", "subgroups"),
    [
        (Shape(4, 2, 16, capacity=303), (0, 4, 64)),
        (Shape(6, 2, 16, capacity=303, epsilon=0.5, normed_values=True, rotary=8, interleaved=True), (0, 8)),
        (Shape(4, 2, 32, capacity=303, window=70, softcap=5.0, sinks=0), (0, 16, 32)),
    ],
    ids=["plain", "norms", "window"],
)


@pytest.mark.extended
@FORMS
def test_positions_of_one_sequence_in_one_dispatch(
    kernels: KernelPage, shape: Shape, subgroups: tuple[int, ...]
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
            found = attend_along(kernels, replace(step, qkv=qkv), plans, first, lanes)
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


def attend_along(kernels: KernelPage, step: Step, plans: Plans, first: int, lanes: int) -> Run:
    """Run all three kernels over positions of one sequence; `qkv` of the step has a row for each."""
    state = np.array([first, *[7] * 7], np.uint32)
    return attend_behind(kernels, step, plans, step.caches(first), state, first + len(step.qkv) - 1, lanes)


def attend_behind(
    kernels: KernelPage, step: Step, plans: Plans, caches: Sequence[Any], state: Any, last: int, lanes: int
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
        dispatch(append, shape, lanes, bound, append.counts),
        dispatch(attention, shape, lanes, bound, workgroups(attention, last)),
        dispatch(join, shape, lanes, [*JOINED, *joined], workgroups(join, last)),
    ]
    got = kernels.run(buffers, dispatches, READ, lanes not in (0, kernels.lanes))
    read = [np.frombuffer(data, shape.dtype) for data in got]
    return Run(read[0].reshape(result.shape), read[1].reshape(keys.shape), read[2].reshape(values.shape))


@pytest.mark.one_in(3)
@FORMS
def test_tokens_of_several_sequences_in_one_dispatch(
    kernels: KernelPage, shape: Shape, subgroups: tuple[int, ...]
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
        found = attend_behind(kernels, replace(one, qkv=qkv), plans, caches, state, max(lengths), lanes)
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
def test_heads_are_turned_before_and_behind_caches_of_4_bits(kernels: KernelPage, name: str, way: str) -> None:
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
        turned = played(kernels, before, run, shape, lanes, lengths[-1], wanted)
        partials = next(binding.bytes for binding in made[-1].bindings.values() if isinstance(binding, Shared))
        result = np.full_like(queries, np.nan)
        behind = {**before, "qkv": turned[0], "key_cache": turned[1], "value_cache": turned[2], "y": result}
        behind |= {"partials": np.full(partials // 4, np.nan, np.float32)}
        last = made[len(run) :]
        [y] = played(kernels, behind, last, shape, lanes, lengths[-1], ("y",))
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
    kernels: KernelPage,
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
        dispatches.append(dispatch(kernel.plan, shape, lanes, kernel.bindings, groups))
    got = kernels.run({name: buffers[name] for name in names}, dispatches, wanted, lanes not in (0, kernels.lanes))
    return [
        np.frombuffer(data, buffers[name].dtype).reshape(buffers[name].shape)
        for data, name in zip(got, wanted, strict=True)
    ]
