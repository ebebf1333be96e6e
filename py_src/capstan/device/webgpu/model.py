"""The product's device: onnxruntime-web's WebGPU EP, weights shared by all sessions, decode steps from a tape."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from itertools import count

from ...config import GenaiConfig
from ...errors import CapstanError, ClosedError, DeviceUnavailableError, TapeError, UnsupportedModelError
from ...fallback import fall_back
from ...graph import GraphDescription
from ...load_times import phase
from ...memory import Capabilities, Pools, PoolSize
from ...notes import Notes, build
from ...tape import PASSES, TapeKey
from ...weights.shared import Lease, SharedWeights
from ..base import Progress, TapeOptions
from ..model_memory import ModelMemory
from .decode_step import DecodeStep
from .decoder import WebGpuDecoder
from .device import WebGpuDevice
from .engine import FREE, BoundTensor, GpuSessions
from .model_graphs import Graphs, OpenWeights
from .prefill_chunk import prefill_chunk
from .prefill_tape import PrefillTapes, weights_on_device
from .sequence_buffers import SequenceBuffers
from .step_check import StepCheck
from .step_recorder import StepRecorder
from .stored_tapes import StoredTapes, expects_stored
from .verdicts import Verdicts
from .weight_lease import lease

__all__ = ["WebGpuModel", "webgpu_memory"]


def webgpu_memory(interface: WebGpuDevice, graphs: Graphs, config: GenaiConfig) -> ModelMemory:
    """What the rewritten graphs take of the GPU."""
    software, context = interface.about().software, graphs.description.context_within(config.context_length)
    chunk = prefill_chunk(graphs.activations, context, software=software)
    return ModelMemory(interface, graphs.description, graphs.weights, chunk, context, graphs.activations)


async def make_session(engine: GpuSessions, model: bytes, capture: bool, owner: str) -> int:
    with phase("decode session" if capture else "session"):
        return await engine.create_session(model, capture=capture, owner=owner)


async def release_made(engine: GpuSessions, made: Awaitable[int]) -> None:
    """Release a session that is made or being made, and that nobody waits for."""
    with suppress(CapstanError):
        await engine.release_session(await made)


def passes_for(software: bool) -> tuple[str, ...]:
    """What is done to a recorded step unless the user chooses.

    Validating an indirect dispatch costs a pass of Dawn's, filling a table of counts some kernels for each length: on
    software adapters the second is more, so that indirect dispatches stay. There, too, recording and checking prefill
    runs takes longer than they save.
    """
    return tuple(name for name in PASSES if not (software and name in ("direct", "prefill")))


numbers = count(1)
"""Of the models of this page, to tell the owners of their memory apart."""


def require_capable(found: Capabilities, about: GraphDescription) -> bool:
    """Whether past and present may be one buffer. Raises DeviceUnavailableError for what no step down replaces."""
    reasons = dict(found.missing)
    if not found.staging:
        raise DeviceUnavailableError(
            f"nothing can be read back from this adapter: {reasons['staging']}; use device='wasm'"
        )
    if about.needs_f16 and not found.f16:
        raise DeviceUnavailableError(
            f"the model computes in float16 and {reasons['f16']}; "
            "export it with use_webgpu_fp32=true, or use device='wasm'"
        )
    if not found.in_place_cache:
        instead = "caches are written apart and copied after each step, which is neither captured nor taped"
        fall_back("one buffer for past and present", reasons["in_place_cache"], instead)
    return found.in_place_cache


def facts_of(interface: WebGpuDevice, graphs: Graphs, contents: Sequence[str | None]) -> str:
    """All that a verdict about a decode step depends on: Capstan, device, browser, graph and weights."""
    device = asdict(interface.about())
    told = [
        build(),
        device | {"features": sorted(device["features"])},
        hashlib.sha256(graphs.decode).hexdigest(),
        contents,
    ]
    return json.dumps(told, sort_keys=True)


class WebGpuModel:
    """Weights in GPU buffers, one prefill session over them, and decoders, each with a decode session of its own."""

    device = "webgpu"

    def __init__(
        self,
        memory: ModelMemory,
        interface: WebGpuDevice,
        graphs: Graphs,
        leases: Sequence[Lease],
        weights: dict[str, int],
        prefill: int,
        ahead: asyncio.Future[int] | None,
        stored: StoredTapes,
        name: str,
        owner: str,
        options: TapeOptions,
        in_place: bool,
        verdicts: Verdicts,
    ):
        self.interface = interface
        self._engine = interface.engine
        self._graphs = graphs
        self._leases = leases
        self._weights = weights
        self._prefill = prefill
        self._ahead = ahead
        """The first sequence's captured session, made beside the load of the weights."""
        self._stored = stored
        self._capture = options.capture
        self._name = name
        self._owner = owner
        self._in_place = in_place
        """Whether attention may write into the caches that it reads."""
        self._verdicts = verdicts
        self._made = 0
        self._allocating = asyncio.Lock()
        self._recording = asyncio.Lock()
        """Of sequences that are made at once the first records, and the others find its tape stored."""
        self._scratch: dict[int, int] = {}
        """Scratch bytes of a sequence by its capacity."""
        self._longest = 0
        """Tokens of the longest prefill run."""
        self._usual_burst: int | None = None
        """Of the sequence that was given back last."""
        self._free: list[WebGpuDecoder] = []
        self._decoders: list[WebGpuDecoder] = []
        self._making: set[asyncio.Future[WebGpuDecoder]] = set()
        self._closed = False
        about = interface.about()
        self.adapter = about.adapter
        self._passes = passes_for(about.software) if options.passes is None else options.passes
        self._chunk = memory.chunk
        self._warm_up = not about.software
        """Whether to compile the kernels of long prompts early: on software adapters running them takes longer."""
        self.memory = replace(memory, measured=self._measured)

    @classmethod
    async def load(
        cls,
        interface: WebGpuDevice,
        shared: SharedWeights,
        url: str,
        reading: Awaitable[Graphs],
        config: GenaiConfig,
        options: TapeOptions,
        open_weights: OpenWeights,
        progress: Progress,
        notes: Notes | None = None,
    ) -> WebGpuModel:
        """Load the weights that are not on the device yet and make the prefill session; nothing stays allocated on
        failure. `reading` may still be under way. `notes` keep what is found out about decode steps for later loads."""
        engine = interface.engine
        with phase("probe"):
            found, stores = await asyncio.gather(interface.capabilities(), expects_stored(notes, url))
        expected = options.capture == "tape" and stores
        graphs = await reading
        in_place = require_capable(found, graphs.description)
        memory = webgpu_memory(interface, graphs, config)
        memory.fit(1, 1).require()
        leases: list[Lease] = []
        weights: dict[str, int] = {}
        contents: list[str | None] = []
        owner = f"{url} model {next(numbers)}"
        # Sessions need the graphs alone.
        making = asyncio.ensure_future(make_session(engine, graphs.prefill, False, owner))
        ahead = None
        if options.capture != "off" and in_place and not graphs.description.uncapturable and not expected:
            ahead = asyncio.ensure_future(make_session(engine, graphs.decode, True, f"{owner} sequence 1"))
        try:
            for location in sorted({entry.location for entry in graphs.weights}):
                entries = [entry for entry in graphs.weights if entry.location == location]
                with phase("weights"):
                    file = await open_weights(location)
                    told = partial(progress, location)
                    leases.append(await lease(engine, shared, file, entries, url + location, told))
                weights.update(zip((entry.name for entry in entries), leases[-1].buffers, strict=True))
                contents.append(file.content)
            session = await asyncio.shield(making)
        except BaseException:
            for held in leases:
                held.release()
            # They go on if this wait is cancelled too.
            await asyncio.shield(asyncio.gather(*(release_made(engine, made) for made in (making, ahead) if made)))
            raise
        facts = facts_of(interface, graphs, contents)
        # Of weights that nothing vouches for it is not known whether they are the same the next time.
        kept = notes if None not in contents else None
        stored, verdicts = StoredTapes(engine, kept, url, facts, weights), Verdicts(kept, url, facts)
        return cls(
            *(memory, interface, graphs, leases, weights, session, ahead, stored),
            *(url, owner, options, in_place, verdicts),
        )

    async def decoder(self, capacity: int, pools: Pools | None = None) -> WebGpuDecoder:
        """A decoder of that capacity: a free one, else a new one, recorded and checked."""
        self._require_open()
        for i, free in enumerate(self._free):
            if pools is None and free.capacity == capacity:
                free.require(self._key(capacity))
                return self._free.pop(i)
        making = asyncio.ensure_future(self._make_decoder(capacity, pools))
        self._making.add(making)
        making.add_done_callback(self._making.discard)
        try:
            decoder = await asyncio.shield(making)
        except asyncio.CancelledError:
            # What runs on the GPU cannot be called back, and its buffers must stay: the decoder serves the next one.
            making.add_done_callback(self._keep)
            raise
        self._require_open()
        return decoder

    def _require_open(self) -> None:
        if self._closed:
            raise ClosedError(f"the model {self._name} was closed; load it again")

    def _keep(self, making: asyncio.Future[WebGpuDecoder]) -> None:
        """Take in a decoder that nobody waited for."""
        # Of given buffers nobody can say that they are still meant; they are let go when the model is closed.
        made = not making.cancelled() and making.exception() is None
        if made and making.result().reusable and not self._closed:
            self._free.append(making.result())

    async def trim(self) -> None:
        free, self._free = self._free, []
        for decoder in free:
            await self._drop(decoder)

    async def _drop(self, decoder: WebGpuDecoder) -> None:
        self._decoders.remove(decoder)
        await decoder.destroy()

    async def _give_back(self, decoder: WebGpuDecoder) -> None:
        """A decoder that nobody uses any more: the next one of its capacity, unless its buffers are the user's."""
        self._note_scratch(decoder)
        self._usual_burst = decoder.usual_burst
        if decoder.reusable:
            self._free.append(decoder)
        else:
            await self._drop(decoder)

    async def _make_decoder(self, capacity: int, pools: Pools | None) -> WebGpuDecoder:
        self.memory.fit(1, capacity).require()
        given = self.memory.given(capacity, pools) if pools is not None else {}
        async with self._allocating:
            owner = f"{self._owner} sequence {self._made + 1}"
            buffers = await SequenceBuffers.allocate(
                self.interface,
                self._graphs.description,
                capacity,
                self._chunk,
                owner,
                offset_alignment=self.memory.alignment().span_offset,
                given=given,
                in_place=self._in_place,
            )
            # The first that has buffers is the first that takes a session.
            self._made += 1
        step, prompt = None, 0
        try:
            step = await self._decode_step(buffers, capacity)
            prompt = self._bind_prefill(buffers, "prompt", FREE)
            tapes = self._prefill_tapes(buffers, prompt)
            about, give_back = self._graphs.description, self._give_back
            decoder = WebGpuDecoder(self._engine, about, buffers, step, prompt, give_back, self._take_warm_up, tapes)
        except BaseException:
            if prompt:
                self._engine.unbind(prompt)
            if step is not None:
                await step.release()
            buffers.destroy()
            raise
        if self._usual_burst is not None:
            decoder.usual_burst = self._usual_burst
        self._decoders.append(decoder)
        self._note_scratch(decoder)
        return decoder

    def _note_scratch(self, decoder: WebGpuDecoder) -> None:
        """Remember what onnxruntime-web allocated for the prefill session and for a sequence of this capacity."""
        of = {entry["owner"]: entry["bytes"] for entry in self._engine.ledger() if entry["category"] == "scratch"}
        self._longest = max(self._longest, decoder.longest_run)
        self._scratch[decoder.capacity] = of.get(self._owner, 0) + of.get(decoder.owner, 0)

    def _measured(self, capacity: int) -> PoolSize | None:
        """What was allocated; if no run was as long as a chunk yet, at least what a chunk is estimated at."""
        found = self._scratch.get(capacity)
        chunk = min(self._chunk, capacity)
        if found is None or self._longest >= chunk:
            return None if found is None else PoolSize(found)
        return PoolSize(max(found, self._graphs.activations.peak(1, chunk, capacity)), exact=False)

    def healthy(self) -> bool:
        return self._engine.healthy()

    async def close(self) -> None:
        self._closed = True
        await asyncio.gather(*self._making, return_exceptions=True)
        self._free.clear()
        while self._decoders:
            await self._decoders.pop().destroy()
        if self._ahead is not None:
            await release_made(self._engine, self._ahead)
        await self._engine.release_session(self._prefill)
        for held in self._leases:
            held.release()
        self._engine.close()

    def _key(self, capacity: int) -> TapeKey:
        """What a tape of this model for `capacity` positions is valid for."""
        return TapeKey(self._name, 1, capacity, self.adapter, " ".join((self._capture, *self._passes)))

    async def _decode_step(self, buffers: SequenceBuffers, capacity: int) -> DecodeStep:
        """The best way to run a decode step that was asked for and that works, with the reason if it is another."""
        step = DecodeStep(self._engine, self._bind_prefill(buffers, "input", 1), capture="off", note=None)
        if self._capture == "off":
            return step
        try:
            if self._capture != "tape" or buffers.given or not self._in_place:
                return await self._recorded_step(step, buffers, capacity)
            async with self._recording:
                key = self._key(capacity)
                restored = await self._stored.restore("decode", key, buffers)
                if restored is not None:
                    return replace(step, capture="tape", tape=restored.tape, key=key, passes=restored.passes)
                step = await self._recorded_step(step, buffers, capacity)
                if step.tape:
                    await self._stored.keep("decode", key, buffers, step.tape, step.passes)
                return step
        except BaseException:
            await step.release()
            raise

    async def _recorded_step(self, step: DecodeStep, buffers: SequenceBuffers, capacity: int) -> DecodeStep:
        """The best step that comes of recording the captured session. What is made for it is freed on failure, but for
        what `step` had."""
        try:
            session = await self._decode_session(buffers.owner, capacity)
        except (TapeError, UnsupportedModelError) as error:
            return replace(step, note=str(error))
        captured = 0
        try:
            captured = self._engine.bind(session, *self._tensors(buffers, "input", 1))
            step = replace(step, capture=self._capture, session=session, captured=captured, key=self._key(capacity))
            about = self._graphs.description
            check = StepCheck(self._engine, step.eager, buffers, about, self._run_probe)
            return await StepRecorder(step, buffers, about, check, self._passes, self._verdicts).record()
        except BaseException:
            if captured:
                self._engine.unbind(captured)
            await self._engine.release_session(session)
            raise

    def _prefill_tapes(self, buffers: SequenceBuffers, prompt: int) -> PrefillTapes | None:
        """What makes and keeps the prefill tapes of a sequence, if there can be any."""
        engine, graphs = self._engine, self._graphs
        possible = self._in_place and graphs.description.obstacle(buffers.capacity) is None
        if self._capture != "tape" or "prefill" not in self._passes or not possible:
            return None

        async def capture(length: int) -> tuple[int, int]:
            session = await engine.create_session(graphs.captured_prefill, capture=True, owner=buffers.owner)
            try:
                return session, engine.bind(session, *self._tensors(buffers, "prompt", length))
            except BaseException:
                await engine.release_session(session)
                raise

        weights = weights_on_device(engine, graphs.products, self._weights)
        return PrefillTapes(engine, buffers, graphs.description, weights, capture, prompt)

    async def _decode_session(self, owner: str, capacity: int) -> int:
        """A session to capture decode steps with. Raises TapeError, UnsupportedModelError if there can be none."""
        obstacle = self._graphs.description.obstacle(capacity)
        if not self._in_place:
            raise TapeError("past and present of attention cannot be one buffer on this adapter")
        if obstacle:
            raise TapeError(f"the graph cannot be captured: {obstacle}")
        ahead = self._ahead
        if ahead is not None and self._made == 1:
            self._ahead = None
            return await ahead
        return await self._engine.create_session(self._graphs.decode, capture=True, owner=owner)

    def _take_warm_up(self) -> bool:
        """Whether the kernels of long prompts have yet to be compiled; True once, for who will see to it."""
        wanted, self._warm_up = self._warm_up, False
        return wanted

    async def _run_probe(self, buffers: SequenceBuffers, ids: Sequence[int]) -> None:
        """Prefill a few tokens, so that a recorded step can be compared with an eager one on real state."""
        binding = self._bind_prefill(buffers, "prompt", FREE)
        try:
            buffers.write_prompt(ids, 0)
            await self._engine.run(binding, len(ids), len(ids))
        finally:
            self._engine.unbind(binding)

    def _bind_prefill(self, buffers: SequenceBuffers, which: str, length: int) -> int:
        feeds, fetches = self._tensors(buffers, which, length)
        lengths = self._graphs.lengths
        if lengths is not None and not lengths.reads_mask:
            feeds = [feed for feed in feeds if feed.name != self._graphs.description.mask]
        return self._engine.bind(self._prefill, feeds, fetches, lengths)

    def _tensors(
        self, buffers: SequenceBuffers, which: str, length: int
    ) -> tuple[list[BoundTensor], list[BoundTensor]]:
        """The weights, this sequence's buffers, and `length` ids of its 'input' or its 'prompt', as both sessions take
        them; FREE for any number of ids."""
        about = self._graphs.description
        ids = BoundTensor(about.input_ids, buffers.handle(f"{which} ids"), "int64", (1, length))
        feeds = [ids, BoundTensor(about.mask, buffers.mask, about.mask_dtype, (1, buffers.capacity))]
        if about.position_ids is not None:
            positions = buffers.handle("positions" if which == "input" else "prompt positions")
            feeds.append(replace(ids, name=about.position_ids, buffer=positions))
        feeds += [BoundTensor(w.name, self._weights[w.name], w.dtype, w.dims) for w in self._graphs.weights]
        fetches = [BoundTensor(about.logits, buffers.logits, about.logits_dtype, (1, 1, about.vocab_size))]
        dims = (1, about.num_kv_heads, buffers.capacity, about.head_size)
        for pair, cache, present in zip(about.cache, buffers.cache, buffers.present, strict=True):
            feeds.append(BoundTensor(pair.past, cache, about.cache_dtype, dims))
            fetches.append(BoundTensor(pair.present, present.buffer.handle, about.cache_dtype, dims))
        return feeds, fetches
