"""Plans carried out through what devices offer: the same bytes, temporaries freed, a failure in the run included."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from capstan.device.transfers import run_with_copies
from capstan.errors import BufferMismatchError
from capstan.memory import (
    Capabilities,
    DeviceBuffer,
    DeviceSpan,
    HostStep,
    MemoryInfo,
    MemoryType,
    Place,
    Transfer,
    plan_copies,
    plan_tensor_copies,
)
from capstan.memory.places import Kind
from tests.unit.copy_simulator import ORT, OTHER, PYTHON, STAGING, STORAGE, World

PROBED = Capabilities("test", True, True, False, False, False, False, True, True, 1 << 28, 1 << 27, 256)
PLANS = 1000
numbers = count(1000)


class SimulatedDevice:
    """One device of a world."""

    def __init__(self, world: World, device_id: int = 0) -> None:
        self.world, self.simulator = world, world.simulator
        self.device_id = device_id
        self.open: set[int] = set()
        self.submits = 0

    def get_memory_info(self, memory_type: MemoryType = MemoryType.DEFAULT) -> MemoryInfo:
        memory = STORAGE if memory_type is MemoryType.DEFAULT else STAGING
        return replace(memory, device_id=self.device_id)

    def allocate(
        self, size: int, memory_type: MemoryType = MemoryType.DEFAULT, *, label: str = "", category: str = "user"
    ) -> DeviceBuffer:
        number = next(numbers)
        memory = self.get_memory_info(memory_type)
        self.simulator.add(-number, memory, bytes(size), -size % 16)
        self.open.add(number)
        return DeviceBuffer(-number, size, memory, free=lambda: self.open.remove(number))

    def copy_tensors(self, pairs: Sequence[tuple[DeviceSpan, DeviceSpan]]) -> None:
        self.submits += 1
        padded = [tuple(replace(Place.of(span), padding=self.padding(span)) for span in pair) for pair in pairs]
        self.simulator.submit(plan_tensor_copies([(source, target) for source, target in padded]))

    def copy_cpu_to_device(self, destination: DeviceSpan, data: Any) -> None:
        self.simulator.write(Place.of(destination), bytes(data))

    async def copy_device_to_cpu(self, source: DeviceSpan, out: Any = None) -> None:
        place = Place.of(source)
        if place.kind is Kind.STAGING:
            await asyncio.sleep(0)  # It is read once it is mapped; storage is copied in the queue's order.
        data = self.simulator.read(place)
        await asyncio.sleep(0)
        out[:] = data

    def padding(self, span: DeviceSpan) -> int:
        buffer = self.simulator.buffers[span.buffer.handle]
        return len(buffer.data) - buffer.size


def buffers_of(world: World) -> dict[int, DeviceBuffer | memoryview]:
    """The world's buffers as a program has them; heaps are views of the simulator's own bytes."""
    found: dict[int, DeviceBuffer | memoryview] = {}
    for number, buffer in world.simulator.buffers.items():
        if buffer.kind is Kind.HEAP:
            found[number] = memoryview(buffer.data)
        else:
            found[number] = DeviceBuffer(number, buffer.size, buffer.memory, free=lambda: None)
    return found


def test_random_plans_move_every_byte_right_through_devices() -> None:
    rng = random.Random(11)
    done = submits = 0
    for _ in range(PLANS):
        mappable = rng.random() < 0.2
        memories = rng.choices([STORAGE, STORAGE, OTHER, STAGING, PYTHON, PYTHON, ORT], k=6)
        world = World.make(rng, memories, mappable)
        feeds = world.transfers(6, "x")
        capabilities = replace(PROBED, mappable_storage=mappable)
        try:
            plan = plan_copies(feeds, [], capabilities=capabilities, staging=STAGING)
        except BufferMismatchError:
            continue
        done += 1
        devices = [SimulatedDevice(world), SimulatedDevice(world, 1)]
        simulator = world.simulator
        wanted = {feed.name: simulator.read(feed.source) for feed in feeds}
        contents = {number: bytearray(data) for number, data in simulator.contents().items()}
        for feed in feeds:
            place = plan.bindings[feed.name]
            if place.buffer >= 0:
                contents[place.buffer][place.offset : place.end] = wanted[feed.name]
        seen: dict[str, bytes] = {}

        async def run(bound: dict[str, DeviceSpan | memoryview], seen: dict[str, bytes] = seen) -> None:
            for name, part in bound.items():
                seen[name] = bytes(part) if isinstance(part, memoryview) else simulator.read(Place.of(part))  # noqa: B023

        asyncio.run(run_with_copies(plan, buffers_of(world), devices, run))
        assert seen == wanted
        assert simulator.contents() == {number: bytes(data) for number, data in contents.items()}
        assert not any(device.open for device in devices)
        at = {number: buffer.memory.device_id for number, buffer in simulator.buffers.items()}
        at |= {made.buffer: made.memory.device_id for made in plan.temporaries}
        groups = [group for group in plan.before if group.kind == "device"]
        used = [{at[step.as_json()[3]] for step in group.steps if not isinstance(step, HostStep)} for group in groups]
        assert sum(device.submits for device in devices) == sum(map(len, used))
        submits += sum(map(len, used))
    assert done > PLANS // 2
    assert submits > PLANS // 4


def one_of_each() -> World:
    """Buffers 0 and 1: storage and Python's heap."""
    return World.make(random.Random(3), [STORAGE, PYTHON])


def place(world: World, number: int, length: int) -> Place:
    memory, size, padding = world.sizes[number]
    return Place(memory, number, 1, length, size, padding)


def test_a_result_is_copied_after_the_run() -> None:
    world = one_of_each()
    fetch = Transfer("y", place(world, 0, 5), place(world, 1, 5))
    plan = plan_copies([], [fetch], capabilities=PROBED)

    async def run(bound: dict[str, DeviceSpan | memoryview]) -> None:
        span = bound["y"]
        assert isinstance(span, DeviceSpan)
        world.simulator.write(Place.of(span), b"hello")

    asyncio.run(run_with_copies(plan, buffers_of(world), [SimulatedDevice(world)], run))
    assert world.simulator.read(fetch.destination) == b"hello"


def test_a_run_that_fails_leaves_no_temporary_and_no_result() -> None:
    world = one_of_each()
    feed = Transfer("x", place(world, 1, 5), place(world, 0, 5))
    fetch = Transfer("y", place(world, 0, 5), place(world, 1, 5))
    before = world.simulator.read(fetch.destination)
    plan = plan_copies([feed], [replace(fetch, source=replace(fetch.source, offset=2))], capabilities=PROBED)
    assert plan.temporaries
    device = SimulatedDevice(world)
    opened: set[int] = set()

    async def run(bound: dict[str, DeviceSpan | memoryview]) -> None:
        opened.update(device.open)
        raise OSError("the session failed")

    with pytest.raises(OSError, match="the session failed"):
        asyncio.run(run_with_copies(plan, buffers_of(world), [device], run))
    assert opened
    assert not device.open
    assert world.simulator.read(fetch.destination) == before


def test_a_device_that_is_not_there_is_named() -> None:
    world = one_of_each()
    plan = plan_copies([Transfer("x", place(world, 1, 5), place(world, 0, 5))], [], capabilities=PROBED)

    async def run(bound: dict[str, DeviceSpan | memoryview]) -> None:
        raise AssertionError("the run must not start")

    with pytest.raises(LookupError, match="no device webgpu 0 among those given"):
        asyncio.run(run_with_copies(plan, buffers_of(world), [SimulatedDevice(world, 1)], run))
