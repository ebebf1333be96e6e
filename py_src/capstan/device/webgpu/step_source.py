"""Makes the runners of a sequence on WebGPU: bindings of sessions, decode steps, prefill tapes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial

from ...errors import OutOfMemoryError, TapeError, UnsupportedModelError
from ...fallback import fall_back
from ...graph import every_position, parse, serialize
from ...memory import BufferRequest, round_up
from ...tape import NBitsWeights, TableParts, TapeKey, WorkgroupLimits, attends_prompts
from ..element_types import byte_count
from ..model_interface import TapeOptions
from ..run_input import FREE, WRITTEN
from .gpu_engine import BoundTensor
from .loaded_model import Loaded, eager_picks, release_made
from .prefill_pace import PrefillPace
from .scored_runs import SLOT, ScoredRuns, scored_positions
from .sequence_buffers import SequenceBuffers
from .tapes.decode_step import DecodeStep, put_off
from .tapes.prefill_tapes import PrefillTapes, weights_on_device
from .tapes.step_check import StepCheck
from .tapes.step_recorder import StepRecorder
from .tapes.tape_scratch import TapeScratch

__all__ = ["StepSource"]


class StepSource:
    """The source of one model's decode steps and prefill tapes, over the buffers of any sequence."""

    def __init__(self, loaded: Loaded, options: TapeOptions, passes: tuple[str, ...], pace: PrefillPace) -> None:
        self._loaded = loaded
        self._engine = loaded.engine
        self._options = options
        self._passes = passes
        self._pace = pace
        self._ahead = loaded.ahead
        self._scoring = 0
        """The session of `scored_runs`."""
        self._recording = asyncio.Lock()
        """Serialises recording: if several sequences are made at once, the first records and the others restore its
        tape.
        """
        self.eager_picks = eager_picks(loaded.interface.about().software, loaded.graphs)
        """Picks of a sequence before its decode step is recorded, unless a stored tape exists."""

    @property
    def recording(self) -> bool:
        """Whether a decode step is being recorded."""
        return self._recording.locked()

    async def capture(self, buffers: SequenceBuffers) -> tuple[int, int]:
        """A captured session for decode steps over a sequence's buffers, and its binding."""
        session = await self._decode_session(buffers.owner, buffers.capacity)
        return session, await self._bound(session, buffers, "input", 1)

    async def _bound(self, session: int, buffers: SequenceBuffers, which: str, length: int) -> int:
        """Bind a session; on failure the session is released."""
        async with AsyncExitStack() as undo:
            undo.push_async_callback(self._engine.release_session, session)
            feeds, fetches = self._tensors(buffers, which, length)
            binding = self._engine.bind(session, feeds, fetches)
            undo.pop_all()
        return binding

    def key(self, capacity: int) -> TapeKey:
        """The key of this model's tapes for `capacity` positions."""
        loaded, how = self._loaded, " ".join((self._options.capture, *self._passes))
        return TapeKey(loaded.name, 1, capacity, loaded.interface.about().adapter, how)

    async def decode_step(self, buffers: SequenceBuffers, unrecorded: bool) -> DecodeStep:
        """The requested way to run a decode step, or the next lower one that works, with the reason. A step that may be
        `unrecorded` for now runs eagerly instead of being recorded.
        """
        step = DecodeStep(self._engine, self.bind_prefill(buffers, "input", 1), capture="off", note=None)
        configured = self._options.configured
        if self._options.capture == "off":
            note = configured and f'{configured} is "0"; Model.load(..., capture="tape") captures'
            return replace(step, note=note)
        async with AsyncExitStack() as undo:
            undo.push_async_callback(step.release)
            captured = await self.captured(step, buffers, unrecorded)
            undo.pop_all()
        return captured

    async def captured(self, step: DecodeStep, buffers: SequenceBuffers, unrecorded: bool = False) -> DecodeStep:
        """A step with the requested capture, or the next lower one. A failure frees everything made here, but nothing
        of `step`.
        """
        stored, configured = self._loaded.stored, self._options.configured
        if self._options.capture != "tape" or not self._loaded.in_place:
            recorded = await self._recorded_step(step, buffers)
        else:
            async with self._recording:
                key = self.key(buffers.capacity)
                restored = await stored.restore("decode", key, buffers)
                if restored is not None:
                    return replace(step, capture="tape", tape=restored.tape, key=key, passes=restored.passes)
                if unrecorded and self._obstacle(buffers.capacity) is None:
                    return replace(step, note=put_off(self.eager_picks), unrecorded=True)
                recorded = await self._recorded_step(step, buffers)
                if recorded.tape and recorded.lasting:
                    async with AsyncExitStack() as undo:
                        undo.push_async_callback(replace(recorded, eager=0).release)
                        await stored.keep("decode", key, buffers, recorded.tape, recorded.passes)
                        undo.pop_all()
        if configured and recorded.capture == "off":
            fall_back(f'{configured} "1"', recorded.note or "", "decode steps run eagerly")
        return recorded

    async def _recorded_step(self, step: DecodeStep, buffers: SequenceBuffers) -> DecodeStep:
        """The best step that a recording of the captured session yields. A failure frees everything made here, but
        nothing of `step`.
        """
        capacity = buffers.capacity
        try:
            session = await self._decode_session(buffers.owner, capacity)
        except (TapeError, UnsupportedModelError) as error:
            return replace(step, note=str(error))
        async with AsyncExitStack() as undo:
            undo.push_async_callback(self._engine.release_session, session)
            captured = self._engine.bind(session, *self._tensors(buffers, "input", 1))
            undo.callback(self._engine.unbind, captured)
            step = replace(step, capture=self._options.capture, session=session, captured=captured)
            step = replace(step, key=self.key(capacity))
            about = self._loaded.about
            left_out, weights = about.left_out_within(capacity), self.quantized()
            windows = [found.window for found in left_out]
            check = StepCheck(self._engine, step.eager, buffers, about, self._run_probe, max(windows, default=0))
            recorder = StepRecorder(
                step, buffers, about, check, self._passes, self._loaded.verdicts, left_out, weights, self.tables()
            )
            recorded = await recorder.record()
            undo.pop_all()
        return recorded

    def quantized(self) -> Mapping[int, NBitsWeights]:
        """Quantized weights by recorded buffer."""
        return weights_on_device(self._engine, self._loaded.graphs.products, self._loaded.weights)

    def tables(self) -> Sequence[TableParts]:
        """The tables in parts, as recorded buffers."""
        recorded, weights = self._engine.recorded_id, self._loaded.weights
        return [
            TableParts(tuple(recorded(weights[name]) for name in each.parts), each.size)
            for each in self._loaded.graphs.tables
        ]

    def prefill_tapes(
        self,
        buffers: SequenceBuffers,
        prompt: int,
        scratch: TapeScratch,
        later: Callable[[int, int], None] | None = None,
    ) -> PrefillTapes | None:
        """Makes and keeps a sequence's prefill tapes; None if none are possible. `later` has the tape for a capacity
        and a length made while the device is unused.
        """
        loaded = self._loaded
        about = loaded.about
        # Our attention, which takes runs of several tokens, restores the inputs that recorded attention omits.
        limits = WorkgroupLimits.of(self._engine.adapter())
        ours = "attention" in self._passes and attends_prompts(limits, about.cache_dtype) and loaded.chunk > 1
        possible = loaded.in_place and about.obstacle(buffers.capacity, put_back=ours) is None and not about.states
        if self._options.capture != "tape" or "prefill" not in self._passes or not possible:
            return None

        graph = loaded.graphs.sessions["captured prefill"].model
        tapes = self._prompt_tapes(buffers, graph, prompt, lambda: self._pace.size, scratch)
        if later is not None:
            tapes.later = partial(later, buffers.capacity)
        return tapes

    def _prompt_tapes(
        self, buffers: SequenceBuffers, graph: bytes, prompt: int, size: Callable[[], int], scratch: TapeScratch
    ) -> PrefillTapes:
        async def capture(length: int) -> tuple[int, int]:
            session = await self._captured_session(graph, buffers.owner)
            return session, await self._bound(session, buffers, "prompt", length)

        return PrefillTapes(
            self._engine,
            buffers,
            self._loaded.about,
            self.quantized(),
            capture,
            prompt,
            size,
            self._loaded.stored,
            self.key(buffers.capacity),
            scratch,
            "scores" if buffers.every else "prefill",
        )

    async def scored_runs(self, buffers: SequenceBuffers, prompt: int, tapes: PrefillTapes | None) -> ScoredRuns:
        """The runs that score a sequence's tokens; `prompt` and `tapes` are the binding and the tapes of its prompts.
        If the graph cannot give the logits of several positions, each token has a run.
        """
        engine, about, graphs = self._engine, self._loaded.about, self._loaded.graphs
        positions = scored_positions(about, min(self._pace.size, buffers.chunk))
        why = "the graph gives the logits of the last position only" if about.last_token_only else graphs.one_row
        requests = [BufferRequest("scores", SLOT * buffers.capacity, "io")]
        if not why:
            row = byte_count(about.logits_dtype, (positions, about.vocab_size))
            requests.append(BufferRequest("score logits", round_up(row, WRITTEN), "io"))
        try:
            slots, *logits = await buffers.device.allocate_all(requests, buffers.owner)
        except OutOfMemoryError as error:
            why, logits = str(error), []
            [slots] = await buffers.device.allocate_all(requests[:1], buffers.owner)
        if why:
            fall_back("scores of several tokens in one run", why, "each token is a run")
            return ScoredRuns(engine, about, buffers, slots, None, 1, prompt, None, why)
        view = buffers.scored(logits[0])
        async with AsyncExitStack() as undo:
            undo.callback(slots.close)
            undo.callback(logits[0].close)
            binding = self.bind_prefill(view, "prompt", FREE, await self._scoring_session())
            undo.callback(engine.unbind, binding)
            graph = graphs.sessions["decoder"].model
            taped = tapes and self._prompt_tapes(view, graph, binding, lambda: positions, tapes.scratch)
            undo.pop_all()
        return ScoredRuns(engine, about, view, slots, logits[0], positions, binding, taped, "")

    async def _scoring_session(self) -> int:
        """The prefill session that gives the logits of every position, made when tokens are first scored."""
        async with self._recording:
            if not self._scoring:
                loaded = self._loaded
                graph = serialize(every_position(parse(loaded.graphs.sessions["prefill"].model)))
                self._scoring = await self._engine.create_session(graph, False, loaded.owner, loaded.cache_bits)
            return self._scoring

    def _obstacle(self, capacity: int) -> str | None:
        """The reason why the graph cannot be captured; empty without one."""
        put_back = self._options.capture == "tape" and "attention" in self._passes
        return self._loaded.about.obstacle(capacity, put_back=put_back)

    async def _decode_session(self, owner: str, capacity: int) -> int:
        """A session that captures decode steps. Raises TapeError or UnsupportedModelError if none is possible."""
        obstacle = self._obstacle(capacity)
        if obstacle:
            raise TapeError(f"the graph cannot be captured: {obstacle}")
        if not self._loaded.in_place:
            raise TapeError("past and present of attention cannot be one buffer on this adapter")
        ahead = self._ahead
        if ahead is not None and owner == f"{self._loaded.owner} sequence 1":
            self._ahead = None
            return await ahead
        return await self._captured_session(self._loaded.graphs.sessions["decoder"].model, owner)

    async def _captured_session(self, graph: bytes, owner: str) -> int:
        return await self._engine.create_session(graph, capture=True, owner=owner, cache_bits=self._loaded.cache_bits)

    async def _run_probe(self, buffers: SequenceBuffers, ids: Sequence[int]) -> None:
        """Prefill a few tokens, so that a recorded step can be compared with an eager one on a real state."""
        binding = self.bind_prefill(buffers, "prompt", FREE)
        try:
            buffers.clear_states()
            for start in range(0, len(ids), buffers.chunk):
                part = ids[start : start + buffers.chunk]
                await buffers.bring(part)
                buffers.make_room(start, len(part))
                buffers.write_prompt(part, start)
                await self._engine.run(binding, start + len(part), len(part), buffers.base)
                buffers.settle_states()
        finally:
            self._engine.unbind(binding)

    def bind_prefill(self, buffers: SequenceBuffers, which: str, length: int, session: int = 0) -> int:
        """Bind the prefill session, or another `session` that has the same inputs."""
        tensors = self._tensors(buffers, which, length, "prefill")
        return self._engine.bind(session or self._loaded.sessions["prefill"], *tensors, self._loaded.graphs.lengths)

    def bind_placed(self, buffers: SequenceBuffers) -> int:
        """A binding of the session for prompts with pictures, for any number of ids; 0 in a model of text."""
        session = self._loaded.sessions.get("placed prefill", 0)
        if not session:
            return 0
        tensors = self._tensors(buffers, "prompt", FREE, "placed prefill")
        return self._engine.bind(session, *tensors, self._loaded.graphs.lengths)

    def _tensors(
        self, buffers: SequenceBuffers, which: str, length: int, session: str = "decoder"
    ) -> tuple[list[BoundTensor], list[BoundTensor]]:
        """The weights and those of this sequence's buffers that a session's graph takes."""
        feeds, fetches = buffers.tensors(which, length)
        graphs, handles = self._loaded.graphs, self._loaded.weights
        taken = graphs.sessions[session].inputs
        feeds = [feed for feed in feeds if feed.name in taken]
        weights = [BoundTensor(w.name, handles[w.name], w.dtype, w.dims) for w in graphs.weights]
        return [*feeds, *weights], fetches

    async def close(self) -> None:
        """Release the sessions; called after everything made with them is released."""
        if self._ahead is not None:
            await release_made(self._engine, self._ahead)
        for session in filter(None, (self._scoring, *self._loaded.sessions.values())):
            await self._engine.release_session(session)
