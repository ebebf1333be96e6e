"""Runs sessions of any model on the page's GPU, and makes tapes of their runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack

from ...errors import TapeError, UnsupportedModelError
from ...memory import MemoryInfo
from ..device_interface import BoundSpan
from ..element_types import byte_count
from ..ort_session import ModelSession, OrtSession
from .gpu_engine import GpuEngine
from .session_weights import SessionWeights
from .tapes.session_tapes import SessionTapeMaker, WebGpuTape

__all__ = ["WebGpuSession"]

HELD = frozenset({"float32", "float16", "int32", "int64", "uint32", "uint8", "bool"})
"""Element types that onnxruntime-web accepts in GPU buffers."""

NO_WEIGHTS = SessionWeights(b"")
"""Shares no weights: for a session whose graph keeps all its initializers."""

Open = Callable[[bool], Awaitable[ModelSession]]


class WebGpuSession(OrtSession):
    """A session whose tensors are GPU buffers; tensors of element types outside HELD stay in Python's heap."""

    def __init__(
        self,
        engine: GpuEngine,
        session: ModelSession,
        make: Open,
        memory: MemoryInfo,
        owner: str,
        weights: SessionWeights = NO_WEIGHTS,
    ) -> None:
        super().__init__(session, lambda: make(False), memory, engine.destroy_buffer)
        self.engine = engine
        self._make = make
        self.owner = owner
        self.weights = weights

    @classmethod
    async def start(
        cls, engine: GpuEngine, make: Open, memory: MemoryInfo, owner: str, weights: SessionWeights = NO_WEIGHTS
    ) -> WebGpuSession:
        """Open a session. `make(capture)` makes one with or without graph capture; `close` releases `weights`."""
        return cls(engine, await make(False), make, memory, owner, weights)

    def shared_weights(self) -> Mapping[str, int]:
        return {tensor.name: byte_count(tensor.dtype, tensor.dims) for tensor in self.weights.tensors}

    def holds(self, dtype: str) -> bool:
        return dtype in HELD

    async def record(self, feeds: Sequence[BoundSpan], fetches: Sequence[BoundSpan]) -> WebGpuTape:
        weights = self.weights.again()
        async with AsyncExitStack() as undo:
            undo.callback(weights.release)
            try:
                captured = await self._make(True)
            except UnsupportedModelError as error:
                raise TapeError(f"the model cannot be captured: {error}") from error
            undo.push_async_callback(captured.release)
            maker = SessionTapeMaker(self, self.engine, captured, self.owner, feeds, fetches, weights)
            tape = await maker.make()
            undo.pop_all()
        return tape

    async def close(self) -> None:
        try:
            await super().close()
            if self.weights.tensors:
                # A run of a cancelled caller may still read the buffers.
                await self.engine.idle()
        finally:
            self.weights.release()
