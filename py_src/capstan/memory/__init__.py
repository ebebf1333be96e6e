"""Memory that is planned, shared and visible: places, spans, copies, pools and the ledger."""

from __future__ import annotations

from .compatibility import devices_are_memory_compatible, why_incompatible
from .fit import Fit, fits, plan
from .given import check_given
from .info import Capabilities, MemoryInfo, MemoryType
from .pools import (
    AlignmentRequirements,
    MemoryRequirements,
    Packing,
    PoolItem,
    PoolSize,
    pack,
    requirements,
    sequence_items,
    weight_items,
)
from .span import DeviceBuffer, DeviceSpan

__all__ = [
    "AlignmentRequirements",
    "Capabilities",
    "DeviceBuffer",
    "DeviceSpan",
    "Fit",
    "MemoryInfo",
    "MemoryRequirements",
    "MemoryType",
    "Packing",
    "PoolItem",
    "PoolSize",
    "check_given",
    "devices_are_memory_compatible",
    "fits",
    "pack",
    "plan",
    "requirements",
    "sequence_items",
    "weight_items",
    "why_incompatible",
]
