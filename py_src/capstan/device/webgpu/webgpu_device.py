"""Implements DeviceInterface for the page's GPU: buffers, spans and sessions of one GpuEngine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, ClassVar

from ...errors import BufferMismatchError
from ...host.notes import Notes
from ...host.storage_interface import ExternalData
from ...memory import (
    WORD,
    BufferRequest,
    Capabilities,
    DeviceBuffer,
    DeviceSpan,
    MemoryType,
    StridedCopy,
    check_use,
    in_words,
    plan_copies,
    round_up,
)
from ...tape import WorkgroupLimits
from ..device_interface import DeviceFacts, DeviceInterface, DeviceSession, Readback
from ..probe import capabilities_of
from ..span_checks import check_cast, check_copies, check_mask, check_positions, check_strided
from .gpu_engine import GpuEngine
from .layered_session import LayeredSession
from .session_weights import SessionWeights, load_weights
from .webgpu_session import WebGpuSession

__all__ = ["WebGpuDevice"]

Step = list[Any]


class WebGpuDevice(DeviceInterface):
    """Storage buffers are DEFAULT memory, mappable staging buffers HOST_ACCESSIBLE. The page has one engine, which
    holds all its models and buffers.
    """

    type: ClassVar[str] = "webgpu"

    def __init__(self, engine: GpuEngine) -> None:
        self.engine = engine
        self.device_id = engine.number
        self._depth = 0
        self._steps: list[Step] = []
        self._touched: set[int] = set()

    def about(self) -> DeviceFacts:
        summary = self.engine.adapter()
        return DeviceFacts(
            adapter=" ".join(filter(None, (summary["vendor"], summary["architecture"], summary["description"]))),
            software=summary["software"],
            mappable_storage=False,
            features=frozenset(summary["features"]),
            without=summary["without"],
            max_buffer_size=summary["max_buffer_size"],
            max_binding_size=summary["max_storage_buffer_binding_size"],
            offset_alignment=summary["min_storage_buffer_offset_alignment"],
            machine_memory=int(summary.get("machine_memory", 0)),
            runtime=summary["runtime"],
        )

    def provider_options_for_allocator_session(self) -> dict[str, Any]:
        return dict(self.engine.adapter()["provider"])

    async def capabilities(self) -> Capabilities:
        return await capabilities_of(self)

    def readbacks(self) -> int:
        return self.engine.counters()["readbacks"]

    def allocate(
        self,
        size: int,
        memory_type: MemoryType = MemoryType.DEFAULT,
        *,
        label: str = "",
        category: str = "user",
        owner: str = "",
    ) -> DeviceBuffer:
        if memory_type is MemoryType.HOST_ACCESSIBLE:
            handle = self.engine.create_staging(label, size, owner)
        else:
            handle = self.engine.create_buffer(label, size, category, owner)
        return self._buffer(handle, size, memory_type, label, category, owner)

    async def allocate_all(self, requests: Sequence[BufferRequest], owner: str) -> list[DeviceBuffer]:
        handles = await self.engine.create_buffers(requests, owner)
        return [
            self._buffer(handle, size, MemoryType.DEFAULT, label, category, owner)
            for handle, (label, size, category) in zip(handles, requests, strict=True)
        ]

    def _buffer(
        self, handle: int, size: int, memory_type: MemoryType, label: str, category: str, owner: str
    ) -> DeviceBuffer:
        memory, free = self.get_memory_info(memory_type), partial(self.engine.destroy_buffer, handle)
        return DeviceBuffer(handle, size, memory, label=label, category=category, owner=owner, free=free)

    @contextmanager
    def batch(self) -> Iterator[None]:
        self._depth += 1
        try:
            yield
        except BaseException:
            self._steps.clear()
            self._touched.clear()
            raise
        finally:
            self._depth -= 1
            if self._depth == 0:
                self._flush()

    def copy_tensors(self, pairs: Sequence[tuple[DeviceSpan, DeviceSpan]]) -> None:
        check_copies(pairs, self.type)
        for pair in pairs:
            for span in pair:
                self._handle(span)
        with self.batch():
            for step in plan_copies(pairs):
                self._queue(["copy", *step], step.source, step.destination)

    def copy_strided(self, copies: Sequence[StridedCopy]) -> None:
        check_strided(copies, self.type)
        with self.batch():
            for source, source_stride, destination, stride, length, count in copies:
                read, written = self._handle(source), self._handle(destination)
                ends = [read, source.offset, source_stride, written, destination.offset, stride]
                self._queue(["strided", *ends, length, count], read, written)

    def copy_cpu_to_device(self, destination: DeviceSpan, data: Any) -> None:
        view = memoryview(data)
        if view.nbytes != destination.length:
            raise BufferMismatchError(
                f"{view.nbytes} bytes were given for a span of {destination.length} bytes; the two must be equal"
            )
        handle = self._handle(destination)
        check_use("write", destination)
        # A write reaches the queue at once, ahead of the operations of an open batch.
        if handle in self._touched:
            self._flush()
        if view.nbytes % WORD and in_words(destination):
            view = memoryview(view.tobytes() + bytes(-view.nbytes % WORD))
        if view.nbytes:
            self.engine.write(handle, destination.offset, view.cast("B") if view.c_contiguous else view.tobytes())

    async def copy_device_to_cpu(self, source: DeviceSpan, out: Any = None) -> Readback:
        target: Any = bytearray(source.length) if out is None else out
        waiting, copying = await self._read([(source, target)])
        return Readback(bytes(target) if out is None else b"", waiting, copying)

    async def copy_all_to_cpu(self, parts: Sequence[tuple[DeviceSpan, Any]]) -> None:
        await self._read(parts)

    async def _read(self, parts: Sequence[tuple[DeviceSpan, Any]]) -> tuple[float, float]:
        """Read each span into its target; returns the times of waiting and copying."""
        places: list[tuple[int, int, memoryview]] = []
        for source, out in parts:
            handle, target = self._handle(source), memoryview(out).cast("B")
            check_use("read", source)
            if len(target) != source.length:
                raise BufferMismatchError(
                    f"out has {len(target)} bytes, the span has {source.length}; they must be equal"
                )
            if source.length:
                places.append((handle, source.offset, target))
        self._flush()
        return await self.engine.read_all(places) if places else (0.0, 0.0)

    def retain(self) -> None:
        self.engine.retain()

    def close(self) -> None:
        self.engine.close()

    def zero(self, span: DeviceSpan) -> None:
        handle = self._handle(span)
        check_use("zero", span)
        size = round_up(span.length, WORD) if in_words(span) else span.length
        self._queue(["zero", handle, span.offset, size], handle)

    def cast(self, source: DeviceSpan, source_type: str, destination: DeviceSpan, destination_type: str) -> None:
        count = check_cast(source, source_type, destination, destination_type, self.type)
        read, written = self._handle(source), self._handle(destination)
        ends = [read, source.offset, source_type, written, destination.offset, destination_type]
        self._queue(["cast", *ends, count], read, written)

    def update_attention_mask(
        self, mask: DeviceSpan, dtype: str, capacity: int, old: Sequence[int], new: Sequence[int]
    ) -> None:
        check_mask(mask, dtype, capacity, old, new, self.type)
        handle = self._handle(mask)
        self._queue(["mask", handle, mask.offset, dtype, capacity, list(old), list(new)], handle)

    def update_position_ids(self, positions: DeviceSpan, dtype: str, starts: Sequence[int], count: int) -> None:
        check_positions(positions, dtype, starts, count, self.type)
        handle = self._handle(positions)
        self._queue(["positions", handle, positions.offset, dtype, list(starts), count], handle)

    def _queue(self, step: Step, *handles: int) -> None:
        """Add a step over these buffers to the batch; without a batch it is submitted at once."""
        self._steps.append(step)
        self._touched.update(handles)
        if self._depth == 0:
            self._flush()

    def _flush(self) -> None:
        steps, self._steps = self._steps, []
        self._touched.clear()
        if steps:
            self.engine.execute(steps)

    def _handle(self, span: DeviceSpan) -> int:
        """The engine's handle of a span's buffer, which must be on this device."""
        memory = span.buffer.memory
        if (memory.device, memory.device_id) != (self.type, self.device_id):
            raise BufferMismatchError(
                f"buffer {span.buffer.label!r} is on {memory.device} {memory.device_id}; this device is {self.type} "
                f"{self.device_id}; copy it through the host"
            )
        handle: int = span.buffer.handle
        return handle

    async def create_session(
        self, model: bytes, *, external: ExternalData | None = None, owner: str = ""
    ) -> DeviceSession:
        weights = await load_weights(self.engine, model, external) if external else SessionWeights(model)
        open_session = partial(self.engine.open_session, weights.model, weights.tensors, owner)
        with ExitStack() as undo:
            undo.callback(weights.release)
            session = await WebGpuSession.start(self.engine, open_session, self.get_memory_info(), owner, weights)
            undo.pop_all()
        return session

    def layered(self, session: DeviceSession, notes: Notes | None) -> DeviceSession:
        limits = WorkgroupLimits.of(self.engine.adapter())
        if not (isinstance(session, WebGpuSession) and limits.matrices and limits.lanes):
            return session
        return LayeredSession(self, session, notes)
