"""Weight buffers that sessions share: one set for each content, counted, freed with the last."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from capstan.errors import OutOfMemoryError
from capstan.graph import Part
from capstan.weights.shared import Lease, SharedWeights, Span
from tests.unit.paper_engine import PaperEngine

SPANS = [Span("a", (Part(0, 64),)), Span("b", (Part(64, 4),)), Span("c", (Part(100, 32),))]


class Loads:
    """Counts what is loaded; `gate` holds loads up."""

    def __init__(self) -> None:
        self.names: list[list[str]] = []
        self.gate: asyncio.Event | None = None
        self.failure: Exception | None = None

    async def __call__(self, missing: list[tuple[Span, int]]) -> None:
        self.names.append([span.name for span, _ in missing])
        if self.gate is not None:
            await self.gate.wait()
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure


@pytest.fixture
def owner() -> PaperEngine:
    return PaperEngine()


@pytest.fixture
def shared(owner: PaperEngine) -> SharedWeights:
    return SharedWeights(cast(Any, owner), 1000)


@pytest.fixture
def loads() -> Loads:
    return Loads()


def acquire(shared: SharedWeights, loads: Loads, content: str | None = "c", spans: list[Span] = SPANS) -> Lease:
    return asyncio.run(shared.acquire(content, spans, "model", loads))


def test_the_second_user_gets_the_same_buffers_and_the_last_one_frees_them(
    shared: SharedWeights, owner: PaperEngine, loads: Loads
) -> None:
    first, second = acquire(shared, loads), acquire(shared, loads)
    assert first.buffers == second.buffers
    assert loads.names == [["a", "b", "c"]]
    assert sorted(owner.handles.values()) == [
        ("weight a", 64, "weights"),
        ("weight b", 16, "weights"),
        ("weight c", 32, "weights"),
    ]
    first.release()
    first.release()
    assert len(owner.handles) == 3
    second.release()
    assert owner.handles == {}
    acquire(shared, loads)
    assert len(loads.names) == 2


def test_only_what_is_missing_is_loaded(shared: SharedWeights, owner: PaperEngine, loads: Loads) -> None:
    part = acquire(shared, loads, spans=SPANS[:2])
    whole = acquire(shared, loads)
    assert loads.names == [["a", "b"], ["c"]]
    part.release()
    assert len(owner.handles) == 3
    whole.release()
    assert owner.handles == {}


def test_two_weights_over_the_same_bytes_are_one_buffer(
    shared: SharedWeights, owner: PaperEngine, loads: Loads
) -> None:
    lease = acquire(shared, loads, spans=[Span("embedding", (Part(0, 64),)), Span("head", (Part(0, 64),))])
    assert lease.buffers == [owner.calls] * 2
    lease.release()
    assert owner.handles == {}


def test_other_contents_and_unnamed_ones_are_not_shared(
    shared: SharedWeights, owner: PaperEngine, loads: Loads
) -> None:
    for content in ("c", "d", None, None):
        acquire(shared, loads, content)
    assert len(owner.handles) == 12


def test_a_content_found_out_later_names_the_same_buffers(
    shared: SharedWeights, owner: PaperEngine, loads: Loads
) -> None:
    first = acquire(shared, loads, "source s")
    shared.also("source s", "content c")
    second = acquire(shared, loads, "content c")
    assert second.buffers == first.buffers
    first.release()
    second.release()
    assert shared._names == {}
    third = acquire(shared, loads, "content c")
    assert len(loads.names) == 2
    third.release()
    assert owner.handles == {}


async def test_who_comes_during_a_load_waits_for_it(shared: SharedWeights, owner: PaperEngine, loads: Loads) -> None:
    loads.gate = asyncio.Event()
    first = asyncio.ensure_future(shared.acquire("c", SPANS, "model", loads))
    second = asyncio.ensure_future(shared.acquire("c", SPANS[:1], "model", loads))
    await asyncio.sleep(0.01)
    assert not second.done()
    loads.gate.set()
    assert (await second).buffers == (await first).buffers[:1]
    assert loads.names == [["a", "b", "c"]]


async def test_a_load_that_fails_leaves_nothing_and_who_waited_loads_for_itself(
    shared: SharedWeights, owner: PaperEngine, loads: Loads
) -> None:
    loads.gate = asyncio.Event()
    loads.failure = OSError("gone")
    first = asyncio.ensure_future(shared.acquire("c", SPANS, "model", loads))
    second = asyncio.ensure_future(shared.acquire("c", SPANS, "model", loads))
    await asyncio.sleep(0.01)
    loads.gate.set()
    with pytest.raises(OSError, match="gone"):
        await first
    lease = await second
    assert loads.names == [["a", "b", "c"]] * 2
    assert len(owner.handles) == 3
    lease.release()
    assert owner.handles == {}


async def test_without_memory_nothing_is_left_and_who_waited_asks_for_it_again(
    shared: SharedWeights, owner: PaperEngine, loads: Loads
) -> None:
    owner.room = 0
    first = asyncio.ensure_future(shared.acquire("c", SPANS, "model", loads))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(shared.acquire("c", SPANS[:1], "model", loads))
    with pytest.raises(OutOfMemoryError, match="no room"):
        await first
    owner.room = 1000
    lease = await second
    assert loads.names == [["a"]]
    assert list(owner.handles) == [("buffer", buffer) for buffer in lease.buffers]
    lease.release()
    assert owner.handles == {}


async def test_who_comes_while_buffers_are_made_gets_the_same(
    shared: SharedWeights, owner: PaperEngine, loads: Loads
) -> None:
    first, second = await asyncio.gather(*(shared.acquire("c", SPANS, "model", loads) for _ in range(2)))
    assert first.buffers == second.buffers
    assert len(owner.handles) == len(SPANS)


def test_a_weight_over_the_adapters_limit_is_refused(shared: SharedWeights, owner: PaperEngine, loads: Loads) -> None:
    with pytest.raises(OutOfMemoryError, match="weight huge has 1001 bytes; this adapter binds at most 1000"):
        acquire(shared, loads, spans=[*SPANS, Span("huge", (Part(200, 1001),))])
    assert owner.handles == {}
    assert loads.names == []
