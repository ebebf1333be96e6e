"""Buffers that carry out copy steps under WebGPU's rules, and refuse what WebGPU would refuse."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace

from capstan.memory import (
    Bounce,
    ByteCopy,
    Copy,
    DeviceStep,
    Group,
    HostCopy,
    MemoryInfo,
    MemoryType,
    Place,
    Readback,
    Step,
    Temporary,
    Transfer,
    Upload,
)
from capstan.memory.places import Kind

STORAGE = MemoryInfo("WebGPU_Buffer", "webgpu", MemoryType.DEFAULT)
OTHER = replace(STORAGE, device_id=1)
STAGING = MemoryInfo("WebGPU_Staging", "webgpu", MemoryType.HOST_ACCESSIBLE, heap="gpu-process")
PYTHON = MemoryInfo("Cpu", "reference", MemoryType.DEFAULT, heap="python")
ORT = MemoryInfo("Cpu", "wasm", MemoryType.DEFAULT, heap="onnxruntime")

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
            words = made.bytes if self.kind_of(made.memory) is Kind.HEAP else -(-made.bytes // 4) * 4
            self.add(made.buffer, made.memory, bytes([GARBAGE]) * made.bytes, words - made.bytes)

    @staticmethod
    def kind_of(memory: MemoryInfo) -> Kind:
        return Place(memory, 0, 0, 0, 0).kind

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


@dataclass
class World:
    """Buffers of all kinds, of random sizes and contents."""

    rng: random.Random
    simulator: Simulator
    sizes: dict[int, tuple[MemoryInfo, int, int]]

    @classmethod
    def make(cls, rng: random.Random, memories: list[MemoryInfo], mappable: bool = False) -> World:
        world = cls(rng, Simulator(mappable), {})
        for number, memory in enumerate(memories):
            host = memory.heap in ("python", "onnxruntime")
            size = rng.randrange(8, 40) if host or rng.random() < 0.5 else 4 * rng.randrange(2, 10)
            padding = 0 if host else -size % rng.choice([4, 16])
            world.sizes[number] = (memory, size, padding)
            world.simulator.add(number, memory, rng.randbytes(size), padding)
        return world

    def place(self, length: int | None = None) -> Place | None:
        number = self.rng.choice(list(self.sizes))
        memory, size, padding = self.sizes[number]
        words = self.rng.random() < 0.5 or (memory is STAGING and self.rng.random() < 0.9)
        if length is None:
            length = self.rng.choice([0, 4, 8, 12, self.rng.randrange(1, 14), size])
            length = length // 4 * 4 if words else length
        if length > size:
            return None
        offset = self.rng.choice([0, size - length, self.rng.randrange(0, size - length + 1)])
        return Place(memory, number, offset // 4 * 4 if words else offset, length, size, padding)

    def transfers(self, most: int, prefix: str) -> list[Transfer]:
        """Random ones whose destinations do not overlap; now and then one goes on where the last one ended."""
        made: list[Transfer] = []
        for index in range(self.rng.randrange(0, most + 1)):
            source = self.place()
            destination = None if source is None else self.place(source.length)
            if made and self.rng.random() < 0.3:
                source, destination = self.after(made[-1].source), self.after(made[-1].destination)
                if source and destination:
                    length = min(source.length, destination.length)
                    source, destination = replace(source, length=length), replace(destination, length=length)
            if source is None or destination is None:
                continue
            if any(destination.overlaps(other.destination) for other in made):
                continue
            made.append(Transfer(f"{prefix}{index}", source, destination, self.rng.random() < 0.6))
        return made

    def after(self, place: Place) -> Place | None:
        left = place.size - place.end
        return replace(place, offset=place.end, length=self.rng.randrange(1, left + 1)) if left else None

    def odd_staging(self, transfers: list[Transfer]) -> bool:
        """Whether a transfer between a device and staging memory is not in words, or inside one staging buffer."""
        for transfer in transfers:
            kinds = (transfer.source.kind, transfer.destination.kind)
            if Kind.STAGING in kinds and Kind.HEAP not in kinds:
                if transfer.source.buffer == transfer.destination.buffer:
                    return True
                if any(
                    place.kind is Kind.STAGING and (place.offset % 4 or place.length % 4) for place in ends(transfer)
                ):
                    return True
        return False


def ends(transfer: Transfer) -> tuple[Place, Place]:
    return transfer.source, transfer.destination
