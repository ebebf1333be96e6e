"""Makes a tape from the first run of a captured session: it records the run, makes the tape, and checks it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from typing import Any

from ....tape import Copy, Recording
from ..gpu_engine import NOT_FUSED, GpuTapes
from ..sequence_buffers import SequenceBuffers

__all__ = ["Check", "make_tape", "recorded", "state_copies"]

Check = Callable[[int], Awaitable[None]]
"""Raises TapeCheckError for a tape that differs from the eager run."""


@asynccontextmanager
async def recorded(engine: GpuTapes, binding: int) -> AsyncIterator[Recording]:
    """The recording of a bound captured session's first run; dropped at the end of the block. Raises TapeError."""
    recording = Recording.from_json(await engine.record(binding))
    try:
        yield recording
    finally:
        engine.drop_recording(recording.handle)


def state_copies(engine: GpuTapes, buffers: SequenceBuffers, recording: Recording) -> list[Copy]:
    """Copies of the states from the buffers that a recorded step writes to those that the next step reads."""
    known = engine.recorded_id
    pairs = [(known(new.buffer.handle), known(old.buffer.handle)) for new, old in buffers.carried]
    return [Copy(new, 0, old, 0, recording.sizes[old]) for new, old in pairs]


async def make_tape(
    engine: GpuTapes,
    recording: Recording,
    played: Sequence[Any],
    written: Sequence[int],
    *,
    fused: Mapping[str, Any] = NOT_FUSED,
    tables: Sequence[bytes] = (),
    check: Check | None = None,
) -> int:
    """A tape that passed `check`; it is closed on failure. `played` has its commands, `written` the recorded buffers
    that others may write, `fused` Capstan's kernels that `played` names, `tables` the workgroup counts by length.
    Raises TapeError, OutOfMemoryError.
    """
    tape = await engine.make_tape(recording.handle, played, written, fused)
    with ExitStack() as undo:
        undo.callback(engine.close_tape, tape)
        for table in tables:
            engine.add_table(tape, table)
        if check:
            await check(tape)
        undo.pop_all()
    return tape
