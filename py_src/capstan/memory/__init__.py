"""Memory that is planned, shared and visible: spans, copies, pools and the ledger."""

from __future__ import annotations

from .bookkeeping import CATEGORIES, Ledger, LedgerEntry, keep_account, ledger
from .compatibility import devices_are_memory_compatible, why_incompatible
from .copies import CopyStep, plan_copies
from .fit import Fit, fits, plan
from .given import Pools, check_given, check_pools
from .info import Capabilities, Limits, MemoryInfo, MemoryType
from .pools import (
    ROWS_APART,
    SNAPSHOTS,
    TAPE_SCRATCH,
    AlignmentRequirements,
    MemoryRequirements,
    Packing,
    PoolItem,
    PoolSize,
    Rows,
    pack,
    requirements,
    round_up,
    row_items,
    row_prefix,
    sequence_items,
    tape_scratch_items,
    weight_items,
)
from .span import BufferRequest, DeviceBuffer, DeviceSpan, Loan, StridedCopy

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
    "Loan",
    "MemoryInfo",
    "MemoryRequirements",
    "MemoryType",
    "Packing",
    "PoolItem",
    "PoolSize",
    "Pools",
    "ROWS_APART",
    "Rows",
    "SNAPSHOTS",
    "StridedCopy",
    "TAPE_SCRATCH",
    "check_given",
    "check_pools",
    "devices_are_memory_compatible",
    "fits",
    "keep_account",
    "ledger",
    "pack",
    "plan",
    "plan_copies",
    "requirements",
    "round_up",
    "row_items",
    "row_prefix",
    "sequence_items",
    "tape_scratch_items",
    "weight_items",
    "why_incompatible",
]
