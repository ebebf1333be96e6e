"""How a decode step runs on WebGPU: replayed from a tape, through ORT's capture, or eagerly; recorded and checked here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ..errors import TapeCheckError, TapeError
from ..graph import GraphDescription
from ..tape import Op, Recording, TapeKey, captured_half, check_replayable, copies_lost_by_ort
from .engine import GpuEngine
from .webgpu_decoder import SequenceBuffers

__all__ = ["TOLERANCE", "DecodeStep", "record_step"]

TOLERANCE = {"float32": 2e-4, "float16": 2e-2}
"""Largest difference between a tape step and an eager step, relative to the largest value, in logits and KV cache.

Both run onnxruntime-web's kernels; attention may split its sums differently, which is worth a few units in the last
place. Measured on the fixtures: 0 to 2e-6 in float32."""

PROBE_TOKENS = 5

Probe = Callable[["SequenceBuffers", Sequence[int]], Awaitable[None]]


@dataclass(frozen=True)
class DecodeStep:
    """One way to run a decode step; handles of the engine, 0 where there is none."""

    engine: GpuEngine
    eager: int
    """The prefill session bound to a single input id."""
    capture: str
    """'tape', 'ort' or 'off'."""
    note: str | None
    """Why it is not the capture that was asked for."""
    session: int = 0
    captured: int = 0
    """The captured session and its binding."""
    tape: int = 0
    key: TapeKey | None = None

    @property
    def binding(self) -> int:
        """What ORT runs for a step when there is no tape."""
        return self.captured if self.capture == "ort" else self.eager

    async def release(self) -> None:
        """Close the tape, then the session whose buffers it uses."""
        if self.tape:
            self.engine.close_tape(self.tape)
        for binding in filter(None, (self.eager, self.captured)):
            self.engine.unbind(binding)
        if self.session:
            await self.engine.release_session(self.session)


async def record_step(step: DecodeStep, buffers: SequenceBuffers, about: GraphDescription, probe: Probe) -> DecodeStep:
    """Record the captured session's first run and return the step to use: the one asked for, or the next one down."""
    try:
        recording = Recording.from_json(await step.engine.record(step.captured))
    except TapeError as error:
        # Nothing is known of what ORT captured, so its own replay is not trusted either.
        return replace(step, capture="off", note=f"the decode step could not be recorded: {error}")
    notes = []
    try:
        ops = captured_half(recording)
        if step.capture == "tape":
            try:
                tape = await make_tape(step, recording, ops, buffers, about, probe)
                step.engine.retire(step.captured)
                return replace(step, tape=tape)
            except TapeError as error:
                notes.append(f"the tape cannot be used: {error}")
        lost = copies_lost_by_ort(ops)
        if lost:
            raise TapeError(f"onnxruntime-web's capture loses {lost} buffer copies of this model's decode step")
        await check_against_eager(step, partial(step.engine.run, step.captured), buffers, about, probe)
        return replace(step, capture="ort", note="; ".join(notes) or None)
    except TapeError as error:
        notes.append(str(error))
        step.engine.retire(step.captured)
        return replace(step, capture="off", note="; ".join(notes))
    finally:
        step.engine.drop_recording(recording.handle)


async def make_tape(
    step: DecodeStep,
    recording: Recording,
    ops: Sequence[Op],
    buffers: SequenceBuffers,
    about: GraphDescription,
    probe: Probe,
) -> int:
    """A tape of the recorded step that was seen to do what an eager step does. Raises TapeError."""
    check_replayable(recording)
    written = [step.engine.recorded_id(buffer) for buffer in buffers.written()]
    tape = step.engine.make_tape(recording.handle, [op.played() for op in ops], written)
    try:

        async def play() -> None:
            step.engine.play_once(tape, min(PROBE_TOKENS, buffers.capacity - 1) + 1)

        await check_against_eager(step, play, buffers, about, probe)
    except BaseException:
        step.engine.close_tape(tape)
        raise
    return tape


async def check_against_eager(
    step: DecodeStep,
    replay: Callable[[], Awaitable[None]],
    buffers: SequenceBuffers,
    about: GraphDescription,
    probe: Probe,
) -> None:
    """Replay one step, run the same step eagerly, and compare logits and every byte of the KV cache.

    Raises TapeCheckError with the largest difference and the tolerance. The logits are poisoned with NaN before each.
    """
    engine = step.engine
    length = min(PROBE_TOKENS, buffers.capacity - 1)
    ids = [(7 * i + 3) % about.vocab_size for i in range(length)]
    await probe(buffers, ids)
    buffers.set_input(engine, 11 % about.vocab_size, length)
    watched = [(buffers.logits, buffers.logits_bytes, about.logits_dtype)]
    watched += [(cache, buffers.cache_bytes, about.cache_dtype) for cache in buffers.cache]
    copies: list[int] = []
    try:
        copies += [engine.create_buffer("tape check", size) for _, size, _ in watched]
        engine.fill(buffers.logits, 0xFF)
        await replay()
        engine.copy([(kept, 0, copy, 0, size) for (kept, size, _), copy in zip(watched, copies, strict=True)])
        engine.fill(buffers.logits, 0xFF)
        await engine.run(step.eager)
        pairs = [(copy, kept, size, dtype) for (kept, size, dtype), copy in zip(watched, copies, strict=True)]
        differences = await engine.compare(pairs)
    finally:
        for copy in copies:
            engine.destroy_buffer(copy)
    names = ["logits", *(pair.present for pair in about.cache)]
    for name, (_, _, dtype), found in zip(names, watched, differences, strict=True):
        limit = TOLERANCE[dtype] * max(1.0, found.max_magnitude)
        if found.unlike or found.max_difference > limit:
            raise TapeCheckError(
                f"a replayed step differs from an eager one in {name} by {found.max_difference:g} "
                f"({found.unlike} elements finite in only one), at most {limit:g} is allowed"
            )
