"""Represents the recorded decode step as data, and runs passes over it. No GPU is needed to import or test this.

recording.py   the device's commands during one captured run, as frozen dataclasses
passes.py      recording -> the operations to replay: the captured half, clears, indirect dispatches
step_graph.py  the step as a graph of values
ort_kernels.py recognises recorded dispatches by the signatures of `ops`; uniforms.py decodes their uniforms
operation.py   the interface of one of Capstan's operations
ops/           Capstan's operations: each module has its recognition, joins, plan and bindings
as_recorded.py lists the operations that stay as recorded, with the reasons
fusions.py     the passes over the graph of a decode step, prefill_graph.py over that of a prefill run
placement.py   puts the values back into buffers, checked
witness.py     compares each operation of a step with the truth, watched_step.py plans this for all operations
fused_step.py  the rewritten step in the device's form
encoder_run.py the layers of an encoder, planned from its graph, with nothing recorded
row_step.py    a step of several sequences, made from the step of one
key.py         the key of a tape: every value that a replay needs unchanged
"""

from __future__ import annotations

from .as_recorded import why_as_recorded
from .encoder_run import encoder_run
from .fused_step import FusedStep, fused_step
from .fusions import PASSES, fuse_step
from .kernel_plan import WorkgroupLimits
from .key import TapeKey
from .ops.gemv import MatVec
from .ops.lookup import TableParts
from .ops.matmul import MatMul, NBitsWeights
from .ops.matmul_matrices import MatrixMatMul
from .ops.neighbours import neighbours_joined
from .ops.prefill_attention import PrefillAttention, attends_prompts
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
from .placement import Placement
from .prefill_graph import fuse_prefill
from .recording import BindGroup, Clear, Command, Copy, Dispatch, DispatchIndirect, Op, Pipeline, Recording, Write
from .row_step import RowSpans, row_step
from .step_graph import Node, Recorded, StepGraph
from .watched_step import Watched, plan_witness
from .witness import BEYOND, UNIT, CacheRows, Found, cache_rows

__all__ = [
    "BEYOND",
    "UNIT",
    "PASSES",
    "BindGroup",
    "Clear",
    "Command",
    "Copy",
    "Dispatch",
    "DispatchIndirect",
    "Found",
    "FusedStep",
    "NBitsWeights",
    "MatMul",
    "MatrixMatMul",
    "PrefillAttention",
    "MatVec",
    "Node",
    "Op",
    "Pipeline",
    "Placement",
    "Recorded",
    "Recording",
    "RowSpans",
    "StepGraph",
    "TableGroup",
    "TableParts",
    "TapeKey",
    "Watched",
    "WorkgroupLimits",
    "Write",
    "attends_prompts",
    "CacheRows",
    "cache_rows",
    "captured_half",
    "check_replayable",
    "copies_lost_by_ort",
    "direct_dispatches",
    "encoder_run",
    "fuse_prefill",
    "fuse_step",
    "fused_step",
    "plan_witness",
    "neighbours_joined",
    "reaching_definition",
    "row_step",
    "slice_for",
    "without_clears",
    "why_as_recorded",
]
