"""The size of prefill runs, from how long runs took."""

from __future__ import annotations

import asyncio
import math
from typing import Any, cast

import pytest

from capstan.device.model_interface import BOUND_MS
from capstan.device.webgpu import prefill_pace
from capstan.device.webgpu.prefill_chunk import SHORTEST
from capstan.device.webgpu.prefill_pace import FIRST, PrefillPace, RunSize
from capstan.errors import DeviceLostError

MOST = 2048


def settled_at(size: RunSize, per_token: float, prompt: int = 100_000) -> list[int]:
    """Runs of a long prompt on a device of this pace, until the size settles."""
    sizes = []
    while not size.settled:
        tokens = min(size.size, prompt)
        sizes.append(tokens)
        size.observe(tokens, tokens * per_token)
        assert len(sizes) < 50
    return sizes


def test_a_fast_adapter_is_given_runs_as_long_as_memory_allows() -> None:
    size = RunSize(MOST, BOUND_MS)
    assert settled_at(size, 0.03) == [256, 512, 1024, 2048]
    assert size.size == MOST


@pytest.mark.parametrize("per_token", [0.2, 0.5, 0.9, 1.5, 3.0])
def test_a_slow_adapter_comes_to_the_longest_run_within_the_bound(per_token: float) -> None:
    size = RunSize(MOST, BOUND_MS)
    settled_at(size, per_token)
    assert size.size * per_token <= BOUND_MS < 2 * size.size * per_token


def test_runs_over_the_bound_are_halved_down_to_the_shortest() -> None:
    size = RunSize(MOST, BOUND_MS)
    assert settled_at(size, 1000.0) == [256, 256, 128, 128]
    assert size.size == SHORTEST, "a shorter one is not tried, and its time is of no interest"


def test_sizes_are_halves_of_the_longest_one() -> None:
    seen = set()
    for per_token in (0.01, 0.3, 0.8, 2.0, 1000.0):
        size = RunSize(1024, BOUND_MS)
        seen |= {*settled_at(size, per_token), size.size}
    assert seen <= {1024, 512, 256, 128, 64}


def test_one_slow_run_changes_nothing() -> None:
    size = RunSize(MOST, BOUND_MS)
    size.observe(256, 5000.0)
    assert (size.size, size.settled) == (256, False), "it may have compiled kernels"
    size.observe(256, 10.0)
    size.observe(512, 5000.0)
    assert size.size == 512


def test_it_grows_back_where_runs_are_well_within_the_bound() -> None:
    size = RunSize(MOST, BOUND_MS)
    size.observe(256, 10.0)
    for _ in range(2):
        size.observe(512, 5000.0)
    assert size.size == 256
    size.observe(256, 10.0)
    assert (size.size, size.settled) == (512, False)


def test_a_size_found_too_long_twice_is_not_tried_again() -> None:
    size = RunSize(MOST, BOUND_MS)
    for _ in range(2):
        size.observe(256, 10.0)
        for _ in range(2):
            size.observe(512, 5000.0)
    size.observe(256, 10.0)
    assert (size.size, size.settled) == (256, True)


def test_what_is_settled_stays() -> None:
    size = RunSize(MOST, BOUND_MS, settled=512)
    for milliseconds in (5000.0, 5000.0, 1.0, 1.0):
        size.observe(512, milliseconds)
    assert (size.size, size.settled) == (512, True)


def test_shorter_runs_tell_what_they_can() -> None:
    size = RunSize(MOST, BOUND_MS)
    size.observe(100, 1.0)
    assert (size.size, size.settled) == (256, False), "nothing is known of one of 256"
    size.observe(200, 20.0)
    assert size.size == 512
    for _ in range(2):
        size.observe(100, 300.0)
    assert size.size == 64, "a run of 100 tokens is too long"


def test_runs_of_the_shortest_size_do_not_count() -> None:
    size = RunSize(MOST, BOUND_MS)
    for _ in range(5):
        size.observe(SHORTEST, 5000.0)
    assert (size.size, size.settled) == (FIRST, False)


def test_without_a_bound_runs_are_as_long_as_memory_allows_at_once() -> None:
    size = RunSize(MOST, math.inf)
    assert (size.size, size.settled) == (MOST, True)


def test_a_software_adapters_runs_are_settled_from_the_start() -> None:
    assert (RunSize(64, BOUND_MS).size, RunSize(64, BOUND_MS).settled) == (64, True)
    assert (RunSize(1, BOUND_MS).size, RunSize(1, BOUND_MS).settled) == (1, True)


class Device:
    """Tells when its work was done, in order."""

    def __init__(self, *done: float) -> None:
        self.done = list(done)

    async def work_done(self) -> float:
        await asyncio.sleep(0)
        if not self.done:
            raise DeviceLostError("gone")
        return self.done.pop(0)


def test_a_run_is_timed_from_its_begin_or_from_the_end_of_the_one_before_it() -> None:
    async def run() -> list[tuple[int, float]]:
        size, seen = RunSize(MOST, BOUND_MS), []
        size.observe = lambda tokens, milliseconds: seen.append((tokens, milliseconds))  # type: ignore[method-assign]
        pace = PrefillPace(cast(Any, Device(130.0, 190.0, 500.0)), size, kept)
        pace.measure(256, 100.0)
        pace.measure(256, 101.0)
        pace.measure(256, 450.0)
        await pace.known()
        return seen

    async def kept(tokens: int) -> None:
        raise AssertionError(tokens)

    assert asyncio.run(run()) == [(256, 30.0), (256, 60.0), (256, 50.0)]


async def test_a_size_that_settled_is_kept_once() -> None:
    kept: list[int] = []

    async def keep(tokens: int) -> None:
        kept.append(tokens)

    pace = PrefillPace(cast(Any, Device(*(200.0 * n for n in range(1, 4)))), RunSize(MOST, BOUND_MS), keep)
    pace.measure(256, 0.0)
    await pace.known()
    for _ in range(2):
        pace.measure(256, 0.0)
        await pace.known()
    assert (pace.size, pace.settled) == (256, True)
    assert kept == [256]


def test_a_size_that_was_read_is_not_written_again() -> None:
    async def keep(tokens: int) -> None:
        raise AssertionError(tokens)

    asyncio.run(PrefillPace(cast(Any, Device()), RunSize(MOST, BOUND_MS, settled=512), keep).known())


async def test_a_device_that_is_lost_is_no_measurement() -> None:
    async def keep(tokens: int) -> None:
        raise AssertionError(tokens)

    pace = PrefillPace(cast(Any, Device()), RunSize(MOST, BOUND_MS), keep)
    pace.measure(256, 0.0)
    await pace.known()
    pace = pace
    assert (pace.size, pace.settled) == (prefill_pace.FIRST, False)
