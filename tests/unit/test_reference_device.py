"""The reference device's memory: the same operations as on the devices of a page."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from capstan.device.ort_session import ModelSession
from capstan.device.reference.reference_device import ReferenceDevice
from capstan.device.wasm.wasm_device import WasmDevice
from capstan.host.storage_interface import ExternalData
from tests.browser.scripts import device_operations
from tests.device_cases import check_conversions, check_masks, check_refusals


def test_copies_zeros_and_writes_of_any_alignment() -> None:
    assert asyncio.run(device_operations.copies(ReferenceDevice(), rounds=400)) == []


def test_a_readback_moves_the_span_only() -> None:
    found = asyncio.run(device_operations.readbacks(ReferenceDevice()))
    assert found["wrong"] == []
    assert found["waiting"] == 0


def test_masks_and_positions_of_any_batch() -> None:
    check_masks(asyncio.run(device_operations.masks(ReferenceDevice())))


def test_casts() -> None:
    check_conversions(asyncio.run(device_operations.conversions(ReferenceDevice())))


async def no_session(model: bytes, external: ExternalData | None, owner: str) -> Callable[[], Awaitable[ModelSession]]:
    raise AssertionError("no session was asked for")


def test_refusals_leave_the_buffers_as_they_were() -> None:
    check_refusals(asyncio.run(device_operations.refusals(ReferenceDevice(), WasmDevice(no_session, {"name": "wasm"}))))


def test_what_it_can_do() -> None:
    found = asyncio.run(device_operations.capabilities(ReferenceDevice()))
    assert found["staging"]
    assert found["mappable_storage"]
    assert found["int64"]
    assert found["in_place_cache"]
    assert not found["timestamps"]
    assert "timestamps" in found["missing"]
    assert found["same"], "an adapter is probed once"


def test_memory_infos_come_from_the_table() -> None:
    found = asyncio.run(device_operations.infos(ReferenceDevice()))
    assert found == {
        "places": {"default": "Cpu", "host_accessible": "Cpu"},
        "device": "reference",
        "provider": "CPUExecutionProvider",
    }
