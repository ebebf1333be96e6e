"""Implements the protocol GpuEngine by calls to the JavaScript engine."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

from ..device.webgpu.gpu_engine import BoundTensor, WeightPiece
from ..memory import BufferRequest, LedgerEntry, keep_account
from ..stages import SamplerProgram
from ..weights.shared import SharedWeights
from .coding import to_json
from .engine_calls import EngineCalls
from .js_errors import or_undone, typed_errors
from .onnx_sessions import JsModelSession, open_gpu_session
from .page_storage import JsSink

__all__ = ["JsGpuEngine"]

engines = count(1)


class JsGpuEngine(EngineCalls):
    """Implements capstan.device.webgpu.gpu_engine.GpuEngine: the single calls, and the methods that need several
    calls.

    All models and buffers of the page share one engine. Each user calls `retain` at its start and `close` at its end.
    """

    def __init__(self, engine: Any) -> None:
        super().__init__(engine)
        self._users = 0
        self._shared: SharedWeights | None = None
        self.number = next(engines)
        self._stop_account = keep_account(self._account)

    def _account(self) -> list[LedgerEntry]:
        return [LedgerEntry(device=f"webgpu {self.number}", **entry) for entry in self.ledger()]

    def retain(self) -> JsGpuEngine:
        """Add one user. The device is destroyed when the last user closes it."""
        self._users += 1
        return self

    def close(self) -> None:
        """Remove one user."""
        self._users -= 1
        if self._users == 0:
            self._stop_account()
            self._shared = None
            self.js.close()

    def shared_weights(self) -> SharedWeights:
        """The weights that everything on this device shares."""
        if self._shared is None:
            self._shared = SharedWeights(self, self.adapter()["max_storage_buffer_binding_size"])
        return self._shared

    async def create_buffers(self, requests: Sequence[BufferRequest], owner: str) -> list[int]:
        return await or_undone(super().create_buffers(requests, owner), self._destroy)

    def _destroy(self, buffers: list[int]) -> None:
        for buffer in buffers:
            self.destroy_buffer(buffer)

    async def read_all(self, parts: Sequence[tuple[int, int, bytearray | memoryview]]) -> tuple[float, float]:
        places = to_json([(buffer, offset) for buffer, offset, _ in parts])
        with typed_errors():
            waiting, copying = await self.js.readAll(places, *(out for _, _, out in parts))
            return waiting, copying

    async def read(self, buffer: int, offset: int, size: int) -> bytes:
        data = bytearray(size)
        await self.read_all([(buffer, offset, data)])
        return bytes(data)

    def upload_weights(self, pieces: Sequence[WeightPiece]) -> JsSink:
        with typed_errors():
            return JsSink(self.js.uploadWeights(to_json(pieces)))

    async def open_session(
        self, model: bytes, weights: Sequence[BoundTensor], owner: str, capture: bool
    ) -> JsModelSession:
        return await open_gpu_session(self.js, model, weights, capture, owner)

    def session_handle(self, session: Any, owner: str) -> int:
        with typed_errors():
            return int(self.js.sessions.sessionHandle(session.js, owner))

    def set_sampling(self, sampler: int, program: SamplerProgram) -> None:
        given: dict[str, Any] = {"passes": program.passes, "wgsl": program.wgsl, "banWgsl": program.ban_wgsl}
        given |= {"maskWgsl": program.mask_wgsl, "endWgsl": program.end_wgsl, "rowWords": program.row_words}
        given |= {"allowedAt": program.allowed_at, "ownAt": program.own_at, "drafts": program.drafts}
        with typed_errors():
            self.js.sampling.setSampling(sampler, program.words, program.table, to_json(given))

    def destroy_device(self) -> None:
        """Lose the device as a browser would; for tests."""
        self.js.destroyDevice()
