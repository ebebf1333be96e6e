"""A fused tape is used only after it did what an eager step does; else the recorded kernels are, and it is told."""

from __future__ import annotations

import asyncio
import math
import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import pytest

from capstan import DeviceLostError, FallbackWarning, OutOfMemoryError, TapeError, fallback
from capstan.device.webgpu.decode_step import DecodeStep
from capstan.device.webgpu.engine import NOT_FUSED, Difference
from capstan.device.webgpu.step_check import StepCheck
from capstan.device.webgpu.step_recorder import StepRecorder
from capstan.device.webgpu.verdicts import Verdicts
from capstan.fallback import fallbacks
from capstan.memory import BufferRequest, DeviceBuffer, DeviceSpan, MemoryInfo, MemoryType
from capstan.notes import Notes
from capstan.tape import PASSES, Clear, Op, Recording, Write
from tests.paper_weights import PaperBacking
from tests.unit import step_simulator
from tests.unit.recorded_kernels import Vector
from tests.unit.small_decoders import CAPACITY, HEAD, HEADS, KV_HEADS, VOCABULARY, WIDTH, Small, decoder
from tests.unit.step_simulator import Machine

GPU = MemoryInfo("WebGPU_Buffer", "webgpu", MemoryType.DEFAULT, alignment=256)
STATE = 9999
"""Handle of the sampler's state."""
EAGER, CAPTURED = 1, 2
SHORT = 41
"""Positions of the first step that is checked, the new one included."""
OWNER = "decoder 1"


@pytest.fixture(autouse=True)
def no_fallbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fallback, "counted", type(fallback.counted)())


@dataclass
class Pair:
    past: str
    present: str


@dataclass
class About:
    cache: tuple[Pair, ...]
    vocab_size: int = VOCABULARY
    logits_dtype: str = "float32"
    cache_dtype: str = "float32"
    num_kv_heads: int = KV_HEADS
    head_size: int = HEAD
    mask_dtype: str = "int64"


def as_json(recording: Recording) -> dict[str, Any]:
    """What the page hands over."""

    def op(op: Op) -> list[Any]:
        return ["write", op.buffer, op.offset, op.data.hex()] if isinstance(op, Write) else op.played()

    return {
        "handle": recording.handle,
        "ops": [op(each) for each in recording.ops],
        "pipelines": {
            str(id_): {
                "label": made.label,
                "code": made.code,
                "bindings": [[*at, access, made.names[at]] for at, access in made.access.items()],
            }
            for id_, made in recording.pipelines.items()
        },
        "bind_groups": {str(id_): [list(entry) for entry in group.entries] for id_, group in recording.groups.items()},
        "buffers": {str(id_): {"size": size, "usage": 0, "label": ""} for id_, size in recording.sizes.items()},
    }


@dataclass
class Tape:
    played: Sequence[Any]
    fused: Mapping[str, Any]
    tables: list[bytes] = field(default_factory=list)

    @property
    def ours(self) -> bool:
        return any(op[0].startswith("kernel") for op in self.played)


class Engine:
    """Tapes and eager runs over a Machine; `spoils` may damage the logits that a played tape left."""

    def __init__(self, small: Small, step: step_simulator.Recorded) -> None:
        self.small = small
        self.step = step
        self.machine = Machine(step)
        self.tapes: dict[int, Tape] = {}
        self.made: list[Tape] = []
        self.played_at: list[tuple[bool, int]] = []
        """Whether the tape was ours, and the length, of every step played."""
        self.refuses: str | None = None
        """Why kernels of ours cannot be made, if so."""
        self.spoils: Callable[[Tape, int], float] = lambda _tape, _length: 0.0
        self.witnessed: list[tuple[bool, int]] = []
        """Whether the tape was ours, and the length, of every step that was held to the truth."""
        self.no_room: Callable[[int], None] = lambda _tape: None
        """May raise where there is no memory for the truth of a tape."""
        self.retired: list[int] = []
        self.dropped: list[int] = []
        self.poisoned: dict[int, set[int]] = {}
        """Buffers by tape."""

    def adapter(self) -> dict[str, Any]:
        sizes = {"max_workgroup_threads": 256, "max_workgroup_bytes": 16384}
        return {"subgroup_size": 0, "subgroup_matrices": [], **sizes, "software": False}

    async def record(self, binding: int) -> dict[str, Any]:
        assert binding == CAPTURED
        return as_json(self.step.recording)

    def recorded_id(self, buffer: int) -> int:
        return buffer

    async def make_tape(
        self, recording: int, played: Sequence[Any], written: Sequence[int], fused: Mapping[str, Any] = NOT_FUSED
    ) -> int:
        assert (recording, set(written)) == (7, set(self.step.lasting))
        tape = Tape(played, fused)
        if self.refuses and tape.ours:
            raise TapeError(self.refuses)
        self.made.append(tape)
        self.tapes[len(self.made)] = tape
        return len(self.made)

    def add_table(self, tape: int, counts: bytes) -> None:
        self.tapes[tape].tables.append(counts)

    def close_tape(self, tape: int) -> None:
        del self.tapes[tape]

    def retire(self, binding: int) -> None:
        self.retired.append(binding)

    def drop_recording(self, recording: int) -> None:
        self.dropped.append(recording)

    def poison(self, tape: int, recording: int, buffers: Sequence[int]) -> None:
        self.poisoned.setdefault(tape, set()).update(buffers)
        for buffer in buffers:
            self.machine.memory[buffer][:] = np.nan

    def play_once(self, tape: int, length: int) -> None:
        played = self.tapes[tape]
        self.played_at.append((played.ours, length))
        self.machine.length = length
        self.machine.play_all(played.played, played.fused["kernels"], played.fused["scratch"], played.tables)
        self.logits[3] += self.spoils(played, length)

    def bound(self, groups: Sequence[int]) -> set[int]:
        """The buffers of these bind groups."""
        return {buffer for group in groups for _, buffer, _, _ in self.step.recording.groups[group].entries}

    def positions(self) -> int:
        """Before the new token, by the mask."""
        return int(self.machine.memory[self.step.buffer_of[self.small.mask]].sum()) - 1

    @property
    def logits(self) -> Vector:
        return self.machine.memory[self.step.buffer_of[self.small.logits]]

    async def run(self, binding: int, valid: int = 0, tokens: int = 1) -> None:
        # onnxruntime's own buffers are other ones in each session.
        own = Machine(self.step, valid)
        for buffer in self.step.lasting:
            own.memory[buffer] = self.machine.memory[buffer]
        own.play_recorded()
        if binding == CAPTURED:
            self.logits[3] += self.spoils(Tape((), NOT_FUSED), valid)

    def fill(self, buffer: int, byte: int) -> None:
        assert byte == 0xFF
        self.machine.memory[buffer][:] = np.nan

    async def compare(self, pairs: Sequence[tuple[int, int, int, str]]) -> list[Difference]:
        found = []
        for a, b, size, _ in pairs:
            x, y = self.machine.memory[a][: size // 4], self.machine.memory[b][: size // 4]
            both = np.isfinite(x) & np.isfinite(y)
            unlike = int((np.isfinite(x) != np.isfinite(y)).sum())
            apart = float(np.abs(x - y)[both].max(initial=0))
            found.append(Difference(apart, float(np.abs(y[both]).max(initial=0)), unlike))
        return found

    def healthy(self) -> bool:
        return True

    async def witness(self, recording: int, tape: int, length: int, spec: Mapping[str, Any]) -> bytes:
        self.no_room(tape)
        self.machine.length = self.positions() + 1
        if tape:
            assert length == self.machine.length
            self.witnessed.append((self.tapes[tape].ours, length))
            return self.machine.witness(spec, self.tapes[tape].played, self.tapes[tape].fused, self.tapes[tape].tables)
        return self.machine.witness(spec, (), NOT_FUSED, ())

    async def counts_by_length(
        self, recording: int, steps: Sequence[Any], source: int, offset: int, mask: int, lengths: int
    ) -> bytes:
        assert (offset, lengths) == (0, CAPACITY)
        rows = [(0, 0, 0), *((1 + (length - 1) // 64, HEADS, 1) for length in range(1, lengths + 1))]
        return b"".join(struct.pack("<3I", *row) for row in rows)

    async def counts_of_step(self, tape: int, length: int) -> bytes:
        indirect = sum(op[0] == "indirect" for op in self.tapes[tape].played)
        return b"".join([struct.pack("<3I", 1 + (length - 1) // 64, HEADS, 1)] * indirect)


class Buffers:
    """SequenceBuffers of a small decoder: every buffer's handle is its recorded id."""

    owner = OWNER
    capacity = CAPACITY

    def __init__(self, engine: Engine, about: About) -> None:
        self.engine = engine
        self.device = self
        at = engine.step.buffer_of
        self.lent: list[int] = []
        self.spans = {"logits": self.span(at[engine.small.logits]), "state": DeviceSpan(self.held(STATE, 64), 32, 32)}
        for pair, cache in zip(about.cache, engine.small.caches, strict=True):
            self.spans[f"kv {pair.past}"] = self.span(at[cache])
        self.logits, self.mask = at[engine.small.logits], at[engine.small.mask]

    @property
    def cache(self) -> list[int]:
        return [self.engine.step.buffer_of[cache] for cache in self.engine.small.caches]

    def held(self, handle: int, size: int) -> DeviceBuffer:
        return DeviceBuffer(
            handle, size, GPU, label="", category="io", owner=OWNER, free=lambda: self.lent.remove(handle)
        )

    def span(self, handle: int) -> DeviceSpan:
        size = self.engine.step.recording.sizes[handle]
        return DeviceSpan(self.held(handle, size), 0, size)

    async def allocate_all(self, requests: Sequence[BufferRequest], owner: str) -> list[DeviceBuffer]:
        assert owner == "tape check"
        return [self.allocate(request.size) for request in requests]

    def allocate(self, size: int) -> DeviceBuffer:
        handle = 5000 + len(self.engine.machine.memory)
        self.engine.machine.memory[handle] = np.zeros(size // 4)
        self.lent.append(handle)
        return self.held(handle, size)

    def copy_tensors(self, pairs: Sequence[tuple[DeviceSpan, DeviceSpan]]) -> None:
        memory = self.engine.machine.memory
        for source, target in pairs:
            memory[target.buffer.handle][:] = memory[source.buffer.handle][: target.length // 4]

    def written(self) -> list[int]:
        return sorted(self.engine.step.lasting)

    def set_input(self, token: int, position: int) -> None:
        memory, at = self.engine.machine.memory, self.engine.step.buffer_of
        memory[at[self.engine.small.ids]][:] = token
        memory[self.mask][:] = 0
        memory[self.mask][: position + 1] = 1


@dataclass
class Outcome:
    step: DecodeStep
    engine: Engine
    buffers: Buffers

    @property
    def tape(self) -> Tape:
        """The one that is left."""
        [tape] = self.engine.tapes.items()
        assert tape[0] == self.step.tape
        return tape[1]


def record(
    small: Small | None = None,
    *,
    passes: Sequence[str] = PASSES,
    mask_dtype: str = "int64",
    recorded: step_simulator.Recorded | None = None,
    prepare: Callable[[Engine], None] = lambda _engine: None,
    verdicts: Verdicts | None = None,
) -> Outcome:
    small = small or decoder()
    engine = Engine(small, recorded or small.sketch.record())
    prepare(engine)
    about = About(tuple(Pair(f"past {i}", f"present {i}") for i in range(len(small.caches))), mask_dtype=mask_dtype)
    buffers = Buffers(engine, about)
    step = DecodeStep(cast(Any, engine), EAGER, capture="tape", note=None, captured=CAPTURED)

    async def probe(_buffers: Any, _ids: Sequence[int]) -> None:
        """What is in the caches does."""

    given: tuple[Any, Any] = (buffers, about)
    check = StepCheck(step.engine, EAGER, *given, probe)
    made = asyncio.run(StepRecorder(step, *given, check, passes, verdicts).record())
    assert engine.dropped == [7]
    assert buffers.lent == [], "what the check allocates is freed"
    return Outcome(made, engine, buffers)


def clears(outcome: Outcome) -> int:
    return sum(isinstance(op, Clear) for op in outcome.engine.step.ops)


def test_a_fused_tape_that_does_what_an_eager_step_does_is_used() -> None:
    outcome = record()
    count = len(outcome.engine.step.ops) - clears(outcome)
    assert (outcome.step.capture, outcome.step.note) == ("tape", None)
    assert outcome.step.passes == {
        "fused": f"{count} operations became 12, 1 of them as recorded",
        "direct": "no indirect dispatches",
        "clears": f"{clears(outcome)} dropped",
    }
    assert clears(outcome) > 0
    assert fallbacks() == {}
    assert outcome.tape.ours
    assert outcome.tape.fused["owner"] == OWNER
    assert outcome.engine.retired == [CAPTURED]


@pytest.mark.parametrize("norms", ["inside", "apart"])
def test_attention_with_norms_of_q_and_k_is_held_to_a_truth_with_norms(norms: str) -> None:
    outcome = record(decoder(norms=norms))
    assert outcome.step.passes["fused"].endswith(" operations became 12, 1 of them as recorded")
    assert outcome.step.passes["direct"] == "no indirect dispatches"
    assert "left out" not in outcome.step.passes


def test_it_is_checked_at_a_short_and_a_long_length() -> None:
    engine = record().engine
    assert engine.witnessed == [(ours, length) for length in (SHORT, CAPACITY) for ours in (False, True)]
    assert engine.played_at == [(True, SHORT), (True, CAPACITY)]


def test_the_caches_are_as_a_prompt_leaves_them_when_an_operation_is_held_to_the_truth() -> None:
    engine = Engine(decoder(), decoder().sketch.record())
    seen: list[tuple[int, bool, bool]] = []

    def prepare(engine: Engine) -> None:
        def look(tape: int) -> None:
            if tape:
                rows = engine.machine.memory[engine.step.buffer_of[engine.small.caches[0]]].reshape(-1, CAPACITY, HEAD)
                last = engine.positions()
                repeated = bool((rows[:, 40 : min(80, last)] == rows[:, : min(40, last - 40)]).all())
                seen.append((last, repeated, bool((rows[:, last:] > 1e9).all())))

        engine.no_room = look

    record(prepare=prepare)
    assert seen == [(last, True, True) for last in (SHORT - 1, SHORT - 1, CAPACITY - 1, CAPACITY - 1)], engine


def test_what_it_meets_of_the_recorded_buffers_is_full_of_nan_before_the_check() -> None:
    small = decoder(multipliers=True)
    outcome = record(small, passes=[name for name in PASSES if name != "clears"])
    engine = outcome.engine
    private = engine.step.recording.private() - engine.step.lasting
    met = {buffer for op in outcome.tape.played if op[0] == "dispatch" for buffer in engine.bound(op[2])}
    assert len(met & private) > 1
    assert met & private <= engine.poisoned[outcome.step.tape] <= private


@pytest.mark.parametrize("length", [SHORT, CAPACITY], ids=["short", "long"])
@pytest.mark.parametrize("damage", [1.0, math.nan, math.inf])
def test_a_fused_tape_that_fails_its_check_steps_down_to_the_recorded_kernels(damage: float, length: int) -> None:
    def prepare(engine: Engine) -> None:
        engine.spoils = lambda tape, at: damage if tape.ours and at == length else 0.0

    with pytest.warns(
        FallbackWarning, match="fused decode kernels: a replayed step differs from an eager one in logits"
    ):
        outcome = record(prepare=prepare, passes=[name for name in PASSES if name != "direct"])
    assert (outcome.step.capture, outcome.step.note) == ("tape", None)
    reason = outcome.step.passes["fused"].removeprefix("not used: ")
    assert reason.startswith("a replayed step differs from an eager one in logits by ")
    assert fallbacks() == {f"fused decode kernels: {reason}": 1}
    assert list(outcome.tape.played) == [op.played() for op in outcome.engine.step.ops if not isinstance(op, Clear)]
    assert outcome.step.passes["clears"] == f"{clears(outcome)} dropped"
    assert outcome.tape.fused["scratch"] == [], "scratch is freed with the tape that failed"
    assert any(tape.ours for tape in outcome.engine.made)


def test_differences_within_the_tolerance_are_let_pass() -> None:
    def prepare(engine: Engine) -> None:
        engine.spoils = lambda tape, _: 1e-4 if tape.ours else 0.0

    assert record(prepare=prepare).tape.ours


def test_a_kernel_that_does_not_compile_steps_down_to_the_recorded_kernels() -> None:
    def prepare(engine: Engine) -> None:
        engine.refuses = "kernel matvec_q4 does not compile on this adapter: line 3: no"

    with pytest.warns(FallbackWarning, match="kernel matvec_q4 does not compile .* own kernels are replayed"):
        outcome = record(prepare=prepare)
    assert outcome.step.passes["fused"] == "not used: kernel matvec_q4 does not compile on this adapter: line 3: no"
    assert list(fallbacks().values()) == [1]
    assert not outcome.tape.ours
    assert not any(tape.ours for tape in outcome.engine.made)


@pytest.mark.parametrize(
    "passes", [(), ("clears",), ("direct",), ("clears", "direct"), ("norm",), ("clears", "residual")]
)
def test_a_step_with_nothing_to_fuse_is_no_step_down(passes: Sequence[str]) -> None:
    outcome = record(passes=passes)
    assert fallbacks() == {}
    assert outcome.step.capture == "tape"
    assert outcome.step.passes["fused"] == "not used: the step has nothing that the passes join"
    assert outcome.step.passes["clears"] == f"{clears(outcome) if 'clears' in passes else 0} dropped"
    assert sum(op[0] == "clear" for op in outcome.tape.played) == (0 if "clears" in passes else clears(outcome))
    kinds = {op[0] for op in outcome.tape.played} - {"clear", "dispatch"}
    assert kinds == {"table" if "direct" in passes else "indirect"}


@pytest.mark.parametrize("passes", [PASSES, ("clears", "direct")], ids=["fused", "recorded"])
def test_a_device_that_is_lost_on_the_way_leaves_no_tape(passes: Sequence[str]) -> None:
    lost: list[Engine] = []
    plays = len(record(passes=passes).engine.played_at)

    def losing(number: int) -> Callable[[Engine], None]:
        def prepare(engine: Engine) -> None:
            def spoil(_tape: Tape, _length: int) -> float:
                if len(engine.played_at) == number:
                    raise DeviceLostError("the test says so")
                return 0.0

            engine.spoils = spoil
            lost.append(engine)

        return prepare

    for number in range(1, plays + 1):
        with pytest.raises(DeviceLostError):
            record(passes=passes, prepare=losing(number))
        assert (lost[-1].tapes, lost[-1].dropped) == ({}, [7]), f"in replay {number}"
    assert plays >= 2


class TestIndirectDispatches:
    PASSES = tuple(name for name in PASSES if name != "attention")

    def test_get_their_counts_from_tables_beside_fused_kernels(self) -> None:
        outcome = record(passes=self.PASSES)
        assert outcome.step.passes["direct"] == "2 made direct"
        assert [op[0] for op in outcome.tape.played if op[0] in ("table", "indirect")] == ["table"] * 2
        assert outcome.tape.ours
        assert len(outcome.tape.tables) == 1

    def test_stay_if_not_asked_for(self) -> None:
        outcome = record(passes=[name for name in self.PASSES if name != "direct"])
        assert outcome.step.passes["direct"] == "2 indirect dispatches kept: not asked for"
        assert [op[0] for op in outcome.tape.played if op[0] in ("table", "indirect")] == ["indirect"] * 2

    def test_stay_where_their_counts_cannot_be_learned_and_fused_kernels_too(self) -> None:
        outcome = record(passes=self.PASSES, mask_dtype="int32")
        assert outcome.step.passes["direct"].startswith("2 indirect dispatches kept: the mask is int32")
        assert outcome.step.passes["fused"].endswith("recorded")
        assert outcome.tape.ours
        assert [op[0] for op in outcome.tape.played if op[0] in ("table", "indirect")] == ["indirect"] * 2
        assert fallbacks() == {}

    def test_tapes_made_to_learn_counts_are_closed(self) -> None:
        outcome = record(passes=self.PASSES)
        assert len(outcome.engine.made) > 1
        assert len(outcome.engine.tapes) == 1


def test_a_clear_that_matters_is_found_out_and_kept() -> None:
    small = decoder()
    s = small.sketch
    # Adds to what is in its buffer, which the clear had made zero.
    used = s.unknown(lambda v: v[:WIDTH], [small.cos], WIDTH)
    s.unknown(lambda v: np.resize(v, WIDTH), [used], WIDTH, into=s.lasting(WIDTH))
    total = s.tensor(WIDTH)
    s.unknown(lambda v: v[:WIDTH], [small.sin], WIDTH, into=total)
    add = s.calls[-1].kernel

    def accumulate(at: Mapping[str, Any], _: Mapping[str, Any]) -> None:
        at["out"][:WIDTH] += at["in0"][:WIDTH]

    s.calls[-1].kernel = type(add)(add.reads, add.writes, (), ("// adds",), accumulate)
    s.unknown(lambda t, v: v[:VOCABULARY] * 2 + t[0], [total, small.logits], VOCABULARY, into=s.lasting(VOCABULARY))
    s.unknown(lambda t: np.resize(t[:WIDTH], VOCABULARY), [total], VOCABULARY, into=small.logits)
    with pytest.warns(FallbackWarning, match="elements finite in only one"):
        outcome = record(small)
    assert outcome.step.capture == "tape"
    assert outcome.step.passes["clears"].startswith("kept: a replayed step differs from an eager one in logits")
    assert sum(op[0] == "clear" for op in outcome.tape.played) == clears(outcome)


def test_an_operation_whose_kernel_leaves_its_result_unwritten_stays_as_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def does_nothing(*_: Any) -> None:
        """As a kernel whose workgroups are too few."""

    monkeypatch.setitem(step_simulator.OURS, "attention", does_nothing)
    with pytest.warns(FallbackWarning, match="a fused decode kernel: .* of attention of 4 heads .* finite in only one"):
        outcome = record(passes=[name for name in PASSES if name != "direct"])
    assert kernels(outcome) == {"matvec_q4": 9}
    assert outcome.step.passes["left out"].count("attention of 4 heads") == 2, "one for each layer"
    assert sum(op[0] == "indirect" for op in outcome.tape.played) == 2


def kernels(outcome: Outcome) -> Counter[str]:
    """Of the tape that is left, by template."""
    return Counter(kernel["shader"] for kernel in outcome.tape.fused["kernels"])


Kernel = Callable[[dict[str, Any], dict[str, Any], tuple[int, int, int]], None]


def wrong_scale(kernel: Kernel) -> Kernel:
    def run(at: dict[str, Any], c: dict[str, Any], counts: tuple[int, int, int]) -> None:
        scales = at["scales"].copy()
        scales[5], scales[6] = scales[6], scales[5]
        kernel(at | {"scales": scales}, c, counts)

    return run


def lost_block(kernel: Kernel) -> Kernel:
    def run(at: dict[str, Any], c: dict[str, Any], counts: tuple[int, int, int]) -> None:
        x = at["x"].copy()
        if not c["NORM"]:
            x[c["K"] - 32 :] = 0
        kernel(at | {"x": x}, c, counts)

    return run


def lost_residual(kernel: Kernel) -> Kernel:
    def run(at: dict[str, Any], c: dict[str, Any], counts: tuple[int, int, int]) -> None:
        kernel(at, c | {"RESIDUAL": False}, counts)

    return run


def wrong_epsilon(kernel: Kernel) -> Kernel:
    def run(at: dict[str, Any], c: dict[str, Any], counts: tuple[int, int, int]) -> None:
        kernel(at, c | ({"EPSILON": 1e-3} if c["NORM"] else {}), counts)

    return run


def swapped_heads(kernel: Kernel) -> Kernel:
    def run(at: dict[str, Any], c: dict[str, Any], counts: tuple[int, int, int]) -> None:
        qkv = at["qkv"].copy()
        qkv[:HEAD], qkv[HEAD : 2 * HEAD] = at["qkv"][HEAD : 2 * HEAD], at["qkv"][:HEAD]
        kernel(at | {"qkv": qkv}, c, counts)

    return run


def stale_row(kernel: Kernel) -> Kernel:
    """The new key does not get into the cache."""

    def run(at: dict[str, Any], c: dict[str, Any], counts: tuple[int, int, int]) -> None:
        before = at["key_cache"].copy()
        kernel(at, c, counts)
        at["key_cache"][:] = before

    return run


def mask_off_by(error: int) -> Callable[[Kernel], Kernel]:
    """Attention over that many positions more. What else the step does is right."""

    def mutated(kernel: Kernel) -> Kernel:
        def run(at: dict[str, Any], c: dict[str, Any], counts: tuple[int, int, int]) -> None:
            length = int(at["state"][0])
            if length + error > c["CAPACITY"]:
                kernel(at, c, counts)
                return
            caches = {name: at[name].copy() for name in ("key_cache", "value_cache")}
            kernel(at, c, counts)
            width, kv_width = c["HEADS"] * c["HEAD"], c["KV_HEADS"] * c["HEAD"]
            qkv = at["qkv"].copy()
            if error < 0:
                # The newest position counts for nothing: its value is that of the one before.
                rows = caches["value_cache"].reshape(-1, c["CAPACITY"], c["HEAD"])[:, length - 2]
                qkv[width + kv_width : width + 2 * kv_width] = rows.reshape(-1)
            else:
                qkv[width + kv_width : width + 2 * kv_width] += 1e-3
            result = dict(at, qkv=qkv, **caches)
            kernel(result, c, counts)

        return run

    return mutated


MUTATIONS: dict[str, tuple[str, Callable[[Kernel], Kernel]]] = {
    "wrong scale": ("matvec_q4", wrong_scale),
    "lost block": ("matvec_q4", lost_block),
    "lost residual": ("matvec_q4", lost_residual),
    "wrong epsilon": ("matvec_q4", wrong_epsilon),
    "swapped heads": ("attention", swapped_heads),
    "stale row": ("attention", stale_row),
    "newest position lost": ("attention", mask_off_by(-1)),
    "newest value off": ("attention", mask_off_by(1)),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_kernel_that_computes_something_else_is_found_out_and_the_others_stay(
    mutation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shader, change = MUTATIONS[mutation]
    right = kernels(record())
    monkeypatch.setitem(step_simulator.OURS, shader, change(cast(Any, step_simulator.OURS[shader])))
    with pytest.warns(FallbackWarning, match="a fused decode kernel: .* units of rounding"):
        outcome = record()
    assert outcome.step.passes["left out"]
    found = kernels(outcome)
    assert found[shader] < right[shader]
    other = "attention" if shader == "matvec_q4" else "matvec_q4"
    assert found[other] == right[other]


def test_a_kernel_that_is_wrong_in_one_layer_is_used_in_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the other it may only not have shown it."""
    small = decoder()
    kernel = cast(Kernel, step_simulator.OURS["attention"])
    met: list[int] = []

    def wrong_at_first(at: dict[str, Any], c: dict[str, Any], counts: tuple[int, int, int]) -> None:
        met.append(len(met))
        swapped_heads(kernel)(at, c, counts) if met[-1] % 2 == 0 else kernel(at, c, counts)

    monkeypatch.setitem(step_simulator.OURS, "attention", cast(Any, wrong_at_first))
    with pytest.warns(FallbackWarning, match="a fused decode kernel: result of attention"):
        outcome = record(small)
    assert kernels(outcome)["attention"] == 0
    assert kernels(outcome)["matvec_q4"] == kernels(record())["matvec_q4"]


def test_a_recorded_operation_that_is_not_what_it_looks_like_stays_as_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a kernel of another version, whose text has all that a product's has."""
    small = decoder()
    call = small.sketch.calls[small.calls["out 0"]]
    compute = call.kernel.compute

    def shifted(at: Mapping[str, Any], uniforms: Mapping[str, Any]) -> None:
        compute(at, uniforms)
        at["output"][:] += 0.01

    call.kernel = replace(call.kernel, lines=(*call.kernel.lines, "// and more"), compute=shifted)
    with pytest.warns(FallbackWarning, match="32 -> 32 .* by the recorded kernel: .* units of rounding"):
        outcome = record(small)
    # With it goes the gated layer behind it, whose residual finds no product to join.
    assert kernels(outcome)["matvec_q4"] == kernels(record())["matvec_q4"] - 2


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_weights_that_are_not_finite_make_no_kernel_wrong(number: float) -> None:
    """What follows from them is the same in the recorded kernel, in ours and in the truth."""
    small = decoder()
    scales = small.sketch.calls[small.calls["qkv 0"]].reads["scales_b"]
    small.sketch.given[scales][3] = number
    outcome = record(small)
    assert kernels(outcome) == kernels(record())
    assert "left out" not in outcome.step.passes


def test_without_memory_for_the_truth_the_recorded_kernels_are_replayed() -> None:
    def prepare(engine: Engine) -> None:
        def lacks(tape: int) -> None:
            if tape and engine.tapes[tape].ours:
                raise OutOfMemoryError("there is no memory for the scratch of a tape's kernels")

        engine.no_room = lacks

    with pytest.warns(FallbackWarning, match="fused decode kernels: there is no memory"):
        outcome = record(prepare=prepare)
    assert outcome.step.passes["fused"].startswith("not used: there is no memory")
    assert (outcome.step.capture, outcome.tape.ours) == ("tape", False)


class TestVerdicts:
    """What one load found out holds for the next."""

    @staticmethod
    def kept(backing: PaperBacking, facts: str = "adapter, browser and versions") -> Verdicts:
        return Verdicts(Notes(backing), "models/small", facts)

    def test_a_step_that_was_found_right_is_neither_compared_nor_warned_of_again(self) -> None:
        backing = PaperBacking()
        first, second = record(verdicts=self.kept(backing)), record(verdicts=self.kept(backing))
        assert (second.engine.witnessed, second.engine.played_at) == ([], [])
        assert second.step.passes == first.step.passes
        assert second.tape.played == first.tape.played

    def test_what_was_left_out_is_left_out_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        backing = PaperBacking()
        monkeypatch.setitem(step_simulator.OURS, "attention", lambda *_: None)
        with pytest.warns(FallbackWarning):
            first = record(verdicts=self.kept(backing))
        second = record(verdicts=self.kept(backing))
        assert (second.engine.witnessed, second.engine.played_at) == ([], [])
        assert second.step.passes == first.step.passes
        assert kernels(second) == kernels(first)

    @pytest.mark.parametrize("passes", [("clears",), ("clears", "direct"), ()])
    def test_so_is_a_step_of_recorded_kernels(self, passes: Sequence[str]) -> None:
        backing = PaperBacking()
        first = record(verdicts=self.kept(backing), passes=passes)
        second = record(verdicts=self.kept(backing), passes=passes)
        assert second.engine.played_at == []
        assert (second.step.passes, second.tape.played) == (first.step.passes, first.tape.played)
        assert second.tape.tables == first.tape.tables

    def test_another_adapter_browser_or_version_is_compared_anew(self) -> None:
        backing = PaperBacking()
        record(verdicts=self.kept(backing))
        assert record(verdicts=self.kept(backing, "another adapter")).engine.witnessed

    def test_another_step_is_compared_anew(self) -> None:
        backing = PaperBacking()
        record(verdicts=self.kept(backing))
        assert record(decoder(multipliers=True), verdicts=self.kept(backing)).engine.witnessed
        assert record(verdicts=self.kept(backing), passes=("clears", "matvec", "norm")).engine.witnessed

    @pytest.mark.parametrize("text", ["", "{", "[]", '{"form": "best", "left": {}, "passes": {}, "direct": false}'])
    def test_a_damaged_verdict_is_none(self, text: str) -> None:
        class Damaged(Notes):
            async def read(self, name: str, key: str) -> str | None:
                return text

        outcome = record(verdicts=Verdicts(Damaged(PaperBacking()), "models/small", ""))
        assert outcome.engine.witnessed
        assert outcome.tape.ours

    def test_a_kernel_that_no_longer_compiles_is_found_out_anew(self) -> None:
        backing = PaperBacking()
        record(verdicts=self.kept(backing))

        def prepare(engine: Engine) -> None:
            engine.refuses = "kernel matvec_q4 does not compile on this adapter: line 3: no"

        with pytest.warns(FallbackWarning, match="does not compile"):
            outcome = record(verdicts=self.kept(backing), prepare=prepare)
        assert not outcome.tape.ours

    def test_nothing_is_kept_of_a_check_that_broke_off(self) -> None:
        backing = PaperBacking()

        def losing(engine: Engine) -> None:
            def spoil(_tape: Tape, _length: int) -> float:
                raise DeviceLostError("the test says so")

            engine.spoils = spoil

        with pytest.raises(DeviceLostError):
            record(prepare=losing, verdicts=self.kept(backing))
        assert backing.files == {}


def test_a_step_that_no_tape_repeats_is_left_to_orts_capture() -> None:
    def prepare(engine: Engine) -> None:
        engine.spoils = lambda tape, _: 1.0 if tape.played else 0.0

    with pytest.warns(FallbackWarning):
        outcome = record(prepare=prepare)
    assert (outcome.step.capture, outcome.step.tape) == ("ort", 0)
    assert outcome.step.note is not None
    assert outcome.step.note.startswith("the tape cannot be used: a replayed step differs from an eager one in logits")
    assert outcome.engine.tapes == {}, "no tape is left open"


@pytest.mark.parametrize("passes", [("clears",), ("clears", "direct")])
def test_recorded_kernels_that_fail_at_a_long_length_only_are_not_used(passes: Sequence[str]) -> None:
    def prepare(engine: Engine) -> None:
        engine.spoils = lambda tape, at: 1.0 if tape.played and at == CAPACITY else 0.0

    outcome = record(passes=passes, prepare=prepare)
    assert (outcome.step.capture, outcome.step.tape) == ("ort", 0)
    assert outcome.engine.tapes == {}


def test_orts_capture_is_compared_at_a_long_length_too() -> None:
    def prepare(engine: Engine) -> None:
        long = CAPACITY - 1
        engine.spoils = lambda tape, at: 1.0 if tape.played or engine.positions() == long else 0.0

    with pytest.warns(FallbackWarning):
        outcome = record(prepare=prepare)
    assert (outcome.step.capture, outcome.step.tape) == ("off", 0)
    assert outcome.step.note is not None
    assert outcome.step.note.count("a replayed step differs from an eager one in logits") == 2
    assert outcome.engine.retired == [CAPTURED]


def test_copies_that_the_next_kernel_changes_a_part_of_are_played() -> None:
    outcome = record(decoder(patched=True))
    assert outcome.tape.ours
    assert sum(op[0] == "copy" for op in outcome.tape.played) == 1
