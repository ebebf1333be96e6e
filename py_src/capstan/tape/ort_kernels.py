"""Recognises the kernels of onnxruntime-web in a recording, by the declarations and lines of their WGSL. A kernel is
recognised only if it has the bindings of a signature, the fields of its uniforms, and all lines that distinguish the
operation. A step with replaced kernels is still compared with an eager step. The signatures are in `ops`, beside their
operations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from .kernel_plan import WorkgroupLimits
from .recording import Command, Dispatch, DispatchIndirect, Op, Pipeline, Recording
from .step_graph import Node, StepGraph, Values, What, walk
from .uniforms import Number, uniform_values

__all__ = [
    "Fold",
    "Met",
    "OrtKernel",
    "Rules",
    "RunReader",
    "Signature",
    "bound",
    "element_of",
    "read_step",
    "recognise",
]


@dataclass(frozen=True)
class OrtKernel:
    """One recognised dispatch."""

    kind: str
    """The kind that its signature gives."""
    at: Mapping[str, int]
    """Buffers by the WGSL's names of their bindings."""
    uniforms: Mapping[str, Number]
    element: str
    """'f16' or 'f32'."""
    weights: frozenset[int] = frozenset()
    """The buffers whose contents a replacement treats as constant."""

    def number(self, name: str) -> int:
        value = self.uniforms[name]
        assert isinstance(value, int), name
        return value

    def real(self, name: str) -> float:
        value = self.uniforms[name]
        assert isinstance(value, float), name
        return value


@dataclass(frozen=True)
class Met:
    """A recognised kernel at its place in the step, and the values that it reads and writes, by buffer."""

    kernel: OrtKernel
    index: int
    reads: Mapping[int, int]
    writes: Mapping[int, int]
    values: Values

    def read(self, name: str) -> int:
        """The value that the kernel reads from the binding of this name."""
        return self.reads[self.kernel.at[name]]

    def written(self, name: str) -> int:
        """The value that the kernel writes to the binding of this name; a new one if there is no such binding."""
        at = self.kernel.at
        return self.writes[at[name]] if name in at else self.values.fresh()

    def node(self, what: What, reads: tuple[int, ...], write: int) -> Node:
        """A part of the kernel's work."""
        return Node(what, reads, (write,), self.index, frozenset({self.index}))


@dataclass(frozen=True)
class Signature:
    """The signature by which a kernel's WGSL is recognised, and the operation that it computes."""

    kind: str
    requested_by: str
    """The pass that replaces the kernel, a name in PASSES."""
    bindings: tuple[str, ...]
    """The bindings in order, without uniforms."""
    has: tuple[str, ...]
    asked: tuple[str, ...]
    """Uniforms that a replacement reads."""
    weights: tuple[str, ...] = ()
    """Bindings whose contents a replacement treats as constant."""
    lacks: tuple[str, ...] = ()
    one_of: tuple[str, ...] = ("",)
    """Lines of several versions of onnxruntime-web; the WGSL has one of them."""
    holds: Callable[[OrtKernel], bool] = lambda _: True
    """A condition on the uniforms."""
    mixed: bool = False
    """Whether the kernel's arrays have two types, as in a cast."""
    parts: Callable[[Met], list[Node] | None] = lambda _: None
    """The kernel's computation as nodes; None if our kernels do not compute it, or only together with other kernels."""
    why: Callable[[OrtKernel], str] = lambda _: ""
    """The reason why our kernels cannot compute it; else empty."""


Fold = Callable[[StepGraph, Mapping[int, Met]], StepGraph]
"""Rewrites a step, given the recognised kernels by index."""


@dataclass(frozen=True)
class Rules:
    """The rules by which recorded operations become one of Capstan's operations."""

    signatures: tuple[Signature, ...] = ()
    groups: Mapping[str, Fold] = field(default_factory=dict)
    """The folds that replace several recorded operations by one of ours, by the pass that enables each."""
    folds: Mapping[str, Fold] = field(default_factory=dict)
    """The folds that join our operations, by the pass that enables each."""


FLOATS = re.compile(r"var<storage, \w+> (\w+) ?: array<(?:vec[24]<)?(f16|f32)>")


def element_of(pipeline: Pipeline) -> str | None:
    """The element type of the pipeline's arrays: 'f16' or 'f32', None if both or neither occur. Attention's sums are
    always f32.
    """
    found = {element for name, element in FLOATS.findall(pipeline.code) if name != "metadata"}
    return found.pop() if len(found) == 1 else None


@dataclass
class RunReader:
    """Finds one kind of operation in a recorded run of `rows` positions: `read` is called for each operation, then
    `joined` for the whole run.
    """

    recording: Recording
    ops: Sequence[Command]
    weights: Mapping[int, Any]
    """Quantized weights by recorded buffer; see Products in ops/matmul.py."""
    rows: int
    values: Values
    limits: WorkgroupLimits

    @cached_property
    def uploaded(self) -> Mapping[int, bytes]:
        return self.recording.uploaded()

    @cached_property
    def changed(self) -> frozenset[int]:
        """Buffers that the run writes."""
        return frozenset(buffer for op in self.ops for buffer in self.recording.writes(op))

    def parts(
        self, index: int, reads: Mapping[int, int], writes: Mapping[int, int], signatures: Sequence[Signature]
    ) -> list[Node] | None:
        """The computation of a recorded operation as nodes; None if none of `signatures` fits."""
        found = recognise(self.recording, self.ops[index], self.uploaded, signatures)
        return found[1].parts(Met(found[0], index, reads, writes, self.values)) if found is not None else None

    def joined(self, graph: StepGraph) -> StepGraph:
        """The graph after joins that need several operations."""
        return graph


def bound(
    recording: Recording, op: Op, uploaded: Mapping[int, bytes]
) -> tuple[dict[str, int], Mapping[str, Number]] | None:
    """Whole buffers by the WGSL's names of their bindings, without uniforms; and the uniforms.

    None if the operation is not a dispatch, or binds parts of buffers or undeclared bindings. `uploaded` is
    `recording.uploaded()`.
    """
    if not isinstance(op, Dispatch | DispatchIndirect):
        return None
    pipeline = recording.pipelines[op.pipeline]
    entries = sorted(
        (index, binding, buffer, offset)
        for index, group in enumerate(op.groups)
        for binding, buffer, offset, _ in recording.groups[group].entries
    )
    at: dict[str, int] = {}
    uniforms: Mapping[str, Number] = {}
    for index, binding, buffer, offset in entries:
        name = pipeline.names.get((index, binding))
        if name is None or offset:
            return None
        if pipeline.access[index, binding] == "uniform":
            uniforms = uniform_values(pipeline.code, uploaded.get(buffer, b""))
        else:
            at[name] = buffer
    return at, uniforms


def recognise(
    recording: Recording, op: Op, uploaded: Mapping[int, bytes], signatures: Sequence[Signature]
) -> tuple[OrtKernel, Signature] | None:
    """The kernel and signature of a recorded operation; None if none of `signatures` fits. `uploaded` is
    `recording.uploaded()`.
    """
    found = bound(recording, op, uploaded)
    if found is None or not isinstance(op, Dispatch | DispatchIndirect):
        return None
    at, uniforms = found
    fitting = [signature for signature in signatures if signature.bindings == tuple(at)]
    pipeline = recording.pipelines[op.pipeline]
    element = element_of(pipeline) if fitting else None
    kernel = OrtKernel("", at, uniforms, element or "")
    for signature in fitting:
        if (element is None) != signature.mixed:
            continue
        code = pipeline.code
        fits = all(part in code for part in signature.has) and not any(part in code for part in signature.lacks)
        fits = fits and any(part in code for part in signature.one_of)
        try:
            if fits and set(signature.asked) <= uniforms.keys() and signature.holds(kernel):
                weights = frozenset(at[name] for name in signature.weights)
                return replace(kernel, kind=signature.kind, weights=weights), signature
        except KeyError:
            # The uniforms' fields differ from this kernel's: it is another version.
            continue
    return None


def read_step(
    recording: Recording,
    ops: Sequence[Command],
    lasting: Collection[int],
    lift: Collection[str],
    kept: Collection[int],
    rules: Sequence[Rules],
) -> tuple[StepGraph, Mapping[int, Met]]:
    """The graph of a recorded step, and the kernels that were recognised in it, by index.

    `lasting` are the buffers whose contents outlive the step. Operations that a pass in `lift` replaces become nodes of
    their computation, except those whose index is in `kept`; norms and sums are split so that their parts can join
    their neighbours. A kernel is assumed to overwrite each whole buffer that it writes, except buffers that outlive the
    step, and buffers with an unread value of the step: the kernel may change only a part of these.
    `capstan.device.webgpu.tapes.step_recorder` checks the assumption by replaying with the buffers full of NaN.
    """
    uploaded = recording.uploaded()
    changed = frozenset(buffer for op in ops for buffer in recording.writes(op))
    signatures = [signature for each in rules for signature in each.signatures]
    values = Values()
    kernels: dict[int, Met] = {}

    def lifted(index: int, reads: Mapping[int, int], writes: Mapping[int, int]) -> list[Node] | None:
        found = recognise(recording, ops[index], uploaded, signatures) if index not in kept else None
        if found is None or not changed.isdisjoint(found[0].weights):
            return None  # The step writes this buffer, perhaps again before our kernel runs.
        kernel, signature = found
        kernels[index] = Met(kernel, index, reads, writes, values)
        return signature.parts(kernels[index]) if signature.requested_by in lift else None

    graph = walk(recording, ops, lasting, values, lifted)
    for each in rules:
        for name, grouped in each.groups.items():
            if name in lift:
                graph = grouped(graph, kernels)
    return graph, kernels
