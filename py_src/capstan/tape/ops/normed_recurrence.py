"""Lets linear attention normalise its heads and multiply them by their gates in one kernel, if a workgroup has a whole
head of values. This saves a dispatch in each layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..kernel_plan import WorkgroupLimits
from ..operation import Buffer, Kernel, Operation, Value
from ..step_graph import Node
from .delta_rule import DeltaRule, GatedHeadNorm

__all__ = ["NormedDeltaRule", "with_norm"]

THREADS = 256
"""The most threads of a workgroup."""


@dataclass(frozen=True)
class NormedDeltaRule(Operation):
    """The gated delta rule and the gated norm of its heads. The node reads the inputs of the one and the gate of the
    other; it writes the normalised heads, the new state and the heads before that.
    """

    delta: DeltaRule
    norm: GatedHeadNorm

    @property
    def in_place(self) -> frozenset[int]:
        return self.delta.in_place

    @property
    def title(self) -> str:
        return f"{self.delta.title} with a norm"

    def written_bytes(self, index: int) -> int:
        return self.norm.written_bytes(0) if index == 0 else self.delta.written_bytes(index % 2)

    def kernels(self, reads: Sequence[int], writes: Sequence[int], limits: WorkgroupLimits) -> list[Kernel]:
        *given, gate = reads
        normed, state, plain = writes
        [kernel] = self.delta.kernels(given, [plain, state], limits)
        quads = self.delta.value // 4
        teams = teams_of(self.delta, limits)
        constants = {
            **kernel.plan.constants,
            "QUADS": quads,
            "TEAMS": teams,
            "WORKGROUP": quads * teams,
            "SHARE": self.delta.key // teams,
            "NORM_EPSILON": self.norm.epsilon,
        }
        bindings = {**kernel.bindings, "gate": Value(gate), "gamma": Buffer(self.norm.gamma), "normed": Value(normed)}
        plan = replace(kernel.plan, constants=constants, counts=(1, self.delta.heads, 1))
        return [replace(kernel, plan=plan, bindings=bindings)]


def teams_of(delta: DeltaRule, limits: WorkgroupLimits) -> int:
    """The number of threads that share the keys of a vector of four values, if a workgroup has a whole head; 0 if a
    workgroup is too small.
    """
    teams = min(THREADS, limits.threads) // (delta.value // 4)
    while teams and delta.key % teams:
        teams -= 1
    return teams


def with_norm(before: Node, node: Node, limits: WorkgroupLimits) -> Node | None:
    """The node of a gated delta rule and of the norm of its result; None if they stay apart."""
    delta, norm = before.what, node.what
    if not isinstance(delta, DeltaRule) or not isinstance(norm, GatedHeadNorm) or node.reads[0] != before.writes[0]:
        return None
    if norm.head != delta.value or not teams_of(delta, limits):
        return None
    what, writes = NormedDeltaRule(delta, norm), (node.writes[0], before.writes[1], before.writes[0])
    joined = Node(what, (*before.reads, node.reads[1]), writes, node.position, before.origins | node.origins)
    [kernel] = what.kernels(joined.reads, joined.writes, limits)
    memory = 16 * (2 * int(kernel.plan.constants["WORKGROUP"]) + int(kernel.plan.constants["TEAMS"])) + delta.value
    return joined if len(kernel.bindings) <= limits.buffers and memory <= limits.memory else None
