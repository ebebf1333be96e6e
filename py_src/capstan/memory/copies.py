"""Plans copies on a device: as few as possible, and in whole words where spans and the padding of buffers allow.

Devices copy whole words directly, and other bytes by a kernel. This module decides which copies and kernels a transfer
needs; the device encodes them (web/src/worker/gpu/span_plan.ts).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .pools import round_up
from .span import DeviceSpan
from .usage import WORD, check_use

__all__ = ["CopyStep", "plan_copies"]


class CopyStep(NamedTuple):
    """Copies `bytes` bytes of one buffer to another place, as if all bytes were read before any byte is written.
    Buffers are given by their handles.
    """

    source: int
    source_offset: int
    destination: int
    destination_offset: int
    bytes: int


def plan_copies(pairs: Sequence[tuple[DeviceSpan, DeviceSpan]]) -> list[CopyStep]:
    """Plan the steps, for one submit, that copy each source to its destination of the same length, in order.

    Each pair behaves as if its source were read before its destination is written. Adjacent copies are joined into one
    step. The device makes buffers of whole words, so the padding after a buffer's end may be read and overwritten.
    Raises MemoryTypeError for memory that such copies cannot use.
    """
    kept: list[tuple[DeviceSpan, DeviceSpan]] = []
    for source, destination in pairs:
        if source.length == 0 or (same_buffer(source, destination) and source.offset == destination.offset):
            continue
        last = kept[-1] if kept else None
        if last and follows(last[0], source) and follows(last[1], destination) and not overlap(last[1], source):
            kept[-1] = (joined(last[0], source), joined(last[1], destination))
        else:
            kept.append((source, destination))
    return [step_of(source, destination) for source, destination in kept]


def step_of(source: DeviceSpan, destination: DeviceSpan) -> CopyStep:
    """The copy step of one pair. It is extended to the end of its last word if the destination's buffer ends within
    that word.
    """
    size = source.length
    starts = source.offset % WORD == destination.offset % WORD == 0
    if starts and not same_buffer(source, destination) and size == destination.buffer.size - destination.offset:
        size = round_up(size, WORD)
    words = starts and size % WORD == 0
    check_use("copy source", source, words=words)
    check_use("copy destination", destination, words=words)
    return CopyStep(source.buffer.handle, source.offset, destination.buffer.handle, destination.offset, size)


def same_buffer(one: DeviceSpan, other: DeviceSpan) -> bool:
    return bool(one.buffer.handle == other.buffer.handle)


def follows(first: DeviceSpan, second: DeviceSpan) -> bool:
    """Whether the second span begins where the first ends."""
    return same_buffer(first, second) and first.offset + first.length == second.offset


def overlap(one: DeviceSpan, other: DeviceSpan) -> bool:
    end = min(one.offset + one.length, other.offset + other.length)
    return same_buffer(one, other) and max(one.offset, other.offset) < end


def joined(first: DeviceSpan, second: DeviceSpan) -> DeviceSpan:
    return DeviceSpan(first.buffer, first.offset, first.length + second.length)
