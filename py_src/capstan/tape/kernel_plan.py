"""Plans how one fused kernel is made and dispatched."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["KernelPlan", "MatrixSize", "WorkgroupLimits"]


@dataclass(frozen=True)
class KernelPlan:
    """A template of web/src/worker/shaders, its constants, and its workgroups: fixed, or a function of the sequence
    length."""

    shader: str
    constants: Mapping[str, int | float | bool]
    counts: tuple[int, int, int] | Callable[[int], tuple[int, int, int]]


@dataclass(frozen=True)
class MatrixSize:
    """Rows, columns and inner elements of one operation on subgroup matrices."""

    m: int
    n: int
    k: int


@dataclass(frozen=True)
class WorkgroupLimits:
    """The limits of an adapter's workgroups. The defaults hold for every adapter."""

    lanes: int = 0
    """The number of threads in a subgroup; 0 if subgroups cannot be used."""
    threads: int = 256
    memory: int = 16384
    """Workgroup memory in bytes."""
    software: bool = False
    """Whether the adapter is a CPU."""
    buffers: int = 8
    """The number of storage buffers that a kernel may bind."""
    matrices: tuple[MatrixSize, ...] = ()
    """Operations on subgroup matrices of float16 with sums in float32; empty if the device lacks them."""

    @classmethod
    def of(cls, adapter: Mapping[str, Any]) -> WorkgroupLimits:
        """The limits from the engine's summary of the adapter."""
        threads, memory = adapter["max_workgroup_threads"], adapter["max_workgroup_bytes"]
        matrices = tuple(MatrixSize(*size) for size in adapter["subgroup_matrices"])
        buffers = adapter["max_storage_buffers"]
        return cls(adapter["subgroup_size"], threads, memory, adapter["software"], buffers, matrices)
