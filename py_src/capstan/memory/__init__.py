"""Memory that is planned, shared and visible: places, spans, copies, pools and the ledger."""

from __future__ import annotations

from .compatibility import devices_are_memory_compatible, why_incompatible
from .info import Capabilities, MemoryInfo, MemoryType
from .span import DeviceBuffer, DeviceSpan

__all__ = [
    "Capabilities",
    "DeviceBuffer",
    "DeviceSpan",
    "MemoryInfo",
    "MemoryType",
    "devices_are_memory_compatible",
    "why_incompatible",
]
