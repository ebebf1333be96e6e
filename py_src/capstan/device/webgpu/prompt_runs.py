"""Runs several tokens of one sequence together: its prompts, and tokens that are scored."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from ...errors import ClosedError
from ...memory import SNAPSHOTS
from ..shortlist import ScoredToken
from ..snapshots import Snapshots
from .gpu_engine import GpuEngine
from .prefill_pace import PrefillPace
from .scored_runs import ScoredRuns
from .sequence_buffers import SequenceBuffers
from .tapes.prefill_tapes import SHORT, PrefillTapes, Run, cut_prompt

__all__ = ["PromptRuns", "RunMaker"]

T = TypeVar("T")

SHORT_PROMPT, LONG_PROMPT = 8, 64
"""Tokens of the two prompts of a warm-up. onnxruntime-web changes its matrix products at 4 tokens and its attention at
32: one prompt is longer than the first limit, the other is longer than both."""


class RunMaker(Protocol):
    """The part of the model that prompt runs use; WebGpuModel documents the methods."""

    def take_warm_up(self) -> bool: ...
    async def scored_runs(self, buffers: SequenceBuffers, prompt: int, tapes: PrefillTapes | None) -> ScoredRuns: ...


@dataclass(eq=False)
class PromptRuns:
    """Runs the model on prompts and on scored tokens, from tapes if there are any, and keeps the place in the sequence,
    from which decode steps continue. row_interface.DecoderRow and RowDecoder document the other methods.
    """

    engine: GpuEngine
    buffers: SequenceBuffers
    binding: int
    """The binding of the prefill session, for any number of prompt ids."""
    pace: PrefillPace
    tapes: PrefillTapes | None
    maker: RunMaker
    placed: int = 0
    """The binding for prompts with pictures; 0 in a model of text."""
    scored: ScoredRuns | None = None
    snapshots: Snapshots | None = None
    step_tape: int = 0
    """The tape of a decode step, 0 without one."""
    length: int = 0
    """The number of positions in the sequence."""
    cursor: int = 0
    """The ring index of the next pick."""
    held: int = 0
    """Positions that growing KV caches hold at present."""
    mask_bound: int | None = None
    """The position after which the mask is known to be zero; None if unknown."""
    longest: int = 0
    """Tokens of the longest run so far."""
    closed: bool = False
    making: asyncio.Future[None] | None = None
    """A tape or step that is being made over the sequence's buffers."""
    unfinished: bool = False
    """Whether a wait for onnxruntime-web was cancelled while its run continues."""

    def __post_init__(self) -> None:
        buffers = self.buffers
        if buffers.about.states:
            self.snapshots = Snapshots(SNAPSHOTS, buffers.keep_states, buffers.bring_states)

    async def warm_up(self) -> None:
        if self.buffers.capacity >= LONG_PROMPT and self.maker.take_warm_up():
            for tokens in (SHORT_PROMPT, LONG_PROMPT):
                await self.prefill([0] * min(tokens, self.buffers.chunk), 0)
        tapes = self.tapes
        if tapes is not None:
            # Tapes are made one after another, so that other requests wait for at most one.
            for length in tapes.untried(tapes.seen):
                await self._make_tapes(tapes, [length])

    async def prefill(self, ids: Sequence[int], past: int) -> None:
        await self.rest()
        tapes, buffers = self.tapes, self.buffers
        self._go_to(past)
        await self.pace.known()
        if tapes is not None:
            await self._make_tapes(tapes, tapes.due(len(ids), past))
        runs: list[Run] = []
        done = 0
        while done < len(ids):
            runs = runs or await self._next_runs(done, len(ids))
            run = runs.pop(0)
            done = run.start + run.length
            part = ids[run.start : done]
            await buffers.bring(part)
            valid = self._begin_run(part, past + run.start, done == len(ids))
            begun, stepped = self.pace.now(), False
            if buffers.places_any(past + run.start, len(part)):
                await self.run(self.placed, valid, len(part))
            elif tapes is not None and tapes.play(len(part), valid):
                pass
            elif tapes is not None and self.step_tape and len(part) < min(SHORT):
                stepped = True
                self.step_through(part, past + run.start)
            else:
                await self.run(self.binding, valid, len(part))
            if not stepped:
                buffers.keep_hidden("prompt", past + run.start, len(part))
            self.pace.measure(len(part), begun)
            self._end_run(part)
        self._rest_at(past + len(ids))

    async def score(self, tokens: Sequence[int], past: int) -> list[ScoredToken]:
        await self.rest()
        buffers, end = self.buffers, len(tokens) - 1
        if self.scored is None:
            await self.finish(self._make_scored())
            await self.rest()
        scored = self.scored
        assert scored is not None
        # Caches over a window may have dropped earlier positions, and runs over ids alone place no features.
        back = 0 if buffers.sliding is None and not self.placed else past
        self._go_to(past)
        if scored.tapes is not None and (wanted := scored.wanted(past, end, back)):
            before = len(scored.tapes.tapes)
            await self._make_tapes(scored.tapes, wanted)
            if past and len(scored.tapes.tapes) > before:
                # The checks of the tapes overwrote the caches.
                await self.prefill(tokens[:past], 0)
        scored.ask(tokens[past + 1 :])
        done = past
        for run in scored.cut(past, end, back):
            part = tokens[run.start : run.start + run.length]
            await buffers.bring(part)
            # Another continuation of the same context may follow.
            valid = self._begin_run(part, run.start, done == past)
            await self.waited(scored.run(run.length, valid))
            self._end_run(part)
            scored.keep(run, done, done - past)
            done = run.start + run.length
        self._rest_at(end)
        return await scored.read(end - past)

    async def _make_scored(self) -> None:
        self.scored = await self.maker.scored_runs(self.buffers, self.binding, self.tapes)

    def _go_to(self, past: int) -> None:
        """Continue from the first `past` positions."""
        if self.snapshots is not None:
            self.snapshots.go_to(past)
        if self.buffers.about.growing and past < self.held:
            self.buffers.cut(self.held, past)
            self.held = past

    def _begin_run(self, ids: Sequence[int], start: int, last: bool) -> int:
        """Write the inputs of a prompt run, which may be the `last` one. Returns the number of positions after it."""
        # The model may have been closed while onnxruntime-web computed the run before.
        self.require_open()
        self.buffers.make_room(start, len(ids))
        self.buffers.write_prompt(ids, start, self.mask_bound)
        self.mask_bound = start + len(ids)
        if self.snapshots is not None:
            if last:
                self.snapshots.before_last_run()
            self.snapshots.live = None
        return self.mask_bound

    def _end_run(self, ids: Sequence[int]) -> None:
        """Note that a prompt run over these ids is queued."""
        assert self.mask_bound is not None
        self.longest = max(self.longest, len(ids))
        self.settle(self.mask_bound)
        if self.snapshots is not None:
            self.snapshots.live = self.mask_bound

    def _rest_at(self, length: int) -> None:
        """Note that the model ran on the first `length` positions."""
        self.length = length
        self.cursor = 0
        self.buffers.set_length(length)

    async def _next_runs(self, start: int, end: int) -> list[Run]:
        """The prefill runs for ids `start` to `end` of a prompt; only the next one until the run size has settled."""
        pace, tapes = self.pace, self.tapes
        await pace.known()
        runs = tapes.cut(end - start) if tapes is not None else cut_prompt(end - start, pace.size, ())
        return [Run(start + run.start, run.length) for run in (runs if pace.settled else runs[:1])]

    def step_through(self, ids: Sequence[int], past: int) -> None:
        """Queue a step of the tape for each of a few ids; encoding one run in onnxruntime-web would take longer."""
        for position, token in enumerate(ids, past):
            self.buffers.make_room(position, 1)
            self.buffers.set_input(token, position)
            self.engine.play_once(self.step_tape, position + 1)
            self.buffers.keep_hidden("input", position, 1)
        self.mask_bound = past + len(ids)

    async def make_tape(self, length: int) -> None:
        """Make the tape of prompt runs of a length, if there can be one; this overwrites the sequence's buffers."""
        await self.rest()
        if self.tapes is not None:
            self.mask_bound = None
            await self.finish(self.tapes.make_one(length))

    async def _make_tapes(self, tapes: PrefillTapes, lengths: Collection[int]) -> None:
        """Make prefill tapes. If the wait is cancelled the making goes on: work on the GPU needs its buffers."""
        if lengths:
            self.require_open()
            # The checks of the tapes overwrite the mask.
            self.mask_bound = None
            await self.finish(tapes.make(lengths))

    async def finish(self, making: Coroutine[Any, Any, None]) -> None:
        """Await work that uses the sequence's buffers; their next use waits for it even if this wait is cancelled."""
        self.making = asyncio.ensure_future(making)
        await asyncio.shield(self.making)

    async def finished(self) -> None:
        """Wait for all work under way; nothing runs afterwards."""
        if self.making is not None:
            await asyncio.wait([self.making])
        await self.engine.idle()

    async def rest(self) -> None:
        self.require_open()
        if self.making is not None:
            await asyncio.wait([self.making])
            self.making = None
        if self.unfinished:
            await self.engine.idle()
            self.unfinished = False
        self.require_open()

    async def run(self, binding: int, valid: int, tokens: int = 1) -> None:
        """Have onnxruntime-web run `tokens` tokens; afterwards there are `valid` positions."""
        await self.waited(self.engine.run(binding, valid, tokens, self.buffers.base))

    async def waited(self, run: Awaitable[T]) -> T:
        """Wait for a run, which goes on if the wait is cancelled."""
        try:
            return await run
        except asyncio.CancelledError:
            self.unfinished = True
            raise

    def settle(self, valid: int) -> None:
        """Copy the results of a run to the buffers that the next run reads."""
        self.buffers.settle(valid)
        self.held = valid

    def forget(self) -> None:
        """Note that other work overwrites the sequence's buffers."""
        self.mask_bound = None
        if self.snapshots is not None:
            self.snapshots.taken, self.snapshots.live = {}, None

    def before_steps(self, end: int | None) -> None:
        """Prepare for decode steps, up to `end` positions; None if their number is not known yet."""
        if self.closed:
            self.require_open()
        if self.snapshots is not None:
            self.snapshots.before_burst()
            self.snapshots.live = end

    def begin(self, length: int) -> None:
        """Continue from the KV caches and logits of `length` positions that another decoder has written."""
        self.buffers.set_mask(length)
        self.buffers.set_length(length)
        self.length = self.mask_bound = length
        self.cursor = 0

    def copy_from(self, other: PromptRuns) -> None:
        """Continue from a copy of another sequence."""
        self.require_open()
        other.require_open()
        self.buffers.copy_from(other.buffers, other.length)
        self.length, self.held = other.length, other.held
        self.cursor, self.mask_bound = 0, other.length
        if self.snapshots is not None and other.snapshots is not None:
            # Snapshots stay with the other decoder: a rewind runs the tokens from the start.
            self.snapshots.taken, self.snapshots.live = {}, other.snapshots.live

    def require_open(self) -> None:
        if self.closed:
            raise ClosedError("the model of this generator was closed; load it again")

    async def release(self) -> None:
        """Free the tapes and the binding. Called while no work is under way."""
        if self.scored is not None:
            await self.scored.release()
        self.engine.unbind(self.binding)
        if self.placed:
            self.engine.unbind(self.placed)
        if self.tapes is not None:
            await self.tapes.release()
