"""Lists the operations of a rewritten step that stay as recorded, with the reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from .ops import RULES
from .ort_kernels import recognise
from .placement import Placement
from .recording import Command, Dispatch, DispatchIndirect, Recording
from .step_graph import Recorded

__all__ = ["why_as_recorded"]

UNKNOWN = "none of our kernels computes it"
ALONE = "it joins none of our operations"
PART = "its attention has a part that none of our kernels computes"


def why_as_recorded(
    recording: Recording,
    ops: Sequence[Command],
    placement: Placement,
    passes: Collection[str],
    left: Collection[int] = (),
) -> str:
    """Lists the operations that stay, each with its reason; empty if all are replaced. `left` are the operations whose
    replacement was wrong.

        matmul_nbits: rows of 72 elements in blocks of 16 are not a multiple of 32 (7 times); ...
    """
    described: Counter[str] = Counter()
    uploaded = recording.uploaded()
    for node in placement.nodes:
        if not isinstance(node.what, Recorded):
            continue
        op, why = ops[node.what.index], UNKNOWN
        name = type(op).__name__
        if isinstance(op, Dispatch | DispatchIndirect):
            pipeline = recording.pipelines[op.pipeline]
            bound = [name for at, name in pipeline.names.items() if pipeline.access[at] != "uniform"]
            name = pipeline.label or f"the kernel of {', '.join(bound)}"
        found = recognise(recording, op, uploaded, SIGNATURES)
        if node.what.index in left:
            why = "its replacement was wrong"
        elif found is not None:
            kernel, signature = found
            name = kernel.kind
            off = f"the pass {signature.requested_by!r} is off"
            other = PART if signature.requested_by == "attention" else ALONE
            why = signature.why(kernel) or other if signature.requested_by in passes else off
        described[f"{name}: {why}"] += 1
    return "; ".join(text if count == 1 else f"{text} ({count} times)" for text, count in described.items())


SIGNATURES = tuple(signature for rules in RULES for signature in rules.signatures)
