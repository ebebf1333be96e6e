"""Implements DeviceSession with a session of onnxruntime-web.

WasmDevice makes OrtSessions; WebGpuDevice makes its subclass WebGpuSession (webgpu_session.py). Feeds and fetches
go in; BoundSpans of Python's heap or of GPU buffers come out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, Protocol

from ..errors import BindingError, CapstanError, ClosedError, ValidationError
from ..fallback import fall_back
from ..memory import DeviceBuffer, MemoryInfo
from .device_interface import BoundSpan, DeviceSession, Fetch, OnHost, TensorSpec

__all__ = ["ModelSession", "OrtSession", "RunReply"]

HEAP = "python"


class RunReply(NamedTuple):
    """The results of a run."""

    described: list[dict[str, Any]]
    """A description of each result, as web/src/worker/onnx_sessions.ts returns it."""
    arrays: list[bytearray]
    """New memory in Python's heap that holds the results without a binding."""
    maps: int
    """Staging buffers that were mapped."""


class ModelSession(Protocol):
    """A session of web/src/worker/onnx_sessions.ts."""

    def specs(self) -> tuple[list[Any], list[Any]]: ...
    async def run(
        self, feeds: Sequence[Mapping[str, Any]], fetches: Sequence[Mapping[str, Any]], views: Sequence[memoryview]
    ) -> RunReply: ...
    async def release(self) -> None: ...


Open = Callable[[], Awaitable[ModelSession]]


class OrtSession(DeviceSession):
    """A session whose tensors are in Python's heap or, if it has a `free`, in buffers of the device."""

    def __init__(
        self, session: ModelSession, again: Open, memory: MemoryInfo, free: Callable[[Any], None] | None = None
    ) -> None:
        """`again` makes the session that replaces `session` after a failed run; `free` frees a buffer by its handle."""
        self.session: ModelSession | None = session
        self.again = again
        self.memory = memory
        self._free = free
        self._failed = False
        inputs, outputs = session.specs()
        self.inputs = tuple(map(spec_of, inputs))
        self.outputs = tuple(map(spec_of, outputs))

    @classmethod
    async def open(cls, again: Open, memory: MemoryInfo, free: Callable[[Any], None] | None = None) -> OrtSession:
        """Open a session with `again`; the constructor documents the arguments."""
        return cls(await again(), again, memory, free)

    async def run(self, feeds: Sequence[BoundSpan], fetches: Sequence[Fetch]) -> list[BoundSpan]:
        session = await self._usable()
        views: list[memoryview] = []
        asked = [self._described(feed, views) for feed in feeds]
        wanted = [self._wanted(fetch, views) for fetch in fetches]
        try:
            described, arrays, maps = await session.run(asked, wanted, views)
        except (BindingError, ValidationError):
            self._failed = True
            raise
        for fetch, result in zip(fetches, described, strict=True):
            if isinstance(fetch, BoundSpan) and list(fetch.dims) != result["dims"]:
                raise BindingError(
                    f"output {fetch.name!r} is bound to memory of shape {list(fetch.dims)}; the result has "
                    f"{result['dims']}; bind memory of that shape"
                )
        if maps > 1:
            reason = "together they exceed the largest buffer of this adapter"
            fall_back("one read for all outputs", reason, "they are read through several, each mapped separately")
        return [
            fetch if isinstance(fetch, BoundSpan) else self._result(result, arrays)
            for fetch, result in zip(fetches, described, strict=True)
        ]

    async def close(self) -> None:
        session, self.session = self.session, None
        if session is not None:
            await session.release()

    async def _usable(self) -> ModelSession:
        """The session; a new one after a failed run.

        onnxruntime-web 1.30 reuses the inputs and outputs of a failed run on WebGPU in the next run.
        """
        if self.session is None:
            raise ClosedError("this session was closed; make another one")
        if self._failed:
            failed, self.session = self.session, await self.again()
            self._failed = False
            with suppress(CapstanError):
                await failed.release()
        return self.session

    def _wanted(self, fetch: Fetch, views: list[memoryview]) -> dict[str, Any]:
        if isinstance(fetch, BoundSpan):
            return self._described(fetch, views)
        return {"name": fetch.name, "host": True} if isinstance(fetch, OnHost) else {"name": fetch}

    def _described(self, tensor: BoundSpan, views: list[memoryview]) -> dict[str, Any]:
        """A tensor as web/src/worker/onnx_sessions.ts takes it; memory of Python's heap is appended to `views`."""
        span = tensor.span
        about: dict[str, Any] = {"name": tensor.name, "dtype": tensor.dtype, "dims": list(tensor.dims)}
        if span.buffer.memory.heap != HEAP:
            return {**about, "buffer": span.buffer.handle, "offset": span.offset}
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
            data = arrays[result["data"]]
            buffer = DeviceBuffer(data, len(data), heap_of(self.memory), label=label, free=lambda: None)
        return BoundSpan(name, buffer.span(), result["dtype"], tuple(result["dims"]))


def heap_of(memory: MemoryInfo) -> MemoryInfo:
    """The memory of results in Python's heap."""
    return memory if memory.heap == HEAP else MemoryInfo("Cpu", memory.device, memory.memory_type, heap=HEAP)


def spec_of(described: Sequence[Any]) -> TensorSpec:
    """Read a TensorSpec. A free dimension without a name is -1 in onnxruntime and 2**32 - 1 in onnxruntime-web."""
    name, dtype, dims = described
    return TensorSpec(name, dtype, tuple("?" if size in ("", -1, 2**32 - 1) else size for size in dims))
