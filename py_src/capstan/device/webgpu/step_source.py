"""Makes what runs a sequence on WebGPU: bindings of sessions, decode steps, prefill tapes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ...errors import OutOfMemoryError, TapeError, UnsupportedModelError
from ...fallback import fall_back
from ...graph import every_position, parse, serialize
from ...memory import BufferRequest, round_up
from ...tape import NBitsWeights, TableParts, TapeKey, WorkgroupLimits, attends_prompts
from ..base import TapeOptions
from ..element_types import byte_count
from ..run_inputs import FREE, WRITTEN
from .engine import BoundTensor
from .loading import Loaded, eager_picks, release_made
from .prefill_pace import PrefillPace
from .scored_runs import SLOT, ScoredRuns, scored_positions
from .sequence_buffers import SequenceBuffers
from .tapes.decode_step import DecodeStep, put_off
from .tapes.prefill import PrefillTapes, weights_on_device
from .tapes.scratch import TapeScratch
from .tapes.step_check import StepCheck
from .tapes.step_recorder import StepRecorder

__all__ = ["StepSource"]


class StepSource:
    """The source of one model's decode steps and prefill tapes, over the buffers of any sequence."""

    def __init__(self, loaded: Loaded, options: TapeOptions, passes: tuple[str, ...], pace: PrefillPace) -> None:
        self._engine = loaded.interface.engine
        self._graphs = loaded.graphs
        self.weights = loaded.weights
        """Buffers by name."""
        self._prefill = loaded.sessions["prefill"]
        self._scoring = 0
        """The session of `scored_runs`."""
        self._ahead = loaded.ahead
        self._owner = loaded.owner
        self._first = f"{loaded.owner} sequence 1"
        """The owner of the captured session that the load made."""
        self._stored = loaded.stored
        self._verdicts = loaded.verdicts
        self._in_place = loaded.in_place
        self._name = loaded.name
        self._adapter = loaded.interface.about().adapter
        self._chunk = loaded.memory.chunk
        self._cache_bits = loaded.config.decoder.kv_cache_bits
        self._capture = options.capture
        self._configured = options.configured
        self._passes = passes
        self._pace = pace
        self._recording = asyncio.Lock()
        """Serialises recording: when sequences are made at once, the first records and the others restore its tape."""
        self.eager_picks = eager_picks(loaded.interface.about().software, loaded.graphs)
        """Picks of a sequence before its decode step is recorded, where no stored tape makes that needless."""

    async def capture(self, buffers: SequenceBuffers) -> tuple[int, int]:
        """A captured session for decode steps over a sequence's buffers, and its binding."""
        session = await self._decode_session(buffers.owner, buffers.capacity)
        try:
            return session, self._engine.bind(session, *self._tensors(buffers, "input", 1))
        except BaseException:
            await self._engine.release_session(session)
            raise

    def key(self, capacity: int) -> TapeKey:
        """The key of this model's tapes for `capacity` positions."""
        return TapeKey(self._name, 1, capacity, self._adapter, " ".join((self._capture, *self._passes)))

    async def decode_step(self, buffers: SequenceBuffers, unrecorded: bool) -> DecodeStep:
        """The requested way to run a decode step, or the next one down that works, with the reason; where it is to be
        recorded, and may be `unrecorded` for now, eager runs."""
        step = DecodeStep(self._engine, self.bind_prefill(buffers, "input", 1), capture="off", note=None)
        if self._capture == "off":
            note = self._configured and f'{self._configured} is "0"; Model.load(..., capture="tape") captures'
            return replace(step, note=note)
        try:
            return await self.captured(step, buffers, unrecorded)
        except BaseException:
            await step.release()
            raise

    async def captured(self, step: DecodeStep, buffers: SequenceBuffers, unrecorded: bool = False) -> DecodeStep:
        """A step with the capture asked for, or the next one down. A failure frees everything made here, but nothing of
        `step`."""
        if self._capture != "tape" or not self._in_place:
            recorded = await self._recorded_step(step, buffers)
        else:
            async with self._recording:
                key = self.key(buffers.capacity)
                restored = await self._stored.restore("decode", key, buffers)
                if restored is not None:
                    return replace(step, capture="tape", tape=restored.tape, key=key, passes=restored.passes)
                if unrecorded and self._obstacle(buffers.capacity) is None:
                    return replace(step, note=put_off(self.eager_picks), unrecorded=True)
                recorded = await self._recorded_step(step, buffers)
                if recorded.tape and recorded.lasting:
                    try:
                        await self._stored.keep("decode", key, buffers, recorded.tape, recorded.passes)
                    except BaseException:
                        await replace(recorded, eager=0).release()
                        raise
        if self._configured and recorded.capture == "off":
            fall_back(f'{self._configured} "1"', recorded.note or "", "decode steps run eagerly")
        return recorded

    async def _recorded_step(self, step: DecodeStep, buffers: SequenceBuffers) -> DecodeStep:
        """The best step that recording the captured session yields. A failure frees everything made here, but nothing
        of `step`."""
        capacity = buffers.capacity
        try:
            session = await self._decode_session(buffers.owner, capacity)
        except (TapeError, UnsupportedModelError) as error:
            return replace(step, note=str(error))
        captured = 0
        try:
            captured = self._engine.bind(session, *self._tensors(buffers, "input", 1))
            step = replace(step, capture=self._capture, session=session, captured=captured, key=self.key(capacity))
            about = self._graphs.description
            left_out, weights = about.left_out_within(capacity), self.quantized()
            windows = [found.window for found in left_out]
            check = StepCheck(self._engine, step.eager, buffers, about, self._run_probe, max(windows, default=0))
            given = (step, buffers, about, check, self._passes, self._verdicts, left_out, weights, self.tables())
            return await StepRecorder(*given).record()
        except BaseException:
            if captured:
                self._engine.unbind(captured)
            await self._engine.release_session(session)
            raise

    def quantized(self) -> Mapping[int, NBitsWeights]:
        """Quantized weights by recorded buffer."""
        return weights_on_device(self._engine, self._graphs.products, self.weights)

    def tables(self) -> Sequence[TableParts]:
        """The tables in parts, as recorded buffers."""
        recorded = self._engine.recorded_id
        return [
            TableParts(tuple(recorded(self.weights[name]) for name in each.parts), each.size)
            for each in self._graphs.tables
        ]

    def prefill_tapes(self, buffers: SequenceBuffers, prompt: int, scratch: TapeScratch) -> PrefillTapes | None:
        """The maker and keeper of a sequence's prefill tapes; None if none are possible."""
        engine, graphs = self._engine, self._graphs
        about = graphs.description
        # Our attention, which takes runs of several tokens, puts back the inputs that recorded attention leaves out.
        limits = WorkgroupLimits.of(engine.adapter())
        ours = "attention" in self._passes and attends_prompts(limits, about.cache_dtype) and self._chunk > 1
        possible = self._in_place and about.obstacle(buffers.capacity, put_back=ours) is None and not about.states
        if self._capture != "tape" or "prefill" not in self._passes or not possible:
            return None

        graph = graphs.sessions["captured prefill"].model
        return self._prompt_tapes(buffers, graph, prompt, lambda: self._pace.size, scratch)

    def _prompt_tapes(
        self, buffers: SequenceBuffers, graph: bytes, prompt: int, size: Callable[[], int], scratch: TapeScratch
    ) -> PrefillTapes:
        engine = self._engine

        async def capture(length: int) -> tuple[int, int]:
            session = await self._captured_session(graph, buffers.owner)
            try:
                return session, engine.bind(session, *self._tensors(buffers, "prompt", length))
            except BaseException:
                await engine.release_session(session)
                raise

        what, key = "scores" if buffers.every else "prefill", self.key(buffers.capacity)
        given = (engine, buffers, self._graphs.description, self.quantized(), capture, prompt, size)
        return PrefillTapes(*given, self._stored, key, scratch, what)

    async def scored_runs(self, buffers: SequenceBuffers, prompt: int, tapes: PrefillTapes | None) -> ScoredRuns:
        """The runs that score a sequence's tokens; `prompt` and `tapes` are those of its prompts. If the logits of
        several positions are not to be had, each token has a run."""
        engine, about = self._engine, self._graphs.description
        positions = scored_positions(about, min(self._pace.size, buffers.chunk))
        why = "the graph gives the logits of the last position only" if about.last_token_only else self._graphs.one_row
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
        view, binding = buffers.scored(logits[0]), 0
        try:
            binding = self.bind_prefill(view, "prompt", FREE, await self._scoring_session())
            graph = self._graphs.sessions["decoder"].model
            taped = tapes and self._prompt_tapes(view, graph, binding, lambda: positions, tapes.scratch)
            return ScoredRuns(engine, about, view, slots, logits[0], positions, binding, taped, "")
        except BaseException:
            if binding:
                engine.unbind(binding)
            for buffer in (slots, *logits):
                buffer.close()
            raise

    async def _scoring_session(self) -> int:
        """The prefill session that gives the logits of every position, made when tokens are first scored."""
        async with self._recording:
            if not self._scoring:
                graph = serialize(every_position(parse(self._graphs.sessions["prefill"].model)))
                bits = self._cache_bits
                self._scoring = await self._engine.create_session(graph, False, self._owner, bits)
            return self._scoring

    def _obstacle(self, capacity: int) -> str | None:
        """Why the graph cannot be captured."""
        put_back = self._capture == "tape" and "attention" in self._passes
        return self._graphs.description.obstacle(capacity, put_back=put_back)

    async def _decode_session(self, owner: str, capacity: int) -> int:
        """A session that captures decode steps. Raises TapeError or UnsupportedModelError if none is possible."""
        obstacle = self._obstacle(capacity)
        if obstacle:
            raise TapeError(f"the graph cannot be captured: {obstacle}")
        if not self._in_place:
            raise TapeError("past and present of attention cannot be one buffer on this adapter")
        ahead = self._ahead
        if ahead is not None and owner == self._first:
            self._ahead = None
            return await ahead
        return await self._captured_session(self._graphs.sessions["decoder"].model, owner)

    async def _captured_session(self, graph: bytes, owner: str) -> int:
        return await self._engine.create_session(graph, capture=True, owner=owner, cache_bits=self._cache_bits)

    async def _run_probe(self, buffers: SequenceBuffers, ids: Sequence[int]) -> None:
        """Prefill a few tokens, so that a recorded step can be compared with an eager one on real state."""
        binding = self.bind_prefill(buffers, "prompt", FREE)
        try:
            buffers.clear_states()
            for start in range(0, len(ids), buffers.chunk):
                part = ids[start : start + buffers.chunk]
                buffers.make_room(start, len(part))
                buffers.write_prompt(part, start)
                await self._engine.run(binding, start + len(part), len(part), buffers.base)
                buffers.settle_states()
        finally:
            self._engine.unbind(binding)

    def bind_prefill(self, buffers: SequenceBuffers, which: str, length: int, session: int = 0) -> int:
        """A binding of the prefill session, or of another one with its inputs."""
        tensors = self._tensors(buffers, which, length, "prefill")
        return self._engine.bind(session or self._prefill, *tensors, self._graphs.lengths)

    def _tensors(
        self, buffers: SequenceBuffers, which: str, length: int, session: str = "decoder"
    ) -> tuple[list[BoundTensor], list[BoundTensor]]:
        """The weights and those of this sequence's buffers that a session's graph takes."""
        feeds, fetches = buffers.tensors(which, length)
        taken = self._graphs.sessions[session].inputs
        feeds = [feed for feed in feeds if feed.name in taken]
        weights = [BoundTensor(w.name, self.weights[w.name], w.dtype, w.dims) for w in self._graphs.weights]
        return [*feeds, *weights], fetches

    async def close(self) -> None:
        """Release the sessions; what was made with them is released before."""
        if self._ahead is not None:
            await release_made(self._engine, self._ahead)
        for session in filter(None, (self._scoring, self._prefill)):
            await self._engine.release_session(session)
