"""Memory that is planned, shared and visible: spans, copies, pools and the ledger."""

from __future__ import annotations

from .bookkeeping import CATEGORIES, Ledger, LedgerEntry, keep_account, ledger
from .compatibility import Way, devices_are_memory_compatible, way_between, why_incompatible
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
    Pool,
    PoolItem,
    PoolSize,
    Rows,
    cache_sizes,
    pack,
    pool_item,
    round_up,
    row_items,
    row_prefix,
    tape_scratch_items,
    weight_items,
    window_table_sizes,
)
from .span import BufferRequest, DeviceBuffer, DeviceSpan, Loan, StridedCopy
from .usage import OPERATIONS, WORD, allows, check_use, in_words, memory_info, usage_of

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
    "OPERATIONS",
    "Packing",
    "Pool",
    "PoolItem",
    "PoolSize",
    "Pools",
    "ROWS_APART",
    "Rows",
    "SNAPSHOTS",
    "StridedCopy",
    "TAPE_SCRATCH",
    "WORD",
    "Way",
    "allows",
    "cache_sizes",
    "check_given",
    "check_pools",
    "check_use",
    "devices_are_memory_compatible",
    "fits",
    "in_words",
    "keep_account",
    "ledger",
    "memory_info",
    "pack",
    "plan",
    "plan_copies",
    "pool_item",
    "round_up",
    "row_items",
    "row_prefix",
    "tape_scratch_items",
    "usage_of",
    "way_between",
    "weight_items",
    "why_incompatible",
    "window_table_sizes",
]
