"""Defines the gate of an attention's result, which follows each query in the packed q, k and v, as Qwen3.5 has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..kernel_plan import KernelPlan, WorkgroupLimits
from ..operation import ELEMENT_BYTES, Kernel, Operation, Value
from ..witness import Witness

__all__ = ["HeadGate"]

WORKGROUP = 64


@dataclass(frozen=True)
class HeadGate(Operation):
    """reads[0] times the sigmoid of the gates in reads[1], the packed q, k and v of `width` elements."""

    heads: int
    head: int
    width: int
    element: str
    rows: int = 1

    @property
    def title(self) -> str:
        return f"the gates of {self.heads} heads"

    def written_bytes(self, index: int) -> int:
        return self.rows * self.heads * self.head * ELEMENT_BYTES[self.element]

    def kernels(self, reads: Sequence[int], writes: Sequence[int], limits: WorkgroupLimits) -> list[Kernel]:
        constants = {"HEADS": self.heads, "HEAD": self.head, "WIDTH": self.width}
        plan = KernelPlan("head_gate", constants, (-(-self.heads * self.head // WORKGROUP), self.rows, 1))
        x, qkv = (Value(read) for read in reads)
        return [Kernel(plan, self.element == "f16", {"x": x, "qkv": qkv, "y": Value(writes[0])})]

    def truth(self, witness: Witness, reads: Sequence[int], writes: Sequence[int]) -> None:
        """Several rows have no truth: their step is compared with steps of one."""
        if self.rows > 1:
            return
        size, width = self.written_bytes(0), self.heads * self.head
        truth = witness.truths(width)
        qkv = witness.keep(reads[1], self.width * ELEMENT_BYTES[self.element])
        bindings = {"x": witness.keep(reads[0], size), "qkv": qkv, "truth": truth}
        constants = {"HEADS": self.heads, "HEAD": self.head}
        witness.run("truth_head", constants, self.element == "f16", bindings, (-(-width // 64), 1, 1))
        witness.judge("result", self.element, witness.keep(writes[0], size), truth)
