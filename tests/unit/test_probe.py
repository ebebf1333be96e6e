"""The result of a device's probe is noted for later page loads."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from capstan.device import probe
from capstan.device.device_interface import DeviceFacts, DeviceSession
from capstan.device.probe import noted_capabilities
from capstan.device.reference.reference_device import ReferenceDevice
from capstan.errors import CapstanError
from capstan.memory import Capabilities
from tests.unit.shelf import Shelf

FACTS = DeviceFacts("cpu (onnxruntime)", runtime="onnxruntime 1, browser 1")


class Probed(ReferenceDevice):
    """A device that counts the sessions that a probe makes on it."""

    def __init__(self, facts: DeviceFacts = FACTS, failing: bool = False) -> None:
        super().__init__()
        self.facts = facts
        self.failing = failing
        self.sessions = 0

    def about(self) -> DeviceFacts:
        return self.facts

    async def create_session(self, model: bytes, **options: Any) -> DeviceSession:
        self.sessions += 1
        if self.failing:
            raise CapstanError("no memory at the moment")
        return await super().create_session(model, **options)


def capabilities(device: Probed, shelf: Shelf) -> Capabilities:
    return asyncio.run(noted_capabilities(device, shelf.notes))


def test_the_next_page_does_not_probe() -> None:
    shelf, first, second = Shelf(), Probed(), Probed()
    assert capabilities(first, shelf) == capabilities(second, shelf)
    assert first.sessions > 0
    assert second.sessions == 0


@pytest.mark.parametrize(
    "facts",
    [
        replace(FACTS, adapter="another"),
        replace(FACTS, software=True),
        replace(FACTS, features=frozenset()),
        replace(FACTS, max_binding_size=1 << 27),
        replace(FACTS, runtime="onnxruntime 2, browser 1"),
    ],
)
def test_other_facts_probe_anew(facts: DeviceFacts) -> None:
    shelf, other = Shelf(), Probed(facts)
    capabilities(Probed(), shelf)
    assert capabilities(other, shelf) == asyncio.run(probe.Probe(Probed(facts)).run())
    assert other.sessions > 0


def test_another_capstan_probes_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    shelf, again = Shelf(), Probed()
    capabilities(Probed(), shelf)
    monkeypatch.setattr(probe, "build", lambda: "another")
    capabilities(again, shelf)
    assert again.sessions > 0


def test_a_device_of_no_known_runtime_is_probed_each_time() -> None:
    shelf = Shelf()
    capabilities(Probed(replace(FACTS, runtime="")), shelf)
    assert not shelf.texts


def test_an_error_is_not_noted_as_an_answer() -> None:
    shelf, again = Shelf(), Probed()
    assert not capabilities(Probed(failing=True), shelf).staging
    assert capabilities(again, shelf).staging
    assert again.sessions > 0


def test_a_damaged_note_probes_anew() -> None:
    shelf, again = Shelf(), Probed()
    first = capabilities(Probed(), shelf)
    (name,) = shelf.texts
    shelf.texts[name] = shelf.texts[name].replace("true", "false")
    assert capabilities(again, shelf) == first
    assert again.sessions > 0
