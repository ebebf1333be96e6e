"""onnxruntime-web's CPU execution provider as a DeviceInterface; its buffers are Python's own memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import ClassVar

from ..host_memory import HostMemory
from ..interface import DeviceFacts, DeviceSession
from ..page_session import ModelSession, PageSession

__all__ = ["WasmDevice"]


OpenSession = Callable[[bytes, Mapping[str, bytes], str], Awaitable[ModelSession]]
"""Makes a session of a model, its data files by location, and its owner's name."""


class WasmDevice(HostMemory):
    """onnxruntime-web copies every tensor of a run into its own heap, another WebAssembly memory, and results back."""

    type: ClassVar[str] = "wasm"

    def __init__(self, open_session: OpenSession) -> None:
        self._open_session = open_session

    def about(self) -> DeviceFacts:
        return DeviceFacts(adapter="cpu (wasm)")

    async def create_session(
        self, model: bytes, *, external: dict[str, bytes] | None = None, owner: str = ""
    ) -> DeviceSession:
        return await PageSession.open(partial(self._open_session, model, external or {}, owner), self.get_memory_info())
