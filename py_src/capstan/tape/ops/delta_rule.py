"""Defines linear attention of one token by the gated delta rule (Yang et al., arXiv:2412.06464), and the norm of its
heads with a gate, as Qwen3.5 has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd

from ..kernel_plan import KernelPlan, WorkgroupLimits
from ..operation import ELEMENT_BYTES, Binding, Buffer, Kernel, Operation, Value
from ..ort_kernels import Met, Rules
from ..step_graph import StepGraph
from ..witness import Witness
from .attention_signatures import HEAD_NORMS
from .convolution import sizes
from .gemv import MatVec
from .state_signatures import STATES
from .traced import Traced

__all__ = ["RULES", "DeltaRule", "GatedHeadNorm"]

QUADS, TEAMS = 8, 16
"""The most vectors of four values that a workgroup takes, and the most threads that share the keys of one."""


@dataclass(frozen=True)
class DeltaRule(Operation):
    """The gated delta rule. reads[0] is q, k and v, one after another; the next ones are, for each head of v, the input
    of its decay, d, and that of its step size, b, in one vector if they are `paired`, else in two; the last one is the
    state, a matrix for each head. It writes the results and the new state.

    q and k are divided by their lengths, q also multiplied by the number in `factor`. A head's state S decays by
    exp(rate * softplus(d + bias)); then k (v - S k) sigmoid(b) is added; its result is `scale` * S q.
    """

    key_heads: int
    heads: int
    """Heads of v, each with a state."""
    key: int
    """Elements of a head of q and of k."""
    value: int
    """Elements of a head of v."""
    scale: float
    epsilon: float
    """The number added to the mean of the squares of q and of k."""
    bias: int
    """A buffer of float32 [heads]; so is `rate`."""
    rate: int
    factor: int | None
    past: int
    """The recorded buffer of the state, [heads, key, value]."""
    present: int
    """The recorded buffer of the new state."""
    element: str
    state: str
    """The element type of the state."""
    turns: bool = False
    """Whether heads of v take those of q and k in turns, as in GGUF files, instead of neighbours sharing one."""
    paired: bool = False
    positions: int = 1
    """The number of successive positions that the step runs. If it is above 1, `past` keeps the state before the first
    position, and `present` gets the state after each position.
    """

    @property
    def in_place(self) -> frozenset[int]:
        return frozenset({self.past})

    @property
    def title(self) -> str:
        return f"linear attention of {self.heads} heads"

    @property
    def terms(self) -> int:
        return self.key

    def written_bytes(self, index: int) -> int:
        if index:
            return self.positions * self.heads * self.key * self.value * ELEMENT_BYTES[self.state]
        return self.positions * self.heads * self.value * ELEMENT_BYTES[self.element]

    @property
    def _inputs(self) -> tuple[str, ...]:
        """The template's name of each read but the state."""
        return ("x", "decay") if self.paired else ("x", "decay", "step")

    @property
    def _constants(self) -> dict[str, int | float | bool]:
        return {
            "KEY_HEADS": self.key_heads,
            "HEADS": self.heads,
            "KEY": self.key,
            "VALUE": self.value,
            "SCALE": self.scale,
            "EPSILON": self.epsilon,
            "WIDE": self.state != self.element,
            "TURNS": self.turns,
        }

    def kernels(self, reads: Sequence[int], writes: Sequence[int], limits: WorkgroupLimits) -> list[Kernel]:
        quads = gcd(self.value // 4, QUADS)
        teams = gcd(self.key, TEAMS)
        constants: dict[str, int | float | bool] = {
            **self._constants,
            "QUADS": quads,
            "TEAMS": teams,
            "WORKGROUP": quads * teams,
            "SHARE": self.key // teams,
            "POSITIONS": self.positions,
        }
        bindings: dict[str, Binding] = {
            **{name: Value(read) for name, read in zip(self._inputs, reads, strict=False)},
            "bias": Buffer(self.bias),
            "rate": Buffer(self.rate),
            "past": Buffer(self.past),
            "y": Value(writes[0]),
        }
        if self.factor is not None:
            bindings["factor"] = Buffer(self.factor)
        if self.positions > 1:
            bindings["kept"] = Buffer(self.present)
        plan = KernelPlan("delta_rule", constants, (self.value // 4 // quads, self.heads, 1))
        return [Kernel(plan, self.element == "f16", bindings)]

    def truth(self, witness: Witness, reads: Sequence[int], writes: Sequence[int]) -> None:
        """Several positions have no truth: their step is compared with steps of one."""
        if self.positions > 1:
            return
        each, width = ELEMENT_BYTES[self.element], self.heads * self.value
        truth = witness.truths(width)
        sizes = {
            "x": 2 * self.key_heads * self.key + width,
            "decay": self.heads * (1 + self.paired),
            "step": self.heads,
        }
        bindings = {
            **{name: witness.keep(at, sizes[name] * each) for name, at in zip(self._inputs, reads, strict=False)},
            "bias": ["recorded", self.bias],
            "rate": ["recorded", self.rate],
            "past": witness.keep(reads[-1], self.written_bytes(1)),
            "truth": truth,
        }
        if self.factor is not None:
            bindings["factor"] = ["recorded", self.factor]
        counts = (-(-width // 64), 1, 1)
        witness.run("truth_delta_rule", self._constants, self.element == "f16", bindings, counts)
        witness.judge("result", self.element, witness.keep(writes[0], self.written_bytes(0)), truth)


@dataclass(frozen=True)
class GatedHeadNorm(Operation):
    """The RMS norm of each head of reads[0], times silu(reads[1]); `gamma` is a buffer of weights, [head]."""

    heads: int
    head: int
    gamma: int
    epsilon: float
    element: str
    rows: int = 1

    @property
    def title(self) -> str:
        return f"the gated norm of {self.heads} heads"

    @property
    def terms(self) -> int:
        return self.head

    def written_bytes(self, index: int) -> int:
        return self.rows * self.heads * self.head * ELEMENT_BYTES[self.element]

    def kernels(self, reads: Sequence[int], writes: Sequence[int], limits: WorkgroupLimits) -> list[Kernel]:
        constants: dict[str, int | float | bool] = {"HEADS": self.heads, "HEAD": self.head, "EPSILON": self.epsilon}
        bindings: dict[str, Binding] = {
            "x": Value(reads[0]),
            "gate": Value(reads[1]),
            "gamma": Buffer(self.gamma),
            "y": Value(writes[0]),
        }
        plan = KernelPlan("gated_head_norm", constants, (self.heads, self.rows, 1))
        return [Kernel(plan, self.element == "f16", bindings)]

    def truth(self, witness: Witness, reads: Sequence[int], writes: Sequence[int]) -> None:
        """Several rows have no truth: their step is compared with steps of one."""
        if self.rows > 1:
            return
        size, width = self.written_bytes(0), self.heads * self.head
        truth = witness.truths(width)
        bindings = {"gamma": ["recorded", self.gamma], "truth": truth}
        bindings |= {name: witness.keep(read, size) for name, read in zip(("x", "gate"), reads, strict=True)}
        constants: dict[str, int | float | bool] = {"HEADS": self.heads, "HEAD": self.head, "EPSILON": self.epsilon}
        witness.run("truth_head", constants, self.element == "f16", bindings, (-(-width // 64), 1, 1))
        witness.judge("result", self.element, witness.keep(writes[0], size), truth)


def recurrences_joined(graph: StepGraph, met: Mapping[int, Met]) -> StepGraph:
    """Turn linear attention, what prepares its inputs and the copy of its state into one operation, and the norm and
    the gate after it into another.
    """
    traced = Traced(graph, met)
    for found in met.values():
        if found.kernel.kind == "recurrence":
            join_recurrence(traced, found)
        elif found.kernel.kind in HEAD_NORMS:
            join_norm(traced, found)
    return traced.result()


def join_recurrence(traced: Traced, found: Met) -> None:
    kernel, at = found.kernel, found.kernel.at
    copy = traced.carried(at["initial_state"], found.written("present_state"))
    step = traced.maker(found.read("beta"), "sigmoid")
    decay = decay_of(traced, found)
    vectors = vectors_of(traced, found)
    if copy is None or step is None or decay is None or vectors is None:
        return
    parts, split, factor, norm = vectors
    kernels, source, bias, rate = decay
    what = DeltaRule(
        norm.kernel.number("norm_count"),
        kernel.number("num_heads"),
        kernel.number("head_dim_k"),
        4 * kernel.number("head_dim_v"),
        kernel.real("scale"),
        norm.kernel.real("epsilon"),
        bias,
        rate,
        factor,
        at["initial_state"],
        at["present_state"],
        norm.kernel.element,
        kernel.element or "f32",
        turns=any(each.kernel.kind == "concat" for each in parts),
    )
    keys = what.key_heads * what.key
    if sizes(split.kernel.uniforms["segment_sizes"]) != (keys, keys, what.heads * what.value):
        return
    paired = pair_products(traced, source, step.read("x"))
    gates = (source, step.read("x")) if paired is None else (paired,)
    reads = (split.read("input"), *gates, found.read("initial_state"))
    writes = (found.written("output"), copy.writes[0])
    traced.join(replace(what, paired=paired is not None), reads, writes, split, *parts, step, *kernels, found)
    traced.drop(copy, at["present_state"], found)


def pair_products(traced: Traced, first: int, second: int) -> int | None:
    """Let one product make two small vectors that dense products of one input make, and return the value of both, the
    first one before the other; None for other products.
    """
    found = [traced.maker(value, "matmul") for value in (first, second)]
    made = [traced.makers.get(value) for value in (first, second)]
    one, two = found
    products = [node.what for node in made if node is not None and isinstance(node.what, MatVec)]
    if one is None or two is None or len(products) != len(found) or one.read("a") != two.read("a"):
        return None
    what, other = products
    if (what.n, what.element) != (other.n, other.element):
        return None
    value = one.values.fresh()
    both = replace(what, up=(other.weights, None), paired=True, of=2 * what.n)
    traced.join(both, (one.read("a"),), (value,), *sorted((one, two), key=lambda met: met.index))
    return value


def decay_of(traced: Traced, found: Met) -> tuple[list[Met], int, int, int] | None:
    """The kernels that compute the logarithm of the decay, rate * softplus(x + bias): these kernels, x, and the buffers
    of bias and rate. In float16 two of them are casts.
    """
    kernels: list[Met] = []

    def before(value: int, *kinds: str) -> Met | None:
        kernel = traced.maker(value, *kinds)
        kernels.extend([kernel] if kernel is not None else [])
        return kernel

    last = before(found.read("decay"), "multiply", "cast_to_f16")
    if last is not None and last.kernel.kind == "cast_to_f16":
        last = before(last.read("x"), "multiply")
    by_rate = with_constant(traced, last)
    soft = before(by_rate[0], "softplus") if by_rate is not None else None
    total = before(soft.read("x"), "add") if soft is not None else None
    by_bias = with_constant(traced, total)
    if by_rate is None or by_bias is None:
        return None
    source = by_bias[0]
    cast = before(source, "cast_to_f32")
    return kernels, source if cast is None else cast.read("x"), by_bias[1], by_rate[1]


def with_constant(traced: Traced, kernel: Met | None) -> tuple[int, int] | None:
    """The operand that the step makes and the buffer of the other one, which is a weight, of a kernel with two
    operands.
    """
    operands = [] if kernel is None else [kernel.read("input_a"), kernel.read("input_b")]
    buffers = [traced.constant(value) for value in operands]
    made = [value for value, buffer in zip(operands, buffers, strict=True) if buffer is None]
    weights = [buffer for buffer in buffers if buffer is not None]
    return (made[0], weights[0]) if len(made) == len(weights) == 1 else None


def vectors_of(traced: Traced, found: Met) -> tuple[list[Met], Met, int | None, Met] | None:
    """The kernels between the vector of q, k and v and linear attention; the one that splits this vector, the buffer of
    the factor of q, and a norm of q.
    """
    kernels: list[Met] = []

    def before(value: int, *kinds: str) -> Met | None:
        kernel = traced.maker(value, *kinds)
        kernels.extend([kernel] if kernel is not None else [])
        return kernel

    query, factor = found.read("query"), None
    times = before(query, "scale")
    if times is not None:
        query, factor = times.read("input_a"), times.kernel.at["input_b"]
    repeats = [before(value, "concat") for value in (query, found.read("key"))]
    sources = [
        value if repeat is None else repeated(repeat)
        for value, repeat in zip((query, found.read("key")), repeats, strict=True)
    ]
    norms = [None if value is None else before(value, *HEAD_NORMS) for value in sources]
    if norms[0] is None or norms[1] is None:
        return None
    number, times_each = found.kernel.number, {1 if each is None else parts_of(each) for each in repeats}
    if len(times_each) != 1 or number("q_num_heads") % min(times_each):
        return None
    shape = {"norm_count": number("q_num_heads") // min(times_each), "norm_size": number("head_dim_k")}
    alike = norms[0].kernel.real("epsilon") == norms[1].kernel.real("epsilon")
    if not alike or any(norm.kernel.number(name) != size for norm in norms if norm for name, size in shape.items()):
        return None
    turns = [before(value, "turned_vector") for value in (norms[0].read("x"), norms[1].read("x"), found.read("value"))]
    splits = [None if turn is None else traced.maker(turn.read("a"), "qkv_split") for turn in turns]
    split = splits[0]
    if split is None or any(each != split for each in splits):
        return None
    taken = [turn.read("a") for turn in turns if turn is not None]
    return (kernels, split, factor, norms[0]) if taken == [split.written(f"output_{i}") for i in range(3)] else None


def parts_of(concat: Met) -> int:
    """The number of vectors that a kernel concatenates."""
    return sum(name.startswith("input_") for name in concat.kernel.at)


def repeated(concat: Met) -> int | None:
    """The value that a kernel concatenates with itself; None if it concatenates others."""
    values = {concat.read(f"input_{place}") for place in range(parts_of(concat))}
    return values.pop() if len(values) == 1 else None


def silu_of(traced: Traced, value: int) -> tuple[list[Met], int] | None:
    """The kernels that compute the silu of a vector, in one or with a sigmoid apart, and the vector."""
    whole = traced.maker(value, "silu")
    if whole is not None:
        return [whole], whole.read("x")
    times = traced.maker(value, "multiply")
    for name, other in (("input_a", "input_b"), ("input_b", "input_a")):
        sigmoid = None if times is None else traced.maker(times.read(name), "sigmoid")
        if times is not None and sigmoid is not None and sigmoid.read("x") == times.read(other):
            return [sigmoid, times], sigmoid.read("x")
    return None


def join_norm(traced: Traced, norm: Met) -> None:
    """Join the norm of each head of linear attention with the gate after it: silu of another vector."""
    kernel = norm.kernel
    last = traced.reader(norm.written("y"), "multiply")
    if last is None or traced.maker(norm.read("x"), "recurrence") is None:
        return
    gates = [last.read(name) for name in ("input_a", "input_b") if last.read(name) != norm.written("y")]
    gate = silu_of(traced, gates[0]) if len(gates) == 1 else None
    heads, head = kernel.number("norm_count"), kernel.number("norm_size")
    if gate is None or last.kernel.number("element_count") != heads * head:
        return
    what = GatedHeadNorm(heads, head, kernel.at["scale"], kernel.real("epsilon"), kernel.element)
    kernels, source = gate
    traced.join(what, (norm.read("x"), source), (last.written("output"),), norm, *kernels, last)


RULES = Rules(groups={STATES: recurrences_joined})
