"""Describes a rewritten step for the device: the operations to play, and the kernels, scratch memory and count tables
that they need.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .kernel_plan import WorkgroupLimits
from .operation import Binding, Buffer, Kernel, Shared, State, Table, Value
from .placement import Placement
from .step_graph import Recorded

__all__ = ["FusedStep", "fused_step"]


@dataclass
class FusedStep:
    """The arguments of GpuEngine.make_tape and add_table."""

    played: list[list[Any]] = field(default_factory=list)
    kernels: list[dict[str, Any]] = field(default_factory=list)
    scratch: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    """For each emitted node, the number of operations played up to its end."""
    tables: list[bytes] = field(default_factory=list)
    """u32 [capacity + 1, 3] each: workgroup counts by sequence length."""

    def spec(self, owner: str) -> dict[str, Any]:
        """The FusedSpec of web/src/worker/gpu/fused.ts."""
        return {"kernels": self.kernels, "scratch": self.scratch, "owner": owner}


def fused_step(
    placement: Placement,
    played: Mapping[int, list[Any]],
    tables: Sequence[bytes],
    state: tuple[int, int, int],
    limits: WorkgroupLimits,
    capacity: int,
    sources: tuple[int, int, int] | None = None,
) -> FusedStep:
    """Emit a placed step. `played` has the recorded operations by index, whose table numbers are those of `tables`.

    `state` is the sampler's state (handle, offset, bytes), from which kernels take the length; `limits` are the
    adapter's; `capacity` is the longest sequence, in tokens; `sources` is the table of the rows whose caches are read,
    for kernels that need one.
    """
    step = FusedStep(scratch=list(placement.scratch), tables=list(tables))
    numbered: dict[Callable[[int], tuple[int, int, int]], int] = {}
    shared: dict[int, int] = {}
    """Scratch between kernels of one operation, by its bytes; operations use it in turn."""

    def table(counts: Callable[[int], tuple[int, int, int]]) -> int:
        if counts not in numbered:
            rows = array("I", [0, 0, 0])
            for length in range(1, capacity + 1):
                rows.extend(counts(length))
            numbered[counts] = len(step.tables)
            step.tables.append(rows.tobytes())
        return numbered[counts]

    def resource(binding: Binding) -> list[Any]:
        match binding:
            case Value():
                place = placement.places[binding.id]
                return [place.kind, place.id]
            case Buffer():
                return ["recorded", binding.id]
            case State():
                return ["span", *state]
            case Table():
                if sources is None:
                    raise ValueError("an operation reads its caches through a table, and no table was given")
                return ["span", *sources]
            case Shared():
                number = shared.setdefault(binding.bytes, len(step.scratch))
                if number == len(step.scratch):
                    step.scratch.append(binding.bytes)
                return ["scratch", number]

    def emit(kernel: Kernel) -> None:
        plan, number = kernel.plan, len(step.kernels)
        step.kernels.append(
            {
                "shader": plan.shader,
                "constants": dict(plan.constants),
                "floats": [name for name, value in plan.constants.items() if isinstance(value, float)],
                "half": kernel.half,
                "lanes": limits.lanes,
                "bindings": {name: resource(binding) for name, binding in kernel.bindings.items()},
            }
        )
        counts = plan.counts
        step.played.append(["kernel table", number, table(counts)] if callable(counts) else ["kernel", number, *counts])

    for node in placement.nodes:
        if isinstance(node.what, Recorded):
            step.played.append(played[node.what.index])
        else:
            for kernel in node.what.kernels(node.reads, node.writes, limits):
                emit(kernel)
        step.ends.append(len(step.played))
    return step
