"""onnxruntime-web's CPU execution provider as a DeviceInterface; its buffers are Python's own memory."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from .host_memory import HostMemory
from .interface import DeviceFacts, DeviceSession
from .page_session import PageSession

__all__ = ["WasmDevice"]


class WasmDevice(HostMemory):
    """onnxruntime-web copies every tensor of a run into its own heap, another WebAssembly memory, and results back."""

    type: ClassVar[str] = "wasm"

    def about(self) -> DeviceFacts:
        return DeviceFacts(adapter="cpu (wasm)")

    async def create_session(
        self, model: bytes, *, external: dict[str, bytes] | None = None, owner: str = ""
    ) -> DeviceSession:
        from .._js.sessions import open_wasm_session

        return await PageSession.open(partial(open_wasm_session, model, external or {}, owner), self.get_memory_info())
