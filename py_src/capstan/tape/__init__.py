"""The recorded decode step as data, and the passes over it: no GPU is needed to import or test any of this.

recording.py   what the device was asked for during one captured run, as frozen dataclasses
passes.py      recording -> the operations to replay: the captured half, clears, indirect dispatches
ort_kernels.py what a recorded dispatch computes; uniforms.py reads what it was told
step_graph.py  the step as a graph of values
fusions.py     passes over that graph
prefill_graph.py  a recorded prefill run in the same way, its products as ours; matmul_plan.py: how these are made
placement.py   values back into buffers, checked
fused_step.py  the rewritten step as the device takes it; matvec_tuning.py, attention_plan.py: how our kernels are made
key.py         what a tape is valid for
"""

from __future__ import annotations

from .fused_step import FusedStep, fused_step
from .fusions import PASSES, fuse_step
from .kernel_plan import WorkgroupLimits
from .key import TapeKey
from .matmul import MatMul
from .passes import (
    TableGroup,
    captured_half,
    check_replayable,
    copies_lost_by_ort,
    direct_dispatches,
    reaching_definition,
    slice_for,
    without_clears,
)
from .prefill_graph import Int4Weights, fuse_prefill
from .recording import BindGroup, Clear, Command, Copy, Dispatch, DispatchIndirect, Op, Pipeline, Recording, Write
from .step_graph import MatVec, Recorded, StepGraph

__all__ = [
    "PASSES",
    "BindGroup",
    "Clear",
    "Command",
    "Copy",
    "Dispatch",
    "DispatchIndirect",
    "FusedStep",
    "Int4Weights",
    "MatMul",
    "MatVec",
    "Op",
    "Pipeline",
    "Recorded",
    "Recording",
    "StepGraph",
    "TableGroup",
    "TapeKey",
    "WorkgroupLimits",
    "Write",
    "captured_half",
    "check_replayable",
    "copies_lost_by_ort",
    "direct_dispatches",
    "fuse_prefill",
    "fuse_step",
    "fused_step",
    "reaching_definition",
    "slice_for",
    "without_clears",
]
