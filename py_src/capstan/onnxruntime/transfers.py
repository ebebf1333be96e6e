"""Tensors on their way into a session and out of it, as the copy planner says."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..device.element_types import byte_count
from ..device.interface import BoundSpan, DeviceInterface
from ..device.transfers import run_with_copies
from ..memory import DeviceBuffer, DeviceSpan, MemoryInfo, Place, Transfer, plan_copies
from .host_array import HostArray
from .ort_value import HOST_MEMORY, host_span

__all__ = ["bring_in", "bring_out"]


class Numbered:
    """Buffers by the numbers that a plan calls them."""

    def __init__(self) -> None:
        self.buffers: dict[int, DeviceBuffer | memoryview] = {}
        self._numbers: dict[int, int] = {}

    def place(self, span: DeviceSpan, length: int) -> Place:
        """The first `length` bytes of a span."""
        buffer, memory = span.buffer, span.buffer.memory
        number = self._numbers.setdefault(id(buffer), len(self._numbers))
        self.buffers[number] = memoryview(buffer.handle) if memory.heap == HOST_MEMORY.heap else buffer
        padding = 0 if memory.heap == HOST_MEMORY.heap else -buffer.size % memory.alignment
        return Place(memory, number, span.offset, length, buffer.size, padding)

    def planned(self, memory: MemoryInfo, length: int) -> Place:
        """A buffer that there may be later."""
        number = len(self._numbers)
        self._numbers[-1 - number] = number
        return Place(memory, number, 0, length, length, -length % memory.alignment)


async def bring_in(
    device: DeviceInterface, memory: MemoryInfo, given: Sequence[BoundSpan], spare: Callable[[str, int], DeviceBuffer]
) -> list[BoundSpan]:
    """The inputs of a run where a session that computes in `memory` can be bound to them: where they are if it can,
    else copied to a buffer from `spare(name, size)`."""
    numbered = Numbered()
    transfers = []
    for feed in given:
        size = byte_count(feed.dtype, feed.dims)
        transfers.append(Transfer(feed.name, numbered.place(feed.span, size), numbered.planned(memory, size)))
    plan = plan_copies(transfers, [], capabilities=None)
    bound = []
    for feed, transfer in zip(given, transfers, strict=True):
        if feed.name not in plan.aliases:
            buffer = spare(feed.name, transfer.destination.length)
            numbered.buffers[transfer.destination.buffer] = buffer
            feed = BoundSpan(feed.name, buffer.span(), feed.dtype, feed.dims)
        bound.append(feed)
    await run_with_copies(plan, numbered.buffers, [device], nothing)
    return bound


async def bring_out(device: DeviceInterface, results: Sequence[tuple[BoundSpan, HostArray]]) -> None:
    """Copy the results of a run into arrays of their types and shapes, all at once."""
    numbered = Numbered()
    spans = [(result.span, host_span(target.data)) for result, target in results]
    transfers = [
        Transfer(str(index), numbered.place(span, target.length), numbered.place(target, target.length), rebind=False)
        for index, (span, target) in enumerate(spans)
    ]
    plan = plan_copies([], transfers, capabilities=None)
    await run_with_copies(plan, numbered.buffers, [device], nothing)


async def nothing(_: object) -> None:
    """The run is the caller's."""
