"""Work for a device's unused time is done while nobody submits, one piece after another, each once."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from capstan.device.webgpu import unused_time
from capstan.device.webgpu.unused_time import UnusedTime
from capstan.errors import DeviceLostError, OutOfMemoryError
from capstan.fallback import FallbackWarning


class Device:
    """Counts submits, and has work that notes its names."""

    def __init__(self) -> None:
        self.submits = 0
        self.done: list[str] = []
        self.error: Exception | None = None
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.recording = False
        self.unused = UnusedTime(cast(Any, self), lambda: self.recording)

    def counters(self) -> dict[str, int]:
        return {"submits": self.submits}

    def work(self, name: str) -> Callable[[], Awaitable[None]]:
        async def work() -> None:
            await self.may_end.wait()
            if self.error is not None:
                raise self.error
            self.done.append(name)

        return work

    def request(self, *names: str) -> None:
        for name in names:
            self.unused.request(name, self.work(name))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unused_time, "UNUSED", 0.01)
    monkeypatch.setattr(unused_time, "BETWEEN", 0.01)


async def test_each_piece_is_done_once_in_order() -> None:
    device = Device()
    device.request("a", "b", "a", "c")
    assert device.done == [], "nothing is done before the device rests"
    await device.unused.settled()
    device.request("b")
    await device.unused.settled()
    assert device.done == ["a", "b", "c"]


async def test_nothing_is_done_while_the_device_is_used() -> None:
    device = Device()
    device.request("a")
    for _ in range(20):
        device.submits += 1
        await asyncio.sleep(0.005)
    assert device.done == []
    await device.unused.settled()
    assert device.done == ["a"]


async def test_nothing_is_done_while_a_tape_is_recorded() -> None:
    device = Device()
    device.recording = True
    device.request("a")
    await asyncio.sleep(0.1)
    assert device.done == []
    device.recording = False
    await device.unused.settled()
    assert device.done == ["a"]


async def test_a_pause_waits_for_the_piece_under_way_only() -> None:
    device = Device()
    device.may_end.clear()
    device.request("a", "b")
    await asyncio.sleep(0.05)
    waiting = asyncio.ensure_future(device.unused.paused())
    await asyncio.sleep(0)
    assert not waiting.done()
    device.may_end.set()
    await waiting
    assert device.done == ["a"]


async def test_closing_ends_the_piece_under_way_and_begins_no_other() -> None:
    device = Device()
    device.may_end.clear()
    device.request("a", "b")
    await asyncio.sleep(0.05)
    closing = asyncio.ensure_future(device.unused.close())
    await asyncio.sleep(0)
    device.may_end.set()
    await closing
    await asyncio.sleep(0.05)
    assert device.done == ["a"]


async def test_too_little_memory_is_a_step_down_and_the_next_piece_is_done() -> None:
    device = Device()
    device.error = OutOfMemoryError("no room for 64 positions")
    device.request("a tape")
    with pytest.warns(FallbackWarning, match="a tape: no room for 64 positions"):
        await device.unused.settled()
    device.error = None
    device.request("b")
    await device.unused.settled()
    assert device.done == ["b"]


async def test_a_lost_device_is_left_to_its_next_user() -> None:
    device = Device()
    device.error = DeviceLostError("gone")
    device.request("a", "b")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        await device.unused.settled()
    assert device.done == []
