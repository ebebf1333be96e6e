"""Implements DeviceInterface with onnxruntime-web's CPU execution provider. Its buffers are Python's own memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar

from ...host.storage_interface import ExternalData
from ..device_interface import DeviceFacts, DeviceSession
from ..host_memory import HostMemory
from ..ort_session import ModelSession, OrtSession

__all__ = ["WasmDevice"]


Opener = Callable[[bytes, ExternalData | None, str], Awaitable[Callable[[], Awaitable[ModelSession]]]]
"""Makes the function that opens sessions of a model and its data files, for an owner."""


class WasmDevice(HostMemory):
    """onnxruntime-web copies every tensor of a run into its own heap, which is another WebAssembly memory, and the
    results back.
    """

    type: ClassVar[str] = "wasm"

    def __init__(
        self, opener: Opener, provider: Mapping[str, Any], threads: int = 1, shared: bool = True, memory: int = 0
    ) -> None:
        """`provider` has the options that sessions get. `threads` is the number of threads, 1 without `shared` memory.
        `memory` is the machine's memory in bytes as the browser reports it, 0 if it does not.
        """
        self._opener = opener
        self._provider = provider
        reason = "" if shared else ": no memory is shared, because the page is not cross-origin isolated"
        self._memory = memory
        self._name = f"cpu (wasm, {threads} thread{'' if threads == 1 else 's'}{reason})"

    def about(self) -> DeviceFacts:
        return DeviceFacts(adapter=self._name, machine_memory=self._memory)

    def provider_options_for_allocator_session(self) -> dict[str, Any]:
        return dict(self._provider)

    async def create_session(
        self, model: bytes, *, external: ExternalData | None = None, owner: str = ""
    ) -> DeviceSession:
        return await OrtSession.open(await self._opener(model, external, owner), self.get_memory_info())
