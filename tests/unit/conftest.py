"""Fixtures of tests without a browser."""

from __future__ import annotations

import pytest

from capstan.local.host import LocalHost
from tests.unit.stand_in_device import ApartDevice, HeapDevice


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
