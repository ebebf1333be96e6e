"""A rewritten step as the device takes it: what is played, and the kernels, scratch and count tables it needs."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .attention_plan import plan_attention
from .dense_tuning import tune_dense
from .kernel_plan import KernelPlan, WorkgroupLimits
from .matmul import MatMul, Quantize
from .matmul_plan import matmul_bindings, plan_matmul, plan_quantize
from .matvec_tuning import tune_matvec
from .placement import Placement
from .step_graph import Attention, MatVec, Node, Recorded

__all__ = ["FusedStep", "fused_step"]

FLOATS = ("EPSILON", "SCALE")
"""Kernel constants that are f32 in WGSL."""


@dataclass
class FusedStep:
    """What GpuEngine.make_tape and add_table are given."""

    played: list[list[Any]] = field(default_factory=list)
    kernels: list[dict[str, Any]] = field(default_factory=list)
    scratch: list[int] = field(default_factory=list)
    tables: list[bytes] = field(default_factory=list)
    """u32 [capacity + 1, 3] each: workgroup counts by sequence length."""

    def spec(self, owner: str) -> dict[str, Any]:
        """The FusedSpec of web/src/gpu/fused.ts."""
        return {"kernels": self.kernels, "scratch": self.scratch, "owner": owner}


def fused_step(
    placement: Placement,
    played: Mapping[int, list[Any]],
    tables: Sequence[bytes],
    state: tuple[int, int, int],
    limits: WorkgroupLimits,
    capacity: int,
) -> FusedStep:
    """Emit a placed step. `played` has the recorded operations by index, whose table numbers are those of `tables`.

    `state` is the sampler's state (handle, offset, bytes), from which attention takes the length; `limits` are the
    adapter's; `capacity` is the longest sequence, in tokens.
    """
    step = FusedStep(scratch=list(placement.scratch), tables=list(tables))
    shared: dict[Callable[[int], tuple[int, int, int]], int] = {}
    partials: dict[int, int] = {}

    def table(counts: Callable[[int], tuple[int, int, int]]) -> int:
        if counts not in shared:
            rows = array("I", [0, 0, 0])
            for length in range(1, capacity + 1):
                rows.extend(counts(length))
            shared[counts] = len(step.tables)
            step.tables.append(rows.tobytes())
        return shared[counts]

    def emit(plan: KernelPlan, half: bool, bindings: list[list[Any]]) -> None:
        kernel = len(step.kernels)
        constants = dict(plan.constants)
        floats = [name for name in FLOATS if name in constants]
        step.kernels.append(
            {
                "shader": plan.shader,
                "constants": constants,
                "floats": floats,
                "half": half,
                "lanes": limits.lanes,
                "bindings": bindings,
            }
        )
        counts = plan.counts
        step.played.append(["kernel table", kernel, table(counts)] if callable(counts) else ["kernel", kernel, *counts])

    def at(value: int) -> list[Any]:
        place = placement.places[value]
        return [place.kind, place.id]

    for node in placement.nodes:
        match node.what:
            case Recorded():
                step.played.append(played[node.what.index])
            case MatVec():
                plan = plan_matvec(node.what, limits)
                emit(plan, node.what.element == "f16", matvec_bindings(node, node.what, at))
            case Quantize() | MatMul():
                plan = plan_quantize(node.what) if isinstance(node.what, Quantize) else plan_matmul(node.what, limits)
                emit(plan, node.what.element == "f16", matmul_bindings(node, at))
            case Attention():
                what = node.what
                half = what.element == "f16"
                split, join, partial_bytes = plan_attention(what, limits.lanes)
                # Layers take turns, so that one buffer serves all of them.
                partial = partials.setdefault(partial_bytes, len(step.scratch))
                if partial == len(step.scratch):
                    step.scratch.append(partial_bytes)
                out, _, _ = node.writes
                length = ["span", *state]
                caches = [["recorded", buffer] for buffer in (what.cos, what.sin, what.key, what.value)]
                emit(split, half, [at(node.reads[0]), length, *caches, ["scratch", partial], at(out)])
                emit(join, half, [["scratch", partial], length, at(out)])
    return step


def plan_matvec(what: MatVec, limits: WorkgroupLimits) -> KernelPlan:
    """The kernel that computes a product, and its workgroups."""
    fused: dict[str, int | float | bool] = {
        "NORM": what.norm is not None,
        "RESIDUAL": what.residual,
        "GATED": what.up is not None,
    }
    if what.norm is not None:
        fused["EPSILON"] = what.norm.epsilon
    if what.scales is None:
        dense = tune_dense(what.k, what.n, what.element == "f16", limits)
        return KernelPlan("matvec_dense", {**fused, **dense.constants()}, (dense.workgroups, 1, 1))
    tuning = tune_matvec(what.k, what.n, what.up is not None, what.element == "f16", limits)
    constants = {**fused, "BLOCK": what.block, "BIAS": False, **tuning.constants()}
    return KernelPlan("matvec_q4", constants, (tuning.workgroups, 1, 1))


def matvec_bindings(node: Node, what: MatVec, at: Callable[[int], list[Any]]) -> list[list[Any]]:
    """As shaders/matvec_q4.wgsl and matvec_dense.wgsl declare them."""
    bindings = [at(node.reads[0]), ["recorded", what.weights]]
    if what.scales is not None:
        bindings.append(["recorded", what.scales])
    if what.norm is not None:
        bindings.append(["recorded", what.norm.gamma])
    if what.residual:
        bindings.append(at(node.reads[1]))
    if what.up is not None:
        bindings += [["recorded", buffer] for buffer in what.up]
    return [*bindings, at(node.writes[0])]
