"""DeviceSession over onnxruntime-web: on the CPU as it is, on WebGPU below device.webgpu.session."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from ..errors import BindingError, CapstanError, ClosedError, ValidationError
from ..memory import DeviceBuffer, MemoryInfo
from .interface import BoundSpan, DeviceSession, TensorSpec

__all__ = ["ModelSession", "PageSession"]

HEAP = "python"


class ModelSession(Protocol):
    """A session of web/src/sessions.ts."""

    def specs(self) -> tuple[list[Any], list[Any]]: ...
    async def run(
        self, feeds: Sequence[Mapping[str, Any]], fetches: Sequence[Mapping[str, Any]], views: Sequence[memoryview]
    ) -> tuple[list[dict[str, Any]], list[bytearray]]: ...
    async def release(self) -> None: ...


Open = Callable[[], Awaitable[ModelSession]]


class PageSession(DeviceSession):
    """A session whose tensors are in Python's heap or, where there is a `free` for them, in the device's buffers."""

    def __init__(
        self, session: ModelSession, again: Open, memory: MemoryInfo, free: Callable[[Any], None] | None = None
    ) -> None:
        """`again` makes such a session once more; `free` gives back a buffer of the device by its handle."""
        self.session: ModelSession | None = session
        self.again = again
        self.memory = memory
        self._free = free
        self._failed = False
        inputs, outputs = session.specs()
        self.inputs = tuple(map(spec_of, inputs))
        self.outputs = tuple(map(spec_of, outputs))

    @classmethod
    async def open(cls, again: Open, memory: MemoryInfo, free: Callable[[Any], None] | None = None) -> PageSession:
        """A session made by `again`; see the class."""
        return cls(await again(), again, memory, free)

    async def run(self, feeds: Sequence[BoundSpan], fetches: Sequence[BoundSpan | str]) -> list[BoundSpan]:
        session = await self._usable()
        views: list[memoryview] = []
        asked = [self._described(feed, views) for feed in feeds]
        wanted = [
            {"name": fetch} if isinstance(fetch, str) else self._described(fetch, views, written=True)
            for fetch in fetches
        ]
        try:
            told, arrays = await session.run(asked, wanted, views)
        except (BindingError, ValidationError):
            self._failed = True
            raise
        return [
            fetch if isinstance(fetch, BoundSpan) else self._result(result, arrays)
            for fetch, result in zip(fetches, told, strict=True)
        ]

    async def close(self) -> None:
        session, self.session = self.session, None
        if session is not None:
            await session.release()

    async def _usable(self) -> ModelSession:
        """The session; a new one after a failed run.

        onnxruntime-web 1.30 takes the inputs and outputs of a failed run on WebGPU for those of the next one.
        """
        if self.session is None:
            raise ClosedError("this session was closed; make another one")
        if self._failed:
            failed, self.session = self.session, await self.again()
            self._failed = False
            with suppress(CapstanError):
                await failed.release()
        return self.session

    def _described(self, tensor: BoundSpan, views: list[memoryview], written: bool = False) -> dict[str, Any]:
        """A tensor as web/src/sessions.ts takes it; memory of Python's heap is appended to `views`."""
        span = tensor.span
        about: dict[str, Any] = {"name": tensor.name, "dtype": tensor.dtype, "dims": list(tensor.dims)}
        if span.buffer.memory.heap != HEAP:
            return {**about, "buffer": span.buffer.handle}
        views.append(memoryview(span.buffer.handle)[span.offset : span.offset + span.length])
        return {**about, "view": len(views) - 1}

    def _result(self, result: Mapping[str, Any], arrays: Sequence[bytearray]) -> BoundSpan:
        name, label = result["name"], f"output {result['name']}"
        if "buffer" in result:
            assert self._free is not None
            handle = result["buffer"]
            buffer = DeviceBuffer(
                handle, result["bytes"], self.memory, label=label, category="scratch", free=partial(self._free, handle)
            )
        else:
            data = arrays[result["data"] - 1]
            buffer = DeviceBuffer(data, len(data), heap_of(self.memory), label=label, free=lambda: None)
        return BoundSpan(name, buffer.span(), result["dtype"], tuple(result["dims"]))


def heap_of(memory: MemoryInfo) -> MemoryInfo:
    """The place of what a device leaves in Python's heap."""
    return memory if memory.heap == HEAP else MemoryInfo("Cpu", memory.device, memory.memory_type, heap=HEAP)


def spec_of(told: Sequence[Any]) -> TensorSpec:
    """A free dimension without a name is -1 in onnxruntime, and its 32 bits without a sign in onnxruntime-web."""
    name, dtype, dims = told
    return TensorSpec(name, dtype, tuple("?" if size in ("", -1, 2**32 - 1) else size for size in dims))
