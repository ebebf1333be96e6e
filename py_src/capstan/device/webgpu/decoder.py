"""Decodes one sequence on WebGPU: prefill of the prompt, then bursts of decode steps whose tokens the GPU picks.

The generation loop calls WebGpuDecoder as a rows.RowDecoder of one row: prompt ids go in (`prefill`), bursts of picked
ids come out (`submit`); KV cache and logits stay on the GPU. Decode steps run from a tape, else as runs of
onnxruntime-web with IO binding.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Collection, Coroutine, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ...errors import ClosedError, OptionError
from ...graph import GraphDescription
from ...memory import SNAPSHOTS, Loan
from ...stages.search import SearchOptions
from ...stages.speculation_options import Speculation
from ...tape import TapeKey
from ..cache_rows import CacheRows
from ..carried_tensor import CarriedTensor, carried
from ..element_types import byte_count
from ..lora_weights import LoraWeights
from ..row_interface import ONE, Burst, Counters
from ..shortlist import ScoredToken, Shortlist
from ..snapshots import Snapshots
from .cache_spans import CacheSpans
from .drafted_steps import DraftedSteps
from .gpu_engine import GpuEngine
from .prefill_pace import PrefillPace
from .rehearsal import Rehearsal
from .row_logits import RowLogits
from .row_sampler import RowSampler, read_burst
from .scored_runs import ScoredRuns
from .sequence_buffers import SequenceBuffers
from .sliding import reached
from .tapes.draft_tapes import DraftBuffers
from .tapes.prefill_tapes import SHORT, PrefillTapes, Run, cut_prompt
from .tapes.row_tapes import RowTape
from .tapes.tape_scratch import TapeScratch

if TYPE_CHECKING:
    from .tapes.decode_step import DecodeStep

__all__ = ["WebGpuDecoder"]

T = TypeVar("T")

MAX_BURST = 64
IN_FLIGHT = {False: 4, True: 2}
"""Most bursts in flight with a tape, by whether the adapter is software.

On an H200 a burst takes 6 ms. From its ids being readable, about 10 ms pass until the next burst is ready for the GPU.
"""

BEHIND_FIRST = 4
"""Most picks of the burst that is queued right behind a prompt's first pick. A hardware adapter accepts that many while
it computes the prompt. A software adapter gets none: it would compute them on the CPU that reads the first pick back.
"""

SHORT_PROMPT, LONG_PROMPT = 8, 64
"""Tokens of the two prompts of a warm-up. onnxruntime-web changes its matrix products at 4 tokens and its attention at
32: one prompt is longer than the first limit, the other is longer than both."""


class Maker(Protocol):
    """The model that made a decoder, by what the decoder asks of it; WebGpuModel documents the methods."""

    @property
    def eager_picks(self) -> int: ...
    def take_warm_up(self) -> bool: ...
    async def draft_tape(self, one: WebGpuDecoder, positions: int) -> RowTape[DraftBuffers] | str: ...
    async def scored_runs(self, buffers: SequenceBuffers, prompt: int, tapes: PrefillTapes | None) -> ScoredRuns: ...
    async def record_step(self, decoder: WebGpuDecoder, step: DecodeStep) -> DecodeStep: ...
    async def give_back(self, decoder: WebGpuDecoder) -> None: ...


class WebGpuDecoder:
    """A decoder of one row over SequenceBuffers; rows.RowDecoder, DecoderRow and DraftedRows document the methods."""

    rows = 1
    counts_device = True
    follows_grammars = True
    finds_drafts = True

    def __init__(
        self,
        engine: GpuEngine,
        about: GraphDescription,
        buffers: SequenceBuffers,
        scratch: TapeScratch,
        step: DecodeStep,
        prompt: int,
        pace: PrefillPace,
        prefill_tapes: PrefillTapes | None,
        maker: Maker,
    ):
        self._engine = engine
        self._about = about
        self._buffers = buffers
        self._device = buffers.device
        self._step = step
        self._prompt = prompt
        """Handle of the prefill session's IO binding, for any number of prompt ids."""
        self._maker = maker
        self._pace = pace
        self._prefill_tapes = prefill_tapes
        self._scored: ScoredRuns | None = None
        self._eager_picks = maker.eager_picks
        """Picks that come before a step that is not recorded yet is; they count down."""
        self._mask_bound: int | None = None
        """The position behind which the mask is known to be zero; None if unknown."""
        self._snapshots = Snapshots(SNAPSHOTS, buffers.keep_states, buffers.bring_states) if about.states else None
        self._length = 0
        self._held = 0
        """Positions that growing KV caches hold now."""
        self._cursor = 0
        self._steps = 0
        self._destroyed = False
        self._making: asyncio.Future[None] | None = None
        self._preparing: asyncio.Future[str | None] | None = None
        """Prefill tapes that are being made."""
        self._lora: LoraWeights | None = None
        """The LoRA adapter in its buffers; None if unknown."""
        self._long = False
        """Whether the long factors are in its rotary tables."""
        self._unfinished = False
        """Whether a wait for onnxruntime-web was cancelled while its run continues."""
        self.owner = buffers.owner
        self.scratch = scratch
        """Scratch of the decoder's tapes, and of the tape of joint rows whose prompts it runs."""
        self.lent: Loan | None = None
        """The loan of the buffers for that scratch; `destroy` ends it."""
        self.longest_run = 0
        """Tokens of the longest prefill run so far."""
        self.capacity = buffers.capacity
        self.usual_burst = 1
        self._take_step(step)
        logits = buffers.spans["logits"].sub(0, byte_count(about.logits_dtype, (about.vocab_size,)))
        self._logits = RowLogits(buffers.device, logits, about.logits_dtype, about.vocab_size, buffers.owner)
        self._sampler = RowSampler(engine, about, buffers)
        self._drafted = DraftedSteps(engine, self._sampler, partial(maker.draft_tape, self))

    def _take_step(self, step: DecodeStep) -> None:
        """Run decode steps in this way from now on."""
        software, taped = self._device.about().software, step.capture == "tape"
        self._step = step
        self.capture = step.capture
        self.capture_note = step.note
        self.max_in_flight = IN_FLIGHT[software] if taped else 1
        self.max_burst = MAX_BURST if taped else 1
        self.behind_first = BEHIND_FIRST if taped and not software else 0

    @property
    def records_after(self) -> int | None:
        return max(0, self._eager_picks) if self._step.unrecorded else None

    async def record(self) -> None:
        self._require_open()
        if self._step.unrecorded:
            await self._finish(self._record())
            self._require_open()

    async def _record(self) -> None:
        self._mask_bound = None
        if self._snapshots is not None:
            self._snapshots.taken, self._snapshots.live = {}, None
        self._take_step(await self._maker.record_step(self, self._step))
        if self._prefill_tapes is not None:
            # The prompt that is run again is no second one.
            self._prefill_tapes.seen.clear()

    @property
    def length(self) -> int:
        """Positions of the sequence."""
        return self._length

    @property
    def buffers(self) -> SequenceBuffers:
        """The buffers of the sequence, for rows that take it over."""
        return self._buffers

    @property
    def reusable(self) -> bool:
        """Whether the next sequence may have the decoder's buffers: none of them belongs to the user."""
        return self._buffers.given is None and self.scratch.given is None

    @property
    def tape_passes(self) -> dict[str, str]:
        tapes = self._prefill_tapes
        found = dict(self._step.passes) if tapes is None else {**self._step.passes, "prefill": tapes.report}
        scores = {} if self._scored is None else {"scores": self._scored.report}
        return {**found, **self._drafted.report, **scores}

    def row(self, number: int) -> WebGpuDecoder:
        return self

    def set_search(self, options: SearchOptions, row: int = 0) -> None:
        self._sampler.set_search(options, row)

    def follow(self, tokens: Sequence[int], prompt: int, padding: int = 0) -> None:
        self._sampler.follow(tokens, prompt, padding)

    async def warm_up(self) -> None:
        if self.capacity >= LONG_PROMPT and self._maker.take_warm_up():
            for tokens in (SHORT_PROMPT, LONG_PROMPT):
                await self.prefill([0] * min(tokens, self._buffers.chunk), 0)
        tapes = self._prefill_tapes
        if tapes is not None:
            # One after another: a request that comes meanwhile waits for one tape.
            for length in tapes.untried(tapes.seen):
                await self._make_tapes(tapes, [length])

    def rotate(self, long: bool) -> None:
        self._require_open()
        if long != self._long:
            self._buffers.rotate(long)
        self._long = long

    def reachable(self, length: int) -> int:
        found = length if self._snapshots is None else self._snapshots.nearest(length)
        return reached(self._buffers.sliding, found)

    def caches(self) -> CacheSpans | None:
        self._require_open()
        buffers, about = self._buffers, self._about
        if about.states:
            return None
        # Growing caches have as many positions as the sequence.
        positions = self._held if about.growing else self.capacity
        owner, sliding = f"{buffers.owner}, kept", buffers.sliding
        return CacheSpans(self._device, about, buffers.cache_spans, positions, owner, window=sliding)

    async def rest(self) -> None:
        self._require_open()
        await self._rest()
        self._require_open()

    def adopt(self, source: CacheRows, length: int) -> None:
        self._held = length
        target = self.caches()
        assert target is not None
        source.copy_to(target, length)

    async def prefill(self, ids: Sequence[int], past: int) -> None:
        await self.rest()
        tapes = self._prefill_tapes
        self._go_to(past)
        await self._pace.known()
        if tapes is not None and past == 0:
            await self._make_tapes(tapes, tapes.due(len(ids)))
        runs: list[Run] = []
        done = 0
        while done < len(ids):
            runs = runs or await self._next_runs(done, len(ids))
            run = runs.pop(0)
            done = run.start + run.length
            part = ids[run.start : done]
            valid = self._begin_run(part, past + run.start, done == len(ids))
            begun = self._pace.now()
            if tapes is not None and tapes.play(len(part), valid):
                pass
            elif tapes is not None and self._step.tape and len(part) < min(SHORT):
                self.step_through(part, past + run.start)
            else:
                await self._run(self._prompt, valid, len(part))
            self._pace.measure(len(part), begun)
            self._end_run(part)
        self._rest_at(past + len(ids))

    def _go_to(self, past: int) -> None:
        """Continue from the first `past` positions."""
        if self._snapshots is not None:
            self._snapshots.go_to(past)
        if self._about.growing and past < self._held:
            self._buffers.cut(self._held, past)
            self._held = past

    def _begin_run(self, ids: Sequence[int], start: int, last: bool) -> int:
        """Write the inputs of a prompt run, the `last` one or another. How many positions are there behind it."""
        # The model may have been closed while onnxruntime-web computed the run before.
        self._require_open()
        self._buffers.make_room(start, len(ids))
        self._buffers.write_prompt(ids, start, self._mask_bound)
        self._mask_bound = start + len(ids)
        if self._snapshots is not None:
            if last:
                self._snapshots.before_last_run()
            self._snapshots.live = None
        return self._mask_bound

    def _end_run(self, ids: Sequence[int]) -> None:
        """A prompt run over these ids is queued."""
        assert self._mask_bound is not None
        self.longest_run = max(self.longest_run, len(ids))
        self._settle(self._mask_bound)
        if self._snapshots is not None:
            self._snapshots.live = self._mask_bound

    def _rest_at(self, length: int) -> None:
        """So many positions were run."""
        self._length = length
        self._cursor = 0
        self._buffers.set_length(length)

    async def _next_runs(self, start: int, end: int) -> list[Run]:
        """The prefill runs for ids `start` to `end` of a prompt; only the next one until the run size has settled."""
        pace, tapes = self._pace, self._prefill_tapes
        await pace.known()
        runs = tapes.cut(end - start) if tapes is not None else cut_prompt(end - start, pace.size, ())
        return [Run(start + run.start, run.length) for run in (runs if pace.settled else runs[:1])]

    async def run_picked(self, rows: Sequence[int] = ONE) -> None:
        self._require_open()
        snapshots = self._snapshots
        if snapshots is not None:
            snapshots.before_burst()
            snapshots.live = self._length
        self._steps += 1
        # The pick is counted already.
        self._buffers.make_room(self._length - 1, 1)
        if self._step.tape:
            self._engine.play_once(self._step.tape, self._length)
        else:
            await self._run(self._step.binding, self._length)
            self._settle(self._length)

    def allow(self, mask: bytes) -> None:
        self._sampler.allow(mask)

    def follow_grammar(self, position: Sequence[int]) -> None:
        self._sampler.follow_grammar(position)

    def reorder(self, parents: Sequence[int]) -> None:
        """Nothing changes: there is one row."""

    async def step(self, tokens: Sequence[int]) -> None:
        if not self._step.tape:
            await self.prefill(tokens, self._length)
            return
        self._require_open()
        if self._snapshots is not None:
            self._snapshots.before_burst()
            self._snapshots.live = self._length + 1
        self._buffers.make_room(self._length, 1)
        self._buffers.set_input(tokens[0], self._length)
        self._length += 1
        self._cursor, self._mask_bound = 0, self._length
        self._steps += 1
        self._engine.play_once(self._step.tape, self._length)

    def copy_from(self, other: WebGpuDecoder) -> None:
        self._require_open()
        other._require_open()
        self._buffers.copy_from(other._buffers, other._length)
        self._length, self._held = other._length, other._held
        self._cursor, self._mask_bound = 0, other._length
        if self._snapshots is not None and other._snapshots is not None:
            # Snapshots stay with the other one: a rewind runs the tokens from the start.
            self._snapshots.taken, self._snapshots.live = {}, other._snapshots.live

    def begin(self, length: int) -> None:
        """Continue from the KV caches and logits of `length` positions that another decoder has written."""
        self._buffers.set_mask(length)
        self._buffers.set_length(length)
        self._length = self._mask_bound = length
        self._cursor = 0

    def set_lora(self, lora: LoraWeights | None) -> None:
        self._require_open()
        if lora is not None and lora is not self._lora:
            self._buffers.set_lora(lora)
        self._lora = lora

    def step_through(self, ids: Sequence[int], past: int) -> None:
        """Queue a step of the tape for each of a few ids; encoding one run in onnxruntime-web would take longer."""
        for position, token in enumerate(ids, past):
            self._buffers.make_room(position, 1)
            self._buffers.set_input(token, position)
            self._engine.play_once(self._step.tape, position + 1)
        self._mask_bound = past + len(ids)

    def submit(self, picks: int, sample_first: bool, rows: Sequence[int] = ONE) -> Awaitable[Burst]:
        self._require_open()
        snapshots = self._snapshots
        if snapshots is not None:
            snapshots.before_burst()
            snapshots.live = self._length + picks - 1
        cursor = self._cursor
        first = self._length + 1 if sample_first else self._length
        # A step that is first runs the pick before, which is counted already.
        run = self._length if sample_first else self._length - 1
        self._buffers.make_room(run, self._length + picks - run)
        self._cursor += picks
        self._length += picks
        self._mask_bound = self._length
        self._steps += picks - 1 if sample_first else picks
        if self._step.tape:
            numbers = self._engine.burst(self._step.tape, self._sampler.handle, picks, sample_first, first, cursor)
        else:
            if picks != 1:
                raise ValueError(f"{picks} picks in a burst without a tape; 1 is the most")
            self._eager_picks -= 1
            numbers = self._eager_burst(sample_first, first, cursor)
        return read_burst(numbers)

    async def prepare_drafts(self, options: Speculation) -> str | None:
        self._require_open()
        self._preparing = preparing = asyncio.ensure_future(self._drafted.prepare(options))
        try:
            reason = await asyncio.shield(preparing)
        except asyncio.CancelledError:
            # GPU work cannot be cancelled, and uses the buffers that the next caller gets.
            await asyncio.wait([preparing])
            raise
        self._require_open()
        return reason

    def submit_drafted(self, steps: int, drafts: Sequence[int] | None) -> Awaitable[Burst]:
        self._require_open()
        if drafts is not None:
            raise ValueError("drafts are found on the device")
        most = steps * self._drafted.positions
        self._buffers.make_room(self._length - 1, most + 1)
        burst = self._drafted.submit(steps, self._length, self._cursor)
        self._cursor += most
        # The upper bound: `_accepted` subtracts the refused drafts when the burst is read.
        self._length += most
        self._mask_bound = self._length
        self._steps += steps
        return self._accepted(burst, most)

    async def _accepted(self, waiting: Awaitable[Burst], most: int) -> Burst:
        burst = await waiting
        self._length -= most - len(burst.ids)
        return burst

    async def logits(self) -> memoryview[float]:
        self._require_open()
        return await self._logits.read()

    async def shortlists(self, count: int, rows: Sequence[int] = ONE) -> list[Shortlist]:
        self._require_open()
        about = self._about
        numbers = await self._engine.shortlist(self._buffers.logits, about.logits_dtype, about.vocab_size, count)
        return [Shortlist.read(numbers)]

    async def score(self, tokens: Sequence[int], past: int) -> list[ScoredToken]:
        await self.rest()
        buffers, end = self._buffers, len(tokens) - 1
        if self._scored is None:
            await self._finish(self._make_scored())
            await self.rest()
        scored = self._scored
        assert scored is not None
        # Caches over a window may have lost positions before that.
        back = 0 if buffers.sliding is None else past
        self._go_to(past)
        if scored.tapes is not None and (wanted := scored.wanted(past, end, back)):
            before = len(scored.tapes.tapes)
            await self._make_tapes(scored.tapes, wanted)
            if past and len(scored.tapes.tapes) > before:
                # Their checks overwrote the caches.
                await self.prefill(tokens[:past], 0)
        scored.ask(tokens[past + 1 :])
        done = past
        for run in scored.cut(past, end, back):
            part = tokens[run.start : run.start + run.length]
            # Another continuation of the same context may come.
            valid = self._begin_run(part, run.start, done == past)
            await self._waited(scored.run(run.length, valid))
            self._end_run(part)
            scored.keep(run, done, done - past)
            done = run.start + run.length
        self._rest_at(end)
        return await scored.read(end - past)

    async def _make_scored(self) -> None:
        self._scored = await self._maker.scored_runs(self._buffers, self._prompt, self._prefill_tapes)

    async def carried(self, name: str) -> CarriedTensor:
        self._require_open()
        found = carried(self._about, name)
        sliding = self._buffers.sliding
        if self._buffers.base and sliding is not None and found.past in sliding.sliding.pasts:
            raise OptionError(
                f"{name} is a cache over a window and holds the positions from {self._buffers.base} on alone; "
                f"sequences of up to {sliding.room} tokens have all of them"
            )
        span = self._buffers.carried_span(found, self._held)
        held = array("B", bytes(span.length))
        if span.length:
            await self._device.copy_device_to_cpu(span, out=held)
        return CarriedTensor.read(self._about, found, held.tobytes(), self._length)

    def set_logits(self, values: memoryview[float]) -> None:
        self._require_open()
        self._logits.write(values)

    def edit_logits(self, edits: Mapping[int, float]) -> None:
        self._require_open()
        self._logits.edit(edits)

    def rehearsal(self) -> Rehearsal:
        """A Rehearsal that plays the tape from the end of the sequence; used only while no burst is in flight."""
        self._require_open()
        self._buffers.make_room(self._length - 1, self._buffers.most_ahead)
        tape, sampler = self._step.tape, self._sampler.handle
        return Rehearsal(
            self._engine, self._buffers, tape, sampler, self._length, self._cursor, in_flight=self.max_in_flight
        )

    def counters(self) -> Counters:
        return {"steps": self._steps, **self._engine.counters()}

    def require(self, key: TapeKey) -> None:
        """Raise TapeKeyError if the step was recorded for another key."""
        if self._step.key is not None:
            self._step.key.require(key)

    async def close(self) -> None:
        if not self._destroyed:
            await self._maker.give_back(self)

    async def destroy(self) -> None:
        """Free the sampler, the buffers and the decode session; the decoder cannot be used again."""
        if self._destroyed:
            return
        self._destroyed = True
        # Runs under way need their buffers.
        for under_way in (self._making, self._preparing):
            if under_way is not None:
                await asyncio.wait([under_way])
        await self._engine.idle()
        await self._drafted.release()
        if self._scored is not None:
            await self._scored.release()
        self._sampler.destroy()
        self._engine.unbind(self._prompt)
        if self._prefill_tapes is not None:
            await self._prefill_tapes.release()
        await self._step.release()
        self._buffers.destroy()
        if self.lent is not None:
            self.lent.end()

    async def _eager_burst(self, sample_first: bool, valid: int, cursor: int) -> Sequence[float]:
        """Pick one token; unless `sample_first`, onnxruntime-web first runs a step over `valid` positions."""
        binding = 0 if sample_first else self._step.binding
        if binding and not self._buffers.settled:
            await self._run(binding, valid)
            self._settle(valid)
            binding = 0
        burst = self._engine.eager_burst(binding, valid, self._sampler.handle, cursor, self._buffers.base)
        return await self._waited(burst)

    async def _run(self, binding: int, valid: int, tokens: int = 1) -> None:
        await self._waited(self._engine.run(binding, valid, tokens, self._buffers.base))

    async def _waited(self, run: Awaitable[T]) -> T:
        """Wait for a run, which goes on if the wait is cancelled."""
        try:
            return await run
        except asyncio.CancelledError:
            self._unfinished = True
            raise

    def _settle(self, valid: int) -> None:
        self._buffers.settle(valid)
        self._held = valid

    async def _make_tapes(self, tapes: PrefillTapes, lengths: Collection[int]) -> None:
        """Make prefill tapes. If the wait is cancelled the making goes on: work on the GPU needs its buffers."""
        if lengths:
            self._require_open()
            # The checks of the tapes overwrite the mask.
            self._mask_bound = None
            await self._finish(tapes.make(lengths))

    async def _finish(self, making: Coroutine[Any, Any, None]) -> None:
        """Make something over the sequence's buffers; their next use waits for it, also if this wait is cancelled."""
        self._making = asyncio.ensure_future(making)
        await asyncio.shield(self._making)

    async def _rest(self) -> None:
        """Wait for runs that still use the buffers after their caller was cancelled."""
        if self._making is not None:
            await asyncio.wait([self._making])
            self._making = None
        if self._unfinished:
            await self._engine.idle()
            self._unfinished = False

    def _require_open(self) -> None:
        if self._destroyed:
            raise ClosedError("the model of this generator was closed; load it again")
