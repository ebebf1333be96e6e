"""A recorded prefill run as a graph of values, its int4 products as kernels of ours.

onnxruntime-web multiplies by int4 weights in several ways, by adapter and shape. Which dispatch is which product is
told by the weights that it binds; what brings activations into the form it needs, by the one thing it reads.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .fusions import without_dead
from .matmul import MatMul, Quantize
from .placement import MisplacedError, Placement, place_values
from .recording import Command, Dispatch, Recording
from .step_graph import Node, StepGraph, Values, walk
from .uniforms import uniform_values

__all__ = ["Int4Weights", "fuse_prefill"]

QUANTIZED = 128
"""Elements of a row that share a scale where onnxruntime-web computes in int8."""
RUN = 32

MATRICES_FULL = 192
"""Workgroups from which onnxruntime-web's products by subgroup matrices, of 128 rows by 128 columns each, fill a large
GPU: of 256 they took 161 us on an H200 where ours take 223; of 96, 128 us where ours take 89."""


@dataclass(frozen=True)
class Int4Weights:
    """Weights [n, k] of a MatMulNBits node, on the device."""

    scales: int
    """The recorded id of their scales' buffer."""
    n: int
    k: int
    block: int
    int8: bool
    """Whether the model allows activations in int8 (accuracy_level 4)."""


PRODUCTS = (
    ("input_a", "scales_a", "input_b", "scales_b", "output"),
    ("input_a", "input_b", "scales_b", "output"),
    ("input_a", "input_b", "scales", "output"),
)
"""What the kernels of a product bind, uniforms left out: from int8, by subgroup matrices, and in tiles."""


def fuse_prefill(
    recording: Recording,
    ops: Sequence[Command],
    lasting: Collection[int],
    weights: Mapping[int, Int4Weights],
    rows: int,
) -> Placement:
    """A recorded run of `rows` positions with products of ours, its values in buffers; `weights` by buffer.

    `lasting` are buffers whose contents outlive the run. A product that does not fit where its values are stays as it
    was recorded.
    """
    kept: set[int] = set()
    while True:
        graph = without_dead(_share(_gate(recording, ops, _read(recording, ops, lasting, weights, rows, kept))))
        try:
            return place_values(graph)
        except MisplacedError as error:
            left = set(error.origins) - kept
            if not left:
                raise
            kept |= left


def _read(
    recording: Recording,
    ops: Sequence[Command],
    lasting: Collection[int],
    weights: Mapping[int, Int4Weights],
    rows: int,
    kept: Collection[int],
) -> StepGraph:
    """Each product of `rows` rows as two nodes: its input in int8, and the product of that."""
    uploaded = recording.uploaded()
    changed = frozenset(buffer for op in ops for buffer in recording.writes(op))
    values = Values()
    origin: dict[int, tuple[int, int]] = {}
    """What a converted value was made of, and by which operation."""

    def lifted(index: int, reads: Mapping[int, int], writes: Mapping[int, int]) -> list[Node] | None:
        op = ops[index]
        if not isinstance(op, Dispatch) or index in kept:
            return None
        at, uniforms = _bound(recording, op, uploaded)
        if _converts(recording, op, at):
            origin.update(dict.fromkeys(writes.values(), (reads[at["input_a"]], index)))
            return None
        found = weights.get(at.get("input_b", -1))
        if found is None or tuple(at) not in PRODUCTS or at["input_b"] in changed or uniforms.get("M", rows) != rows:
            return None
        scales = at.get("scales_b", at.get("scales"))
        element = "f16" if "<f16>" in recording.pipelines[op.pipeline].code else "f32"
        size = rows * found.n * (2 if element == "f16" else 4)
        quantized = "scales_a" in at
        if scales != found.scales or recording.sizes[at["output"]] < size or not _fits(found):
            return None
        if not (quantized or found.int8):
            return None
        x, position = origin.get(reads[at["input_a"]], (reads[at["input_a"]], index))
        if quantized and (position == index or found.k % QUANTIZED):
            return None  # What is in int8 already, by who knows which rule, cannot be brought into it.
        if position != index and not quantized and op.x * op.y * op.z >= MATRICES_FULL:
            return None
        group = QUANTIZED if quantized else RUN
        words, factors = values.fresh(), values.fresh()
        origins = frozenset({index})
        what = MatMul(at["input_b"], scales, rows, found.n, found.k, found.block, element)
        return [
            Node(Quantize(rows, found.k, group, element), (x,), (words, factors), position, origins),
            Node(what, (words, factors), (writes[at["output"]],), index, origins),
        ]

    return walk(recording, ops, lasting, values, lifted)


def _fits(weights: Int4Weights) -> bool:
    """Whether web/src/shaders/matmul_q4.wgsl covers these weights."""
    whole = weights.k % RUN == 0 and weights.block % RUN == 0 and weights.k % weights.block == 0
    return whole and weights.n % 4 == 0


def _bound(
    recording: Recording, op: Dispatch, uploaded: Mapping[int, bytes]
) -> tuple[dict[str, int], Mapping[str, Any]]:
    """Buffers by the names that the WGSL gives their bindings, uniforms left out; the uniforms."""
    pipeline = recording.pipelines[op.pipeline]
    at: dict[str, int] = {}
    uniforms: Mapping[str, Any] = {}
    for index, group in enumerate(op.groups):
        for binding, buffer, offset, _ in sorted(recording.groups[group].entries):
            if pipeline.access.get((index, binding)) == "uniform":
                uniforms = uniform_values(pipeline.code, uploaded.get(buffer, b""))
            elif offset == 0:
                at[pipeline.names.get((index, binding), f"{index} {binding}")] = buffer
            else:
                at[f"{index} {binding} at {offset}"] = buffer
    return at, uniforms


def _converts(recording: Recording, op: Dispatch, at: Mapping[str, int]) -> bool:
    """Whether the dispatch only brings activations into the form that a product needs: int8, or another order."""
    if tuple(at) == ("input_a", "output_a"):
        return True
    return tuple(at) == ("input_a", "output", "scales") and "pack4x8snorm(" in recording.pipelines[op.pipeline].code


GATED = (
    "let activated_value = gate_value * (one / (one + exp(-gate_value)));",
    "output[global_idx]=activated_value * up_value;",
)
"""Lines of the kernel that joins the halves of a gated layer."""


def _gate(recording: Recording, ops: Sequence[Command], graph: StepGraph) -> StepGraph:
    """Let one product make what the halves of a gated layer, read by nobody else, are joined to."""
    readers, makers = graph.readers(), graph.makers()
    lasting = set(graph.last.values())
    gone: set[int] = set()
    joined: dict[int, Node] = {}
    for node in graph.nodes:
        index = node.position
        op = ops[index]
        if node.origins != {index} or not isinstance(op, Dispatch) or len(node.writes) != 1:
            continue
        at, _ = _bound(recording, op, {})
        code = recording.pipelines[op.pipeline].code
        if tuple(at) != ("gate", "up", "output") or not all(line in code for line in GATED):
            continue
        value = {graph.homes.get(v): v for v in node.reads}
        gate, up = (makers.get(value.get(at[name], -1)) for name in ("gate", "up"))
        if gate is None or up is None or gate is up:
            continue
        a, b = gate.what, up.what
        if not (isinstance(a, MatMul) and isinstance(b, MatMul)):
            continue
        if not all(readers[v] == [node] and v not in lasting for half in (gate, up) for v in half.writes):
            continue
        if replace(a, weights=0, scales=0) != replace(b, weights=0, scales=0):
            continue
        if _source(makers, gate) != _source(makers, up):
            continue
        origins = gate.origins | up.origins | node.origins
        joined[node.writes[0]] = Node(
            replace(a, up=(b.weights, b.scales)), gate.reads, node.writes, node.position, origins
        )
        gone |= {*gate.writes, *up.writes}
    nodes = [
        joined.get(node.writes[0], node) if node.writes else node
        for node in graph.nodes
        if not (isinstance(node.what, MatMul) and node.writes[0] in gone)
    ]
    return replace(graph, nodes=tuple(nodes))


def _source(makers: Mapping[int, Node], product: Node) -> tuple[Any, ...]:
    """What a product multiplies, before it was brought into another form."""
    made = makers.get(product.reads[0])
    return (made.what, made.reads) if made is not None and isinstance(made.what, Quantize) else product.reads


def _share(graph: StepGraph) -> StepGraph:
    """Bring each value into int8 once, however many products read it."""
    first: dict[tuple[Any, ...], Node] = {}
    instead: dict[int, int] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        if isinstance(node.what, Quantize):
            same = first.setdefault((node.what, node.reads), node)
            if same is not node:
                instead |= dict(zip(node.writes, same.writes, strict=True))
                continue
        nodes.append(replace(node, reads=tuple(instead.get(value, value) for value in node.reads)))
    return replace(graph, nodes=tuple(nodes))
