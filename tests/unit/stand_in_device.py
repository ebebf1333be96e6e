"""A device for CPython whose memory Python does not address, so that the paths of a GPU run without one.

It computes with the native onnxruntime. Its buffers are integer handles; it counts what crosses.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import onnxruntime  # noqa: F401  (sessions are made with it)

from capstan.device.device_interface import (
    BoundSpan,
    DeviceFacts,
    DeviceInterface,
    DeviceSession,
    DeviceTape,
    Fetch,
    OnHost,
    Readback,
)
from capstan.device.probe import capabilities_of
from capstan.device.reference.reference_session import ReferenceSession, whole_files
from capstan.errors import BindingError, BufferMismatchError, TapeError
from capstan.host.storage_interface import ExternalData
from capstan.memory import Capabilities, DeviceBuffer, DeviceSpan, MemoryInfo, MemoryType, check_use, plan_copies

__all__ = ["ApartDevice", "HeapDevice"]

HEAP = MemoryInfo("Cpu", "reference", MemoryType.DEFAULT, heap="python")
HELD = ("float32", "float16", "int32", "int64", "uint32", "uint8", "bool")


class HeapDevice(DeviceInterface):
    """Memory in Python's heap, as on the devices that compute on the CPU."""

    type: ClassVar[str] = "reference"

    def __init__(self) -> None:
        self.live: dict[int, tuple[str, str]] = {}
        self.uploads = 0
        self.readbacks_ = 0
        self.users = 0

    def retain(self) -> None:
        self.users += 1

    def close(self) -> None:
        self.users -= 1
        assert self.users >= 0

    def provider_options_for_allocator_session(self) -> dict[str, Any]:
        return {"name": "stand-in"}

    def about(self) -> DeviceFacts:
        return DeviceFacts("stand-in")

    async def capabilities(self) -> Capabilities:
        return await capabilities_of(self)

    def allocate(
        self,
        size: int,
        memory_type: MemoryType = MemoryType.DEFAULT,
        *,
        label: str = "",
        category: str = "user",
        owner: str = "",
    ) -> DeviceBuffer:
        handle = self.handle_of(bytearray(size))
        key = max(self.live, default=0) + 1
        self.live[key] = (label, owner)
        memory = self.get_memory_info(memory_type)
        given = {"label": label, "category": category, "owner": owner}
        return DeviceBuffer(handle, size, memory, **given, free=lambda: self.live.pop(key, None) and None)

    def handle_of(self, data: bytearray) -> Any:
        return data

    def bytes_of(self, span: DeviceSpan) -> memoryview:
        return memoryview(span.buffer.handle)[span.offset : span.offset + span.length]

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        yield

    def copy_tensors(self, pairs: Sequence[tuple[DeviceSpan, DeviceSpan]]) -> None:
        for source, destination in pairs:
            self.bytes_of(destination)[:] = bytes(self.bytes_of(source))

    def copy_cpu_to_device(self, destination: DeviceSpan, data: Any) -> None:
        view = memoryview(data).cast("B")
        assert view.nbytes == destination.length
        check_use("write", destination)
        self.uploads += 1
        self.bytes_of(destination)[:] = view

    async def copy_device_to_cpu(self, source: DeviceSpan, out: Any = None) -> Readback:
        self.readbacks_ += 1
        check_use("read", source)
        data = bytes(self.bytes_of(source))
        if out is None:
            return Readback(data, 0, 0)
        assert memoryview(out).nbytes == source.length
        memoryview(out).cast("B")[:] = data
        return Readback(b"", 0, 0)

    async def copy_all_to_cpu(self, parts: Sequence[tuple[DeviceSpan, Any]]) -> None:
        self.readbacks_ += 1
        for source, out in parts:
            check_use("read", source)
            memoryview(out).cast("B")[:] = self.bytes_of(source)

    def zero(self, span: DeviceSpan) -> None:
        raise NotImplementedError

    def cast(self, source: DeviceSpan, source_type: str, destination: DeviceSpan, destination_type: str) -> None:
        raise NotImplementedError

    def update_attention_mask(
        self, mask: DeviceSpan, dtype: str, capacity: int, old: Sequence[int], new: Sequence[int]
    ) -> None:
        raise NotImplementedError

    def update_position_ids(self, positions: DeviceSpan, dtype: str, starts: Sequence[int], count: int) -> None:
        raise NotImplementedError

    async def create_session(
        self, model: bytes, *, external: ExternalData | None = None, owner: str = ""
    ) -> DeviceSession:
        return ReferenceSession.open(model, await whole_files(external), self.get_memory_info())


class ApartDevice(HeapDevice):
    """Memory behind handles, of a device called 'webgpu'; it refuses what WebGPU's usage flags refuse."""

    type: ClassVar[str] = "webgpu"

    def __init__(self, number: int = 0) -> None:
        super().__init__()
        self.device_id = number
        self.memory: dict[int, bytearray] = {}

    def handle_of(self, data: bytearray) -> Any:
        handle = len(self.memory) + 1
        self.memory[handle] = data
        return handle

    def bytes_of(self, span: DeviceSpan) -> memoryview:
        if span.buffer.memory.heap == "python":
            return memoryview(span.buffer.handle)[span.offset : span.offset + span.length]
        if (span.buffer.memory.device, span.buffer.memory.device_id) != (self.type, self.device_id):
            raise BufferMismatchError("a buffer of another device")
        return memoryview(self.memory[span.buffer.handle])[span.offset : span.offset + span.length]

    def copy_tensors(self, pairs: Sequence[tuple[DeviceSpan, DeviceSpan]]) -> None:
        plan_copies(pairs)
        super().copy_tensors(pairs)

    async def create_session(
        self, model: bytes, *, external: ExternalData | None = None, owner: str = ""
    ) -> DeviceSession:
        return ApartSession(self, ReferenceSession.open(model, await whole_files(external), HEAP))


class ApartSession(DeviceSession):
    """Runs on copies of the device's memory and puts the results into it."""

    def __init__(self, device: ApartDevice, session: ReferenceSession) -> None:
        self.device = device
        self.session = session
        self.inputs, self.outputs = session.inputs, session.outputs
        self.refuses: str | None = None
        """The reason with which `record` fails; None lets it succeed."""
        self.records = 0
        self.eager = 0

    def holds(self, dtype: str) -> bool:
        return dtype in HELD

    async def run(self, feeds: Sequence[BoundSpan], fetches: Sequence[Fetch]) -> list[BoundSpan]:
        self.eager += 1
        return await self.computed(feeds, fetches)

    async def computed(self, feeds: Sequence[BoundSpan], fetches: Sequence[Fetch]) -> list[BoundSpan]:
        """The results, of a run or a replay."""
        names = [fetch if isinstance(fetch, str) else fetch.name for fetch in fetches]
        results = await self.session.run([replace(feed, span=self._local(feed)) for feed in feeds], names)
        for fetch, result in zip(fetches, results, strict=True):
            if isinstance(fetch, BoundSpan) and fetch.dims != result.dims:
                raise BindingError(f"output {fetch.name!r} has {list(result.dims)}, bound is {list(fetch.dims)}")
        to_host = [
            result for fetch, result in zip(fetches, results, strict=True) if on_host(fetch) and self._leaves(result)
        ]
        self.device.readbacks_ += bool(to_host)
        return [self._put(fetch, result) for fetch, result in zip(fetches, results, strict=True)]

    def _leaves(self, result: BoundSpan) -> bool:
        """Whether a result is in memory of the device before it goes elsewhere."""
        return self.holds(result.dtype) and result.span.length > 0

    async def record(self, feeds: Sequence[BoundSpan], fetches: Sequence[BoundSpan]) -> DeviceTape:
        if self.refuses:
            raise TapeError(self.refuses)
        self.records += 1
        tape = ApartTape(self, feeds, fetches)
        tape.replay()
        return tape

    async def close(self) -> None:
        await self.session.close()

    def _local(self, feed: BoundSpan) -> DeviceSpan:
        assert feed.span.buffer.memory.heap == ("" if self.holds(feed.dtype) and feed.span.length else "python")
        check_use("input", feed.span)
        data = memoryview(bytes(self.device.bytes_of(feed.span)))
        return DeviceBuffer(data, data.nbytes, HEAP, free=lambda: None).span()

    def _put(self, fetch: Fetch, result: BoundSpan) -> BoundSpan:
        if isinstance(fetch, BoundSpan):
            check_use("output", fetch.span)
            self.device.bytes_of(fetch.span.sub(0, result.span.length))[:] = result.span.buffer.handle
            return fetch
        if isinstance(fetch, OnHost) or not self._leaves(result):
            return result
        span = self.device.allocate(result.span.length, label=f"output {fetch}", owner="onnxruntime").span()
        self.device.bytes_of(span)[:] = result.span.buffer.handle
        return replace(result, span=span)


def on_host(fetch: Fetch) -> bool:
    if isinstance(fetch, BoundSpan):
        return fetch.span.buffer.memory.heap == "python"
    return isinstance(fetch, OnHost)


class ApartTape(DeviceTape):
    """Runs the session again, whatever its name says."""

    def __init__(self, session: ApartSession, feeds: Sequence[BoundSpan], fetches: Sequence[BoundSpan]) -> None:
        self.passes = {"clears": "0 dropped"}
        self.run = (session, feeds, fetches)
        self.closed = 0
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1
        session, feeds, fetches = self.run
        coroutine = session.computed(feeds, fetches)
        with contextlib.suppress(StopIteration):
            coroutine.send(None)

    async def close(self) -> None:
        self.closed += 1
