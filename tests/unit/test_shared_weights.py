"""Weight buffers that sessions share: one set for each content, counted, freed with the last."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from capstan.errors import OutOfMemoryError
from capstan.graph import Part
from capstan.memory import BufferRequest
from capstan.weights.shared import Lease, SharedWeights, Span

SPANS = [Span("a", (Part(0, 64),)), Span("b", (Part(64, 4),)), Span("c", (Part(100, 32),))]


class PaperOwner:
    """Buffers as numbers."""

    def __init__(self) -> None:
        self.live: dict[int, tuple[str, int]] = {}
        self.made = 0

        self.room = True

    async def create_buffers(self, requests: Sequence[BufferRequest], owner: str) -> list[int]:
        assert {request.category for request in requests} == {"weights"}
        await asyncio.sleep(0)
        if not self.room:
            raise OutOfMemoryError("no room")
        made = range(self.made + 1, self.made + len(requests) + 1)
        self.made += len(requests)
        self.live |= {buffer: (label, size) for buffer, (label, size, _) in zip(made, requests, strict=True)}
        return list(made)

    def destroy_buffer(self, buffer: int) -> None:
        del self.live[buffer]


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
def owner() -> PaperOwner:
    return PaperOwner()


@pytest.fixture
def shared(owner: PaperOwner) -> SharedWeights:
    return SharedWeights(owner, 1000)


@pytest.fixture
def loads() -> Loads:
    return Loads()


def acquire(shared: SharedWeights, loads: Loads, content: str | None = "c", spans: list[Span] = SPANS) -> Lease:
    return asyncio.run(shared.acquire(content, spans, "model", loads))


def test_the_second_user_gets_the_same_buffers_and_the_last_one_frees_them(
    shared: SharedWeights, owner: PaperOwner, loads: Loads
) -> None:
    first, second = acquire(shared, loads), acquire(shared, loads)
    assert first.buffers == second.buffers
    assert loads.names == [["a", "b", "c"]]
    assert sorted(owner.live.values()) == [("weight a", 64), ("weight b", 16), ("weight c", 32)]
    first.release()
    first.release()
    assert len(owner.live) == 3
    second.release()
    assert owner.live == {}
    acquire(shared, loads)
    assert len(loads.names) == 2


def test_only_what_is_missing_is_loaded(shared: SharedWeights, owner: PaperOwner, loads: Loads) -> None:
    part = acquire(shared, loads, spans=SPANS[:2])
    whole = acquire(shared, loads)
    assert loads.names == [["a", "b"], ["c"]]
    part.release()
    assert len(owner.live) == 3
    whole.release()
    assert owner.live == {}


def test_two_weights_over_the_same_bytes_are_one_buffer(shared: SharedWeights, owner: PaperOwner, loads: Loads) -> None:
    lease = acquire(shared, loads, spans=[Span("embedding", (Part(0, 64),)), Span("head", (Part(0, 64),))])
    assert lease.buffers == [1, 1]
    lease.release()
    assert owner.live == {}


def test_other_contents_and_unnamed_ones_are_not_shared(shared: SharedWeights, owner: PaperOwner, loads: Loads) -> None:
    for content in ("c", "d", None, None):
        acquire(shared, loads, content)
    assert len(owner.live) == 12


def test_a_content_found_out_later_names_the_same_buffers(
    shared: SharedWeights, owner: PaperOwner, loads: Loads
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
    assert owner.live == {}


def test_who_comes_during_a_load_waits_for_it(shared: SharedWeights, owner: PaperOwner, loads: Loads) -> None:
    async def both() -> tuple[Lease, Lease]:
        loads.gate = asyncio.Event()
        first = asyncio.ensure_future(shared.acquire("c", SPANS, "model", loads))
        second = asyncio.ensure_future(shared.acquire("c", SPANS[:1], "model", loads))
        await asyncio.sleep(0.01)
        assert not second.done()
        loads.gate.set()
        return await first, await second

    first, second = asyncio.run(both())
    assert loads.names == [["a", "b", "c"]]
    assert second.buffers == first.buffers[:1]


def test_a_load_that_fails_leaves_nothing_and_who_waited_loads_for_itself(
    shared: SharedWeights, owner: PaperOwner, loads: Loads
) -> None:
    async def both() -> Lease:
        loads.gate = asyncio.Event()
        loads.failure = OSError("gone")
        first = asyncio.ensure_future(shared.acquire("c", SPANS, "model", loads))
        second = asyncio.ensure_future(shared.acquire("c", SPANS, "model", loads))
        await asyncio.sleep(0.01)
        loads.gate.set()
        with pytest.raises(OSError, match="gone"):
            await first
        return await second

    lease = asyncio.run(both())
    assert loads.names == [["a", "b", "c"]] * 2
    assert len(owner.live) == 3
    lease.release()
    assert owner.live == {}


def test_without_memory_nothing_is_left_and_who_waited_asks_for_it_again(
    shared: SharedWeights, owner: PaperOwner, loads: Loads
) -> None:
    async def both() -> Lease:
        owner.room = False
        first = asyncio.ensure_future(shared.acquire("c", SPANS, "model", loads))
        await asyncio.sleep(0)
        second = asyncio.ensure_future(shared.acquire("c", SPANS[:1], "model", loads))
        with pytest.raises(OutOfMemoryError, match="no room"):
            await first
        owner.room = True
        return await second

    lease = asyncio.run(both())
    assert loads.names == [["a"]]
    assert list(owner.live) == lease.buffers
    lease.release()
    assert owner.live == {}


def test_who_comes_while_buffers_are_made_gets_the_same(shared: SharedWeights, owner: PaperOwner, loads: Loads) -> None:
    async def both() -> list[Lease]:
        return await asyncio.gather(*(shared.acquire("c", SPANS, "model", loads) for _ in range(2)))

    first, second = asyncio.run(both())
    assert first.buffers == second.buffers
    assert len(owner.live) == len(SPANS)


def test_a_weight_over_the_adapters_limit_is_refused(shared: SharedWeights, owner: PaperOwner, loads: Loads) -> None:
    with pytest.raises(OutOfMemoryError, match="weight huge has 1001 bytes and this adapter binds at most 1000"):
        acquire(shared, loads, spans=[*SPANS, Span("huge", (Part(200, 1001),))])
    assert owner.live == {}
    assert loads.names == []
