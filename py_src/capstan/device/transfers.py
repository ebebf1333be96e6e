"""Carries out a copy plan with what devices offer: the way from a CopyPlan to bytes that have moved."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from itertools import groupby
from typing import Any, Protocol

from ..memory import CopyPlan, DeviceBuffer, DeviceSpan, Group, HostCopy, MemoryInfo, MemoryType, Readback, Upload
from ..memory.steps import Bounce, ByteCopy, Copy

__all__ = ["MovesBytes", "run_with_copies"]

Buffer = DeviceBuffer | memoryview
"""A device's, or host memory as a view of bytes."""


class MovesBytes(Protocol):
    """What a DeviceInterface does with memory, as far as copies need it."""

    def get_memory_info(self, memory_type: MemoryType = MemoryType.DEFAULT) -> MemoryInfo: ...
    def allocate(
        self, size: int, memory_type: MemoryType = MemoryType.DEFAULT, *, label: str = "", category: str = "user"
    ) -> DeviceBuffer: ...
    def copy_tensors(self, pairs: Sequence[tuple[DeviceSpan, DeviceSpan]]) -> None: ...
    def copy_cpu_to_device(self, destination: DeviceSpan, data: Any) -> None: ...
    async def copy_device_to_cpu(self, source: DeviceSpan, out: Any = None) -> Any: ...


async def run_with_copies(
    plan: CopyPlan,
    buffers: Mapping[int, Buffer],
    devices: Sequence[MovesBytes],
    run: Callable[[dict[str, DeviceSpan | memoryview]], Awaitable[None]],
) -> None:
    """Copy what `plan` says, `run` the session on what it is to be bound to, by name, and copy the results.

    `buffers` are those that the plan's places name, `devices` the ones that they are on. Temporary buffers are freed in
    the end, also on failure; what was copied until then stays copied.
    """
    with ExitStack() as temporary:
        there = dict(buffers)
        for made in plan.temporaries:
            if made.memory.heap and made.memory.memory_type is MemoryType.DEFAULT:
                there[made.buffer] = memoryview(bytearray(made.bytes))
            else:
                device = device_of(made.memory, devices)
                buffer = device.allocate(made.bytes, made.memory.memory_type, label="copies", category="staging")
                there[made.buffer] = temporary.enter_context(buffer)
        for group in plan.before:
            await carry_out(group, there, devices)
        await run({name: part(there[p.buffer], p.offset, p.length) for name, p in plan.bindings.items()})
        for group in plan.after:
            await carry_out(group, there, devices)


async def carry_out(group: Group, buffers: Mapping[int, Buffer], devices: Sequence[MovesBytes]) -> None:
    """All steps of one group: copies on a device in one submit, readbacks that follow each other at once."""
    if group.kind == "device":
        pairs = [ends(step, buffers) for step in group.steps if isinstance(step, Copy | ByteCopy | Bounce)]
        for device in devices:
            memory = device.get_memory_info()
            here = [
                (a, b)
                for a, b in pairs
                if (b.buffer.memory.device, b.buffer.memory.device_id) == (memory.device, memory.device_id)
            ]
            if here:
                device.copy_tensors(here)
        return
    for reads, steps in groupby(group.steps, key=lambda step: isinstance(step, Readback)):
        if reads:
            await asyncio.gather(*(move(step, buffers, devices) for step in steps))
            continue
        for step in steps:
            await move(step, buffers, devices)


async def move(step: Any, buffers: Mapping[int, Buffer], devices: Sequence[MovesBytes]) -> None:
    """One step of the host's."""
    assert isinstance(step, Upload | Readback | HostCopy)
    source = part(buffers[step.source], step.source_offset, step.bytes)
    target = part(buffers[step.destination], step.destination_offset, step.bytes)
    if isinstance(source, DeviceSpan):
        assert isinstance(target, memoryview)
        await device_of(source.buffer.memory, devices).copy_device_to_cpu(source, target)
    elif isinstance(target, DeviceSpan):
        device_of(target.buffer.memory, devices).copy_cpu_to_device(target, source)
    else:
        target[:] = source


def ends(step: Copy | ByteCopy | Bounce, buffers: Mapping[int, Buffer]) -> tuple[DeviceSpan, DeviceSpan]:
    """Source and destination of a device's step, without the padding that a Copy may take along."""
    source, target = buffers[step.source], buffers[step.destination]
    assert isinstance(source, DeviceBuffer)
    assert isinstance(target, DeviceBuffer)
    size = min(step.bytes, source.size - step.source_offset, target.size - step.destination_offset)
    return source.span(step.source_offset, size), target.span(step.destination_offset, size)


def part(buffer: Buffer, offset: int, length: int) -> DeviceSpan | memoryview:
    return buffer.span(offset, length) if isinstance(buffer, DeviceBuffer) else buffer[offset : offset + length]


def device_of(memory: MemoryInfo, devices: Sequence[MovesBytes]) -> MovesBytes:
    for device in devices:
        own = device.get_memory_info()
        if (own.device, own.device_id) == (memory.device, memory.device_id):
            return device
    raise LookupError(f"no device {memory.device} {memory.device_id} among those given")
