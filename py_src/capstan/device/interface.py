"""What every device does with memory and sessions; the rest of Capstan asks no device which one it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar

from ..memory import Capabilities, DeviceBuffer, DeviceSpan, MemoryInfo, MemoryType

__all__ = ["BoundSpan", "DeviceInterface", "DeviceSession", "Readback", "TensorSpec"]


@dataclass(frozen=True)
class Readback:
    """Bytes read from a device, with the two times that make up the wait, in milliseconds."""

    data: bytes
    waiting_ms: float
    """Until the work that was queued before the readback was done: the model's time, not the copy's."""
    copying_ms: float
    """The copy itself and its mapping."""


@dataclass(frozen=True)
class TensorSpec:
    """An input or output of a graph: dtype by onnxruntime-web's name ('float32', 'int64', ...); `dims` holds sizes, and
    names (or '?') of free dimensions."""

    name: str
    dtype: str
    dims: tuple[int | str, ...]


@dataclass(frozen=True)
class BoundSpan:
    """A tensor of a run. onnxruntime-web binds whole buffers: the span starts at 0."""

    name: str
    span: DeviceSpan
    dtype: str
    dims: tuple[int, ...]


class DeviceSession(ABC):
    """An inference session on a device. Runs of one page take turns."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    @abstractmethod
    async def run(self, feeds: Sequence[BoundSpan], fetches: Sequence[BoundSpan | str]) -> list[BoundSpan]:
        """Run once. A fetch given as a BoundSpan is written in place; one given by name gets a buffer that the device
        makes, whose owner is the caller. Returns the fetches in order, results being in queue order."""

    @abstractmethod
    async def close(self) -> None:
        """Free the session; closing twice is harmless."""


class DeviceInterface(ABC):
    """A device's memory, copies, small kernels and sessions. Offsets and lengths are bytes, any alignment.

    Operations called inside one `batch()` block reach the device in one submit, in order; outside of one, each is its
    own. Results are seen by whatever is queued afterwards; only `copy_device_to_cpu` waits.
    """

    type: ClassVar[str]
    """'webgpu', 'wasm' or 'reference'."""

    @abstractmethod
    def get_memory_info(self, memory_type: MemoryType = MemoryType.DEFAULT) -> MemoryInfo: ...

    @abstractmethod
    def provider_options_for_allocator_session(self) -> dict[str, Any]:
        """The execution provider's options for the one-node session that allocates and probes."""

    @abstractmethod
    async def capabilities(self) -> Capabilities:
        """What the device can really do; probed once for each adapter."""

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

    @abstractmethod
    def batch(self) -> AbstractContextManager[None]:
        """Queue what is called in the block and submit it once at the end."""

    @abstractmethod
    def copy_tensors(self, pairs: Sequence[tuple[DeviceSpan, DeviceSpan]]) -> None:
        """Copy each source to its destination of the same length, in order, in one submit; overlaps behave as if the
        source were read first."""

    def copy_from(self, destination: DeviceSpan, source: DeviceSpan) -> None:
        """`copy_tensors` of one pair."""
        self.copy_tensors([(source, destination)])

    @abstractmethod
    def copy_cpu_to_device(self, destination: DeviceSpan, data: Any) -> None:
        """Write any PEP 3118 buffer of the span's length: one copy, from the caller's memory."""

    @abstractmethod
    async def copy_device_to_cpu(self, source: DeviceSpan, out: Any = None) -> Readback:
        """Read exactly the span's bytes, into `out` (a writable PEP 3118 buffer of its length) if given; then
        `Readback.data` is empty."""

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
        """Row r of a [batch, capacity] mask had its first old[r] elements one; make it new[r]. Only what changes is
        touched. dtype int64 or int32."""

    @abstractmethod
    def update_position_ids(self, positions: DeviceSpan, dtype: str, starts: Sequence[int], count: int) -> None:
        """Row r of [batch, count] becomes starts[r], starts[r] + 1, ... dtype int64 or int32."""

    @abstractmethod
    async def create_session(
        self, model: bytes, *, external: dict[str, bytes] | None = None, capture: bool = False, owner: str = ""
    ) -> DeviceSession:
        """A session over a serialized ONNX model; `external` holds data files by location."""
