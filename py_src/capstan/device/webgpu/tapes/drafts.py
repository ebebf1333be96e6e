"""The taped step of one sequence over several positions: recorded as a step over one position, widened, and compared
with steps over one."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from ....memory import BufferRequest, DeviceBuffer
from ....tape import RowSpans
from ...element_types import byte_count
from ..engine import GpuEngine
from ..sequence_buffers import SequenceBuffers
from .rows import LONG, PROBED, Fuse, OneRow, RowTape, Widened, require_steps_of_one, widened_tape

__all__ = ["DraftTape", "make_draft_tape"]


@dataclass
class DraftTape:
    """The tape, and what it reads and writes besides the sequence's buffers."""

    positions: int
    tape: RowTape
    input_ids: DeviceBuffer
    """int64 [positions]."""
    logits: DeviceBuffer
    """[positions, vocab] in the model's type."""

    async def release(self) -> None:
        await self.tape.release()
        self.input_ids.close()
        self.logits.close()


async def make_draft_tape(
    engine: GpuEngine,
    one: OneRow,
    positions: int,
    session: int,
    binding: int,
    fuse: Fuse,
) -> DraftTape:
    """A checked tape; `session` is a captured one over the buffers of `one`, and becomes the tape's. Raises TapeError
    if no tape is possible, and OutOfMemoryError; the session is then the caller's. Destroys the contents of `one`'s
    caches."""
    buffers, about = one.buffers, one.buffers.about
    row = byte_count(about.logits_dtype, (about.vocab_size,))
    requests = [
        BufferRequest("draft ids", 8 * positions, "io"),
        BufferRequest("draft logits", -(-positions * row // 4) * 4, "io"),
    ]
    ids, logits = await buffers.device.allocate_all(requests, buffers.owner)
    try:
        known = engine.recorded_id
        spans = {known(cache): whole(buffers, cache) for cache in buffers.cache}
        spans |= {known(buffers.input_ids): (ids.handle, 0, ids.size)}
        spans |= {known(buffers.logits): (logits.handle, 0, logits.size)}
        state = buffers.spans["state"]
        where = RowSpans((state.buffer.handle, state.offset, state.length), spans, known(buffers.input_ids))

        async def check(tape: int) -> None:
            for length in dict.fromkeys((PROBED[0], LONG[buffers.device.about().software])):
                await _check(engine, one, tape, positions, min(length, buffers.capacity - positions - 1), ids, logits)

        widened = Widened(positions, True, where, buffers.owner)
        tape = await widened_tape(engine, buffers, widened, session, binding, fuse, check)
    except BaseException:
        ids.close()
        logits.close()
        raise
    return DraftTape(positions, tape, ids, logits)


def whole(buffers: SequenceBuffers, cache: int) -> tuple[int, int, int]:
    """The buffer of a cache as a kernel binds it."""
    span = next(span for span in buffers.cache_spans if span.buffer.handle == cache)
    return cache, 0, span.buffer.size


async def _check(
    engine: GpuEngine,
    one: OneRow,
    tape: int,
    positions: int,
    length: int,
    ids: DeviceBuffer,
    logits: DeviceBuffer,
) -> None:
    """Compare a step behind `length` positions with steps of one: the logits of each position, and the caches."""
    buffers, device = one.buffers, one.buffers.device
    about = buffers.about
    row = byte_count(about.logits_dtype, (about.vocab_size,))
    requests = [BufferRequest("copy", logits.size, "kernels")]
    requests += [BufferRequest("copy", span.length, "kernels") for span in buffers.cache_spans]
    expected, *copies = await device.allocate_all(requests, "tape check")
    try:
        await one.prefill([(7 * i + 3) % about.vocab_size for i in range(length)], 0)
        tokens = [(11 * i + 5) % about.vocab_size for i in range(positions)]
        for place, token in enumerate(tokens):
            one.step_through([token], length + place)
            device.copy_tensors([(buffers.spans["logits"].sub(0, row), expected.span(place * row, row))])
        kept = [copy.span(0, span.length) for copy, span in zip(copies, buffers.cache_spans, strict=True)]
        device.copy_tensors(list(zip(buffers.cache_spans, kept, strict=True)))
        # Other tokens, so that what the step does not write shows.
        one.step_through([(token + 1) % about.vocab_size for token in reversed(tokens)], length)
        engine.fill(logits.handle, 0xFF)
        device.copy_cpu_to_device(ids.span(0, 8 * positions), array("q", tokens))
        buffers.set_length(length + 1)
        engine.play_once(tape, length + positions)
        told = f"a step over {positions} positions behind {length} differs from steps of one"
        await require_steps_of_one(engine, told, buffers, (logits.handle, expected.handle, positions * row), copies)
    finally:
        for copy in (expected, *copies):
            copy.close()
