"""One sequence on WebGPU: its buffers, and the bursts of decode steps over them."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ..errors import ClosedError
from ..graph import GraphDescription
from ..search import SearchOptions
from ..tape import TapeKey
from .base import Burst, Counters
from .engine import GpuEngine, SamplerSpec

if TYPE_CHECKING:
    from .decode_step import DecodeStep

__all__ = ["SequenceBuffers", "WebGpuDecoder"]

BYTES = {"float32": 4, "float16": 2, "int64": 8, "int32": 4}
STATE_WORDS = 8
MAX_BURST = 64
TAPE_IN_FLIGHT = 2


@dataclass(frozen=True)
class SequenceBuffers:
    """The GPU buffers of one sequence, by engine handle. Positions and capacity count tokens."""

    owner: str
    capacity: int
    chunk: int
    mask_type: str
    logits_bytes: int
    cache_bytes: int
    cache: tuple[int, ...]
    mask: int
    logits: int
    input_ids: int
    prompt_ids: int
    positions: int | None
    prompt_positions: int | None
    state: int
    ring: int

    @classmethod
    def allocate(
        cls, engine: GpuEngine, about: GraphDescription, capacity: int, chunk: int, owner: str
    ) -> SequenceBuffers:
        """Allocate everything for `capacity` positions; nothing stays allocated on failure."""
        logits_bytes = -(-about.vocab_size * BYTES[about.logits_dtype] // 4) * 4
        cache_bytes = about.num_kv_heads * capacity * about.head_size * BYTES[about.cache_dtype]
        made: list[int] = []

        def buffer(category: str, label: str, size: int) -> int:
            made.append(engine.create_buffer(label, size, category, owner))
            return made[-1]

        persistent, io = partial(buffer, "persistent"), partial(buffer, "io")

        try:
            return cls(
                owner=owner,
                capacity=capacity,
                chunk=chunk,
                mask_type=about.mask_dtype,
                logits_bytes=logits_bytes,
                cache_bytes=cache_bytes,
                cache=tuple(persistent(f"kv {pair.past}", cache_bytes) for pair in about.cache),
                mask=io("mask", capacity * BYTES[about.mask_dtype]),
                logits=io("logits", logits_bytes),
                input_ids=io("input ids", 8),
                prompt_ids=io("prompt ids", 8 * chunk),
                positions=io("positions", 8) if about.has_position_ids else None,
                prompt_positions=io("prompt positions", 8 * chunk) if about.has_position_ids else None,
                state=persistent("state", 4 * STATE_WORDS),
                ring=persistent("ring", 4 * capacity),
            )
        except BaseException:
            for handle in made:
                engine.destroy_buffer(handle)
            raise

    def all(self) -> list[int]:
        optional = [handle for handle in (self.positions, self.prompt_positions) if handle is not None]
        return [*self.written(), self.prompt_ids, self.state, self.ring, *optional]

    def written(self) -> list[int]:
        """Buffers that the decode session is bound to and that change between replays."""
        positions = [] if self.positions is None else [self.positions]
        return [*self.cache, self.mask, self.logits, self.input_ids, *positions]

    def destroy(self, engine: GpuEngine) -> None:
        for handle in set(self.all()):
            engine.destroy_buffer(handle)

    def write_mask(self, engine: GpuEngine, valid: int) -> None:
        """Ones for the first `valid` positions, zeros for the rest."""
        one, zero = (b"\1" + b"\0" * 7, b"\0" * 8) if self.mask_type == "int64" else (b"\1\0\0\0", b"\0" * 4)
        engine.write(self.mask, 0, one * valid + zero * (self.capacity - valid))

    def write_prompt(self, engine: GpuEngine, ids: Sequence[int], past: int) -> None:
        """The inputs of one prefill run of at most `chunk` ids after `past` positions."""
        engine.write(self.prompt_ids, 0, array("q", ids).tobytes())
        if self.prompt_positions is not None:
            engine.write(self.prompt_positions, 0, array("q", range(past, past + len(ids))).tobytes())
        self.write_mask(engine, past + len(ids))

    def set_input(self, engine: GpuEngine, token: int, position: int) -> None:
        """The inputs of one decode step of `token` at `position`."""
        engine.write(self.input_ids, 0, struct.pack("<q", token))
        if self.positions is not None:
            engine.write(self.positions, 0, struct.pack("<q", position))
        self.write_mask(engine, position + 1)


class WebGpuDecoder:
    """A Decoder over SequenceBuffers; see base.Decoder for what each method promises."""

    def __init__(
        self,
        engine: GpuEngine,
        about: GraphDescription,
        buffers: SequenceBuffers,
        step: DecodeStep,
        bind_prompt: Callable[[SequenceBuffers, int, int], int],
        give_back: Callable[[WebGpuDecoder], None],
    ):
        self._engine = engine
        self._about = about
        self._buffers = buffers
        self._step = step
        self._bind_prompt = bind_prompt
        self._give_back = give_back
        self._prompt_bindings: dict[int, int] = {}
        self._length = 0
        self._cursor = 0
        self._steps = 0
        self._destroyed = False
        self.capacity = buffers.capacity
        self.capture = step.capture
        self.capture_note = step.note
        self.tape_passes = step.passes
        self.max_in_flight = TAPE_IN_FLIGHT if step.capture == "tape" else 1
        self.max_burst = MAX_BURST if step.capture == "tape" else 1
        self._sampler = engine.make_sampler(
            SamplerSpec(
                logits=buffers.logits,
                logits_type=about.logits_dtype,
                vocab=about.vocab_size,
                state=buffers.state,
                ring=buffers.ring,
                ring_capacity=buffers.capacity,
                input_ids=buffers.input_ids,
                mask=buffers.mask,
                max_length=buffers.capacity,
                position_ids=buffers.positions,
                owner=buffers.owner,
            )
        )

    def set_search(self, options: SearchOptions) -> None:
        self._engine.set_sampling(self._sampler, options.sampler_words().tobytes())

    async def prefill(self, ids: Sequence[int], past: int) -> None:
        engine, buffers = self._engine, self._buffers
        self._require_open()
        for start in range(0, len(ids), buffers.chunk):
            part = ids[start : start + buffers.chunk]
            buffers.write_prompt(engine, part, past + start)
            if len(part) not in self._prompt_bindings:
                self._prompt_bindings[len(part)] = self._bind_prompt(buffers, buffers.prompt_ids, len(part))
            await engine.run(self._prompt_bindings[len(part)])
        self._length = past + len(ids)
        self._cursor = 0
        engine.write(buffers.state, 0, array("I", [self._length, *([0] * (STATE_WORDS - 1))]).tobytes())

    def submit(self, picks: int, sample_first: bool) -> Awaitable[Burst]:
        self._require_open()
        cursor = self._cursor
        first = self._length + 1 if sample_first else self._length
        self._cursor += picks
        self._length += picks
        self._steps += picks - 1 if sample_first else picks
        if self._step.tape:
            numbers = self._engine.burst(self._step.tape, self._sampler, picks, sample_first, first, cursor)
        else:
            if picks != 1:
                raise ValueError(f"{picks} picks in a burst without a tape; 1 is the most")
            numbers = self._engine.eager_burst(0 if sample_first else self._step.binding, self._sampler, cursor)
        return _burst(numbers)

    async def logits(self) -> memoryview[float]:
        self._require_open()
        data = await self._engine.read(self._buffers.logits, 0, self._buffers.logits_bytes)
        if self._about.logits_dtype == "float32":
            return memoryview(data).cast("f")[: self._about.vocab_size]
        halves = struct.unpack(f"<{len(data) // 2}e", data)[: self._about.vocab_size]
        return memoryview(array("f", halves))

    def set_logits(self, values: memoryview[float]) -> None:
        self._require_open()
        wide = self._about.logits_dtype == "float32"
        data = values.tobytes() if wide else struct.pack(f"<{len(values)}e", *values)
        self._engine.write(self._buffers.logits, 0, data.ljust(self._buffers.logits_bytes, b"\0"))

    def counters(self) -> Counters:
        return {"steps": self._steps, **self._engine.counters()}

    def require(self, key: TapeKey) -> None:
        """Raise TapeKeyError if the step was recorded for another key."""
        if self._step.key is not None:
            self._step.key.require(key)

    async def close(self) -> None:
        if not self._destroyed:
            self._give_back(self)

    async def destroy(self) -> None:
        """Free the sampler, the buffers and the decode session; the decoder cannot be used again."""
        if self._destroyed:
            return
        self._destroyed = True
        self._engine.destroy_sampler(self._sampler)
        for binding in self._prompt_bindings.values():
            self._engine.unbind(binding)
        await self._step.release()
        self._buffers.destroy(self._engine)

    def _require_open(self) -> None:
        if self._destroyed:
            raise ClosedError("the model of this generator was closed; load it again")


async def _burst(numbers: Awaitable[Sequence[float]]) -> Burst:
    submitted, readable, host, *ids = await numbers
    return Burst(tuple(int(id_) for id_ in ids), submitted, readable, host)
