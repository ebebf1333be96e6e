"""Decodes one sequence on WebGPU: prefill of the prompt, then bursts of decode steps whose tokens the GPU picks.

The generation loop calls WebGpuDecoder as a row_interface.RowDecoder of one row: prompt ids go in (`prefill`), bursts
of picked ids come out (`submit`); KV cache and logits stay on the GPU. Decode steps run from a tape, else as runs of
onnxruntime-web with IO binding.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from ...errors import OptionError
from ...memory import DeviceBuffer
from ...stages.search import SearchOptions
from ...stages.speculation_options import Speculation
from ...tape import TapeKey
from ..cache_rows import RowSource
from ..carried_tensor import CarriedTensor, carried
from ..disk_rows import disk_reads
from ..element_types import byte_count
from ..lora_weights import LoraWeights
from ..row_interface import ONE, Burst, Counters, RowDecoder
from ..shortlist import ScoredToken
from .cache_spans import CacheSpans
from .drafted_steps import DraftedSteps
from .gpu_engine import GpuEngine, WeightPiece
from .gpu_waits import to_its_end
from .head_steps import follow_with_head
from .prompt_runs import PromptRuns, RunMaker
from .rehearsal import Rehearsal
from .row_sampler import RowSampler, read_burst
from .sampled_rows import SampledRow, SampledRows
from .sequence_buffers import SequenceBuffers
from .sliding import reached
from .tapes.draft_tapes import DraftBuffers
from .tapes.row_tapes import RowTape
from .tapes.tape_scratch import TapeScratch

if TYPE_CHECKING:
    from ...host.storage_interface import Sink
    from ..cache_rows import PictureSpan
    from ..device_interface import BoundSpan
    from .tapes.decode_step import DecodeStep

__all__ = ["WebGpuDecoder"]

T = TypeVar("T")

MAX_BURST = 64
IN_FLIGHT = {False: 4, True: 2}
"""Most bursts in flight with a tape, by whether the adapter is software.

On an H200 a burst takes 6 ms. About 10 ms pass from its ids being readable until the next burst is ready for the GPU.
"""

TOGETHER = 2
"""The tokens of a draft model's first step in a drafted step."""

AFTER_FIRST = 4
"""Most picks of the burst that is queued right after a prompt's first pick. A hardware adapter accepts this number
while it computes the prompt. A software adapter gets none: it would compute them on the CPU that reads the first pick
back.
"""


class Maker(RunMaker, Protocol):
    """The part of a decoder's model that the decoder uses; WebGpuModel documents the methods."""

    @property
    def eager_picks(self) -> int: ...
    async def draft_tape(
        self, one: WebGpuDecoder, positions: int, reads: DeviceBuffer | None
    ) -> RowTape[DraftBuffers] | str: ...
    async def record_step(self, decoder: WebGpuDecoder, step: DecodeStep) -> DecodeStep: ...
    async def give_back(self, decoder: WebGpuDecoder) -> None: ...


class WebGpuDecoder(SampledRows, SampledRow):
    """A decoder of one row over SequenceBuffers; row_interface.RowDecoder, DecoderRow and DraftedRows document the
    methods."""

    counts_device = True
    finds_drafts = True

    def __init__(
        self,
        engine: GpuEngine,
        buffers: SequenceBuffers,
        scratch: TapeScratch,
        step: DecodeStep,
        runs: PromptRuns,
        maker: Maker,
    ):
        about, sampler = buffers.about, RowSampler(engine, buffers)
        logits = buffers.spans["logits"].sub(0, byte_count(about.logits_dtype, (about.vocab_size,)))
        SampledRows.__init__(self, sampler, [logits], runs.require_open)
        SampledRow.__init__(self, sampler, logits, runs.require_open)
        self.buffers = buffers
        self.runs = runs
        """Runs the prompts, and holds the place in the sequence."""
        self._maker = maker
        self._eager_picks = maker.eager_picks
        """Picks until an unrecorded step is recorded, counting down."""
        self._preparing: asyncio.Future[str | None] | None = None
        """Drafts that are being prepared."""
        self._lora: LoraWeights | None = None
        """The LoRA adapter in the buffers; None if unknown."""
        self._long = False
        """Whether the rotary tables have the long factors."""
        self.owner = buffers.owner
        self.scratch = scratch
        """Scratch of the decoder's tapes, and of the tape of the joint rows for which it runs prompts."""
        self._take_step(step)
        self._drafted = DraftedSteps(engine, sampler, self._make_drafted)
        self._unread = 0
        """Drafted bursts under way."""
        self._drafter: WebGpuDecoder | None = None
        """The draft model's decoder."""
        self._picked = 0
        """The last pick that was read, in a model with tables on disk."""

    def _take_step(self, step: DecodeStep) -> None:
        """Run decode steps as `step` does from now on."""
        software, taped = self._device.about().software, step.capture == "tape"
        self._step = step
        self.runs.step_tape = step.tape
        self.capture = step.capture
        self.capture_note = step.note
        # Each step waits for its token's rows of tables on disk.
        ahead = taped and not self._about.tables
        self.max_in_flight = IN_FLIGHT[software] if ahead else 1
        self.max_burst = MAX_BURST if ahead else 1
        self.after_first = AFTER_FIRST if ahead and not software else 0

    @property
    def records_after(self) -> int | None:
        return max(0, self._eager_picks) if self._step.unrecorded else None

    async def record(self) -> None:
        self._require_open()
        if self._step.unrecorded:
            await self.runs.finish(self._record())
            self._require_open()

    async def _record(self) -> None:
        runs = self.runs
        runs.forget()
        self._take_step(await self._maker.record_step(self, self._step))
        if runs.tapes is not None:
            # The repeated prompt does not count as a second one.
            runs.tapes.seen.clear()

    @property
    def reusable(self) -> bool:
        """Whether the next sequence may use the decoder's buffers: none of them belongs to the user."""
        return self.buffers.given is None and self.scratch.given is None

    @property
    def tape_passes(self) -> dict[str, str]:
        tapes = self.runs.tapes
        found = dict(self._step.passes) if tapes is None else {**self._step.passes, "prefill": tapes.report}
        scores = {} if self.runs.scored is None else {"scores": self.runs.scored.report}
        return {**found, **self._drafted.report, **scores}

    def row(self, number: int) -> WebGpuDecoder:
        return self

    def set_search(self, options: SearchOptions, row: int = 0) -> None:
        self._sampler.set_search(options, row)

    def follow(self, tokens: Sequence[int], prompt: int, padding: int = 0) -> None:
        self._sampler.follow(tokens, prompt, padding)

    def rotate(self, long: bool) -> None:
        self._require_open()
        if long != self._long:
            self.buffers.rotate(long)
        self._long = long

    def reachable(self, length: int) -> int:
        found = length if self.runs.snapshots is None else self.runs.snapshots.nearest(length)
        return reached(self.buffers.sliding, found)

    def caches(self) -> CacheSpans | None:
        self._require_open()
        buffers, about = self.buffers, self._about
        if about.states:
            return None
        # Growing caches have as many positions as the sequence.
        positions = self.runs.held if about.growing else self.capacity
        owner, sliding = f"{buffers.owner}, kept", buffers.sliding
        return CacheSpans(
            self._device, about, buffers.cache_spans, positions, owner, window=sliding, upload=self.upload
        )

    def upload(self, pieces: Sequence[WeightPiece]) -> Sink:
        """A sink that fills buffers with the bytes of a file."""
        return self._engine.upload_weights(pieces)

    async def rest(self) -> None:
        await self.runs.rest()

    async def warm_up(self) -> None:
        await self.runs.warm_up()

    async def prefill(self, ids: Sequence[int], past: int) -> None:
        await self.runs.prefill(ids, past)

    async def score(self, tokens: Sequence[int], past: int) -> list[ScoredToken]:
        return await self.runs.score(tokens, past)

    def adopt(self, source: RowSource, length: int) -> None:
        self.runs.held = length
        target = self.caches()
        assert target is not None
        source.copy_to(target, length)

    async def run_picked(self, rows: Sequence[int] = ONE) -> None:
        runs = self.runs
        if self._about.tables:
            await self.buffers.bring_pick(self._picked)
        runs.before_steps(runs.length)
        self._steps += 1
        # The pick is counted already.
        self.buffers.make_room(runs.length - 1, 1)
        if self._step.tape:
            self._engine.play_once(self._step.tape, runs.length)
        else:
            await runs.run(self._step.binding, runs.length)
            runs.settle(runs.length)

    def reorder(self, parents: Sequence[int]) -> None:
        """Does nothing: there is one row."""

    async def step(self, tokens: Sequence[int]) -> None:
        runs = self.runs
        if not self._step.tape:
            await runs.prefill(tokens, runs.length)
            return
        await self.buffers.bring(tokens)
        runs.before_steps(runs.length + 1)
        self.buffers.make_room(runs.length, 1)
        self.buffers.set_input(tokens[0], runs.length)
        runs.length += 1
        runs.cursor, runs.mask_bound = 0, runs.length
        self._steps += 1
        self._engine.play_once(self._step.tape, runs.length)

    def copy_from(self, other: WebGpuDecoder) -> None:
        self.runs.copy_from(other.runs)

    def set_lora(self, lora: LoraWeights | None) -> None:
        self._require_open()
        if lora is not None and lora is not self._lora:
            self.buffers.set_lora(lora)
        self._lora = lora

    def hear(self, heard: Mapping[str, BoundSpan]) -> None:
        self._require_open()
        self.buffers.hear(heard)

    def see(self, features: BoundSpan | None, places: Sequence[int], pictures: Sequence[PictureSpan] = ()) -> None:
        self._require_open()
        self.buffers.see(features, places, pictures)

    def submit(self, picks: int, sample_first: bool, rows: Sequence[int] = ONE) -> Awaitable[Burst]:
        runs = self.runs
        runs.before_steps(None if self._unread else runs.length + picks - 1)
        cursor = runs.cursor
        first = runs.length + 1 if sample_first else runs.length
        # The first step runs the pick before it, which is counted already.
        run = runs.length if sample_first else runs.length - 1
        self.buffers.make_room(run, runs.length + picks - run)
        runs.cursor += picks
        runs.length += picks
        runs.mask_bound = runs.length
        self._steps += picks - 1 if sample_first else picks
        if picks > self.max_burst:
            raise ValueError(f"a burst of {picks} picks was requested; this decoder takes {self.max_burst} at most")
        place = (sample_first, first, cursor)
        if not self._step.tape:
            self._eager_picks -= 1
        return self._pick_from_disk(*place) if self._about.tables else read_burst(self._burst(picks, *place))

    def _burst(self, picks: int, sample_first: bool, first: int, cursor: int) -> Awaitable[Sequence[float]]:
        """The engine's numbers of a burst, whose first step or pick is over `first` positions."""
        if self._step.tape:
            return self._engine.burst(self._step.tape, self._sampler.handle, picks, sample_first, first, cursor)
        return self._eager_burst(sample_first, first, cursor)

    async def _pick_from_disk(self, sample_first: bool, first: int, cursor: int) -> Burst:
        """A burst of one pick, which begins once the rows of the pick before it are on the device."""
        if not sample_first:
            await self.buffers.bring_pick(self._picked)
        found = await read_burst(self._burst(1, sample_first, first, cursor))
        self._picked = found.ids[-1]
        return found

    def counters(self) -> Counters:
        return {**super().counters(), **disk_reads(self.buffers.inputs)}

    async def _make_drafted(self, positions: int, reads: DeviceBuffer | None) -> RowTape[DraftBuffers] | str:
        self.runs.forget()
        try:
            return await self._maker.draft_tape(self, positions, reads)
        finally:
            # The check of the tape ran other tokens.
            self.runs.forget()

    async def prepare_drafts(self, options: Speculation, drafter: RowDecoder | None = None) -> str | None:
        self._require_open()
        self._drafter = cast("WebGpuDecoder | None", drafter)
        return await self._prepared(self._prepare(options))

    async def _prepare(self, options: Speculation) -> str | None:
        """Make the tapes of drafted steps and say where drafts come from; returns the reason if there are no tapes."""
        one, positions = self._drafter, 1 + options.max_draft_tokens
        reason = await self._drafted.make(positions)
        if reason is not None:
            return reason
        if one is None:
            self._drafted.find(options, None)
            return None
        head = one._about.reads_hidden is not None
        reads = self._drafted.hidden if head else None
        reason = await one.prepare_picks(positions if head else TOGETHER, reads)
        if reason is not None:
            return f"the draft model: {reason}"
        self._drafted.find(options, one._sampler, one.hidden if head else ())
        return None

    async def prepare_picks(self, positions: int, reads: DeviceBuffer | None) -> str | None:
        """Prepare the steps of a draft model, of which the first of each drafted step runs `positions` tokens; a
        multi-token-prediction head `reads` hidden states. Returns the reason if there are none.
        """
        reason = await self._prepared(self._drafted.make(positions, reads))
        if reason is None:
            self._drafted.find(Speculation(max_draft_tokens=positions - 1), None)
            # The sampler's memory may have another program's words.
            self._sampler.follow([], 0, 0)
        return reason

    @property
    def hidden(self) -> tuple[int, int, int, int]:
        """The hidden states of a multi-token-prediction head, for GpuEngine.set_drafts."""
        rows, read = self._drafted.hidden, self.buffers.spans["input hidden states"]
        assert rows is not None, "the decoder of a head"
        return rows.handle, self.buffers.handle("input hidden"), read.buffer.handle, read.length

    async def follow_with_head(self, head: RowDecoder, tokens: Sequence[int]) -> None:
        hidden = self._drafted.hidden
        assert hidden is not None, "the model has a head"
        await follow_with_head(self.runs, hidden, cast("WebGpuDecoder", head), tokens)

    async def _prepared(self, making: Coroutine[Any, Any, str | None]) -> str | None:
        """Await the preparation of drafted steps, which goes on if the wait is cancelled."""
        self._preparing = asyncio.ensure_future(making)
        reason = await to_its_end(self._preparing)
        self._require_open()
        return reason

    def submit_drafted(self, steps: int, drafts: Sequence[int] | None) -> Awaitable[Burst]:
        runs = self.runs
        self._require_open()
        if drafts is not None:
            raise ValueError("drafts were given, but this device finds drafts itself: give None")
        most = steps * self._drafted.positions
        runs.before_steps(None)
        self.buffers.make_room(runs.length - 1, most + 1)
        drafter = (0, 0) if self._drafter is None else self._drafter.draft(most, runs.length)
        burst = self._drafted.submit(steps, runs.length, runs.cursor, drafter)
        runs.cursor += most
        # The upper bound: `_accepted` subtracts the refused drafts when the burst is read.
        runs.length += most
        runs.mask_bound = runs.length
        self._steps += steps
        self._unread += 1
        return self._accepted(burst, most)

    def draft(self, steps: int, length: int) -> tuple[int, int]:
        """Make room for `steps` steps of a draft model after at most `length` positions of the sequence that it
        follows; returns the tapes of its steps over two tokens and over one. The device sets the inputs, and the place
        in the sequence is unknown until the next `prefill`.
        """
        runs = self.runs
        runs.before_steps(length + steps)
        self.buffers.make_room(length - 2, steps + 2)
        runs.length, runs.mask_bound = length + steps, None
        self._steps += steps
        return self._drafted.tape, self._step.tape

    async def _accepted(self, waiting: Awaitable[Burst], most: int) -> Burst:
        try:
            burst = await waiting
        finally:
            self._unread -= 1
        self.runs.length -= most - len(burst.ids)
        if not self._unread and self.runs.snapshots is not None:
            # Each step but the last pick's has run.
            self.runs.snapshots.live = self.runs.length - 1
        return burst

    async def carried(self, name: str) -> CarriedTensor:
        self._require_open()
        found = carried(self._about, name)
        sliding = self.buffers.sliding
        if self.buffers.base and sliding is not None and found.past in sliding.sliding.pasts:
            raise OptionError(
                f"{name} is the cache of a sliding window, which now begins at position {self.buffers.base}; sequences "
                f"of up to {sliding.room} tokens keep all positions"
            )
        span = self.buffers.carried_span(found, self.runs.held)
        held = array("B", bytes(span.length))
        if span.length:
            await self._device.copy_device_to_cpu(span, out=held)
        return CarriedTensor.read(self._about, found, held.tobytes(), self.runs.length)

    def rehearsal(self) -> Rehearsal:
        """A Rehearsal that plays the tape from the end of the sequence. Callers use it only while no burst is in
        flight.
        """
        self._require_open()
        if self._about.tables:
            raise OptionError("steps of a model with tables on disk cannot be repeated; load it with them in memory")
        self.buffers.make_room(self.runs.length - 1, self.buffers.most_ahead)
        tape, sampler = self._step.tape, self._sampler.handle
        length, cursor, most = self.runs.length, self.runs.cursor, self.max_in_flight
        return Rehearsal(self._engine, self.buffers, tape, sampler, length, cursor, in_flight=most)

    def require(self, key: TapeKey) -> None:
        """Raise TapeKeyError if the step was recorded for another key."""
        if self._step.key is not None:
            self._step.key.require(key)

    async def close(self) -> None:
        if not self.runs.closed:
            await self._maker.give_back(self)

    async def destroy(self) -> None:
        """Free the sampler, the buffers and the decode session; the decoder cannot be used again."""
        if self.runs.closed:
            return
        self.runs.closed = True
        # Work under way needs its buffers.
        if self._preparing is not None:
            await asyncio.wait([self._preparing])
        await self.runs.finished()
        await self._drafted.release()
        self._sampler.destroy()
        await self.runs.release()
        await self._step.release()
        self.buffers.destroy()
        if self.borrowed is not None:
            self.borrowed.end()

    async def _eager_burst(self, sample_first: bool, valid: int, cursor: int) -> Sequence[float]:
        """Pick one token; unless `sample_first`, onnxruntime-web first runs a step over `valid` positions."""
        binding = 0 if sample_first else self._step.binding
        if binding and not self.buffers.settled:
            await self.runs.run(binding, valid)
            self.runs.settle(valid)
            binding = 0
        burst = self._engine.eager_burst(binding, valid, self._sampler.handle, cursor, self.buffers.base)
        return await self.runs.waited(burst)
