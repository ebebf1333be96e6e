"""Runs beam searches on the GPU, as steps of joint rows."""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable, Sequence

from ..beam_interface import BeamBurst, BeamOptions, Continuation, Round
from .gpu_engine import BeamSpec, GpuEngine
from .row_buffers import RowBuffers
from .tapes.beam_tapes import BeamBuffers
from .tapes.row_tapes import RowTape

__all__ = ["BeamSteps"]

NO_NUMBER = 0xFFFFFFFF
"""Marks the record of a step in which all logits of a beam are NaN: beams.wgsl."""
MOST = 1024
"""Continuations of a prompt that beams.wgsl ranks."""


class BeamSteps:
    """Owns the search and the tape that reads caches through a table. `make` returns the tape, or the reason why there
    is none.
    """

    def __init__(
        self,
        engine: GpuEngine,
        buffers: RowBuffers,
        make: Callable[[], Awaitable[RowTape[BeamBuffers] | str]],
    ) -> None:
        self._engine = engine
        self._buffers = buffers
        self._make = make
        self._made: RowTape[BeamBuffers] | None = None
        self._search = 0
        self._options: BeamOptions | None = None

    @property
    def report(self) -> dict[str, str]:
        """See RowDecoder.tape_passes."""
        return {} if self._made is None else {"beams": self._made.report}

    async def prepare(self, options: BeamOptions) -> str | None:
        """See beam_interface.BeamRows."""
        if options.beams * options.looked > MOST:
            return f"{options.beams} beams with {options.looked} continuations each exceed {MOST} in all"
        if self._made is None:
            found = await self._make()
            if isinstance(found, str):
                return found
            self._made = found
        if options != self._options:
            self._forget()
            self._search = self._engine.make_beam_search(self._spec(options, self._made))
            self._options = options
        return None

    def _spec(self, options: BeamOptions, made: RowTape[BeamBuffers]) -> BeamSpec:
        buffers = self._buffers
        about, state = buffers.about, buffers.spans["state"]
        return BeamSpec(
            logits=buffers.handle("logits"),
            logits_type=about.logits_dtype,
            vocab=about.vocab_size,
            rows=buffers.rows,
            beams=options.beams,
            looked=options.looked,
            ends=tuple(sorted(options.ends)),
            state=(state.buffer.handle, state.offset, state.length),
            input_ids=buffers.handle("input ids"),
            table=made.buffers.table.handle,
            scores=made.buffers.scores.handle,
            capacity=buffers.capacity,
            owner=buffers.owner,
        )

    def begin(self, scores: Sequence[float], sources: Sequence[int], lengths: Sequence[int]) -> None:
        """See beam_interface.BeamRows; `lengths` are the lengths of the rows."""
        made, capacity, device = self._tape(), self._buffers.capacity, self._buffers.device
        with device.batch():
            device.copy_cpu_to_device(made.buffers.scores.span(0, 4 * len(scores)), array("f", scores))
            for row, (source, length) in enumerate(zip(sources, lengths, strict=True)):
                span = made.buffers.table.span(4 * row * capacity, 4 * length)
                device.copy_cpu_to_device(span, array("I", [source]) * length)

    def submit(self, picks: int, choose_first: bool, length: int, cursor: int) -> Awaitable[BeamBurst]:
        """Queue `picks` steps; `length` is the length of the longest row in the first step; `cursor` is the number of
        that step's record.
        """
        assert self._options is not None
        tape = self._tape().tape
        numbers = self._engine.beam_burst(tape, self._search, picks, choose_first, length, cursor)
        return _burst(numbers, picks, self._options.beams, self._buffers.rows)

    async def release(self) -> None:
        """Free the search and the tape."""
        self._forget()
        made, self._made = self._made, None
        if made is not None:
            await made.release()

    def _forget(self) -> None:
        if self._search:
            self._engine.destroy_beam_search(self._search)
        self._search, self._options = 0, None

    def _tape(self) -> RowTape[BeamBuffers]:
        if self._made is None:
            raise ValueError("call prepare_beams before begin_beams and submit_beams")
        return self._made


async def _burst(numbers: Awaitable[Sequence[float]], picks: int, beams: int, rows: int) -> BeamBurst:
    submitted, done, readable, host, entered, *found = await numbers
    words = array("I", map(int, found))
    floats = memoryview(words).cast("B").cast("f")
    size, prompts = 2 + 5 * beams, rows // beams
    tokens = tuple(
        tuple(words[((step * prompts + row // beams) * size + 3 + 3 * (row % beams))] for step in range(picks))
        for row in range(rows)
    )
    rounds = tuple(
        tuple(_round(words, floats, (step * prompts + prompt) * size, beams) for prompt in range(prompts))
        for step in range(picks)
    )
    return BeamBurst(tokens, submitted, done, readable, host, entered, rounds=rounds)


def _round(words: Sequence[int], floats: Sequence[float], at: int, beams: int) -> Round | None:
    """Read one record of beams.wgsl."""
    if words[at] == NO_NUMBER:
        return None
    ends = at + 2 + 3 * beams
    return Round(
        tuple(Continuation(words[i], words[i + 1], floats[i + 2]) for i in range(at + 2, ends, 3)),
        tuple((words[i], floats[i + 1]) for i in range(ends, ends + 2 * words[at], 2)),
        floats[at + 1],
    )
