"""GpuEngine over the JavaScript engine."""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import asdict
from itertools import count
from typing import Any

from ..device.webgpu.engine import NOT_FUSED, BoundTensor, Difference, SamplerSpec, WeightPiece
from ..graph import FedLengths
from ..memory import BufferRequest, LedgerEntry, keep_account
from ..spans import spanned
from ..stages import SamplerProgram
from ..weights.shared import SharedWeights
from .errors import typed_errors
from .own_host import capstan_host
from .sessions import JsModelSession, open_gpu_session
from .storage import JsSink

__all__ = ["JsGpuEngine"]

numbers = count(1)


class JsGpuEngine:
    """Each method is one call into engine.ts, bound_sessions.ts or tapes.ts of web/src; see
    capstan.device.webgpu.engine.GpuEngine.

    The page's models and buffers share one; each user calls `retain` and, at its end, `close`.
    """

    def __init__(self, engine: Any) -> None:
        self.js = engine
        self._sessions = engine.sessions
        self._tapes = engine.tapes
        self._users = 0
        self._shared: SharedWeights | None = None
        self.number = next(numbers)
        self._stop_account = keep_account(self._account)

    def _account(self) -> list[LedgerEntry]:
        return [LedgerEntry(device=f"webgpu {self.number}", **entry) for entry in self.ledger()]

    def retain(self) -> JsGpuEngine:
        """One more user; the device is destroyed when the last has closed."""
        self._users += 1
        return self

    def shared_weights(self) -> SharedWeights:
        """The weights that everything on this device shares."""
        if self._shared is None:
            self._shared = SharedWeights(self, self.adapter()["max_storage_buffer_binding_size"])
        return self._shared

    def adapter(self) -> dict[str, Any]:
        return _object(self.js.adapter())

    def healthy(self) -> bool:
        return bool(self.js.healthy())

    def counters(self) -> dict[str, int]:
        return _object(self.js.counters())

    def ledger(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.js.ledger())
        return found

    def create_buffer(self, label: str, size: int, category: str, owner: str) -> int:
        with typed_errors():
            return int(self.js.createBuffer(label, size, category, owner))

    async def create_buffers(self, requests: Sequence[BufferRequest], owner: str) -> list[int]:
        making = asyncio.ensure_future(self._create_buffers(requests, owner))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            making.add_done_callback(self._destroy_made)
            raise

    async def _create_buffers(self, requests: Sequence[BufferRequest], owner: str) -> list[int]:
        with typed_errors():
            found: list[int] = json.loads(await self.js.createBuffers(json.dumps(requests), owner))
        return found

    def _destroy_made(self, making: asyncio.Future[list[int]]) -> None:
        """Destroy buffers whose creation was cancelled while they were made."""
        if not making.cancelled() and making.exception() is None:
            for buffer in making.result():
                self.destroy_buffer(buffer)

    def destroy_buffer(self, buffer: int) -> None:
        with typed_errors():
            self.js.destroyBuffer(buffer)

    def write(self, buffer: int, offset: int, data: bytes | bytearray | memoryview) -> None:
        with typed_errors():
            self.js.write(buffer, offset, data)

    def fill(self, buffer: int, byte: int) -> None:
        with typed_errors():
            self.js.fill(buffer, byte)

    def create_staging(self, label: str, size: int, owner: str) -> int:
        with typed_errors():
            return int(self.js.createStaging(label, size, owner))

    async def read_all(self, parts: Sequence[tuple[int, int, bytearray | memoryview]]) -> tuple[float, float]:
        places = json.dumps([(buffer, offset) for buffer, offset, _ in parts])
        with typed_errors():
            waiting, copying = await self.js.readAll(places, *(out for _, _, out in parts))
            return waiting, copying

    async def read(self, buffer: int, offset: int, size: int) -> bytes:
        data = bytearray(size)
        await self.read_all([(buffer, offset, data)])
        return bytes(data)

    def execute(self, steps: Sequence[Sequence[Any]]) -> None:
        with typed_errors():
            self.js.execute(json.dumps(steps))

    async def shortlist(
        self, buffer: int, dtype: str, vocab: int, count: int, start: int = 0, rows: int = 1
    ) -> Sequence[float]:
        with typed_errors():
            return array("d", (await self.js.shortlist(buffer, dtype, vocab, count, start, rows)).to_bytes())

    @spanned("compare with an eager run")
    async def compare(self, pairs: Sequence[tuple[int, int, int, str]]) -> list[Difference]:
        keys = ("a", "b", "bytes", "dtype")
        with typed_errors():
            found = await self.js.compare(json.dumps([dict(zip(keys, pair, strict=True)) for pair in pairs]))
        return [Difference(**fields) for fields in json.loads(found)]

    def upload_weights(self, pieces: Sequence[WeightPiece]) -> JsSink:
        with typed_errors():
            sink = self.js.uploadWeights(json.dumps(pieces))
        return JsSink(sink, [(piece.offset, piece.length) for piece in pieces])

    async def open_session(
        self, model: bytes, weights: Sequence[BoundTensor], owner: str, capture: bool
    ) -> JsModelSession:
        return await open_gpu_session(self.js, model, weights, capture, owner)

    def session_handle(self, session: Any, owner: str) -> int:
        with typed_errors():
            return int(self._sessions.sessionHandle(session.js, owner))

    @spanned("create a session")
    async def create_session(self, model: bytes, capture: bool, owner: str) -> int:
        with typed_errors():
            return int(await self._sessions.createSession(model, capture, owner))

    async def release_session(self, session: int) -> None:
        with typed_errors():
            await self._sessions.releaseSession(session)

    def bind(
        self,
        session: int,
        feeds: Sequence[BoundTensor],
        fetches: Sequence[BoundTensor],
        lengths: FedLengths | None = None,
    ) -> int:
        names = json.dumps([lengths.seqlens_k, lengths.total] if lengths else [])
        with typed_errors():
            return int(self._sessions.bind(session, _tensors(feeds), _tensors(fetches), names))

    def unbind(self, binding: int) -> None:
        self._sessions.unbind(binding)

    async def run(self, binding: int, valid: int = 0, tokens: int = 1) -> None:
        with typed_errors():
            await self._sessions.run(binding, valid, tokens)

    async def idle(self) -> None:
        with typed_errors():
            await self._sessions.idle()

    @spanned("record a run")
    async def record(self, binding: int) -> dict[str, Any]:
        with typed_errors():
            return _object(await self._sessions.record(binding))

    def retire(self, binding: int) -> None:
        self._sessions.retire(binding)

    def recorded_id(self, buffer: int) -> int:
        with typed_errors():
            return int(self.js.recordedId(buffer))

    @spanned("make a tape")
    async def make_tape(
        self, recording: int, played: Sequence[Any], written: Sequence[int], fused: Mapping[str, Any] = NOT_FUSED
    ) -> int:
        with typed_errors():
            made = self._tapes.makeTape(recording, json.dumps(played), json.dumps(written), json.dumps(fused))
            return int(await made)

    async def store_tape(self, tape: int, given: Sequence[int]) -> dict[str, Any]:
        with typed_errors():
            return _object(await self._tapes.storeTape(tape, json.dumps(list(given))))

    @spanned("restore a stored tape")
    async def restore_tape(self, stored: Mapping[str, Any], given: Mapping[int, int], owner: str) -> int:
        with typed_errors():
            return int(await self._tapes.restoreTape(json.dumps(stored), json.dumps(list(given.items())), owner))

    def tape_scratch(self, tape: int) -> list[int]:
        with typed_errors():
            return list(json.loads(self._tapes.tapeScratch(tape)))

    async def give_scratch(self, tape: int, spans: Sequence[tuple[int, int, int]] | None) -> None:
        with typed_errors():
            await self._tapes.giveScratch(tape, json.dumps(spans))

    def add_table(self, tape: int, counts: bytes) -> None:
        with typed_errors():
            self._tapes.addTable(tape, counts)

    def poison(self, tape: int, recording: int, buffers: Sequence[int]) -> None:
        with typed_errors():
            self._tapes.poison(tape, recording, json.dumps(buffers))

    @spanned("compare with the truth")
    async def witness(self, recording: int, tape: int, length: int, spec: Mapping[str, Any]) -> bytes:
        with typed_errors():
            return bytes((await self._tapes.witness(recording, tape, length, json.dumps(spec))).to_bytes())

    async def counts_by_length(
        self, recording: int, steps: Sequence[Any], source: int, offset: int, mask: int, lengths: int
    ) -> bytes:
        with typed_errors():
            found = await self._tapes.countsByLength(recording, json.dumps(steps), source, offset, mask, lengths)
            return bytes(found.to_bytes())

    async def counts_of_step(self, tape: int, length: int) -> bytes:
        with typed_errors():
            return bytes((await self._tapes.countsOfStep(tape, length)).to_bytes())

    def close_tape(self, tape: int) -> None:
        self._tapes.closeTape(tape)

    def drop_recording(self, recording: int) -> None:
        self._sessions.dropRecording(recording)

    def play_once(self, tape: int, length: int) -> None:
        with typed_errors():
            self._tapes.playOnce(tape, length)

    def make_sampler(self, spec: SamplerSpec) -> int:
        with typed_errors():
            return int(self._tapes.makeSampler(json.dumps(asdict(spec))))

    def set_sampling(self, sampler: int, program: SamplerProgram) -> None:
        given: dict[str, Any] = {"passes": program.passes, "wgsl": program.wgsl, "banWgsl": program.ban_wgsl}
        given |= {"maskWgsl": program.mask_wgsl, "endWgsl": program.end_wgsl, "rowWords": program.row_words}
        given |= {"allowedAt": program.allowed_at, "ownAt": program.own_at, "drafts": program.drafts}
        with typed_errors():
            self._tapes.setSampling(sampler, program.words, program.table, json.dumps(given))

    def set_allowed(self, sampler: int, mask: bytes, row: int = 0) -> None:
        with typed_errors():
            self._tapes.setAllowed(sampler, mask, row)

    def set_sampler_own(self, sampler: int, words: bytes, row: int = 0) -> None:
        with typed_errors():
            self._tapes.setSamplerOwn(sampler, words, row)

    def set_sampler_memory(self, sampler: int, rows: bytes, row: int = 0) -> None:
        with typed_errors():
            self._tapes.setSamplerMemory(sampler, rows, row)

    def destroy_sampler(self, sampler: int) -> None:
        with typed_errors():
            self._tapes.destroySampler(sampler)

    def burst(
        self, tape: int, sampler: int, picks: int, sample_first: bool, length: int, cursor: int
    ) -> Awaitable[Sequence[float]]:
        with typed_errors():
            return _numbers(self._tapes.burst(tape, sampler, picks, sample_first, length, cursor))

    def set_drafts(self, sampler: int, input_ids: int, logits: int, positions: int) -> None:
        with typed_errors():
            self._tapes.setDrafts(sampler, input_ids, logits, positions)

    def drafted_burst(
        self, tape: int, sampler: int, steps: int, positions: int, length: int, cursor: int
    ) -> Awaitable[Sequence[float]]:
        with typed_errors():
            return _numbers(self._tapes.draftedBurst(tape, sampler, steps, positions, length, cursor))

    def eager_burst(self, binding: int, valid: int, sampler: int, cursor: int) -> Awaitable[Sequence[float]]:
        with typed_errors():
            return _numbers(self._tapes.eagerBurst(binding, valid, sampler, cursor))

    async def work_done(self) -> float:
        with typed_errors():
            return float(await self.js.workDone())

    async def step_time(self, tape: int, sampler: int, steps: int, length: int) -> float:
        with typed_errors():
            return float(await self._tapes.stepTime(tape, sampler, steps, length))

    async def operation_times(
        self, tape: int, sampler: int, length: int
    ) -> list[tuple[int, str, float, list[tuple[str, str, int]]]]:
        with typed_errors():
            found = json.loads(await self._tapes.operationTimes(tape, sampler, length))
        return [
            (index, label, ms, [(name, kind, size) for name, kind, size in bound]) for index, label, ms, bound in found
        ]

    async def replay(
        self, tape: int, sampler: int, steps: int, picks: int, length: int, cursor: int, in_flight: int
    ) -> float:
        with typed_errors():
            return float(await self._tapes.replay(tape, sampler, steps, picks, length, cursor, in_flight))

    def destroy_device(self) -> None:
        """Lose the device as a browser would; for tests."""
        self.js.destroyDevice()

    def close(self) -> None:
        """One user less."""
        self._users -= 1
        if self._users == 0:
            self._stop_account()
            self._shared = None
            self.js.close()


def _object(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)
    return found


def _tensors(tensors: Sequence[BoundTensor]) -> str:
    return json.dumps([tensor.as_json() for tensor in tensors])


async def _numbers(promise: Any) -> Sequence[float]:
    """A promise of a burst's numbers, already under way; the time of their arrival becomes the fifth."""
    with typed_errors():
        found = await promise
        entered = capstan_host.now()
        numbers = array("d", found.to_bytes())
    numbers.insert(4, entered)
    return numbers
