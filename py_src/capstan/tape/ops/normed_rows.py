"""Computes LayerNorms of many rows in a separate kernel, norm_rows.wgsl."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..kernel_plan import KernelPlan, WorkgroupLimits
from ..operation import ELEMENT_BYTES, Binding, Buffer, Kernel, Operation, Value
from .few_rows import norm_constants
from .norm import CenteredNorm

__all__ = ["NormedRows"]


@dataclass(frozen=True)
class NormedRows(Operation):
    """The norm of each of `rows` rows of `k` elements, in float16."""

    rows: int
    k: int
    by: CenteredNorm

    def written_bytes(self, index: int) -> int:
        return self.rows * self.k * ELEMENT_BYTES["f16"]

    def kernels(self, reads: Sequence[int], writes: Sequence[int], limits: WorkgroupLimits) -> list[Kernel]:
        constants = {"WIDE": False, "EPSILON": self.by.epsilon, **norm_constants(self.k, limits)}
        weights: dict[str, Binding] = {"gamma": Buffer(self.by.gamma), "beta": Buffer(self.by.beta)}
        values: dict[str, Binding] = {"x": Value(reads[0]), "normed": Value(writes[0])}
        return [Kernel(KernelPlan("norm_rows", constants, (self.rows, 1, 1)), True, {**values, **weights})]
