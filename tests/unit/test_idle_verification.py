"""Stored weights that are compared with their digests while nothing is asked for, on paper."""

from __future__ import annotations

import asyncio
import math
import random
import warnings
from collections.abc import Callable, Coroutine, Iterator
from functools import wraps
from typing import Any

import pytest

from capstan.fallback import FallbackWarning, counted, fallbacks
from capstan.weights import idle
from capstan.weights import manifest as manifests
from capstan.weights.idle import IdleVerification
from capstan.weights.records import DATA
from capstan.weights.store import Verification, WeightStore
from capstan.weights.weight_file import WeightFile
from tests.paper_weights import PaperBacking, PaperServer, PaperSink

BYTES = random.Random(2).randbytes(950)


@pytest.fixture(autouse=True)
def small_and_fast(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(manifests, "SHARD_BYTES", 100)
    monkeypatch.setattr(idle, "PAUSE_SECONDS", 0)
    idle.unverified.clear()
    counted.clear()
    yield
    idle.unverified.clear()


def in_a_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """The test as a function that waits for it."""

    @wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


class Worker:
    """A store with one file, and what looks after it."""

    def __init__(self) -> None:
        self.server = PaperServer(BYTES)
        self.backing = PaperBacking()
        self.notified: list[Verification] = []
        self.free = asyncio.Event()
        """Set while nothing else goes on."""
        self.free.set()
        self.idle = IdleVerification(WeightStore(self.backing), self.notified.append, self.free.wait)

    async def load(self) -> None:
        async def no_manifest() -> None:
            return None

        file = await WeightFile.open(self.server.open(), WeightStore(self.backing), no_manifest)
        await file.load(PaperSink((0, 950)), 950, lambda done, total: None)

    def spoil(self, *places: int) -> None:
        [data] = [name for name in self.backing.files if name.endswith(DATA)]
        for place in places:
            self.backing.files[data][place] ^= 1

    async def stored(self) -> None:
        """The file is in the store, and was loaded from there."""
        await self.load()
        await self.load()

    async def rest(self, turns: int = 500) -> None:
        """Time passes without a request."""
        self.idle.begin(0)
        for _ in range(turns):
            await asyncio.sleep(0)

    async def rest_until(self, shards: int) -> set[bool]:
        """`rest` until so many were compared; whether a file was open meanwhile."""
        self.idle.begin(0)
        seen = set()
        for _ in range(500):
            if self.shards >= shards:
                break
            seen.add(any(self.backing.open_files.values()))
            await asyncio.sleep(0)
        return seen

    @property
    def shards(self) -> int:
        return self.idle.counters["shards"]


@in_a_loop
async def test_what_was_just_downloaded_was_compared_and_is_not_read_again() -> None:
    worker = Worker()
    await worker.load()
    await worker.rest()
    assert worker.idle.counters == {}


@in_a_loop
async def test_what_was_loaded_from_the_store_is_compared_once() -> None:
    worker = Worker()
    await worker.stored()
    await worker.rest()
    assert (worker.idle.counters["files"], worker.shards, worker.notified) == (1, 10, [])
    await worker.idle.stop()
    await worker.load()
    await worker.rest()
    assert (worker.idle.counters["files"], worker.shards) == (1, 10)
    assert not worker.idle.distrusted


@in_a_loop
async def test_damage_is_reported_and_counted_and_the_next_load_fetches_just_that() -> None:
    worker = Worker()
    await worker.stored()
    worker.spoil(555, 940)
    with pytest.warns(
        FallbackWarning, match=r"2 of 10 shards \(5, 9\) changed on disk since they were stored; the next"
    ):
        await worker.rest()
    [found] = worker.notified
    assert (found.sources, found.shards, found.damaged) == ((worker.server.url,), 10, (5, 9))
    assert worker.idle.counters["damaged"] == 2
    assert worker.idle.distrusted
    assert [times for name, times in fallbacks().items() if name.startswith("stored weights: ")] == [1]
    await worker.idle.stop()
    worker.server.sent = 0
    await worker.load()
    assert worker.server.sent == 150


@in_a_loop
async def test_a_request_stops_it_at_once_and_it_goes_on_where_it_was() -> None:
    worker = Worker()
    await worker.stored()
    worker.spoil(50)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        await worker.rest_until(3)
        await worker.idle.stop()
    assert (worker.idle.counters["stopped"], [found.damaged for found in worker.notified]) == (1, [(0,)])
    assert not any(worker.backing.open_files.values())
    await asyncio.sleep(0.01)
    assert worker.shards == 3
    await worker.rest()
    assert (worker.shards, worker.idle.counters["files"], len(worker.notified)) == (10, 1, 1)


@in_a_loop
async def test_a_file_is_open_while_a_shard_is_read_and_not_between() -> None:
    worker = Worker()
    await worker.stored()
    assert await worker.rest_until(10) == {False}


@in_a_loop
async def test_it_waits_for_a_load_that_goes_on_and_for_its_time() -> None:
    worker = Worker()
    await worker.stored()
    worker.free.clear()
    await worker.rest()
    assert worker.shards == 0
    worker.free.set()
    await worker.rest()
    assert worker.shards == 10
    for never in (60, math.inf):
        other = Worker()
        await other.stored()
        other.idle.begin(never)
        await asyncio.sleep(0.01)
        assert other.shards == 0
        await other.idle.stop()


@in_a_loop
async def test_what_was_evicted_or_is_another_tabs_is_left_alone() -> None:
    for gone in (True, False):
        worker = Worker()
        await worker.stored()
        if gone:
            await WeightStore(worker.backing).evict(worker.server.url)
        else:
            [data] = [name for name in worker.backing.files if name.endswith(DATA)]
            del worker.backing.files[data][900:]
        await worker.rest()
        assert (worker.shards, worker.notified, idle.unverified) == (0, [], {})
