"""A GPU engine of handles and bytes: what is made and freed, what a cancelled wait leaves running, calls that fail."""

from __future__ import annotations

import asyncio
from array import array
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from capstan.device.run_input import FREE
from capstan.device.webgpu.gpu_engine import NOT_FUSED, BoundTensor, Difference, WeightPiece
from capstan.errors import OutOfMemoryError
from capstan.memory import BufferRequest

__all__ = ["SCRATCH", "PaperEngine"]

T = TypeVar("T")

SCRATCH = (256, 4096, 1024)
"""Bytes of each scratch buffer of a tape's kernels."""


class PaperEngine:
    """The part of GpuEngine that models and decoders use; test_wire.py compares its methods with the table.

    As in a page, sessions take turns, and what was asked for goes on when the wait for it is cancelled. `on_call` is
    called with the number of each call and may raise, or cancel or close something.
    """

    number = 1

    def __init__(self) -> None:
        self.live: Counter[str] = Counter()
        self.handles: dict[tuple[str, int], Any] = {}
        self.wrong: list[str] = []
        """Handles freed twice or used afterwards, and buffers freed under a run."""
        self.calls = 0
        self.on_call: Callable[[int], None] = lambda _number: None
        self.under_way: list[set[int]] = []
        """Buffers of each run that is under way."""
        self.turn = asyncio.Lock()
        self.users = 1
        self.works = True
        self.scratch: dict[int, list[tuple[int, int, int]] | None] = {}
        """The last spans given to each tape."""
        self.clock = 0.0
        """Milliseconds."""
        self.room = 1 << 60
        """Bytes that buffers made together may still take."""
        self.memory: dict[int, bytearray] = {}
        """The contents of each buffer that was written or read."""
        self.queued: list[Any] = []
        """Calls that reached the queue."""

    def _add(self, kind: str, what: Any = None) -> int:
        handle = self.calls = self.calls + 1
        self.handles[kind, handle] = what
        self.live[kind] += 1
        return handle

    def _take(self, kind: str, handle: int) -> Any:
        if (kind, handle) not in self.handles:
            self.wrong.append(f"{kind} {handle} was freed twice")
            return None
        self.live[kind] -= 1
        return self.handles.pop((kind, handle))

    def _call(self, *queued: Any) -> None:
        self.calls += 1
        self.on_call(self.calls)
        self.queued += [queued] if queued else []

    def _bytes(self, buffer: int, start: int, size: int) -> memoryview[int]:
        """A part of a buffer's memory, which begins as zeros."""
        whole = self.memory.setdefault(buffer, bytearray(-(-self.handles["buffer", buffer].size // 16) * 16))
        assert start + size <= len(whole)
        return memoryview(whole)[start : start + size]

    async def _begun(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run `work` to its end, as JavaScript does, even if the caller is cancelled."""
        self._call()
        return await asyncio.shield(asyncio.ensure_future(work()))

    async def _in_turn(self, buffers: set[int], result: Callable[[], T]) -> T:
        async def work() -> T:
            async with self.turn:
                for buffer in buffers:
                    if ("buffer", buffer) not in self.handles:
                        self.wrong.append(f"a run meets buffer {buffer}, which was destroyed")
                self.under_way.append(buffers)
                for _ in range(3):
                    await asyncio.sleep(0)
                self.under_way.remove(buffers)
                return result()

        return await self._begun(work)

    def retain(self) -> PaperEngine:
        self.users += 1
        return self

    def close(self) -> None:
        self.users -= 1

    def adapter(self) -> dict[str, Any]:
        sizes = ("max_buffer_size", "max_storage_buffer_binding_size", "max_workgroup_threads", "max_workgroup_bytes")
        return {
            **dict.fromkeys(("vendor", "architecture", "description", "runtime"), "paper"),
            **dict.fromkeys(sizes, 1 << 30),
            "min_storage_buffer_offset_alignment": 256,
            "max_storage_buffers": 10,
            "software": False,
            "features": [],
            "without": {},
            "subgroup_size": 0,
            "subgroup_matrices": [],
        }

    def healthy(self) -> bool:
        return self.works

    def counters(self) -> dict[str, int]:
        return {"submits": self.calls, "readbacks": 0}

    def ledger(self) -> list[dict[str, Any]]:
        return []

    def create_buffer(self, label: str, size: int, category: str, owner: str) -> int:
        self._call()
        return self._add("buffer", BufferRequest(label, size, category))

    def create_staging(self, label: str, size: int, owner: str) -> int:
        return self.create_buffer(label, size, "staging", owner)

    async def create_buffers(self, requests: Sequence[BufferRequest], owner: str) -> list[int]:
        async def work() -> list[int]:
            await asyncio.sleep(0)
            size = sum(request.size for request in requests)
            if size > self.room:
                raise OutOfMemoryError("no room")
            self.room -= size
            return [self._add("buffer", request) for request in requests]

        def destroy(making: asyncio.Future[list[int]]) -> None:
            for buffer in making.result():
                self.destroy_buffer(buffer)

        self._call()
        making = asyncio.ensure_future(work())
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            making.add_done_callback(destroy)
            raise

    def destroy_buffer(self, buffer: int) -> None:
        request = self._take("buffer", buffer)
        self.memory.pop(buffer, None)
        if any(buffer in buffers for buffers in self.under_way):
            self.wrong.append(f"buffer {buffer}, {request.label}, was destroyed under a run")

    def write(self, buffer: int, offset: int, data: Any) -> None:
        given = bytes(data)
        self._call("write", buffer, offset, given)
        self._bytes(buffer, offset, len(given))[:] = given

    def fill(self, buffer: int, byte: int) -> None:
        self._call("fill", buffer, byte)
        size = self.handles["buffer", buffer].size
        self._bytes(buffer, 0, size)[:] = bytes([byte]) * size

    async def read(self, buffer: int, offset: int, size: int) -> bytes:
        return await self._in_turn({buffer}, lambda: bytes(self._bytes(buffer, offset, size)))

    def execute(self, steps: Sequence[Sequence[Any]]) -> None:
        self._call("execute", steps)
        for _, source, source_at, target, target_at, size in [step for step in steps if step[0] == "copy"]:
            self._bytes(target, target_at, size)[:] = bytes(self._bytes(source, source_at, size))

    async def compare(self, pairs: Sequence[tuple[int, int, int, str]]) -> list[Difference]:
        buffers = {buffer for a, b, _, _ in pairs for buffer in (a, b)}
        return await self._in_turn(buffers, lambda: [Difference(0, 1, 0, 0) for _ in pairs])

    async def shortlist(
        self, buffer: int, dtype: str, vocab: int, count: int, start: int = 0, rows: int = 1
    ) -> list[float]:
        return await self._in_turn({buffer}, lambda: [1.0, *[0.0, 0.0] * count] * rows)

    def score(self, buffer: int, dtype: str, vocab: int, skipped: int, rows: int, slots: int, first: int) -> None:
        self._call()
        for used in (buffer, slots):
            if ("buffer", used) not in self.handles:
                self.wrong.append(f"tokens are scored with buffer {used}, which was destroyed")

    async def read_all(self, parts: Sequence[tuple[int, int, Any]]) -> tuple[float, float]:
        """Ones, which are logits and sums of them."""

        def read() -> tuple[float, float]:
            for _, _, target in parts:
                target[:] = array("f", [1.0] * -(-len(target) // 4)).tobytes()[: len(target)]
            return 0.0, 0.0

        self.queued.append(("read", parts))
        return await self._in_turn({buffer for buffer, _, _ in parts}, read)

    def upload_weights(self, pieces: Sequence[WeightPiece]) -> None:
        self._call()

    async def create_session(self, model: bytes, capture: bool, owner: str, cache_bits: int) -> int:
        return await self._in_turn(set(), lambda: self._add("session", owner))

    def lazy_session(self, model: bytes, owner: str, cache_bits: int) -> int:
        self._call()
        return self._add("session", owner)

    async def make_session(self, session: int) -> None:
        await self._in_turn(set(), lambda: None)

    async def release_session(self, session: int) -> None:
        self._take("session", session)
        await asyncio.shield(asyncio.ensure_future(self._quietly()))

    async def idle(self) -> None:
        await asyncio.shield(asyncio.ensure_future(self._quietly()))

    async def _quietly(self) -> None:
        """Ends fail no calls."""
        async with self.turn:
            await asyncio.sleep(0)

    def bind(
        self, session: int, feeds: Sequence[BoundTensor], fetches: Sequence[BoundTensor], lengths: object = None
    ) -> int:
        self._call()
        assert all(size == FREE or size > 0 for tensor in feeds for size in tensor.dims)
        return self._add("binding", {tensor.buffer for tensor in (*feeds, *fetches)})

    def unbind(self, binding: int) -> None:
        self._take("binding", binding)

    def retire(self, binding: int) -> None:
        assert ("binding", binding) in self.handles

    async def run(self, binding: int, valid: int = 0, tokens: int = 1, base: int = 0) -> None:
        await self._in_turn(self.handles["binding", binding], lambda: None)

    async def record(self, binding: int) -> dict[str, Any]:
        return await self._in_turn(self.handles["binding", binding], lambda: {"handle": self._add("recording")})

    def recorded_id(self, buffer: int) -> int:
        return buffer

    def drop_recording(self, recording: int) -> None:
        self._take("recording", recording)

    async def make_tape(
        self, recording: int, played: Sequence[Any], written: Sequence[int], fused: Any = NOT_FUSED
    ) -> int:
        async def work() -> int:
            await asyncio.sleep(0)
            return self._add("tape")

        return await self._begun(work)

    async def store_tape(self, tape: int, given: Sequence[int]) -> dict[str, Any]:
        assert ("tape", tape) in self.handles
        return await self._in_turn(set(given), lambda: {"fused": {"kernels": []}, "given": list(given)})

    async def restore_tape(self, stored: Any, given: Mapping[int, int], owner: str) -> int:
        return await self._in_turn(set(given.values()), lambda: self._add("tape", "restored"))

    def tape_scratch(self, tape: int) -> list[int]:
        assert ("tape", tape) in self.handles
        return list(SCRATCH)

    async def give_scratch(self, tape: int, spans: Sequence[tuple[int, int, int]] | None) -> None:
        async def work() -> None:
            await asyncio.sleep(0)
            if ("tape", tape) not in self.handles:
                self.wrong.append(f"tape {tape} is given scratch after its end")
            for handle, _, size in spans or ():
                if ("buffer", handle) not in self.handles:
                    self.wrong.append(f"tape {tape} is given buffer {handle} of {size} bytes, which was destroyed")
            self.scratch[tape] = None if spans is None else list(spans)

        await self._begun(work)

    def close_tape(self, tape: int) -> None:
        self._take("tape", tape)

    async def work_done(self) -> float:
        async def done() -> float:
            return self.clock

        return await self._begun(done)

    def play_once(self, tape: int, length: int) -> None:
        self._call()
        if ("tape", tape) not in self.handles:
            self.wrong.append(f"tape {tape} is played after its end")

    def make_sampler(self, spec: object) -> int:
        self._call()
        return self._add("sampler")

    def set_sampling(self, sampler: int, program: object) -> None:
        self._call()

    def set_drafts(
        self,
        sampler: int,
        input_ids: int,
        logits: int,
        positions: int,
        drafter: int = 0,
        states: Sequence[tuple[int, int, int]] = (),
        head: Sequence[int] = (),
    ) -> None:
        self._call()
        for buffer in (input_ids, logits, *head[:3], *(handle for each in states for handle in each[:2])):
            if ("buffer", buffer) not in self.handles:
                self.wrong.append(f"drafts are given buffer {buffer}, which was destroyed")

    def set_allowed(self, sampler: int, mask: bytes, row: int = 0) -> None:
        self._call()

    def set_sampler_own(self, sampler: int, words: bytes, row: int = 0) -> None:
        self._call()

    def set_sampler_memory(self, sampler: int, rows: bytes, row: int = 0) -> None:
        self._call()

    def destroy_sampler(self, sampler: int) -> None:
        self._take("sampler", sampler)
