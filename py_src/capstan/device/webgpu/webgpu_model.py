"""Implements a model on WebGPU: onnxruntime-web's WebGPU EP runs it, all sessions share the weights, and a tape runs
the decode steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from functools import partial
from typing import cast

from ...errors import BufferMismatchError, ClosedError, OutOfMemoryError
from ...fallback import fall_back
from ...memory import DeviceBuffer, DeviceSpan, Loan, Pools
from ..lora_weights import LoraGraph, LoraWeights
from ..model_interface import TapeOptions
from ..model_memory import Borrowed
from ..model_origin import ModelOrigin
from ..picture_encoder import PictureEncoder
from ..row_interface import RowDecoder
from ..run_input import FREE
from ..separate_rows import separate_rows
from ..speech_encoder import SpeechEncoder
from .decoder import WebGpuDecoder
from .loaded_model import Loaded, passes_for
from .prefill_pace import PrefillPace, RunSize
from .prompt_runs import PromptRuns
from .row_source import RowSource
from .rows import WebGpuRows, give_scratch, sequences_of
from .scored_runs import ScoredRuns
from .scratch_sizes import ScratchSizes
from .sequence_buffers import SequenceBuffers
from .step_source import StepSource
from .tapes.decode_step import DecodeStep
from .tapes.draft_tapes import DraftBuffers
from .tapes.prefill_tapes import PrefillTapes
from .tapes.row_tapes import RowTape
from .tapes.tape_scratch import TapeScratch
from .unused_time import UnusedTime

__all__ = ["WebGpuModel"]


class WebGpuModel:
    """Weights in GPU buffers, one prefill session over them, and decoders, each with a decode session of its own."""

    device = "webgpu"
    encoder: SpeechEncoder | PictureEncoder | None = None
    origin: ModelOrigin

    def __init__(self, loaded: Loaded, options: TapeOptions) -> None:
        self.interface = loaded.interface
        self._engine = loaded.engine
        self._loaded = loaded
        self.lora = LoraGraph(loaded.graphs.lora, loaded.graphs.others)
        self._sample: LoraWeights | None = None
        """The last requested adapters: steps are recorded and compared with them."""
        self._capture = options.capture
        self._made = 0
        self._allocating = asyncio.Lock()
        self._sizes = ScratchSizes(loaded, options.capture)
        self._usual_burst: int | None = None
        """The adapted picks of a burst of the last released sequence."""
        self._free: list[WebGpuDecoder] = []
        self._decoders: list[WebGpuDecoder] = []
        self._making: set[asyncio.Future[WebGpuDecoder]] = set()
        self._dropping: set[asyncio.Future[None]] = set()
        self._closed = False
        about = loaded.interface.about()
        self.adapter = about.adapter
        self._passes = passes_for(about.software) if options.passes is None else options.passes
        bound = options.prefill_ms
        keep = partial(loaded.verdicts.write_run, loaded.chunk, bound)
        self._pace = PrefillPace(self._engine, RunSize(loaded.chunk, bound, loaded.run_tokens), keep)
        self._steps = StepSource(loaded, options, self._passes, self._pace)
        self._warm_up = not about.software
        """Whether to compile the kernels of long prompts early; not on software adapters, where running them takes
        longer.
        """
        self.memory = replace(
            loaded.memory,
            measured=self._sizes.measured,
            joint=self._joint,
            apart=not loaded.in_place and not loaded.about.growing,
            tape_scratch=self._sizes.of_tapes,
        )
        self._unused = UnusedTime(self._engine, lambda: self._steps.recording or self._rows.recording.locked())
        self._rows = RowSource(loaded, self._steps, self._passes, self.decoder, self._unused)
        for name, session in loaded.sessions.items() if loaded.lazy else ():
            self._unused.request(f"the {name} session", partial(self._engine.make_session, session))

    async def decoder(self, capacity: int, given: Loan | None = None, unrecorded: bool = False) -> WebGpuDecoder:
        """A decoder of that capacity over the given buffers, which are released on failure; without them a free
        decoder, or a new one. Its step is recorded and checked, unless it may be `unrecorded`.
        """
        self._require_open()
        await self._unused.paused()
        return await self._decoder(capacity, given, unrecorded)

    async def _decoder(self, capacity: int, given: Loan | None, unrecorded: bool) -> WebGpuDecoder:
        for i, free in enumerate(self._free):
            if given is None and free.capacity == capacity:
                free.require(self._steps.key(capacity))
                found = self._free.pop(i)
                found.rotate(False)
                found.see(None, ())
                if not unrecorded:
                    await self._completed(found)
                return found
        making = asyncio.ensure_future(self._make_decoder(capacity, given, unrecorded))
        self._making.add(making)
        making.add_done_callback(self._making.discard)
        try:
            decoder = await asyncio.shield(making)
        except asyncio.CancelledError:
            # GPU work cannot be cancelled and needs its buffers: the decoder is finished and serves the next sequence.
            making.add_done_callback(self._keep)
            raise
        self._require_open()
        return decoder

    def _request_tape(self, capacity: int, length: int) -> None:
        """Have the tape of prompt runs of `length` tokens made and stored while the device is unused. The check
        overwrites the buffers of the decoder, which has no sequence: a free one, else a new one for this tape.
        """

        async def make() -> None:
            self._require_open()
            new = not any(free.capacity == capacity for free in self._free)
            one = await self._decoder(capacity, None, unrecorded=True)
            try:
                await one.runs.make_tape(length)
            finally:
                await (self._drop(one) if new else self.give_back(one))

        self._unused.request(f"a tape of prompt runs of {length} tokens in {capacity} positions", make)

    async def _completed(self, decoder: WebGpuDecoder) -> None:
        """Record the step of a free decoder; on failure the decoder is free again."""
        with ExitStack() as undo:
            undo.callback(self._freed, decoder)
            await decoder.record()
            undo.pop_all()

    def _freed(self, decoder: WebGpuDecoder) -> None:
        """Keep a decoder for the next sequence."""
        if not self._closed:
            self._free.append(decoder)

    async def row_decoder(
        self,
        rows: int,
        capacity: int,
        pools: Pools | None = None,
        lora: LoraWeights | None = None,
        unrecorded: bool = False,
    ) -> RowDecoder:
        """Rows that one step advances, if that was requested and is possible; else one decoder per row, one after
        another. A single row without given buffers or adapters may be `unrecorded`.
        """
        self._require_open()
        self._sample = lora
        if unrecorded and rows == 1 and pools is None and lora is None:
            return await self.decoder(capacity, unrecorded=True)
        borrowed = self.memory.lend(rows, capacity, pools) if pools is not None else None
        scratch = borrowed.scratch if borrowed is not None else None
        async with AsyncExitStack() as undo:
            if scratch is not None:
                undo.callback(scratch.end)
            made = await self._row_decoder(rows, capacity, lora, borrowed)
            if scratch is not None:
                undo.push_async_callback(made.close)
                await give_scratch(made, scratch)
            undo.pop_all()
        return made

    async def _row_decoder(
        self, rows: int, capacity: int, lora: LoraWeights | None, borrowed: Borrowed | None
    ) -> WebGpuRows:
        """Rows over borrowed buffers; a failure releases these, but not the scratch."""
        if self.memory.requirements(rows, capacity).rows == "joint":
            joint = await self._rows.take(rows, capacity, borrowed)
            self._require_open()
            if joint is not None:
                joint.set_lora(lora)
                return joint
            if borrowed is not None and (borrowed.rows is not None or any(borrowed.sequences)):
                raise BufferMismatchError(
                    f"pools were given for {rows} rows in one step, which is impossible: "
                    f"{self._rows.refused[rows, capacity]}; query_memory_requirements now gives the names for "
                    "separate rows"
                )
        return await separate_rows(
            self.decoder, rows, capacity, lora, borrowed.sequences if borrowed is not None else ()
        )

    async def replace_scratch(
        self, decoder: RowDecoder, scratch: Mapping[str, DeviceBuffer | DeviceSpan] | None
    ) -> None:
        self._require_open()
        rows = cast(WebGpuRows, decoder)
        loan = None if scratch is None else self.memory.lend_scratch(decoder.rows, decoder.capacity, scratch)
        try:
            await give_scratch(rows, loan)
        finally:
            if loan is not None and rows.borrowed is not loan:
                loan.end()

    async def switched(self, decoder: RowDecoder, lora: LoraWeights) -> RowDecoder:
        rows = cast(WebGpuRows, decoder)
        rows.set_lora(lora)
        return rows

    def made(self, decoder: WebGpuRows) -> bool:
        """Whether the rows belong to this model and not to a variant for another LoRA rank."""
        return all(one in self._decoders for one in sequences_of(decoder))

    async def draft_tape(
        self, one: WebGpuDecoder, positions: int, reads: DeviceBuffer | None
    ) -> RowTape[DraftBuffers] | str:
        """A tape of a decoder's steps over `positions` positions, or the reason why there is none; a
        multi-token-prediction head `reads` hidden states.
        """
        if self._loaded.about.tables:
            return "each token waits for its rows of tables on disk"
        if "rows" not in self._passes:
            return "the pass 'rows', which makes steps over several positions, is off on this adapter"
        return await self._rows.drafts(one, positions, reads)

    def _require_open(self) -> None:
        if self._closed:
            raise ClosedError(f"the model {self._loaded.name} was closed; load it again")

    def _keep(self, making: asyncio.Future[WebGpuDecoder]) -> None:
        """Keep a finished decoder whose caller was cancelled, unless its buffers are the user's."""
        if making.cancelled() or making.exception() is not None or self._closed:
            return
        decoder = making.result()
        if decoder.reusable:
            self._free.append(decoder)
        else:
            dropping = asyncio.ensure_future(self._drop(decoder))
            self._dropping.add(dropping)
            dropping.add_done_callback(self._dropping.discard)

    async def settled(self) -> None:
        await self._unused.settled()

    async def trim(self) -> None:
        await self._rows.trim()
        free, self._free = self._free, []
        for decoder in free:
            await self._drop(decoder)

    async def _drop(self, decoder: WebGpuDecoder) -> None:
        self._decoders.remove(decoder)
        await decoder.destroy()

    async def give_back(self, decoder: WebGpuDecoder) -> None:
        """Take back an unused decoder, for the next sequence of its capacity; destroy it if its buffers are the
        user's."""
        self._sizes.note(decoder)
        self._usual_burst = decoder.usual_burst
        if decoder.reusable:
            self._free.append(decoder)
        else:
            await self._drop(decoder)

    async def _make_decoder(self, capacity: int, given: Loan | None, unrecorded: bool) -> WebGpuDecoder:
        async with AsyncExitStack() as undo:
            if given is not None:
                undo.callback(given.end)
            decoder = await self._made_decoder(capacity, given, unrecorded, undo)
            undo.pop_all()
        if self._usual_burst is not None:
            decoder.usual_burst = self._usual_burst
        self._decoders.append(decoder)
        self._sizes.note(decoder)
        return decoder

    async def _made_decoder(
        self, capacity: int, given: Loan | None, unrecorded: bool, undo: AsyncExitStack
    ) -> WebGpuDecoder:
        """A new decoder; `undo` frees what it owns."""
        self.memory.fit(1, capacity).require()
        loaded, about = self._loaded, self._loaded.about
        async with self._allocating:
            buffers = await SequenceBuffers.allocate(
                self.interface,
                about,
                capacity,
                loaded.chunk,
                f"{loaded.owner} sequence {self._made + 1}",
                offset_alignment=self.memory.alignment().span_offset,
                given=given,
                in_place=loaded.in_place,
                tables=loaded.graphs.rope_tables,
                window_tables=loaded.graphs.window_tables,
                disk=loaded.disk,
            )
            # The first decoder with buffers takes the session first.
            self._made += 1
        undo.callback(buffers.destroy)
        if self._sample is not None and not self._sample.buffer.closed:
            buffers.set_lora(self._sample)
        scratch = TapeScratch(self._engine, partial(self._sizes.note_between, capacity))
        step = await self._steps.decode_step(buffers, unrecorded)
        undo.push_async_callback(step.release)
        await self._sizes.note_step(step, capacity, scratch)
        prompt = self._steps.bind_prefill(buffers, "prompt", FREE)
        undo.callback(self._engine.unbind, prompt)
        # On software adapters a recording would slow the machine down for seconds.
        later = None if self.interface.about().software else self._request_tape
        tapes = self._steps.prefill_tapes(buffers, prompt, scratch, later)
        placed = self._steps.bind_placed(buffers)
        if placed:
            undo.callback(self._engine.unbind, placed)
        runs = PromptRuns(self._engine, buffers, prompt, self._pace, tapes, self, placed)
        return WebGpuDecoder(self._engine, buffers, scratch, step, runs, self)

    def _joint(self, rows: int, capacity: int) -> bool:
        """Whether one step advances `rows` rows."""
        loaded = self._loaded
        able = self._capture == "tape" and loaded.in_place and not loaded.about.alone
        possible = able and capacity not in self._sizes.untaped
        return possible and "rows" in self._passes and (rows, capacity) not in self._rows.refused

    @property
    def idle(self) -> bool:
        """Whether the model has no decoders, not even kept ones."""
        return not (self._decoders or self._making or self._rows.making)

    def healthy(self) -> bool:
        return self._engine.healthy()

    async def close(self) -> None:
        self._closed = True
        await self._unused.close()
        await asyncio.gather(*self._making, return_exceptions=True)
        await asyncio.gather(*self._dropping, return_exceptions=True)
        await self._rows.close()
        self._free.clear()
        while self._decoders:
            await self._decoders.pop().destroy()
        await self._steps.close()
        for held in self._loaded.leases:
            held.release()
        if self._loaded.disk is not None:
            self._loaded.disk.close()
        self._engine.close()

    @property
    def eager_picks(self) -> int:
        """The number of picks of a sequence before the postponed recording of its step."""
        return self._steps.eager_picks

    async def scored_runs(self, buffers: SequenceBuffers, prompt: int, tapes: PrefillTapes | None) -> ScoredRuns:
        """The runs that score a sequence's tokens; see StepSource."""
        return await self._steps.scored_runs(buffers, prompt, tapes)

    async def record_step(self, decoder: WebGpuDecoder, step: DecodeStep) -> DecodeStep:
        """Record the step of a decoder that ran eagerly until now; without enough memory the decoder falls back to
        eager runs.
        """
        step = replace(step, note=None, unrecorded=False)
        try:
            recorded = await self._steps.captured(step, decoder.buffers)
        except OutOfMemoryError as error:
            fall_back("a replayed decode step", str(error), "onnxruntime-web runs each step")
            recorded = replace(step, note=str(error))
        await self._sizes.note_step(recorded, decoder.capacity, decoder.scratch)
        self._sizes.note(decoder)
        return recorded

    def take_warm_up(self) -> bool:
        """Whether the kernels of long prompts still have to be compiled; True only once, to the caller that then
        compiles them.
        """
        wanted, self._warm_up = self._warm_up, False
        return wanted
