"""Defines one interface to the memory and the sessions of every device. The rest of Capstan never branches on a
device's kind.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ..errors import TapeError
from ..host.notes import Notes
from ..host.storage_interface import ExternalData
from ..memory import (
    BufferRequest,
    Capabilities,
    DeviceBuffer,
    DeviceSpan,
    MemoryInfo,
    MemoryType,
    StridedCopy,
    memory_info,
)

__all__ = [
    "BoundSpan",
    "DeviceFacts",
    "DeviceInterface",
    "DeviceSession",
    "DeviceTape",
    "Fetch",
    "OnHost",
    "Readback",
    "TensorSpec",
]


@dataclass(frozen=True)
class Readback:
    """Bytes read from a device, with the two times that make up the wait, in milliseconds."""

    data: bytes
    waiting_ms: float
    """The time until the work queued before the readback was done: the model's time, not the copy's."""
    copying_ms: float
    """The time of the copy and its mapping."""


@dataclass(frozen=True)
class TensorSpec:
    """An input or output of a graph: dtype by onnxruntime-web's name ('float32', 'int64', ...); `dims` holds sizes, and
    names (or '?') of free dimensions."""

    name: str
    dtype: str
    dims: tuple[int | str, ...]


@dataclass(frozen=True)
class BoundSpan:
    """A tensor of a run. onnxruntime-web binds whole buffers, so the spans of its tensors start at 0."""

    name: str
    span: DeviceSpan
    dtype: str
    dims: tuple[int, ...]


@dataclass(frozen=True)
class OnHost:
    """An output that goes to new memory in Python's heap."""

    name: str


Fetch = BoundSpan | OnHost | str
"""The place of an output: an existing tensor, Python's heap, or (a name) new memory of the device."""


@dataclass(frozen=True)
class DeviceFacts:
    """The features and limits that a device reports, before any probe; sizes are bytes."""

    adapter: str
    software: bool = False
    mappable_storage: bool = True
    features: frozenset[str] = frozenset({"shader-f16"})
    """WebGPU's names of optional features that are switched on."""
    without: Mapping[str, str] = field(default_factory=dict)
    """Why a feature that the GPU adapter may have is switched off."""
    max_buffer_size: int = sys.maxsize
    max_binding_size: int = sys.maxsize
    offset_alignment: int = 1
    machine_memory: int = 0
    """Memory of the machine, as the browser reports it; 0 if it does not."""
    runtime: str = ""
    """The software that computes on it, with its version; empty if findings about the device must not be stored."""


class DeviceTape(ABC):
    """One recorded run of a session, over the buffers of the recording. It owns the objects that its commands use."""

    passes: Mapping[str, str]
    """The effect of each pass over the recorded commands."""

    @abstractmethod
    def replay(self) -> None:
        """Queue the run. Raises ClosedError if one of its buffers was freed."""

    @abstractmethod
    async def close(self) -> None:
        """Free the tape; closing twice is harmless."""


class DeviceSession(ABC):
    """An inference session on a device. Runs of one page take turns."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    @abstractmethod
    async def run(self, feeds: Sequence[BoundSpan], fetches: Sequence[Fetch]) -> list[BoundSpan]:
        """Run once. A fetch given as a BoundSpan is written to that span, in the device's memory (the host accessible
        one too) or in Python's heap; one given by name gets a buffer that the device makes, whose owner is the caller.
        Returns a tensor for each fetch, in the order of `fetches`. All results for Python's heap are read at once.

        Feeds are in the device's memory; empty feeds, and feeds of types that the device does not hold, are in Python's
        heap. Raises BindingError for a result that does not fit its span, ValidationError if the model fails; the
        session stays usable.
        """

    def shared_weights(self) -> Mapping[str, int] | None:
        """Bytes of the weights in buffers that sessions share, by name; None if the session shares none."""
        return None

    def holds(self, dtype: str) -> bool:
        """Whether tensors of that type can be in the device's memory."""
        return True

    async def record(self, feeds: Sequence[BoundSpan], fetches: Sequence[BoundSpan]) -> DeviceTape:
        """Record a run over these buffers, and compare a replay of it with an eager run; afterwards the fetches hold
        the results of the feeds' present contents. Raises TapeError."""
        raise TapeError("this device has no GPU commands to record; run the session instead")

    @abstractmethod
    async def close(self) -> None:
        """Free the session; closing twice is harmless."""


class DeviceInterface(ABC):
    """A device's memory, copies, small kernels and sessions. Offsets and lengths are bytes, any alignment.

    Operations called inside one `batch()` block reach the device in one submit, in order; outside of a block each
    operation is a submit. Operations queued afterwards see the results; only copies to the CPU wait. An operation over
    memory that it cannot use (memory/usage.py) raises MemoryTypeError and does nothing.
    """

    type: ClassVar[str]
    """'webgpu', 'wasm' or 'reference'."""

    device_id: int = 0
    """Which device of its kind; buffers do not cross from one to another."""

    def get_memory_info(self, memory_type: MemoryType = MemoryType.DEFAULT) -> MemoryInfo:
        """The memory in which `allocate` makes buffers of that type."""
        return memory_info(self.type, memory_type, self.device_id)

    @abstractmethod
    def provider_options_for_allocator_session(self) -> dict[str, Any]:
        """The execution provider's name and options, as each session of the device gets them: the one-node sessions
        that allocate and probe, and all others."""

    @abstractmethod
    def about(self) -> DeviceFacts:
        """The GPU adapter's name, features and limits."""

    def readbacks(self) -> int:
        """How often memory of the device was mapped for reading, by any caller; 0 where no mapping is needed."""
        return 0

    @abstractmethod
    async def capabilities(self) -> Capabilities:
        """The capabilities that a probe confirmed; probed once for each GPU adapter (device/probe.py)."""

    def retain(self) -> None:  # noqa: B027
        """Count one more user of the device, who will `close` it; without effect where a device holds nothing."""

    def close(self) -> None:  # noqa: B027
        """Count one user less; without users the device may be freed."""

    @abstractmethod
    def allocate(
        self,
        size: int,
        memory_type: MemoryType = MemoryType.DEFAULT,
        *,
        label: str = "",
        category: str = "user",
        owner: str = "",
    ) -> DeviceBuffer:
        """`size` bytes of zeros. Raises OutOfMemoryError over the device's limits."""

    async def allocate_all(self, requests: Sequence[BufferRequest], owner: str) -> list[DeviceBuffer]:
        """Allocate all these buffers, or raise OutOfMemoryError and allocate none. If a device reports a lack of memory
        only later, this call waits for the report. The device stays usable.
        """
        made: list[DeviceBuffer] = []
        with ExitStack() as undo:
            for label, size, category in requests:
                made.append(self.allocate(size, label=label, category=category, owner=owner))
                undo.callback(made[-1].close)
            undo.pop_all()
        return made

    @abstractmethod
    def batch(self) -> AbstractContextManager[None]:
        """Queue the operations of the block and submit them together at its end."""

    @abstractmethod
    def copy_tensors(self, pairs: Sequence[tuple[DeviceSpan, DeviceSpan]]) -> None:
        """Copy each source to its destination of the same length, in order, in one submit; overlaps behave as if the
        source were read first."""

    def copy_strided(self, copies: Sequence[StridedCopy]) -> None:
        """`copy_tensors` of all pieces of these copies; a device may do it in fewer calls."""
        self.copy_tensors([pair for copy in copies for pair in copy.pairs()])

    def copy_from(self, destination: DeviceSpan, source: DeviceSpan) -> None:
        """`copy_tensors` of one pair."""
        self.copy_tensors([(source, destination)])

    @abstractmethod
    def copy_cpu_to_device(self, destination: DeviceSpan, data: Any) -> None:
        """Write any PEP 3118 buffer of the span's length: one copy, from the caller's memory."""

    @abstractmethod
    async def copy_device_to_cpu(self, source: DeviceSpan, out: Any = None) -> Readback:
        """Read exactly the span's bytes, into `out` (a writable PEP 3118 buffer of its length) if given; in that case
        `Readback.data` is empty."""

    async def copy_all_to_cpu(self, parts: Sequence[tuple[DeviceSpan, Any]]) -> None:
        """`copy_device_to_cpu` of each (source, out); a device may do it with a single wait."""
        for source, out in parts:
            await self.copy_device_to_cpu(source, out)

    async def copy_through_host(self, pairs: Sequence[tuple[DeviceSpan, DeviceSpan]]) -> None:
        """`copy_tensors` of sources that the device cannot copy from: all are read at once, with a map for each buffer,
        and written to their destinations."""
        parts = [(source, bytearray(source.length)) for source, _ in pairs]
        await self.copy_all_to_cpu(parts)
        for (_, destination), (_, data) in zip(pairs, parts, strict=True):
            self.copy_cpu_to_device(destination, data)

    @abstractmethod
    def zero(self, span: DeviceSpan) -> None: ...

    @abstractmethod
    def cast(self, source: DeviceSpan, source_type: str, destination: DeviceSpan, destination_type: str) -> None:
        """Convert elements among float32, float16, int32, int64, uint32 as numpy's astype does where that is defined;
        floats outside an integer's range saturate and NaN becomes 0. Integers keep their low bits."""

    @abstractmethod
    def update_attention_mask(
        self, mask: DeviceSpan, dtype: str, capacity: int, old: Sequence[int], new: Sequence[int]
    ) -> None:
        """In row r of a [batch, capacity] mask the first old[r] elements are 1; make it the first new[r]. Only the
        elements that change are written. dtype int64 or int32.
        """

    @abstractmethod
    def update_position_ids(self, positions: DeviceSpan, dtype: str, starts: Sequence[int], count: int) -> None:
        """Row r of [batch, count] becomes starts[r], starts[r] + 1, ... dtype int64 or int32."""

    def layered(self, session: DeviceSession, notes: Notes | None) -> DeviceSession:
        """A session of an encoder's graph that may compute its layers with kernels of the device; it closes the given
        session. `notes` records for later loads that these kernels passed their check.
        """
        return session

    @abstractmethod
    async def create_session(
        self, model: bytes, *, external: ExternalData | None = None, owner: str = ""
    ) -> DeviceSession:
        """A session over a serialized ONNX model and its data files."""
