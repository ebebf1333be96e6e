"""Recorded decode steps made by hand, and a machine that carries out recorded and fused steps on vectors."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from capstan.tape import (
    BindGroup,
    Clear,
    Command,
    Copy,
    Dispatch,
    DispatchIndirect,
    FusedStep,
    Op,
    Pipeline,
    Recording,
    Write,
)
from capstan.tape.uniforms import uniform_values
from tests.unit.recorded_kernels import (
    KERNELS,
    Kernel,
    Number,
    Vector,
    attend,
    gated,
    normed,
    pack_uniforms,
    product,
    rotated,
)
from tests.unit.shader_declarations import declared_bindings

__all__ = ["Machine", "Recorded", "Sketch"]


@dataclass
class Call:
    """One operation of a sketch: tensors by the names of the kernel's bindings."""

    kernel: Kernel
    reads: dict[str, int]
    writes: dict[str, int]
    uniforms: Mapping[str, Number]
    counts: int | None = None
    """The tensor with the workgroup counts of an indirect dispatch."""
    copied: tuple[int, int, int] | None = None
    """For a copy: the number of elements, the first in the source and the first in the target."""


@dataclass
class Recorded:
    """A recorded step with everything that the simulator needs to run it."""

    recording: Recording
    ops: tuple[Command, ...]
    """The sketch's operations in their order, and clears."""
    kernels: Mapping[int, Kernel]
    """By pipeline."""
    lasting: frozenset[int]
    buffer_of: Mapping[int, int]
    """The buffer of each tensor."""
    initial: Mapping[int, Vector]
    """Contents of the buffers before the step; NaN in those that it keeps for itself."""


@dataclass
class Sketch:
    """A step over tensors, numbered in the order they are made, to be recorded over recycled buffers."""

    sizes: list[int] = field(default_factory=list)
    """Elements of each tensor."""
    given: dict[int, Vector] = field(default_factory=dict)
    """The contents of tensors before the step."""
    kept: set[int] = field(default_factory=set)
    """Tensors that outlive the step."""
    calls: list[Call] = field(default_factory=list)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(5))

    def tensor(self, size: int) -> int:
        self.sizes.append(size)
        return len(self.sizes) - 1

    def weights(self, size: int, around: float = 0.0) -> int:
        """Random numbers of about `around`, spread by 0.3."""
        made = self.tensor(size)
        self.given[made] = around + 0.3 * self.rng.standard_normal(size)
        return made

    def lasting(self, size: int, value: float = 0.0) -> int:
        made = self.tensor(size)
        self.given[made] = np.full(size, value)
        self.kept.add(made)
        return made

    def run(
        self,
        kernel: str | Kernel,
        reads: Mapping[str, int],
        writes: Mapping[str, int],
        uniforms: Mapping[str, Number] | None = None,
        into: Mapping[str, int] | None = None,
        counts: int | None = None,
    ) -> list[int]:
        """Append a call; `writes` gives the elements of new tensors, `into` tensors that are there. The tensors it
        writes, in order."""
        text = KERNELS[kernel] if isinstance(kernel, str) else kernel
        made = {name: self.tensor(size) for name, size in writes.items()} | dict(into or {})
        written = {name: made[name] for name in text.writes}
        self.calls.append(Call(text, {name: reads[name] for name in text.reads}, written, uniforms or {}, counts))
        return list(written.values())

    def copy(self, source: int, target: int, elements: int, from_: int = 0, to: int = 0) -> None:
        self.calls.append(
            Call(NOTHING, {"source": source}, {"target": target}, {}, copied=(elements, from_, to)),
        )

    def unknown(
        self, compute: Callable[..., Vector], reads: Sequence[int], size: int, into: int | None = None, first: int = 0
    ) -> int:
        """A kernel that nobody recognises: `compute` of the tensors it reads, from element `first` on."""
        names = tuple(f"in{i}" for i in range(len(reads)))

        def run(at: Mapping[str, Vector], _: Mapping[str, Any]) -> None:
            found = np.asarray(compute(*(at[name] for name in names)), dtype=np.float64).reshape(-1)
            assert found.size == size
            at["out"][first : first + size] = found

        kernel = Kernel(names, ("out",), (), (f"// {len(self.calls)}",), run)
        target = self.tensor(first + size) if into is None else into
        self.run(kernel, dict(zip(names, reads, strict=True)), {}, into={"out": target})
        return target

    def record(self, seed: int | None = None, clears: bool = True, recycle: bool = True) -> Recorded:
        """Give the tensors buffers as onnxruntime does: a temporary's is free after its last use, and cleared when it
        is handed out again. `seed` chooses among the free ones that are large enough; None takes the last freed."""
        rng = random.Random(seed)
        last: dict[int, int] = {}
        for i, call in enumerate(self.calls):
            last |= dict.fromkeys((*call.reads.values(), *call.writes.values(), *filter(None, [call.counts])), i)
        sizes: dict[int, int] = {}
        """Elements of each buffer."""
        buffer_of: dict[int, int] = {}
        free: list[int] = []

        def new(elements: int) -> int:
            buffer = 10 + len(sizes)
            sizes[buffer] = elements
            return buffer

        for tensor in self.given:
            buffer_of[tensor] = new(self.sizes[tensor])
        ops: list[Op] = []
        commands: list[Command] = []
        pipelines: dict[int, Pipeline] = {}
        kernels: dict[int, Kernel] = {}
        groups: dict[int, BindGroup] = {}
        numbers: dict[str, int] = {}
        for i, call in enumerate(self.calls):
            for tensor in call.writes.values():
                if tensor in buffer_of:
                    continue
                fitting = [b for b in free if sizes[b] >= self.sizes[tensor]] if recycle else []
                if not fitting:
                    buffer_of[tensor] = new(-(-self.sizes[tensor] // 16) * 16)
                    continue
                chosen = fitting[-1] if seed is None else rng.choice(fitting)
                free.remove(chosen)
                buffer_of[tensor] = chosen
                if clears:
                    commands.append(Clear(chosen, 0, 4 * sizes[chosen]))
            if call.copied:
                elements, from_, to = call.copied
                source, target = buffer_of[call.reads["source"]], buffer_of[call.writes["target"]]
                commands.append(Copy(source, 4 * from_, target, 4 * to, 4 * elements))
            else:
                code = call.kernel.code
                pipeline = numbers.setdefault(code, 1 + len(numbers))
                kernels[pipeline] = call.kernel
                bindings = call.kernel.bindings
                pipelines[pipeline] = Pipeline(
                    "recorded",
                    {(0, b): access for b, (_, access) in enumerate(bindings)},
                    code,
                    {(0, b): name for b, (name, _) in enumerate(bindings)},
                )
                tensors = call.reads | call.writes
                entries = [(b, buffer_of[tensors[n]], 0, 0) for b, (n, _) in enumerate(bindings) if n in tensors]
                if call.kernel.fields:
                    uniform = new(64)
                    ops.append(Write(uniform, 0, pack_uniforms(call.kernel.fields, call.uniforms)))
                    entries.append((len(bindings) - 1, uniform, 0, 0))
                groups[1000 + i] = BindGroup(tuple(entries))
                commands.append(
                    Dispatch(pipeline, (1000 + i,), 1, 1, 1)
                    if call.counts is None
                    else DispatchIndirect(pipeline, (1000 + i,), buffer_of[call.counts], 0)
                )
            done = {
                t for t in (*call.reads.values(), *call.writes.values(), *filter(None, [call.counts])) if last[t] == i
            }
            free += sorted(buffer_of[t] for t in done if t not in self.given)
        again = [op for op in commands if isinstance(op, Dispatch | DispatchIndirect)]
        recording = Recording(
            7, (*ops, *commands, *again), pipelines, groups, {buffer: 4 * size for buffer, size in sizes.items()}
        )
        initial = {buffer: np.full(size, np.nan) for buffer, size in sizes.items()}
        for tensor, value in self.given.items():
            initial[buffer_of[tensor]][: value.size] = value
        lasting = frozenset(buffer_of[tensor] for tensor in self.kept)
        return Recorded(recording, tuple(commands), kernels, lasting, buffer_of, initial)


NOTHING = Kernel(("source",), ("target",), (), (), lambda _at, _u: None)


class Machine:
    """Buffers of a recorded step, with the sampler's state beside them; carries out played operations."""

    def __init__(self, step: Recorded, length: int = 1) -> None:
        self.step = step
        self.memory = {buffer: value.copy() for buffer, value in step.initial.items()}
        self.uniforms = {
            buffer: uniform_values(step.kernels[op.pipeline].code, data)
            for buffer, data in step.recording.uploaded().items()
            for op in step.ops
            if isinstance(op, Dispatch | DispatchIndirect)
            and buffer in (entry[1] for group in op.groups for entry in step.recording.groups[group].entries)
        }
        self.length = length
        """Positions, the new token's included."""

    def spoil(self) -> None:
        """NaN into what a step keeps for itself."""
        for buffer in self.step.recording.private() - self.step.lasting:
            self.memory[buffer][:] = np.nan

    def kept(self) -> dict[int, Vector]:
        """Copies of the buffers that outlive a step."""
        return {buffer: self.memory[buffer].copy() for buffer in sorted(self.step.lasting)}

    def play_recorded(self) -> None:
        for op in self.step.ops:
            self.play(op.played(), (), (), ())

    def play_fused(self, fused: FusedStep) -> None:
        self.play_all(fused.played, fused.kernels, fused.scratch, fused.tables)

    def play_all(
        self, played: Sequence[Any], kernels: Sequence[Any], scratch: Sequence[int], tables: Sequence[bytes]
    ) -> None:
        """Carry out a tape, its scratch full of NaN."""
        vectors = [np.full(size // 4, np.nan) for size in scratch]
        rows = [np.frombuffer(table, np.uint32).reshape(-1, 3) for table in tables]
        for op in played:
            self.play(op, kernels, vectors, rows)

    def play(self, op: Sequence[Any], kernels: Any, scratch: Any, tables: Any) -> None:
        match op:
            case ["dispatch", pipeline, groups, *_]:
                self.dispatch(pipeline, groups)
            case ["indirect", pipeline, groups, buffer, offset]:
                counts = self.memory[buffer][offset // 4 : offset // 4 + 3]
                assert (counts >= 1).all(), f"workgroup counts {counts}"
                self.dispatch(pipeline, groups)
            case ["table", pipeline, groups, table]:
                assert (tables[table][self.length] >= 1).all()
                self.dispatch(pipeline, groups)
            case ["copy", source, from_, target, to, size]:
                assert source != target
                self.memory[target][to // 4 : (to + size) // 4] = self.memory[source][from_ // 4 : (from_ + size) // 4]
            case ["clear", buffer, offset, size]:
                self.memory[buffer][offset // 4 : (offset + size) // 4] = 0
            case ["kernel", index, x, y, z]:
                assert x * y * z > 0
                self.fused(kernels[index], scratch, (x, y, z))
            case ["kernel table", index, table]:
                count = tables[table][self.length]
                self.fused(kernels[index], scratch, (int(count[0]), int(count[1]), int(count[2])))
            case _:
                raise AssertionError(f"{op} cannot be played")

    def witness(
        self, spec: Mapping[str, Any], played: Sequence[Any], fused: Mapping[str, Any], tables: Sequence[bytes]
    ) -> bytes:
        """Carry out a WitnessSpec with a tape; what it reads back."""
        own = [np.full(size // 4, np.nan) for size in spec["kernels"]["scratch"]]
        scratch = [np.full(size // 4, np.nan) for size in fused["scratch"]]
        rows = [np.frombuffer(table, np.uint32).reshape(-1, 3) for table in tables]

        def copy(after: int) -> None:
            for at, kind, number, size, offset in spec["copies"]:
                if at == after:
                    source = self.memory[number] if kind == "recorded" else scratch[number]
                    own[0][offset // 4 : (offset + size) // 4] = source[: size // 4]

        def run(first: int, end: int) -> None:
            for kernel, counts in zip(spec["kernels"]["kernels"][first:end], spec["counts"][first:end], strict=True):
                self.fused(kernel, own, counts)

        run(0, spec["before"])
        copy(-1)
        for index, op in enumerate(played):
            self.play(op, fused["kernels"], scratch, rows)
            copy(index)
        run(spec["before"], len(spec["counts"]))
        number, size = spec["results"]
        results = own[number][: size // 4].reshape(-1, 64)[:, :6] if size else []
        return b"".join(struct.pack("<4f2I", *row[:4], int(row[4]), int(row[5])).ljust(256, b"\0") for row in results)

    def dispatch(self, pipeline: int, groups: Sequence[int]) -> None:
        kernel = self.step.kernels[pipeline]
        at: dict[str, Vector] = {}
        uniforms: Mapping[str, Any] = {}
        written: set[int] = set()
        read: set[int] = set()
        for group in groups:
            for binding, buffer, _, _ in self.step.recording.groups[group].entries:
                name, access = kernel.bindings[binding]
                if access == "uniform":
                    uniforms = self.uniforms[buffer]
                else:
                    at[name] = self.memory[buffer]
                    (written if access == "read_write" else read).add(buffer)
        assert not written & read, "WebGPU allows no buffer to be read and written by one dispatch"
        kernel.compute(at, uniforms)

    def fused(self, kernel: Mapping[str, Any], scratch: Sequence[Vector], counts: tuple[int, int, int]) -> None:
        constants = kernel["constants"]
        declared = declared_bindings(kernel)
        assert {name for name, _ in declared} == kernel["bindings"].keys()
        at: dict[str, Vector] = {}
        written: list[tuple[Any, ...]] = []
        read: list[tuple[Any, ...]] = []
        for name, access in declared:
            binding = kernel["bindings"][name]
            match binding:
                case ["recorded", buffer]:
                    at[name] = self.memory[buffer]
                case ["scratch", number]:
                    at[name] = scratch[number]
                case ["part", number, offset, size]:
                    at[name] = scratch[number][offset // 4 : (offset + size) // 4]
                case ["span", *_]:
                    at[name] = np.array([self.length], float)
            (written if access == "read_write" else read).append(tuple(binding))
        assert not set(written) & set(read), "WebGPU allows no buffer to be read and written by one dispatch"
        assert len(set(written)) == len(written), "a buffer is bound twice to be written"
        OURS[kernel["shader"]](at, constants, counts)


def before(at: Mapping[str, Vector], c: Mapping[str, Any]) -> tuple[Vector, Vector]:
    """The sum that a product's norm reads, and the vector that its weights multiply."""
    total = x = at["x"][: c["K"]]
    if "gamma_inner" in at:
        total = x = at["skip"][: c["K"]] + normed(x, at["gamma_inner"], c["EPSILON_INNER"])
    x = x - x.mean() if "beta" in at else x
    x = normed(x, at["gamma"], c["EPSILON"]) if "gamma" in at else x
    return total, x + at["beta"][: c["K"]] if "beta" in at else x


def behind(at: Mapping[str, Vector], c: Mapping[str, Any], y: Vector, up: Vector | None) -> Vector:
    """The result of a product after its bias, activation, factor and sums."""
    n = c["N"]
    y = y + at["bias"][:n] if "bias" in at else y
    if "exponent" in at:
        y = np.maximum(y, 0) ** at["exponent"][0]
    elif up is not None or c["ACTIVATED"]:
        y = gated(y, np.ones(n) if up is None else up, c["GELU"], c["ERF"])
    if "factor" in at:
        factor = at["factor"][0]
        y = np.tanh(y / factor) * factor if c["CAPPED"] else y / factor if c["DIVIDED"] else y * factor
    y = y + at["residual"][:n] if "residual" in at else y
    return y + at["second"][:n] if "second" in at else y


def below(minima: str, at: Mapping[str, Vector], x: Vector, n: int, block: int) -> Vector:
    """The share of a product that its weights' minima add, if there are any."""
    sums = x.reshape(-1, block).sum(axis=1)
    return np.asarray(sums @ at[minima][: sums.size * n].reshape(-1, n) if minima in at else np.zeros(n))


def matvec_q4(at: Mapping[str, Vector], c: Mapping[str, Any], counts: tuple[int, int, int]) -> None:
    if counts[0] == 0:
        return
    n, k, block = c["N"], c["K"], c["BLOCK"]
    if "partials" in at:
        joined = {**c, "BLOCK": c["POSITIONS"], "ALONE_WRITES": True, "WHOLE": False}
        attention_join({"partials": at["partials"], "state": at["state"], "y": at["attended"]}, joined, counts)
        at = {**at, "x": at["attended"]}
    assert c["PREPARED"] == ("gamma_inner" in at or "beta" in at or c["WIDE"])
    total, x = before(at, c)
    assert c["SIXTEENS"] == (block == 16)
    in_byte = 1 if c["BYTES"] else 2
    odd = -(k // block) % in_byte
    y = product(at["weights"], at["scales"], x, n, k, block, at.get("zeros"), odd) + below("minima", at, x, n, block)
    up = None
    if "weights_up" in at:
        up = product(at["weights_up"], at["scales_up"], x, n, k, block, at.get("zeros_up"), odd)
        up = up + below("minima_up", at, x, n, block)
        up = up + at["bias_up"][:n] if "bias" in at else up
    up = at["up"][:n] if "up" in at else up
    first = c["FIRST"]
    assert at["y"].size >= first + n
    at["y"][first : first + n] = behind(at, c, y, up)
    if "total" in at:
        assert at["total"].size >= k
        at["total"][:k] = total


def matvec_dense(at: Mapping[str, Vector], c: Mapping[str, Any], counts: tuple[int, int, int]) -> None:
    n, k = c["N"], c["K"]
    assert counts[0] * c["COLUMNS"] * 4 >= n
    x = at["x"][:k]
    x = normed(x, at["gamma"], c["EPSILON"]) if "gamma" in at else x
    y = x @ at["weights"][: k * n].reshape(k, n)
    up = None
    if "weights_up" in at:
        up = x @ at["weights_up"][: k * n].reshape(k, n)
        up = up + at["bias_up"][:n] if "bias" in at else up
    first = c["FIRST"]
    assert at["y"].size >= first + n
    at["y"][first : first + n] = behind(at, c, y, up)


def norm_rows(at: Mapping[str, Vector], c: Mapping[str, Any], counts: tuple[int, int, int]) -> None:
    assert counts == (1, 1, 1)
    total, at["normed"][: c["K"]] = before(at, c)
    if "total" in at:
        at["total"][: c["K"]] = total


def heads_normed(rows: Vector, gamma: str, at: Mapping[str, Vector], c: Mapping[str, Any]) -> Vector:
    return np.array([normed(row, at[gamma], c["EPSILON"]) for row in rows]) if gamma in at else rows


def attention(at: Mapping[str, Vector], c: Mapping[str, Any], counts: tuple[int, int, int]) -> None:
    heads, kv, head, capacity = c["HEADS"], c["KV_HEADS"], c["HEAD"], c["CAPACITY"]
    length = capacity if c["WHOLE"] else int(at["state"][0])
    asked = c["QUERY_HEAD"] // head
    packed = asked * heads if c["WRITTEN"] else asked * heads + 2 * kv
    q, k, v = np.split(at["qkv"][: packed * head].reshape(-1, head), [asked * heads, asked * heads + kv])
    q = q[::asked]
    keys, values = (
        at[name][: kv * capacity * head].reshape(kv, capacity, head) for name in ("key_cache", "value_cache")
    )
    q, k = (heads_normed(rows, name, at, c) for rows, name in ((q, "q_gamma"), (k, "k_gamma")))
    if not c["WRITTEN"]:
        keys[:, length - 1] = rotated(k, at["cos_cache"], at["sin_cache"], length - 1, c["ROTARY"], c["INTERLEAVED"])
        values[:, length - 1] = heads_normed(v, "v_gamma", at, c)
    if not c["PREPARED"]:
        q = rotated(q, at["cos_cache"], at["sin_cache"], length - 1, c["ROTARY"], c["INTERLEAVED"])
    assert not c["SOFTCAPPED"]
    totals, sums, largest = attend(q, keys, values, length, c["SCALE"], c["WINDOW"])
    if "head_sink" in at:
        sums = sums + np.exp(at["head_sink"][:heads] - largest)
    result = (totals / sums[:, None]).reshape(-1)
    assert at["partials"].size == heads * c["MAX_SPLITS"] * (4 + head)
    splits = splits_of(c, length)
    assert counts[0] >= splits
    target = at["y"] if splits == 1 and "y" in at else at["partials"]
    assert target.size >= result.size
    target[: result.size] = result
    if "y" not in at:
        target[result.size :][:heads], target[result.size + heads :][:heads] = sums, largest


def attention_join(at: Mapping[str, Vector], c: Mapping[str, Any], counts: tuple[int, int, int]) -> None:
    if counts[0] == 0:
        return
    length = c["WINDOW"] if c["WHOLE"] else int(at["state"][0])
    assert splits_of(c, length) > 1 or not c["ALONE_WRITES"]
    heads, size = c["HEADS"], c["HEADS"] * c["HEAD"]
    result = at["partials"][:size]
    if "head_sink" in at:
        sums, largest = at["partials"][size:][:heads], at["partials"][size + heads :][:heads]
        shares = sums / (sums + np.exp(at["head_sink"][:heads] - largest))
        result = (result.reshape(heads, -1) * shares[:, None]).reshape(-1)
    at["y"][:size] = result


def add_position(at: Mapping[str, Vector], c: Mapping[str, Any], counts: tuple[int, int, int]) -> None:
    first = c["K"] * (int(at["state"][0]) - 1)
    at["y"][: c["K"]] = at["x"][: c["K"]] + at["table"][first : first + c["K"]]


def convolution(at: Mapping[str, Vector], c: Mapping[str, Any], counts: tuple[int, int, int]) -> None:
    channels, taps = c["CHANNELS"], c["TAPS"]
    assert 64 * counts[0] >= channels
    assert c["POSITIONS"] == 1
    x = at["x"][: (3 if c["GATED"] else 1) * channels].reshape(-1, channels)
    past = at["past"][: channels * (taps - 1)].reshape(channels, taps - 1)
    inputs = np.concatenate([past, (x[0] * x[2] if c["GATED"] else x[0])[:, None]], axis=1)
    y = (inputs * at["weight"][: inputs.size].reshape(inputs.shape)).sum(axis=1)
    y = y + at["bias"][:channels] if "bias" in at else y
    y = gated(y, np.ones(channels)) if c["ACTIVATED"] else y
    at["y"][:channels] = x[1] * y if c["GATED"] else y
    past[:] = inputs[:, 1:]


def delta_rule(at: Mapping[str, Vector], c: Mapping[str, Any], counts: tuple[int, int, int]) -> None:
    groups, heads, key, value = c["KEY_HEADS"], c["HEADS"], c["KEY"], c["VALUE"]
    assert (4 * counts[0] * c["QUADS"], counts[1], c["TEAMS"] * c["SHARE"]) == (value, heads, key)
    assert c["POSITIONS"] == 1
    q, k, v = np.split(at["x"][: 2 * groups * key + heads * value], [groups * key, 2 * groups * key])
    q, k = (
        np.repeat(rows / np.sqrt(np.sum(rows * rows, axis=1, keepdims=True) + c["EPSILON"] * key), heads // groups, 0)
        for rows in (q.reshape(groups, key), k.reshape(groups, key))
    )
    q = q * at["factor"][0] if "factor" in at else q
    state = at["past"][: heads * key * value].reshape(heads, key, value)
    state *= np.exp(at["rate"][:heads] * np.logaddexp(0, at["decay"][:heads] + at["bias"][:heads]))[:, None, None]
    learned = v.reshape(heads, value) - np.einsum("hkv,hk->hv", state, k)
    state += k[..., None] * (learned / (1 + np.exp(-at["step"][:heads, None])))[:, None]
    at["y"][: heads * value] = c["SCALE"] * np.einsum("hkv,hk->hv", state, q).reshape(-1)


def gated_head_norm(at: Mapping[str, Vector], c: Mapping[str, Any], counts: tuple[int, int, int]) -> None:
    size = c["HEADS"] * c["HEAD"]
    assert counts == (c["HEADS"], 1, 1)
    rows = np.array([normed(row, at["gamma"], c["EPSILON"]) for row in at["x"][:size].reshape(-1, c["HEAD"])])
    at["y"][:size] = gated(at["gate"][:size], rows.reshape(-1))


def head_gate(at: Mapping[str, Vector], c: Mapping[str, Any], counts: tuple[int, int, int]) -> None:
    heads, size = c["HEADS"], c["HEADS"] * c["HEAD"]
    assert 64 * counts[0] >= size
    assert at["qkv"].size >= c["WIDTH"]
    gates = at["qkv"][: 2 * size].reshape(heads, 2, -1)[:, 1].reshape(-1)
    at["y"][:size] = at["x"][:size] / (1 + np.exp(-gates))


def splits_of(c: Mapping[str, Any], length: int) -> int:
    blocks = -(-min(length, int(c["WINDOW"])) // int(c["BLOCK"]))
    return 1 if blocks <= c["ALONE"] else min(blocks, int(c["MAX_SPLITS"]))


def truth_gemv(at: Mapping[str, Vector], c: Mapping[str, Any], counts: tuple[int, int, int]) -> None:
    n, k = c["N"], c["K"]
    assert 64 * counts[0] >= n
    total, x = before(at, c)
    if "weights" not in at:
        at["truth"][: 2 * n] = np.stack([total, 2 * abs(total)], axis=1).reshape(-1)
        return

    def rows(weights: str, scales: str) -> Vector:
        if "scales" not in at:
            return at[weights][: k * n].reshape(k, n).T
        return np.stack([product(at[weights], at[scales], unit, n, k, c["BLOCK"]) for unit in np.eye(k)], axis=1)

    w = rows("weights", "scales")
    if "minima" in at:
        w = w + np.repeat(at["minima"][: k // c["BLOCK"] * n].reshape(-1, n), c["BLOCK"], axis=0).T
    y, spread = w @ x, np.sqrt((w * x) ** 2 @ np.ones(k)) + abs(w @ x)
    up, up_spread = at["up"][: 2 * n].reshape(n, 2).T if "up" in at else (np.ones(n), np.zeros(n))
    made = behind(at, c, y, up if "up" in at else None)
    y, spread = made, spread * (1 + abs(up)) + abs(y) * up_spread + abs(made)
    first = c["FIRST"]
    at["truth"][2 * first : 2 * (first + n)] = np.stack([y, spread], axis=1).reshape(-1)
    if "y" in at:
        at["y"][first : first + n] = y


def truth_attention(at: Mapping[str, Vector], c: Mapping[str, Any], counts: tuple[int, int, int]) -> None:
    heads, kv, head, capacity = c["HEADS"], c["KV_HEADS"], c["HEAD"], c["CAPACITY"]
    length = int(at["state"][0])
    q, k, v = np.split(at["qkv"][: (heads + 2 * kv) * head].reshape(-1, head), [heads, heads + kv])
    k, v = heads_normed(k, "k_gamma", at, c), heads_normed(v, "v_gamma", at, c)
    if "scores" not in at:
        for start, made in (
            (0, rotated(k, at["cos_cache"], at["sin_cache"], length - 1, c["ROTARY"], c["INTERLEAVED"])),
            (c["VALUES_AT"], v),
        ):
            truth = np.stack([made.reshape(-1), abs(made.reshape(-1))], axis=1).reshape(-1)
            at["truth"][2 * start : 2 * start + truth.size] = truth
    elif "key_cache" in at:
        keys = at["key_cache"][: kv * capacity * head].reshape(kv, capacity, head)[:, :length].copy()
        keys[:, -1] = rotated(k, at["cos_cache"], at["sin_cache"], length - 1, c["ROTARY"], c["INTERLEAVED"])
        q = rotated(
            heads_normed(q, "q_gamma", at, c),
            at["cos_cache"],
            at["sin_cache"],
            length - 1,
            c["ROTARY"],
            c["INTERLEAVED"],
        )
        scores = np.einsum("hd,htd->ht", q, np.repeat(keys, heads // kv, axis=0)) * c["SCALE"]
        pairs = np.stack([scores, abs(scores) + 1], axis=2)
        at["scores"][: heads * c["LONGEST"] * 2].reshape(heads, c["LONGEST"], 2)[:, :length] = pairs
    else:
        values = at["value_cache"][: kv * capacity * head].reshape(kv, capacity, head)[:, :length].copy()
        values[:, -1] = v
        scores = at["scores"][: heads * c["LONGEST"] * 2].reshape(heads, c["LONGEST"], 2)[:, :length, 0].copy()
        scores[:, : length - min(length, c["WINDOW"])] = -np.inf
        largest = scores.max(axis=1, keepdims=True)
        weights = np.exp(scores - largest)
        sinks = np.exp(at["head_sink"][:heads, None] - largest) if "head_sink" in at else 0
        weights /= weights.sum(axis=1, keepdims=True) + sinks
        y = np.einsum("ht,htd->hd", weights, np.repeat(values, heads // kv, axis=0)).reshape(-1)
        at["truth"][: 2 * y.size] = np.stack([y, abs(y) + 1], axis=1).reshape(-1)


def judge(at: Mapping[str, Vector], c: Mapping[str, Any], counts: tuple[int, int, int]) -> None:
    truth = at["truth"].reshape(-1, 2)
    y = at["y"]
    if c["ROWS"]:
        y = y.reshape(-1, c["CAPACITY"], c["HEAD"])[:, int(at["state"][0]) - 1].reshape(-1)
    y = y[: len(truth)]
    with np.errstate(invalid="ignore"):
        ratio = np.nan_to_num(abs(y - truth[:, 0]) / (c["UNIT"] * truth[:, 1] + c["FLOOR"]))
    unlike = np.isfinite(y) != np.isfinite(truth[:, 0])
    worst = int(unlike.argmax() if unlike.any() else ratio.argmax())
    found = [ratio.max(), (ratio**2).mean(), y[worst], truth[worst, 0], worst, unlike.sum()]
    at["result"][:6] = np.clip(found, -3e38, 3e38)


def cache_rows(at: Mapping[str, Vector], c: Mapping[str, Any], counts: tuple[int, int, int]) -> None:
    cache = at["cache"].reshape(-1, c["CAPACITY"], c["WORDS"])
    position = int(at["state"][0]) - 1
    for row in range(c["FILLED"], position) if c["REPEAT"] else ():
        cache[:, row] = cache[:, row % c["FILLED"]]
    cache[:, position:] = np.array([c["WORD"]], np.uint32).view(np.float32)[0]


OURS: dict[str, Callable[[Mapping[str, Vector], Mapping[str, Any], tuple[int, int, int]], None]] = {
    "judge": judge,
    "rows": cache_rows,
    "truth_attention": truth_attention,
    "truth_gemv": truth_gemv,
    "matvec_dense": matvec_dense,
    "norm_rows": norm_rows,
    "matvec_q4": matvec_q4,
    "attention": attention,
    "attention_join": attention_join,
    "add_position": add_position,
    "convolution": convolution,
    "delta_rule": delta_rule,
    "gated_head_norm": gated_head_norm,
    "head_gate": head_gate,
}
