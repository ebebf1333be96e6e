"""A recorded step as a graph: what each operation computes, of which values, where a value is one content of a buffer.

onnxruntime-web uses one buffer for many values in turn. Here each write makes a new value, so that operations can be
replaced and joined by what they compute; `placement` puts the values back into buffers and checks that nothing is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from .attention_plan import fits_attention
from .dense_tuning import column_width
from .matmul import MatMul, Quantize
from .ort_kernels import OrtKernel, recognise
from .recording import Command, Dispatch, DispatchIndirect, Recording

__all__ = [
    "Add",
    "Attention",
    "MatVec",
    "Multiply",
    "Node",
    "Norm",
    "Recorded",
    "RmsNorm",
    "Silu",
    "StepGraph",
    "Values",
    "What",
    "read_step",
    "walk",
]


@dataclass(frozen=True)
class Recorded:
    """An operation that is replayed as it was recorded; `index` is its place in the step."""

    index: int


@dataclass(frozen=True)
class RmsNorm:
    """x * rsqrt(mean(x^2) + epsilon) * gamma; `gamma` is a buffer of weights."""

    gamma: int
    epsilon: float


@dataclass(frozen=True)
class Add:
    """reads[0] + reads[1]"""

    size: int
    element: str


@dataclass(frozen=True)
class Silu:
    """x * sigmoid(x) of reads[0]"""

    size: int
    element: str


@dataclass(frozen=True)
class Multiply:
    """reads[0] * reads[1]"""

    size: int
    element: str


@dataclass(frozen=True)
class Norm:
    """RMS norm of reads[0]."""

    by: RmsNorm
    size: int
    element: str


@dataclass(frozen=True)
class MatVec:
    """W x; reads[0] is x, reads[1] the residual if added.

    W is [n, k] in int4 with one scale for each `block` of a row; or, without scales, [k, n] of numbers like those of x.

    With `norm`, x is normalised first. With `up`, the result is silu(W x) * (W_up x). Buffers of weights by id.
    """

    weights: int
    scales: int | None
    """None where the weights are dense."""
    n: int
    k: int
    block: int
    """Of int4 weights, else 0."""
    element: str
    norm: RmsNorm | None = None
    residual: bool = False
    up: tuple[int, ...] | None = None
    """The other half of a gated layer: weights, and scales if there are."""


@dataclass(frozen=True)
class Attention:
    """Rotary embedding, cache write and grouped-query attention of one token: reads[0] is the packed q, k and v."""

    heads: int
    kv_heads: int
    head: int
    capacity: int
    scale: float
    cos: int
    sin: int
    key: int
    value: int
    element: str


What = Recorded | Add | Silu | Multiply | Norm | MatVec | Attention | Quantize | MatMul


@dataclass(frozen=True)
class Node:
    """An operation over values; it runs at `position`, an index into the recorded step."""

    what: What
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    position: int
    origins: frozenset[int]
    """The recorded operations whose work this is."""


@dataclass(frozen=True)
class StepGraph:
    """Nodes in the order they run, and what is known of their values."""

    nodes: tuple[Node, ...]
    homes: Mapping[int, int]
    """The recorded buffer of each value that had one."""
    first: Mapping[int, int]
    """The value each recorded buffer holds before the step."""
    last: Mapping[int, int]
    """The value each buffer that outlives the step must hold after it."""

    def readers(self) -> dict[int, list[Node]]:
        """Nodes by the values they read."""
        found: dict[int, list[Node]] = {}
        for node in self.nodes:
            for value in dict.fromkeys(node.reads):
                found.setdefault(value, []).append(node)
        return found

    def makers(self) -> dict[int, Node]:
        """The node that makes each value."""
        return {value: node for node in self.nodes for value in node.writes}


@dataclass
class Values:
    """Numbers values while the recorded operations are walked through."""

    homes: dict[int, int] = field(default_factory=dict)
    first: dict[int, int] = field(default_factory=dict)
    current: dict[int, int] = field(default_factory=dict)
    read: set[int] = field(default_factory=set)
    count: int = 0

    def fresh(self) -> int:
        """A value that no recorded buffer holds."""
        self.count += 1
        return self.count

    def of(self, buffer: int) -> int:
        if buffer not in self.current:
            value = self.fresh()
            self.current[buffer] = self.first[buffer] = value
            self.homes[value] = buffer
        return self.current[buffer]

    def unread(self, buffer: int) -> bool:
        """Whether the buffer holds what the step has made and not read."""
        return buffer in self.current and self.current[buffer] not in self.read

    def written(self, buffer: int) -> int:
        value = self.fresh()
        self.current[buffer] = value
        self.homes[value] = buffer
        return value


def read_step(
    recording: Recording, ops: Sequence[Command], lasting: Collection[int], lift: Collection[str], kept: Collection[int]
) -> StepGraph:
    """The graph of a recorded step. `lasting` are the buffers whose contents outlive it.

    Operations of a kind in `lift` become what they compute ('matvec', 'gated', 'norm', 'residual', 'attention'), except
    those whose index is in `kept`; norms and sums are taken apart so that their parts can join their neighbours. A
    kernel is taken to write all of what it may write, unless the buffer outlives the step or holds what the step put
    there and nobody has read: then the kernel may be there to change a part of it.
    `capstan.device.webgpu.step_recorder` makes sure of it by replaying with those buffers full of NaN.
    """
    uploaded = recording.uploaded()
    changed = frozenset(buffer for op in ops for buffer in recording.writes(op))
    values = Values()
    kernels: dict[int, OrtKernel] = {}
    buffers: dict[int, Mapping[int, int]] = {}
    """Of each operation: the values it writes, by buffer."""

    def lifted(index: int, reads: Mapping[int, int], writes: Mapping[int, int]) -> list[Node] | None:
        buffers[index] = writes
        kernel = recognise(recording, ops[index], uploaded) if index not in kept else None
        if kernel is None or not changed.isdisjoint(kernel.weights):
            return None  # What the step computes is no weight: it may be elsewhere, or gone, when ours runs.
        kernels[index] = kernel
        return _parts(kernel, reads, writes, index, values, lift)

    graph = walk(recording, ops, lasting, values, lifted)
    return _with_attention(graph, kernels, buffers) if "attention" in lift else graph


def walk(
    recording: Recording,
    ops: Sequence[Command],
    lasting: Collection[int],
    values: Values,
    lifted: Callable[[int, Mapping[int, int], Mapping[int, int]], list[Node] | None],
) -> StepGraph:
    """The graph of what was recorded. `lifted` is given the index of each operation, and the values that it reads and
    writes by buffer; it returns what the operation computes, or None if it stays as it was recorded."""
    nodes: list[Node] = []
    for index, op in enumerate(ops):
        written = recording.writes(op)
        partly = {b for b in written if b in lasting or not _whole(recording, op, b, values.unread(b))}
        reads = tuple(values.of(buffer) for buffer in sorted(recording.reads(op) - written | partly))
        read_at = {values.homes[value]: value for value in reads}
        values.read |= set(reads)
        writes = {buffer: values.written(buffer) for buffer in sorted(written)}
        parts = lifted(index, read_at, writes)
        nodes += parts or [Node(Recorded(index), reads, tuple(writes.values()), index, frozenset({index}))]
    last = {buffer: values.current[buffer] for buffer in lasting if buffer in values.current}
    return StepGraph(tuple(nodes), values.homes, values.first, last)


def _whole(recording: Recording, op: Command, buffer: int, unread: bool) -> bool:
    """Whether the operation leaves nothing of what the buffer held; `unread` if the step put that there for nobody."""
    return recording.overwrites(op, buffer) or (isinstance(op, Dispatch | DispatchIndirect) and not unread)


def _parts(
    kernel: OrtKernel,
    reads: Mapping[int, int],
    writes: Mapping[int, int],
    index: int,
    values: Values,
    lift: Collection[str],
) -> list[Node] | None:
    """What a recognised kernel computes, as nodes; None if it stays as recorded."""
    at, element = kernel.at, kernel.element

    def node(what: What, read: tuple[int, ...], write: int) -> Node:
        return Node(what, read, (write,), index, frozenset({index}))

    def added(x: str, skip: str, total: str, size: int) -> tuple[Node, int]:
        value = writes[at[total]] if total in at else values.fresh()
        return node(Add(size, element), (reads[at[x]], reads[at[skip]]), value), value

    match kernel.kind:
        case "matmul_nbits" if "matvec" in lift:
            n, k, block = (kernel.number(name) for name in ("N", "K", "block_size"))
            what = MatVec(at["input_b"], at["scales_b"], n, k, block, element)
            if not fits_matvec(what):
                return None
            return [node(what, (reads[at["input_a"]],), writes[at["output"]])]
        case "matmul" if "matvec" in lift:
            n, k = kernel.number("dim_b_outer"), kernel.number("dim_inner")
            what = MatVec(at["b"], None, n, k, 0, element)
            if not fits_matvec(what):
                return None
            return [node(what, (reads[at["a"]],), writes[at["output"]])]
        case "silu" if "gated" in lift:
            return [node(Silu(4 * kernel.number("vec_size"), element), (reads[at["x"]],), writes[at["y"]])]
        case "multiply" if "gated" in lift:
            both = (reads[at["input_a"]], reads[at["input_b"]])
            return [node(Multiply(kernel.number("element_count"), element), both, writes[at["output"]])]
        case "add" if "residual" in lift:
            total, _ = added("input_a", "input_b", "output", kernel.number("element_count"))
            return [total]
        case "norm" if "norm" in lift:
            size = kernel.number("norm_size")
            by = RmsNorm(at["scale"], kernel.real("epsilon"))
            return [node(Norm(by, size, element), (reads[at["x"]],), writes[at["y"]])]
        case "skip_norm" if "norm" in lift:
            size = kernel.number("hidden_size")
            total, value = added("x", "skip", "input_skip_bias_sum", size)
            by = RmsNorm(at["gamma"], kernel.real("epsilon"))
            return [total, node(Norm(by, size, element), (value,), writes[at["output"]])]
        case "gated_mlp" if "gated" in lift:
            n, k, block = (kernel.number(name) for name in ("N", "K", "block_size"))
            by = RmsNorm(at["norm_scale"], kernel.real("epsilon"))
            up = (at["up_b"], at["up_scales_b"])
            what = MatVec(at["gate_b"], at["gate_scales_b"], n, k, block, element, norm=by, up=up)
            if not fits_matvec(what):
                return None
            total, value = added("input_a", "skip", "input_skip_bias_sum", k)
            return [total, node(what, (value,), writes[at["output"]])]
    return None


def fits_matvec(what: MatVec) -> bool:
    """Whether web/src/shaders/matvec_q4.wgsl or, for dense ones, matvec_dense.wgsl covers these weights."""
    if what.scales is None:
        return what.k % 4 == 0 and what.n % column_width(what.element == "f16") == 0
    return what.k % 32 == 0 and what.block % 32 == 0 and what.k % what.block == 0


def _with_attention(
    graph: StepGraph, kernels: Mapping[int, OrtKernel], writes: Mapping[int, Mapping[int, int]]
) -> StepGraph:
    """Rotary embedding, split attention and its join, where nothing else reads what passes between them, as one."""
    readers = graph.readers()
    by_index = {node.what.index: node for node in graph.nodes if isinstance(node.what, Recorded)}

    def only_reader(value: int, kind: str) -> int | None:
        found = [node.what for node in readers.get(value, ())]
        if len(found) != 1 or not isinstance(found[0], Recorded):
            return None
        index = found[0].index
        return index if index in kernels and kernels[index].kind == kind else None

    replaced: dict[int, Node | None] = {}
    for index, rotary in kernels.items():
        if rotary.kind != "rotary":
            continue
        at = rotary.at
        split = only_reader(writes[index][at["query"]], "attention_split")
        if split is None or only_reader(writes[index][at["indirect_buffer"]], "attention_split") != split:
            continue
        partial = kernels[split]
        caches = (at["present_key"], at["present_value"])
        reads = {graph.homes[value]: value for value in by_index[index].reads}
        filled = {writes[index][cache] for cache in caches}
        if not filled <= set(by_index[split].reads) or not graph.last.keys() >= set(caches):
            # Attention of ours is over what the rotary kernel has put into caches that outlive the step.
            continue
        join = only_reader(writes[split][partial.at["out_split_vx"]], "attention_join")
        if join is None or only_reader(writes[split][partial.at["metadata"]], "attention_join") != join:
            continue
        # Positions and sizes of the rotary kernel are counted in vectors of four elements.
        what = Attention(
            heads=rotary.number("num_heads"),
            kv_heads=rotary.number("kv_num_heads"),
            head=4 * rotary.number("head_size"),
            capacity=rotary.number("present_sequence_length"),
            scale=partial.real("alpha"),
            cos=at["cos_cache"],
            sin=at["sin_cache"],
            key=at["present_key"],
            value=at["present_value"],
            element=rotary.element,
        )
        if not fits_attention(what):
            continue
        replaced |= {index: None, split: None}
        replaced[join] = Node(
            what,
            (reads[at["packed_qkv"]], *(reads[cache] for cache in caches)),
            (writes[join][kernels[join].at["output"]], *(writes[index][cache] for cache in caches)),
            join,
            frozenset({index, split, join}),
        )
    kept: list[Node] = []
    for node in graph.nodes:
        if isinstance(node.what, Recorded) and node.what.index in replaced:
            joined = replaced[node.what.index]
            kept += [joined] if joined else []
        else:
            kept.append(node)
    return StepGraph(tuple(kept), graph.homes, graph.first, graph.last)
