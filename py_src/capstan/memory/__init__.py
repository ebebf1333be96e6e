"""Memory that is planned, shared and visible: spans, copies, pools and the ledger."""

from __future__ import annotations

from .bookkeeping import CATEGORIES, Ledger, LedgerEntry, keep_account, ledger
from .compatibility import devices_are_memory_compatible, why_incompatible
from .copies import CopyStep, plan_copies
from .fit import Fit, fits, plan
from .given import Pools, check_given
from .info import Capabilities, Limits, MemoryInfo, MemoryType
from .pools import (
    SNAPSHOTS,
    AlignmentRequirements,
    MemoryRequirements,
    Packing,
    PoolItem,
    PoolSize,
    pack,
    requirements,
    round_up,
    sequence_items,
    weight_items,
)
from .span import BufferRequest, DeviceBuffer, DeviceSpan, StridedCopy

__all__ = [
    "AlignmentRequirements",
    "BufferRequest",
    "CATEGORIES",
    "Capabilities",
    "CopyStep",
    "DeviceBuffer",
    "DeviceSpan",
    "Fit",
    "Ledger",
    "LedgerEntry",
    "Limits",
    "MemoryInfo",
    "MemoryRequirements",
    "MemoryType",
    "Packing",
    "PoolItem",
    "PoolSize",
    "Pools",
    "SNAPSHOTS",
    "StridedCopy",
    "check_given",
    "devices_are_memory_compatible",
    "fits",
    "keep_account",
    "ledger",
    "pack",
    "plan",
    "plan_copies",
    "requirements",
    "round_up",
    "sequence_items",
    "weight_items",
    "why_incompatible",
]
