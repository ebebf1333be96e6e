"""The table of operations and memories, the devices' checks against it, and its copy in docs/memory.md."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any, cast

import pytest

from capstan.device.webgpu.webgpu_device import WebGpuDevice
from capstan.errors import MemoryTypeError
from capstan.memory import OPERATIONS, MemoryType, allows, memory_info
from tests.browser.scripts.memory_cells import CELLS, Cell
from tests.unit.paper_engine import PaperEngine
from tests.unit.stand_in_device import ApartDevice

DEFAULT, STAGING = (memory_info("webgpu", kind) for kind in MemoryType)
WORDS_ONLY = {"copy destination", "write", "zero", "output"}
EVERYWHERE = {"read"}
"""Operations that staging memory takes in whole words, and at any alignment; it takes no other."""

DOCUMENT = Path(__file__).parents[2] / "docs" / "memory.md"


@pytest.mark.parametrize("operation", OPERATIONS)
def test_storage_takes_everything_and_staging_memory_what_needs_no_kernel(operation: str) -> None:
    assert [allows(operation, DEFAULT, words=words) for words in (True, False)] == [True, True]
    expected = [operation in WORDS_ONLY | EVERYWHERE, operation in EVERYWHERE]
    assert [allows(operation, STAGING, words=words) for words in (True, False)] == expected


@pytest.mark.parametrize("device", ["wasm", "reference"])
def test_the_host_does_everything_with_its_own_memory(device: str) -> None:
    for kind in MemoryType:
        assert all(
            allows(name, memory_info(device, kind), words=words) for name in OPERATIONS for words in (True, False)
        )


def test_the_document_has_the_table() -> None:
    rows = dict(re.findall(r"^\| ([a-z ]+?) +\| ([^|\n]+\|[^|\n]+\|[^|\n]+\|[^|\n]+)\|$", DOCUMENT.read_text(), re.M))
    for operation in OPERATIONS:
        cells = [allows(operation, place, words=words) for place in (DEFAULT, STAGING) for words in (True, False)]
        told = [cell.strip() for cell in rows[operation].split("|")]
        assert told == ["yes" if cell else "`MemoryTypeError`" for cell in cells], operation


@pytest.mark.parametrize("memory_type", MemoryType)
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell.name} {cell.offset} {cell.length} of {cell.size}")
def test_what_the_table_refuses_reaches_no_queue(cell: Cell, memory_type: MemoryType) -> None:
    engine = PaperEngine()
    device = WebGpuDevice(cast(Any, engine))
    tried, other = device.allocate(cell.size, memory_type, label="tried"), device.allocate(cell.size)
    spans = [buffer.span(cell.offset, cell.length) for buffer in (tried, other)]

    async def act() -> None:
        with device.batch():
            result = cell.act(device, *spans)
        if result is not None:
            await result

    if allows(cell.operation, tried.memory, words=cell.words):
        asyncio.run(act())
        assert len(engine.queued) == 1
        return
    with pytest.raises(MemoryTypeError) as caught:
        asyncio.run(act())
    assert engine.queued == []
    for part in ("'tried'", "WebGPU_Staging of webgpu device 1", "expected ", "WebGPU_Buffer", "; "):
        assert part in str(caught.value)


def test_a_write_to_the_end_of_a_buffer_is_of_whole_words() -> None:
    engine = PaperEngine()
    device = WebGpuDevice(cast(Any, engine))
    buffer = device.allocate(7, MemoryType.HOST_ACCESSIBLE)
    device.copy_cpu_to_device(buffer.span(4), b"abc")
    device.zero(buffer.span())
    assert engine.queued == [("write", buffer.handle, 4, b"abc\0"), ("execute", [["zero", buffer.handle, 0, 8]])]


STOOD_IN = ("copy source", "copy destination", "copy inside", "strided source", "strided destination", "write", "read")


@pytest.mark.parametrize("memory_type", MemoryType)
@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.name in STOOD_IN], ids=lambda cell: cell.name)
def test_the_stand_in_refuses_what_the_table_refuses(cell: Cell, memory_type: MemoryType) -> None:
    device = ApartDevice()
    tried, other = device.allocate(cell.size, memory_type), device.allocate(cell.size)
    spans = [buffer.span(cell.offset, cell.length) for buffer in (tried, other)]

    async def act() -> None:
        result = cell.act(device, *spans)
        if result is not None:
            await result

    if allows(cell.operation, tried.memory, words=cell.words):
        asyncio.run(act())
        return
    with pytest.raises(MemoryTypeError):
        asyncio.run(act())
