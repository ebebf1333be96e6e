"""Buffers that carry out copy steps under WebGPU's rules, and refuse what WebGPU would refuse."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from capstan.memory import (
    Bounce,
    ByteCopy,
    Copy,
    DeviceStep,
    Group,
    HostCopy,
    MemoryInfo,
    Place,
    Readback,
    Step,
    Temporary,
    Upload,
)
from capstan.memory.places import Kind

GARBAGE = 0xEE


class Refused(Exception):  # noqa: N818
    """A validation error of WebGPU's, or a use of memory that does not address it."""


@dataclass
class Buffer:
    """`data` is what there is, of which the first `size` bytes are somebody's."""

    memory: MemoryInfo
    size: int
    data: bytearray

    @property
    def kind(self) -> Kind:
        return Place(self.memory, 0, 0, 0, 0).kind


class Simulator:
    """Every buffer of a test, by number."""

    def __init__(self, mappable_storage: bool = False) -> None:
        self.buffers: dict[int, Buffer] = {}
        self.mappable_storage = mappable_storage
        self.submits = 0

    def add(self, number: int, memory: MemoryInfo, data: bytes, padding: int = 0) -> None:
        self.buffers[number] = Buffer(memory, len(data), bytearray(data) + bytes([GARBAGE] * padding))

    def add_temporaries(self, temporaries: Iterable[Temporary]) -> None:
        for made in temporaries:
            assert made.buffer < 0
            assert made.buffer not in self.buffers
            self.add(made.buffer, made.memory, bytes([GARBAGE]) * made.bytes)

    def contents(self) -> dict[int, bytes]:
        """The bytes that are somebody's."""
        return {n: bytes(b.data[: b.size]) for n, b in self.buffers.items() if n >= 0}

    def read(self, place: Place) -> bytes:
        return bytes(self.buffers[place.buffer].data[place.offset : place.end])

    def write(self, place: Place, data: bytes) -> None:
        assert len(data) == place.length
        self.buffers[place.buffer].data[place.offset : place.end] = data

    def run(self, groups: Iterable[Group]) -> None:
        for group in groups:
            if group.kind == "mapped":
                self.run_mapped(group)
                continue
            encoded: list[DeviceStep] = []
            for step in group.steps:
                if isinstance(step, Upload | HostCopy | Readback):
                    self.on_host(step)  # Reaches its place before what is only encoded.
                else:
                    encoded.append(step)
            if encoded:
                self.submit(encoded)

    def submit(self, steps: Iterable[Step]) -> None:
        self.submits += 1
        for step in steps:
            self.on_device(step)

    def run_mapped(self, group: Group) -> None:
        """All windows are copied in one submit; then everything is mapped and the host copies, step by step."""
        staging = bytearray([GARBAGE]) * group.staging_bytes
        taken = bytearray(group.staging_bytes)
        for step in group.steps:
            if isinstance(step, Readback):
                start, size = step.window
                source = self.require(step.source, Kind.STORAGE)
                if start % 4 or size % 4 or start + size > len(source.data):
                    raise Refused(f"{step}: window {start}, {size} of {len(source.data)}")
                if step.staging_offset % 8 or step.staging_offset + size > len(staging):
                    raise Refused(f"{step}: staging of {len(staging)} bytes")
                slot = slice(step.staging_offset, step.staging_offset + size)
                assert not any(taken[slot]), "two readbacks share staging bytes"
                taken[slot] = b"\1" * size
                staging[slot] = source.data[start : start + size]
        self.submits += 1 if group.staging_bytes else 0
        for step in group.steps:
            if isinstance(step, Readback):
                first = step.staging_offset + step.source_offset - step.window[0]
                target = self.require(step.destination, Kind.HEAP)
                put(target, step.destination_offset, bytes(staging[first : first + step.bytes]))
            else:
                assert isinstance(step, HostCopy)
                assert step.mapped
                self.host_copy(step, Kind.HEAP, Kind.STAGING)

    def on_host(self, step: Upload | HostCopy | Readback) -> None:
        if isinstance(step, HostCopy):
            if step.mapped:
                raise Refused(f"{step}: nothing is mapped in this group")
            self.host_copy(step, Kind.HEAP)
            return
        if isinstance(step, Readback):
            raise Refused(f"{step}: not in a mapped group")
        source = self.require(step.source, Kind.HEAP)
        target = self.require(step.destination, Kind.STORAGE)
        size = -(-step.bytes // 4) * 4
        if step.destination_offset % 4:
            raise Refused(f"{step}: writeBuffer at {step.destination_offset}")
        data = get(source, step.source_offset, step.bytes).ljust(size, bytes([GARBAGE]))
        put(target, step.destination_offset, data)

    def host_copy(self, step: HostCopy, *kinds: Kind) -> None:
        source, target = self.require(step.source, *kinds), self.require(step.destination, *kinds)
        put(target, step.destination_offset, get(source, step.source_offset, step.bytes))

    def on_device(self, step: Step) -> None:
        assert isinstance(step, Copy | ByteCopy | Bounce)
        source, target = self.buffers[step.source], self.buffers[step.destination]
        places = {(buffer.memory.device, buffer.memory.device_id) for buffer in (source, target)}
        if len(places) > 1 or Kind.HEAP in (source.kind, target.kind):
            raise Refused(f"{step}: between {places}")
        if (step.source == step.destination) is not isinstance(step, Bounce):
            raise Refused(f"{step}: a bounce is for one buffer, a copy for two")
        if isinstance(step, Copy):
            if any(n % 4 for n in (step.source_offset, step.destination_offset, step.bytes)):
                raise Refused(f"{step}: copyBufferToBuffer takes words")
        elif Kind.STAGING in (source.kind, target.kind) and not self.mappable_storage:
            raise Refused(f"{step}: a mappable buffer is no storage")
        put(target, step.destination_offset, get(source, step.source_offset, step.bytes))

    def require(self, number: int, *kinds: Kind) -> Buffer:
        buffer = self.buffers[number]
        if buffer.kind not in kinds:
            raise Refused(f"buffer {number} is {buffer.kind}, not {kinds}")
        return buffer


def get(buffer: Buffer, offset: int, size: int) -> bytes:
    if size <= 0 or offset < 0 or offset + size > len(buffer.data):
        raise Refused(f"bytes {offset} to {offset + size} of {len(buffer.data)}")
    return bytes(buffer.data[offset : offset + size])


def put(buffer: Buffer, offset: int, data: bytes) -> None:
    if offset < 0 or offset + len(data) > len(buffer.data):
        raise Refused(f"bytes {offset} to {offset + len(data)} of {len(buffer.data)}")
    buffer.data[offset : offset + len(data)] = data
