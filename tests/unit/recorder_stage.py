"""A recorder's engine and buffers over a simulated machine, and what comes of recording a small decoder there."""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from capstan import TapeError
from capstan.device.webgpu.gpu_engine import NOT_FUSED, Difference
from capstan.device.webgpu.tapes.decode_step import DecodeStep
from capstan.device.webgpu.tapes.step_check import StepCheck
from capstan.device.webgpu.tapes.step_recorder import StepRecorder
from capstan.device.webgpu.tapes.verdicts import Verdicts
from capstan.graph import LeftOut
from capstan.memory import BufferRequest, DeviceBuffer, DeviceSpan, MemoryInfo, MemoryType
from capstan.tape import PASSES, Clear, Op, Recording, Write
from tests.unit import step_simulator
from tests.unit.paper_engine import PaperEngine
from tests.unit.recorded_kernels import Vector
from tests.unit.small_decoders import CAPACITY, HEAD, HEADS, KV_HEADS, VOCABULARY, Small, decoder
from tests.unit.step_simulator import Machine

GPU = MemoryInfo("WebGPU_Buffer", "webgpu", MemoryType.DEFAULT, alignment=256)
STATE = 9999
"""Handle of the sampler's state."""
EAGER, CAPTURED = 1, 2
SHORT = 41
"""Positions of the first step that is checked, the new one included."""
OWNER = "decoder 1"


@dataclass
class Pair:
    past: str
    present: str
    heads: int = KV_HEADS
    head_size: int = HEAD


@dataclass
class About:
    cache: tuple[Pair, ...]
    vocab_size: int = VOCABULARY
    logits: str = "logits"
    logits_dtype: str = "float32"
    cache_dtype: str = "float32"
    mask_dtype: str = "int64"
    needs_f16: bool = False
    states: tuple[()] = ()

    def rows_of(self, pair: Pair) -> str:
        return self.cache_dtype


def as_json(recording: Recording) -> dict[str, Any]:
    """A recording in the page's JSON."""

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


class Engine(PaperEngine):
    """Tapes and eager runs over a Machine; `spoils` may damage the logits that a played tape left."""

    def __init__(self, small: Small, step: step_simulator.Recorded) -> None:
        super().__init__()
        self.small = small
        self.step = step
        self.machine = Machine(step)
        self.tapes: dict[int, Tape] = {}
        self.made: list[Tape] = []
        self.played_at: list[tuple[bool, int]] = []
        """Whether the tape was ours, and the length, of every step played."""
        self.window = 0
        """Positions that an eager step's attention looks back, if it has a window; a recorded one's has none."""
        self.refuses: str | None = None
        """Why our kernels cannot be made, if so."""
        self.spoils: Callable[[Tape, int], float] = lambda _tape, _length: 0.0
        self.witnessed: list[tuple[bool, int]] = []
        """Whether the tape was ours, and the length, of every step that was held to the truth."""
        self.no_room: Callable[[int], None] = lambda _tape: None
        """May raise where there is no memory for the truth of a tape."""
        self.probed: list[int] = []
        """Tokens of each prompt that was prefilled."""
        self.retired: list[int] = []
        self.dropped: list[int] = []
        self.poisoned: dict[int, set[int]] = {}
        """Buffers by tape."""

    def adapter(self) -> dict[str, Any]:
        return {**super().adapter(), "max_workgroup_threads": 256, "max_workgroup_bytes": 16384}

    async def record(self, binding: int) -> dict[str, Any]:
        assert binding == CAPTURED
        return as_json(self.step.recording)

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

    async def run(self, binding: int, valid: int = 0, tokens: int = 1, base: int = 0) -> None:
        # onnxruntime's own buffers are other ones in each session.
        own = Machine(self.step, valid)
        for buffer in self.step.lasting:
            own.memory[buffer] = self.machine.memory[buffer]
        if binding == EAGER:
            own.uniforms = {buffer: {**read, "eager window": self.window} for buffer, read in own.uniforms.items()}
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
            found.append(Difference(apart, float(np.abs(y[both]).max(initial=0)), unlike, 0.0))
        return found

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
    carried: Sequence[tuple[DeviceSpan, DeviceSpan]] = ()
    states: Sequence[DeviceSpan] = ()
    sliding = None
    base = 0
    slides = False

    def __init__(self, engine: Engine, about: About) -> None:
        self.engine = engine
        self.about = about
        self.device = self
        at = engine.step.buffer_of
        self.borrowed: list[int] = []
        self.spans = {"logits": self.span(at[engine.small.logits]), "state": DeviceSpan(self.held(STATE, 64), 32, 32)}
        for pair, cache in zip(about.cache, engine.small.caches, strict=True):
            self.spans[f"kv {pair.past}"] = self.span(at[cache])
        self.logits, self.mask = at[engine.small.logits], at[engine.small.mask]

    @property
    def cache(self) -> list[int]:
        return [self.engine.step.buffer_of[cache] for cache in self.engine.small.caches]

    def room_of(self, pair: Pair) -> int:
        return self.capacity

    async def bring(self, ids: object) -> None:
        """No tables are on disk."""

    def recorded_positions(self, recorded_id: object) -> None:
        """The decoder has no input for positions."""

    def held(self, handle: int, size: int) -> DeviceBuffer:
        return DeviceBuffer(
            handle, size, GPU, label="", category="io", owner=OWNER, free=lambda: self.borrowed.remove(handle)
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
        self.borrowed.append(handle)
        return self.held(handle, size)

    def copy_tensors(self, pairs: Sequence[tuple[DeviceSpan, DeviceSpan]]) -> None:
        memory = self.engine.machine.memory
        for source, target in pairs:
            memory[target.buffer.handle][:] = memory[source.buffer.handle][: target.length // 4]

    def settle_states(self) -> None:
        """Nothing is written apart."""

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
    window: int = 0,
    states: Sequence[DeviceSpan] = (),
) -> Outcome:
    """The outcome of recording a small decoder; a `window` applies to every attention."""
    small = small or decoder()
    engine = Engine(small, recorded or small.sketch.record())
    engine.window = window
    prepare(engine)
    about = About(tuple(Pair(f"past {i}", f"present {i}") for i in range(len(small.caches))), mask_dtype=mask_dtype)
    buffers = Buffers(engine, about)
    buffers.states = states
    step = DecodeStep(cast(Any, engine), EAGER, capture="tape", note=None, captured=CAPTURED)

    async def probe(_buffers: Any, ids: Sequence[int]) -> None:
        """No prefill: the caches' contents are enough."""
        engine.probed.append(len(ids))

    given: tuple[Any, Any] = (buffers, about)
    left_out = [LeftOut(pair.past, window) for pair in about.cache[::2]] if window else []
    check = StepCheck(step.engine, EAGER, *given, probe, window)
    made = asyncio.run(StepRecorder(step, *given, check, passes, verdicts, left_out).record())
    assert engine.dropped == [7]
    assert buffers.borrowed == [], "what the check allocates is freed"
    return Outcome(made, engine, buffers)


def clears(outcome: Outcome) -> int:
    return sum(isinstance(op, Clear) for op in outcome.engine.step.ops)


def kernels(outcome: Outcome) -> Counter[str]:
    """The kernels of the remaining tape, by template; a product that joins splits of attention has two."""
    made = outcome.tape.fused["kernels"]
    return Counter(kernel["shader"] for kernel in made if "attended" not in kernel["bindings"])
