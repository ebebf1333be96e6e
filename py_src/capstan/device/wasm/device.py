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

    def __init__(self, open_session: OpenSession, threads: int = 1, shared: bool = True) -> None:
        """`threads` compute; without `shared` memory there can be one only."""
        self._open_session = open_session
        reason = "" if shared else ": no memory is shared, as in pages that are not cross-origin isolated"
        self._name = f"cpu (wasm, {threads} thread{'' if threads == 1 else 's'}{reason})"

    def about(self) -> DeviceFacts:
        return DeviceFacts(adapter=self._name)

    async def create_session(
        self, model: bytes, *, external: dict[str, bytes] | None = None, owner: str = ""
    ) -> DeviceSession:
        return await PageSession.open(partial(self._open_session, model, external or {}, owner), self.get_memory_info())
