"""onnxruntime on CPython as a DeviceInterface: what the other devices must compute."""

from __future__ import annotations

from typing import ClassVar

from ..host_memory import HostMemory
from ..interface import DeviceFacts, DeviceSession
from .session import ReferenceSession

__all__ = ["ReferenceDevice"]


class ReferenceDevice(HostMemory):
    """Buffers are the interpreter's memory, which onnxruntime reads and writes in place."""

    type: ClassVar[str] = "reference"

    def about(self) -> DeviceFacts:
        return DeviceFacts(adapter="cpu (onnxruntime)")

    async def create_session(
        self, model: bytes, *, external: dict[str, bytes] | None = None, owner: str = ""
    ) -> DeviceSession:
        return ReferenceSession.open(model, external or {}, self.get_memory_info())
