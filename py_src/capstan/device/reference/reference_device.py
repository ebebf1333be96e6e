"""Implements DeviceInterface with onnxruntime on CPython. It defines what the other devices must compute."""

from __future__ import annotations

from typing import Any, ClassVar

from ...host.storage_interface import ExternalData
from ..device_interface import DeviceFacts, DeviceSession
from ..host_memory import HostMemory
from .reference_session import PROVIDER, ReferenceSession, whole_files

__all__ = ["ReferenceDevice"]


class ReferenceDevice(HostMemory):
    """Buffers are the interpreter's memory, which onnxruntime reads and writes in place."""

    type: ClassVar[str] = "reference"

    def about(self) -> DeviceFacts:
        return DeviceFacts(adapter="cpu (onnxruntime)")

    def provider_options_for_allocator_session(self) -> dict[str, Any]:
        return {"name": PROVIDER}

    async def create_session(
        self, model: bytes, *, external: ExternalData | None = None, owner: str = ""
    ) -> DeviceSession:
        return ReferenceSession.open(model, await whole_files(external), self.get_memory_info())
