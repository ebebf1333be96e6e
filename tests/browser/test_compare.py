"""web/src/worker/shaders/truth/compare.wgsl against NumPy, and what a tape check makes of its numbers."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from capstan import TapeCheckError
from capstan.device.webgpu.gpu_engine import Difference
from capstan.device.webgpu.tapes.comparison import Spread, Tolerance, check_replay
from tests.browser.page_scripts import PageScripts

TYPES: dict[str, Any] = {"float32": np.float32, "float16": np.float16}


@pytest.mark.parametrize("dtype", TYPES)
def test_numbers_are_those_of_numpy(dtype: str, scripts: PageScripts) -> None:
    random = np.random.default_rng(3)
    pairs, wanted = [], []
    for count in (2, 64, 130, 100_000):
        b = (random.normal(size=count) * 8).astype(TYPES[dtype])
        a = (b + random.normal(size=count) * 0.05).astype(TYPES[dtype])
        for at, values in ((0, a), (count - 1, b)):
            values[at] = np.inf
        if count > 100:
            a[count // 2] = b[count // 2] = np.nan
        pairs.append([a.tobytes().hex(), b.tobytes().hex(), dtype])
        both = np.isfinite(a) & np.isfinite(b)
        x, y = a[both].astype(np.float64), b[both].astype(np.float64)
        relative = np.sqrt(((x - y) ** 2).sum() / (y**2).sum()) if len(x) else 0.0
        largest = [np.abs(values).max(initial=0) for values in (x - y, y)]
        unlike = int((np.isfinite(a) != np.isfinite(b)).sum())
        wanted.append([*largest, unlike, relative])
    for found, expected in zip(scripts.run("comparing", "compared", pairs=pairs), wanted, strict=True):
        told = [found[name] for name in ("max_difference", "max_magnitude", "unlike", "relative")]
        assert told == pytest.approx(expected, rel=1e-3)


def test_nothing_apart_and_nothing_to_compare_with_are_numbers(scripts: PageScripts) -> None:
    ones, zeros = np.ones(8, np.float32).tobytes().hex(), np.zeros(8, np.float32).tobytes().hex()
    pairs = [[ones, ones, "float32"], [zeros, zeros, "float32"], [ones, zeros, "float32"]]
    found = scripts.run("comparing", "compared", pairs=pairs)
    assert [each["relative"] for each in found] == [0, 0, pytest.approx(1e30)]


class Span:
    length = 8
    buffer = SimpleNamespace(handle=1)

    def span(self) -> Span:
        return self

    def close(self) -> None: ...

    handle = 2


def checked(
    logits: Difference, cache: Difference, spread: Spread | None, dtype: str = "float16", needs_f16: bool = True
) -> None:
    """Run a check over these differences, with a tolerance of an eighth for float16 and a 64th for float32."""

    async def nothing() -> None: ...

    async def allocate(requests: Any, _owner: str) -> list[Span]:
        return [Span() for _ in requests]

    async def compare(_pairs: object) -> list[Difference]:
        return [logits, cache]

    device = SimpleNamespace(allocate_all=allocate, copy_tensors=lambda _pairs: None)
    buffers: Any = SimpleNamespace(
        spans={"logits": Span(), "kv past": Span()}, logits=1, states=[], settle_states=lambda: None, device=device
    )
    pair = SimpleNamespace(past="past", present="present")
    about: Any = SimpleNamespace(
        logits="logits",
        logits_dtype=dtype,
        vocab_size=1,
        rows_of=lambda _pair: dtype,
        cache=[pair],
        states=[],
        needs_f16=needs_f16,
    )
    engine: Any = SimpleNamespace(fill=lambda _handle, _byte: None, compare=compare)
    asyncio.run(check_replay(engine, buffers, about, "run", nothing, nothing, Tolerance(1 / 64, 0.125, spread)))


SPREAD = Spread(mean=0.1, largest=0.5)
NEAR = Difference(0.1, 8.0, 0, 0.01)


@pytest.mark.parametrize(
    ("logits", "cache", "spread", "reason"),
    [
        (NEAR, Difference(2.0, 8.0, 0, 0.01), None, "in present by 2 .*at most 1 is"),
        (NEAR, Difference(2.0, 8.0, 0, 0.01), SPREAD, ""),
        (NEAR, Difference(4.5, 8.0, 0, 0.01), SPREAD, "in present by 4.5 .*at most 4 is"),
        (NEAR, Difference(2.0, 8.0, 0, 0.2), SPREAD, "in present by 0.2 of its values in the mean .*at most 0.1 is"),
        (NEAR, Difference(0.0, 8.0, 3, 0.0), SPREAD, "3 elements finite in only one"),
        (Difference(2.0, 8.0, 0, 0.01), NEAR, SPREAD, "in logits by 2 .*at most 1 is"),
    ],
)
def test_what_is_let_pass(logits: Difference, cache: Difference, spread: Spread | None, reason: str) -> None:
    if reason:
        with pytest.raises(TapeCheckError, match=reason):
            checked(logits, cache, spread)
    else:
        checked(logits, cache, spread)


def test_float32_outputs_of_a_float16_graph_are_compared_as_float16() -> None:
    """Exports keep float32 inputs and outputs around a graph that computes in float16."""
    apart = Difference(0.5, 8.0, 0, 0.01)
    checked(apart, apart, None, "float32", needs_f16=True)
    with pytest.raises(TapeCheckError, match=r"in logits by 0.5 .*at most 0.125 is"):
        checked(apart, apart, None, "float32", needs_f16=False)
