"""webgpu_session trusts a tape only after its replay equals eager runs; over an engine made of bytearrays."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

import capstan
from capstan import fallback
from capstan.device.device_interface import BoundSpan
from capstan.device.ort_session import RunReply
from capstan.device.webgpu.tapes.session_tapes import difference
from capstan.device.webgpu.webgpu_session import WebGpuSession
from capstan.errors import BindingError, ClosedError, TapeCheckError, TapeError, UnsupportedModelError, ValidationError
from capstan.memory import BufferRequest, DeviceBuffer, MemoryInfo, MemoryType
from tests.unit.paper_engine import PaperEngine

GPU = MemoryInfo("WebGPU_Buffer", "webgpu", MemoryType.DEFAULT, alignment=256)
X, Y, SCRATCH = 1, 2, 100
"""Handles of input and output, and the recorded id of a buffer of onnxruntime's."""

Kernel = Callable[[dict[int, bytearray]], None]


def halves(memory: dict[int, bytearray]) -> None:
    """scratch = x / 2"""
    memory[SCRATCH][:16] = struct.pack("<4f", *(value / 2 for value in struct.unpack_from("<4f", memory[X])))


def adds_one(memory: dict[int, bytearray]) -> None:
    """y = scratch + 1"""
    memory[Y][:16] = struct.pack("<4f", *(value + 1 for value in struct.unpack_from("<4f", memory[SCRATCH])))


def forgets(memory: dict[int, bytearray]) -> None:
    """Nothing."""


def adds_a_constant(value: float) -> Kernel:
    """y = x / 2 + value, where value was read on the host when the run was recorded."""

    def kernel(memory: dict[int, bytearray]) -> None:
        memory[Y][:16] = struct.pack("<4f", *(x / 2 + value for x in struct.unpack_from("<4f", memory[X])))

    return kernel


class Engine(PaperEngine):
    """Two kernels; the eager run executes `eager`, a played dispatch its kernel of `recorded`."""

    def __init__(self, eager: Sequence[Kernel], recorded: Sequence[Kernel], ops: Sequence[Any] | None = None) -> None:
        super().__init__()
        for handle in (X, Y, SCRATCH):
            self.handles["buffer", handle], self.memory[handle] = BufferRequest("", 16, ""), bytearray(16)
        self.eager = eager
        self.recorded = recorded
        self.ops = ops
        self.played: dict[int, Sequence[Any]] = {}
        self.closed: list[str] = []
        self.sessions: list[Session] = []
        self.capture_error: str | None = None
        self.maps = 0

    async def open_session(self, capture: bool) -> Session:
        if capture and self.capture_error:
            raise UnsupportedModelError(self.capture_error)
        self.sessions.append(Session(self))
        return self.sessions[-1]

    def session_handle(self, session: Session, owner: str) -> int:
        return 1

    def bind(self, session: int, feeds: Any, fetches: Any, lengths: object = None) -> int:
        assert [(t.name, t.buffer) for t in (*feeds, *fetches)] == [("x", X), ("y", Y)]
        return 1

    def unbind(self, binding: int) -> None:
        self.closed.append("binding")

    def retire(self, binding: int) -> None:
        self.closed.append("registration")

    def drop_recording(self, recording: int) -> None:
        self.closed.append("recording")

    async def record(self, binding: int) -> dict[str, Any]:
        half = self.ops or [["dispatch", 10 + i, [], 1, 1, 1] for i in range(len(self.recorded))]
        return {
            "handle": 5,
            "ops": [*half, *(op for op in half if op[0] == "dispatch")],
            "pipelines": {10 + i: {"label": "", "code": "", "bindings": []} for i in range(9)},
            "bind_groups": {},
            "buffers": {
                str(SCRATCH): {"size": 16, "usage": 128, "label": ""},
                "9": {"size": 16, "usage": 9, "label": ""},
            },
        }

    async def make_tape(self, recording: int, played: Sequence[Any], written: Sequence[int], fused: Any = None) -> int:
        assert written == [X, Y]
        self.played[len(self.played) + 1] = played
        return len(self.played)

    def close_tape(self, tape: int) -> None:
        self.closed.append(f"tape {tape}")

    def poison(self, tape: int, recording: int, buffers: Sequence[int]) -> None:
        for buffer in buffers:
            self.memory[buffer][:] = b"\xff" * 16

    def play_once(self, tape: int, length: int) -> None:
        for kind, *rest in self.played[tape]:
            if kind == "dispatch":
                self.recorded[rest[0] - 10](self.memory)
            elif kind == "clear":
                self.memory[rest[0]][:] = bytes(16)


class Session:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.released = 0

    def specs(self) -> tuple[list[Any], list[Any]]:
        return [["x", "float32", [4]]], [["y", "float32", [4]]]

    async def run(
        self, feeds: Sequence[Mapping[str, Any]], fetches: Sequence[Mapping[str, Any]], views: Sequence[memoryview]
    ) -> RunReply:
        # Each session has its own scratch.
        own = {**self.engine.memory, SCRATCH: bytearray(16)}
        for kernel in self.engine.eager:
            kernel(own)
        return RunReply([{"name": "y", "dtype": "float32", "dims": [4]}], [], self.engine.maps)

    async def release(self) -> None:
        self.released += 1


INPUT = struct.pack("<4f", 1, -2, 3.5, 0)


async def record(engine: Engine) -> Any:
    engine.memory[X][:] = INPUT
    given: Any = engine
    session = await WebGpuSession.start(given, engine.open_session, GPU, "owner")
    buffers = [DeviceBuffer(handle, 16, GPU, free=lambda: None).span() for handle in (X, Y)]
    return await session.record(
        [BoundSpan("x", buffers[0], "float32", (4,))], [BoundSpan("y", buffers[1], "float32", (4,))]
    )


def result(engine: Engine) -> list[float]:
    return list(struct.unpack("<4f", engine.memory[Y]))


def test_a_tape_that_does_what_eager_runs_do_is_kept() -> None:
    engine = Engine([halves, adds_one], [halves, adds_one])
    tape = asyncio.run(record(engine))
    assert tape.passes == {"clears": "0 dropped"}
    assert engine.memory[X] == INPUT, "the inputs are as they were"
    assert result(engine) == [1.5, 0, 2.75, 1], "the outputs are those of the inputs"
    assert engine.closed == ["recording", "registration", "binding"]
    engine.memory[X][:] = struct.pack("<4f", 2, 4, 6, 8)
    tape.replay()
    assert result(engine) == [2, 3, 4, 5]
    eager, captured = engine.sessions
    asyncio.run(tape.close())
    asyncio.run(tape.close())
    assert (eager.released, captured.released) == (0, 1)
    assert engine.closed[-1] == "tape 1"


@pytest.mark.parametrize(
    ("recorded", "message"),
    [
        ([halves, forgets], "a replay differs from an eager run in output 'y'.*4 elements finite in only one"),
        ([forgets, adds_one], "a replay differs from an eager run in output 'y': by 1.75"),
        ([forgets, adds_a_constant(1.25)], "differs from an eager run in output 'y': by 0.25; at most 2.75e-05"),
    ],
    ids=["the last operation is missing", "an inner operation is missing", "a constant is wrong"],
)
def test_a_tape_that_does_not_is_found_out(recorded: Sequence[Kernel], message: str) -> None:
    engine = Engine([halves, adds_one], recorded)
    with pytest.raises(TapeCheckError, match=message):
        asyncio.run(record(engine))
    assert engine.memory[X] == INPUT
    assert engine.closed == ["tape 1", "recording", "registration", "binding"]
    assert [session.released for session in engine.sessions] == [0, 1]


def test_a_value_that_was_read_on_the_host_is_found_out_on_other_inputs() -> None:
    def eager(memory: dict[int, bytearray]) -> None:
        adds_a_constant(struct.unpack_from("<f", memory[X])[0])(memory)

    with pytest.raises(TapeCheckError, match="a replay differs from an eager run on other inputs in output 'y'"):
        asyncio.run(record(Engine([eager], [adds_a_constant(1)])))


def test_a_run_that_fails_on_other_values_depends_on_them() -> None:
    def eager(memory: dict[int, bytearray]) -> None:
        if memory[X] != INPUT:
            raise ValidationError("shapes do not match")
        adds_a_constant(1)(memory)

    engine = Engine([eager], [adds_a_constant(1)])
    with pytest.raises(TapeCheckError, match="the run depends on the values of its inputs: shapes do not match"):
        asyncio.run(record(engine))
    assert engine.memory[X] == INPUT


@pytest.mark.parametrize("needed", [False, True])
def test_clears_are_dropped_only_where_nothing_reads_them(needed: bool) -> None:
    def adds_cleared(memory: dict[int, bytearray]) -> None:
        cleared = struct.unpack_from("<4f", memory[SCRATCH]) if needed else (0, 0, 0, 0)
        values = struct.unpack_from("<4f", memory[X])
        memory[Y][:] = struct.pack("<4f", *(a + b / 2 + 1 for a, b in zip(cleared, values, strict=True)))

    ops = [["clear", SCRATCH, 0, 16], ["dispatch", 10, [], 1, 1, 1]]
    engine = Engine([halves, adds_one], [adds_cleared], ops)
    tape = asyncio.run(record(engine))
    assert result(engine) == [1.5, 0, 2.75, 1]
    if needed:
        assert tape.passes["clears"].startswith("kept: a replay differs")
    else:
        assert tape.passes == {"clears": "1 dropped"}


def test_a_run_with_a_readback_in_its_midst_is_refused() -> None:
    ops = [["dispatch", 10, [], 1, 1, 1], ["copy", SCRATCH, 0, 9, 0, 16], ["dispatch", 11, [], 1, 1, 1]]
    with pytest.raises(TapeError, match="the run reads 1 tensors back to the CPU"):
        asyncio.run(record(Engine([halves, adds_one], [halves, adds_one], ops)))


def test_a_model_that_cannot_be_captured_says_why() -> None:
    engine = Engine([halves, adds_one], [halves, adds_one])
    engine.capture_error = "a node is on the CPU"
    with pytest.raises(TapeError, match="the model cannot be captured: a node is on the CPU"):
        asyncio.run(record(engine))


async def test_after_a_failed_run_the_session_is_made_anew() -> None:
    def fails(memory: dict[int, bytearray]) -> None:
        raise ValidationError("no")

    engine = Engine([halves, adds_one], [])
    given: Any = engine
    session = await WebGpuSession.start(given, engine.open_session, GPU, "owner")
    span = DeviceBuffer(Y, 16, GPU, free=lambda: None).span()
    fetch = BoundSpan("y", span, "float32", (4,))
    await session.run([], [fetch])
    engine.eager = [fails]
    with pytest.raises(ValidationError):
        await session.run([], [fetch])
    engine.eager = [halves]
    await session.run([], [fetch])
    await session.run([], [fetch])
    released = [made.released for made in engine.sessions]
    await session.close()
    await session.close()
    with pytest.raises(ClosedError, match="this session was closed; make another one"):
        await session.run([], [fetch])
    assert [*released, *(made.released for made in engine.sessions)] == [1, 0, 1, 1]


async def test_a_result_of_another_shape_is_refused_and_the_session_stays() -> None:
    engine = Engine([halves, adds_one], [])
    given: Any = engine
    session = await WebGpuSession.start(given, engine.open_session, GPU, "owner")
    span = DeviceBuffer(Y, 16, GPU, free=lambda: None).span()
    for dims in ((2, 2), (3,)):
        with pytest.raises(
            BindingError, match=r"'y' is bound to memory of shape .*; the result has \[4\]; bind memory"
        ):
            await session.run([], [BoundSpan("y", span, "float32", dims)])
    await session.run([], [BoundSpan("y", span, "float32", (4,))])
    assert len(engine.sessions) == 1


def test_outputs_that_one_buffer_cannot_hold_are_a_step_down(no_fallbacks: None) -> None:
    async def runs() -> None:
        engine = Engine([halves, adds_one], [])
        given: Any = engine
        session = await WebGpuSession.start(given, engine.open_session, GPU, "owner")
        fetch = BoundSpan("y", DeviceBuffer(Y, 16, GPU, free=lambda: None).span(), "float32", (4,))
        for engine.maps in (0, 1, 2, 2):
            await session.run([], [fetch])

    with pytest.warns(
        capstan.FallbackWarning, match="one read for all outputs: together they exceed the largest buffer"
    ):
        asyncio.run(runs())
    assert list(fallback.fallbacks().values()) == [2]


def pack(form: str, *values: float) -> bytes:
    return struct.pack(f"<{len(values)}{form}", *values)


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("dtype", "wanted", "got", "reason"),
    [
        ("float32", pack("f", 1, NAN, INF), pack("f", 1, -NAN, INF), None),
        ("float32", pack("f", 100, 0), pack("f", 100.0005, 0), None),
        ("float32", pack("f", 100, 0), pack("f", 100.01, 0), "by 0.0100021; at most 0.001"),
        ("float32", pack("f", 1, 2), pack("f", NAN, 2), "(1 elements finite in only one)"),
        ("float32", pack("f", INF), pack("f", -INF), "(1 elements"),
        ("float16", pack("e", 1, 2), pack("e", 1.001, 2), None),
        ("float16", pack("e", 1, 2), pack("e", 1.1, 2), "by 0.0996"),
        ("int64", pack("q", 1, 2), pack("q", 1, 2), None),
        ("int64", pack("q", 1, 2), pack("q", 1, 3), "1 of 16 bytes"),
        ("bool", b"\0\1", b"\1\1", "1 of 2 bytes"),
    ],
)
def test_how_far_two_tensors_are_apart(dtype: str, wanted: bytes, got: bytes, reason: str | None) -> None:
    found = difference(dtype, wanted, got)
    assert found is None if reason is None else reason in (found or "")
