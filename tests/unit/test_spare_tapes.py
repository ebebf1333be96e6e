"""Tapes of prompt runs are made while the device is unused, one after another, each once."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from capstan.device.webgpu.tapes import spare_tapes
from capstan.device.webgpu.tapes.spare_tapes import SpareTapes
from capstan.errors import DeviceLostError, OutOfMemoryError
from capstan.fallback import FallbackWarning


class Device:
    """Counts submits, and lends decoders that note the tapes that they make."""

    def __init__(self) -> None:
        self.submits = 0
        self.lent = 0
        self.made: list[tuple[int, int]] = []
        self.error: Exception | None = None
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.tapes = SpareTapes(cast(Any, self), self.spare)

    def counters(self) -> dict[str, int]:
        return {"submits": self.submits}

    @asynccontextmanager
    async def spare(self, capacity: int) -> AsyncIterator[Any]:
        if isinstance(self.error, OutOfMemoryError):
            raise self.error
        self.lent += 1
        device = self

        class One:
            async def make_prompt_tape(self, length: int) -> None:
                await device.may_end.wait()
                if device.error is not None:
                    raise device.error
                device.made.append((capacity, length))

        try:
            yield One()
        finally:
            self.lent -= 1


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spare_tapes, "UNUSED", 0.01)


def test_each_requested_tape_is_made_once_in_order() -> None:
    async def main() -> None:
        device = Device()
        for capacity, length in ((64, 32), (64, 8), (64, 32), (128, 32)):
            device.tapes.request(capacity, length)
        assert device.made == [], "nothing is made before the device rests"
        await device.tapes.settled()
        device.tapes.request(64, 8)
        await device.tapes.settled()
        assert device.made == [(64, 32), (64, 8), (128, 32)]
        assert device.lent == 0

    asyncio.run(main())


def test_none_is_made_while_the_device_is_used() -> None:
    async def main() -> None:
        device = Device()
        device.tapes.request(64, 32)
        for _ in range(20):
            device.submits += 1
            await asyncio.sleep(0.005)
        assert device.made == []
        await device.tapes.settled()
        assert device.made == [(64, 32)]

    asyncio.run(main())


def test_a_sequence_waits_for_the_tape_that_is_being_made_only() -> None:
    async def main() -> None:
        device = Device()
        device.may_end.clear()
        device.tapes.request(64, 32)
        device.tapes.request(64, 8)
        await asyncio.sleep(0.05)
        waiting = asyncio.ensure_future(device.tapes.paused())
        await asyncio.sleep(0)
        assert device.lent == 1
        assert not waiting.done()
        device.may_end.set()
        await waiting
        assert device.made == [(64, 32)]
        assert device.lent == 0

    asyncio.run(main())


def test_closing_ends_the_one_under_way_and_makes_no_more() -> None:
    async def main() -> None:
        device = Device()
        device.may_end.clear()
        device.tapes.request(64, 32)
        device.tapes.request(64, 8)
        await asyncio.sleep(0.05)
        closing = asyncio.ensure_future(device.tapes.close())
        await asyncio.sleep(0)
        device.may_end.set()
        await closing
        await asyncio.sleep(0.05)
        assert device.made == [(64, 32)]

    asyncio.run(main())


def test_too_little_memory_for_a_spare_sequence_is_a_step_down() -> None:
    async def main() -> None:
        device = Device()
        device.error = OutOfMemoryError("no room for 64 positions")
        device.tapes.request(64, 32)
        with pytest.warns(FallbackWarning, match="a tape of prompt runs of 32 positions.*no room for 64 positions"):
            await device.tapes.settled()
        device.error = None
        device.tapes.request(64, 8)
        await device.tapes.settled()
        assert device.made == [(64, 8)]

    asyncio.run(main())


def test_a_device_that_is_lost_meanwhile_is_left_to_its_next_user() -> None:
    async def main() -> None:
        device = Device()
        device.error = DeviceLostError("gone")
        device.tapes.request(64, 32)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            await device.tapes.settled()
        assert device.made == []
        assert device.lent == 0

    asyncio.run(main())
