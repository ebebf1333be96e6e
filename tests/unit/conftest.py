"""Fixtures of tests without a browser."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from capstan import fallback
from capstan.device.picture_encoder import PictureEncoder
from capstan.local.local_host import LocalHost
from tests.unit.stand_in_device import ApartDevice, HeapDevice

HANGS = 300.0
"""A test that awaits has ended after so many seconds."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**given), HANGS))
    return True


@pytest.fixture(scope="module", autouse=True)
def no_running_loop() -> Iterator[None]:
    """Hide Playwright's event loop, which a test in a browser may have left, from the fixtures of a module, too."""
    loop = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    yield
    asyncio._set_running_loop(loop)


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> dict[str, HeapDevice | ApartDevice]:
    """One device in Python's heap and one apart from it, which capstan.onnxruntime opens as 'cpu' and 'webgpu'."""
    made: dict[str, HeapDevice | ApartDevice] = {"cpu": HeapDevice(), "webgpu": ApartDevice()}

    async def open_device(_: LocalHost, device: str) -> HeapDevice | ApartDevice:
        found = made["cpu" if device == "auto" else device]
        found.retain()
        return found

    monkeypatch.setattr(LocalHost, "open_device", open_device)
    return made


@pytest.fixture
def no_fallbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """None is counted yet."""
    monkeypatch.setattr(fallback, "counted", type(fallback.counted)())


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The pictures on which the vision graph was run."""
    found: list[str] = []
    run = PictureEncoder._run

    async def counted(self: PictureEncoder, picture: Any) -> Any:
        found.append(picture.digest)
        return await run(self, picture)

    monkeypatch.setattr(PictureEncoder, "_run", counted)
    return found
