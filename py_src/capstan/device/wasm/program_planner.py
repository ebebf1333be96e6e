"""Plans the program of a graph: each node becomes operations of web/kernels, or the planner names the node that no
operation computes.

program_of(found, config, threads)   the program of a graph for the CPU, or the reason why there is none
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping

from ...fallback import count_fallback
from ...graph import UnpackedWeight, parse
from ...graph.nbits_products import INT8_ACTIVATIONS
from ...graph.onnx_pb2 import NodeProto, TensorProto
from ...graph.plain_attention import floats
from ...graph.wiring import Wiring, attribute
from ...model_files.genai_config import GenaiConfig
from .cpu_graph import FIRST_LOGITS, WasmGraph
from .cpu_program import (
    BLOCK,
    FLOAT,
    GROUP,
    KEPT,
    LARGEST_HEAD,
    ROWS,
    UNIT,
    CpuProgram,
    Kind,
    Split,
    aligned,
    quantized_bytes,
)
from .program_places import (
    BY_ROWS,
    LENGTHS,
    WHOLE_ROWS,
    Activated,
    HeadNorm,
    Joined,
    Known,
    Lengths,
    Memory,
    Share,
    UnknownGraphError,
    Value,
    Weights,
    apart,
    cache_places,
)
from .program_waits import with_waits

__all__ = ["planned", "program_of"]


def program_of(
    found: WasmGraph, config: GenaiConfig, threads: int, capture: str = "tape", *, count: bool = False
) -> CpuProgram | str:
    """The program of a graph, or the reason why there is none. With `count`, a graph counts as a fallback if it allows
    activations in 8 bits and has no program.
    """
    if capture == "off":
        return "capture is 'off'"
    if not any(isinstance(each, UnpackedWeight) or each.level == INT8_ACTIVATIONS for each in found.made):
        return "its matrix products require activations in float32"
    try:
        return planned(found, threads, found.about.context_within(config.context_length))
    except UnknownGraphError as error:
        if count:
            count_fallback("a program for the CPU", str(error))
        return str(error)


def planned(found: WasmGraph, threads: int, context: int) -> CpuProgram:
    """The program of a graph. Raises UnknownGraphError."""
    about = found.about
    why = {
        "LoRA adapters": found.lora.inputs or found.lora.others,
        "rotary factors that depend on the length": found.tables,
        "states besides caches": about.states,
        "caches that grow": about.growing,
        "an encoder": about.cross,
        "a multi-token-prediction head": about.hidden,
        "inputs besides tokens, mask and positions": about.others,
        f"caches in {about.cache_dtype}": about.cache_dtype != "float32",
        f"logits in {about.logits_dtype}": about.logits_dtype != "float32",
    }
    for reason, there in why.items():
        if there:
            raise UnknownGraphError(f"the model has {reason}")
    return Planner(found, threads, context).plan()


def word(value: float) -> int:
    """Convert a number to a word: an integer is kept, a float gives its bits."""
    if not isinstance(value, float):
        return int(value) % (1 << 32)
    bits: int = struct.unpack("<I", struct.pack("<f", value))[0]
    return bits


class Planner:
    """Makes the program of one graph."""

    def __init__(self, found: WasmGraph, threads: int, context: int) -> None:
        model = parse(found.model, "the graph")
        self._graph, self._about = model.graph, found.about
        self._threads, self._context = threads, context
        self._caches = cache_places(found.about.cache)
        self._memory = Memory()
        self._weights = Weights(model, found.made, self._memory)
        self._values: dict[str, Known] = {}
        self._words: list[int] = []
        self._constants = Wiring(model.graph).constants
        self._reads: dict[str, int] = {}
        for node in self._graph.node:
            for name in node.input:
                self._reads[name] = self._reads.get(name, 0) + 1

    def plan(self) -> CpuProgram:
        about = self._about
        ids = self._memory.take(FLOAT * ROWS)
        self._values[about.input_ids] = Value(ids, 1, FLOAT, 0)
        for name in (about.mask, about.position_ids, FIRST_LOGITS):
            if name:
                self._values[name] = LENGTHS
        for node in self._graph.node:
            self._node(node)
        logits = self._values.get(about.logits)
        if not isinstance(logits, Value) or not logits.kept:
            raise UnknownGraphError("the logits are not the result of a product")
        program = self._memory.hold(FLOAT * len(self._words))
        score_bytes = aligned(FLOAT * max(self._context, LARGEST_HEAD))
        scores = self._memory.hold(score_bytes * self._threads)
        position = sum(size for _, size in self._caches.values())
        return CpuProgram(
            words=tuple(with_waits(self._words)),
            weights=self._weights.all(),
            program=program,
            ids=ids,
            logits=logits.address,
            row=logits.row // FLOAT,
            vocab=about.vocab_size,
            scores=scores,
            score_bytes=score_bytes,
            position=position,
            growth=2 * position * self._context,
            end=self._memory.end,
        )

    def _node(self, node: NodeProto) -> None:
        given = [self._values.get(name) for name in node.input]
        known = [each for each in given if each is not None]
        if node.op_type not in ("GroupQueryAttention", "Slice") and all(isinstance(each, Lengths) for each in known):
            # The graph computes lengths from the mask and constants; each run passes them instead.
            for name in node.output:
                self._values[name] = LENGTHS
            return
        make = OPERATIONS.get(node.op_type)
        if make is None:
            raise UnknownGraphError(f"no operation of a program computes a {node.op_type} ({node.name})")
        make(self, node)
        for name in node.input:
            self._read(self._values.get(name))

    def look_up(self, node: NodeProto) -> None:
        ids = self._value(node, 1)
        weight = self._weights.of(node, 0)
        made = self._made(node.output[0], weight.k)
        described = (ids.address, made.address, weight.k, 0, weight.form, weight.address)
        self._add(Kind.LOOK_UP, ids, *described, share=WHOLE_ROWS)

    def norm(self, node: NodeProto) -> None:
        x, weight = self._value(node, 0), self._weights.floats(node, 1)
        epsilon = real(node, "epsilon", 1e-5)
        if weight.k < x.width:
            self._view(node.output[0], x, 0, x.width, HeadNorm(weight.address, weight.k, epsilon))
            return
        y = self._made(node.output[0], x.width, x.kept)
        self._add(Kind.NORM, x, x.address, y.address, x.width, 0, 0, weight.address, epsilon)

    def skip_norm(self, node: NodeProto) -> None:
        x, skip, weight = self._value(node, 0), self._value(node, 1), self._weights.floats(node, 2)
        if any(node.input[3:]):
            raise UnknownGraphError(f"a norm has a bias ({node.name})")
        y = self._made(node.output[0], x.width, x.kept)
        described = node.output[3] if len(node.output) > 3 else ""
        total = self._made(described, x.width, x.kept)
        epsilon = real(node, "epsilon", 1e-5)
        self._add(
            Kind.NORM, x, x.address, y.address, x.width, skip.address, total.address, weight.address, epsilon
        )  # fmt: skip
        self._memory.release(total)

    def split(self, node: NodeProto) -> None:
        parts, sizes = self._parts(node, 0), self._integers(node, 1)
        places = apart(parts, sizes) if attribute(node, "axis", 0) in (-1, 2) else None
        if places is None or sum(sizes) != sum(part.width for part in parts):
            raise UnknownGraphError(
                f"a Split is not along the last axis, or its parts do not fit its input ({node.name})"
            )
        for name, (address, _), size in zip(node.output, places, sizes, strict=True):
            x = next(part for part in parts if 0 <= address - part.address < FLOAT * part.width)
            self._view(name, x, (address - x.address) // FLOAT, size)

    def reshape(self, node: NodeProto) -> None:
        """Change only how heads are counted: as columns of a row, or in a dimension of their own."""
        x, dims = self._value(node, 0), self._integers(node, 1)
        if len(dims) not in (3, 4) or dims[0] != 0 or dims[-1] <= 0 or x.width % dims[-1]:
            raise UnknownGraphError(f"a Reshape does more than part heads ({node.name})")
        self._view(node.output[0], x, 0, x.width, x.norm)

    def _view(self, name: str, x: Value, first: int, width: int, norm: HeadNorm | None = None) -> None:
        """Make `name` a view of another value: `width` columns of its rows, from column `first`."""
        whole, reads = x.whole or x, self._reads.get(name, 0)
        self._values[name] = Value(
            x.address + FLOAT * first, width, x.row, 0, x.kept, share=x.share, whole=whole, norm=norm
        )
        whole.reads += reads

    def product(self, node: NodeProto) -> None:
        x, weight = self._value(node, 0), self._weights.packed(node, 1)
        if attribute(node, "transB", 0) != 1:
            raise UnknownGraphError(f"a product has weights as [K, N] ({node.name})")
        if x.width != weight.k:
            raise UnknownGraphError(f"a product of {x.width} columns has weights of {weight.k} ({node.name})")
        if node.output[0] == self._about.logits and not x.kept:
            x = self._kept(x, "")
        if x.quantized is None:
            rows = KEPT if x.kept else ROWS
            size = aligned(rows * quantized_bytes(x.width))
            x.quantized = self._memory.take(size), size
            share = x.share if x.share.unit % BLOCK == 0 and x.row == FLOAT * x.width else BY_ROWS
            self._add(Kind.QUANTIZE, x, x.address, x.quantized[0], x.width, share=share)
        groups = -(-weight.n // GROUP)
        y = self._made(node.output[0], weight.n, x.kept, GROUP * groups)
        y.share = Share(GROUP if groups % (BLOCK // GROUP) else BLOCK, Split.COLUMNS)
        described = (x.quantized[0], y.address, x.width, groups, weight.form, weight.address)
        self._add(Kind.PRODUCT, x, *described, share=y.share)

    def add(self, node: NodeProto) -> None:
        place = 0 if isinstance(self._values.get(node.input[0]), Value) else 1
        x, bias = self._value(node, place), self._weights.floats(node, 1 - place)
        if x.reads != 1 or bias.k != x.width or x.row != FLOAT * x.width:
            raise UnknownGraphError(f"an Add is not a bias ({node.name})")
        self._add(Kind.BIAS, x, x.address, 0, x.width, 0, 0, bias.address, share=x.share)
        self._also(node.output[0], x)

    def attention(self, node: NodeProto) -> None:
        heads, shared = attribute(node, "num_heads", 0), attribute(node, "kv_num_heads", 0)
        names = [*node.input, *[""] * (12 - len(node.input))]
        if real(node, "softcap", 0.0) or attribute(node, "smooth_softmax", 0) or any(names[9:]):
            raise UnknownGraphError(f"attention has a soft cap, sinks or a bias ({node.name})")
        if names[3] not in self._caches or names[4] not in self._caches:
            raise UnknownGraphError(f"attention reads another layer's caches ({node.name})")
        (keys, size), (values, _) = self._caches[names[3]], self._caches[names[4]]
        head = size // FLOAT // shared
        given = [self._parts(node, each) for each in (range(3) if names[1] else range(1))]
        places = apart([each for parts in given for each in parts], [heads * head, shared * head, shared * head])
        if places is None or head % 4 or head > LARGEST_HEAD:
            raise UnknownGraphError(f"attention has heads of a different size than its caches ({node.name})")
        q, (q_at, q_row), (k_at, k_row), (v_at, v_row) = given[0][0], *places
        norms = [parts[0].norm for parts in given[:2]]
        sizes = {each.size for parts in given for part in parts if (each := part.norm) is not None}
        if sizes - {head} or any(part.norm for parts in given[2:] for part in parts):
            raise UnknownGraphError(f"attention has norms of values that are not heads of q and k ({node.name})")
        weights = [each.weight if each is not None else 0 for each in (*norms, None)[:2]]
        epsilon = next((each.epsilon for each in norms if each is not None), 0.0)
        half, cos, sin = 0, 0, 0
        if attribute(node, "do_rotary", 0):
            angles = [self._weights.floats(node, each) for each in (7, 8)]
            half, (cos, sin) = angles[0].k, [each.address for each in angles]
            if angles[0].n < self._context:
                raise UnknownGraphError(f"the rotary table has {angles[0].n} positions instead of {self._context}")
        turned = attribute(node, "rotary_interleaved", 0)
        self._add(
            Kind.ROTATE, q, q_at, q_row, head, heads, shared, half, turned, keys, values, cos, sin,
            k_at, v_at, k_row, v_row, *weights, epsilon,
        )  # fmt: skip
        y = self._made(node.output[0], heads * head)
        y.share = Share(head, Split.PARTS)
        scale = real(node, "scale", 0.0) or head**-0.5
        window = max(0, attribute(node, "local_window_size", -1))
        self._add(
            Kind.ATTEND, q, q_at, y.address, head, heads, shared, window, scale, keys, values, q_row
        )  # fmt: skip

    def sigmoid(self, node: NodeProto) -> None:
        self._activate(node, whole=False)

    def quick_gelu(self, node: NodeProto) -> None:
        if real(node, "alpha", 1.702) != 1.0:
            raise UnknownGraphError(f"a QuickGelu has an alpha other than 1 ({node.name})")
        self._activate(node, whole=True)

    def gelu(self, node: NodeProto) -> None:
        if next((item.s for item in node.attribute if item.name == "approximate"), b"") != b"tanh":
            raise UnknownGraphError(f"a Gelu is not approximated by tanh ({node.name})")
        self._activate(node, whole=True, gelu=True)

    def multiply(self, node: NodeProto) -> None:
        for place in (0, 1):
            factor = floats(self._constants.get(node.input[place]))
            if factor is not None and len(factor) == 1:
                x = self._value(node, 1 - place)
                y = self._made(node.output[0], x.width, x.kept, x.row // FLOAT)
                y.share = x.share
                self._add(Kind.SCALE, x, x.address, y.address, x.row // FLOAT, 0, 0, 0, factor[0], share=x.share)
                return
        one, other = (self._values.get(name) for name in node.input)
        if isinstance(one, Value) and isinstance(other, Activated):
            one, other = other, one
        if not isinstance(one, Activated) or not isinstance(other, Value):
            raise UnknownGraphError(f"a Mul is not a gate ({node.name})")
        if not one.whole and one.of is other:
            self._values[node.output[0]] = Activated(other, whole=True)
            other.reads += self._reads.get(node.output[0], 0)
            return
        gate = one.of
        if not one.whole or gate.width != other.width or gate.row != other.row:
            raise UnknownGraphError(f"a Mul is not a gate ({node.name})")
        y = self._made(node.output[0], gate.width, gate.kept)
        y.share = gate.share if gate.share == other.share else BY_ROWS
        described = (gate.address, y.address, gate.row // FLOAT, 0, int(one.gelu), other.address)
        self._add(Kind.GATE, gate, *described, share=y.share)

    def concat(self, node: NodeProto) -> None:
        parts = tuple(self._value(node, place) for place in range(len(node.input)))
        if attribute(node, "axis", 0) not in (-1, 2):
            raise UnknownGraphError(f"a Concat is not along the last axis ({node.name})")
        self._values[node.output[0]] = Joined(parts)
        for each in parts:
            each.reads += self._reads.get(node.output[0], 0)

    def keep(self, node: NodeProto) -> None:
        if node.input[1] != FIRST_LOGITS:
            raise UnknownGraphError(f"a Slice is not the one before the logits ({node.name})")
        self._kept(self._value(node, 0), node.output[0])

    def _kept(self, x: Value, name: str) -> Value:
        """Copy the rows of the tokens that give logits to a new value `name`."""
        y = self._made(name, x.width, kept=True)
        self._add(Kind.KEEP, y, x.address, y.address, x.width, share=WHOLE_ROWS)
        return y

    def _activate(self, node: NodeProto, whole: bool, gelu: bool = False) -> None:
        x = self._value(node, 0)
        self._values[node.output[0]] = Activated(x, whole, gelu)
        x.reads += self._reads.get(node.output[0], 0)

    def _value(self, node: NodeProto, place: int) -> Value:
        found = self._values.get(node.input[place]) if place < len(node.input) else None
        if not isinstance(found, Value):
            raise UnknownGraphError(f"input {place} of a {node.op_type} is not an activation ({node.name})")
        return found

    def _integers(self, node: NodeProto, place: int) -> list[int]:
        """Read an int64 constant that a node takes as an input."""
        tensor = self._constants.get(node.input[place]) if place < len(node.input) else None
        if tensor is None or tensor.data_type != TensorProto.INT64:
            raise UnknownGraphError(f"input {place} of a {node.op_type} is not a constant ({node.name})")
        return list(struct.unpack(f"<{len(tensor.raw_data) // 8}q", tensor.raw_data) or tensor.int64_data)

    def _parts(self, node: NodeProto, place: int) -> tuple[Value, ...]:
        found = self._values.get(node.input[place])
        return found.parts if isinstance(found, Joined) else (self._value(node, place),)

    def _made(self, name: str, width: int, kept: bool = False, row: int = 0) -> Value:
        """Allocate a new value `name`."""
        row = FLOAT * (row or width)
        size = aligned(row * (KEPT if kept else ROWS))
        made = Value(self._memory.take(size), width, row, size, kept, self._reads.get(name, 0))
        if name:
            self._values[name] = made
        return made

    def _also(self, name: str, value: Value) -> None:
        """Give a value an additional name."""
        self._values[name] = value
        value.reads += self._reads.get(name, 0)

    def _read(self, known: Known | None) -> None:
        values = known.parts if isinstance(known, Joined) else (known.of if isinstance(known, Activated) else known,)
        for value in values:
            if isinstance(value, Value):
                value = value.whole or value
                value.reads -= 1
                self._memory.release(value)

    def _add(self, kind: Kind, of: Value, *words: float, share: Share = BY_ROWS) -> None:
        described = [word(each) for each in (int(kind), int(of.kept), *words)]
        self._words += described + [0] * (UNIT - len(described)) + [share.unit, int(share.split), 0, 0]


def real(node: NodeProto, name: str, default: float) -> float:
    """A floating-point attribute of a node."""
    return next((item.f for item in node.attribute if item.name == name), default)


OPERATIONS: Mapping[str, Callable[[Planner, NodeProto], None]] = {
    "Gather": Planner.look_up,
    "SimplifiedLayerNormalization": Planner.norm,
    "SkipSimplifiedLayerNormalization": Planner.skip_norm,
    "FusedMatMul": Planner.product,
    "Add": Planner.add,
    "GroupQueryAttention": Planner.attention,
    "Split": Planner.split,
    "Reshape": Planner.reshape,
    "Gelu": Planner.gelu,
    "Sigmoid": Planner.sigmoid,
    "QuickGelu": Planner.quick_gelu,
    "Mul": Planner.multiply,
    "Concat": Planner.concat,
    "Slice": Planner.keep,
}
"""How each operator of a graph becomes operations."""
