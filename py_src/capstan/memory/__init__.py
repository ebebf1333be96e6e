"""Memory that is planned, shared and visible: places, spans, copies, pools and the ledger."""

from __future__ import annotations

from .bookkeeping import CATEGORIES, Ledger, LedgerEntry, keep_account, ledger
from .compatibility import devices_are_memory_compatible, why_incompatible
from .copies import CopyPlan, Group, Transfer, plan_copies, plan_tensor_copies
from .fit import Fit, fits, plan
from .given import Pools, check_given
from .info import Capabilities, Limits, MemoryInfo, MemoryType
from .places import Place, Temporary
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
from .span import BufferRequest, DeviceBuffer, DeviceSpan
from .steps import (
    Bounce,
    ByteCopy,
    Cast,
    Copy,
    DeviceStep,
    FillMask,
    FillPositions,
    HostCopy,
    HostStep,
    Readback,
    Step,
    Upload,
    Zero,
)

__all__ = [
    "AlignmentRequirements",
    "BufferRequest",
    "Bounce",
    "ByteCopy",
    "CATEGORIES",
    "Capabilities",
    "Cast",
    "Copy",
    "CopyPlan",
    "DeviceBuffer",
    "DeviceSpan",
    "DeviceStep",
    "FillMask",
    "FillPositions",
    "Fit",
    "Group",
    "HostCopy",
    "HostStep",
    "Ledger",
    "LedgerEntry",
    "Limits",
    "MemoryInfo",
    "MemoryRequirements",
    "MemoryType",
    "Packing",
    "Place",
    "PoolItem",
    "PoolSize",
    "Pools",
    "Readback",
    "Step",
    "Temporary",
    "Transfer",
    "Upload",
    "Zero",
    "check_given",
    "devices_are_memory_compatible",
    "fits",
    "keep_account",
    "ledger",
    "pack",
    "plan",
    "plan_copies",
    "plan_tensor_copies",
    "requirements",
    "sequence_items",
    "weight_items",
    "why_incompatible",
]
