"""Makes the taped step of one sequence over several positions. It is recorded as a step over one position, widened, and
compared with steps over one position.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from ....memory import BufferRequest, DeviceBuffer, cross_sizes
from ...element_types import byte_count
from ..gpu_engine import GpuEngine
from ..sequence_buffers import SequenceBuffers
from .comparison import WIDENED_STEP, Compared, require_alike
from .row_tapes import LONG, PROBED, OneRow, TapeKind, require_steps_of_one
from .stored_tapes import Span

__all__ = ["DraftBuffers", "draft_kind"]


@dataclass
class DraftBuffers:
    """The additional buffers of a step over several positions."""

    positions: int
    input_ids: DeviceBuffer
    """int64 [positions]."""
    logits: DeviceBuffer
    """[positions, vocab] in the model's type."""
    states: Sequence[tuple[int, int, int]]
    """For each state of the model the handle of its buffer, the handle of the buffer of `kept`, and its bytes."""
    kept: Sequence[DeviceBuffer]
    """[positions, *sizes] for each state: the state after each position."""
    hidden: DeviceBuffer | None
    """[positions, hidden size]: the hidden states of a model with a multi-token-prediction head, or of the head."""
    reads: DeviceBuffer | None
    """Those that the head reads, which the model's step over as many positions gives."""

    @classmethod
    async def allocate(cls, buffers: SequenceBuffers, positions: int, reads: DeviceBuffer | None) -> DraftBuffers:
        """Allocate the buffers. Raises OutOfMemoryError; in that case nothing stays allocated."""
        row = byte_count(buffers.about.logits_dtype, (buffers.about.vocab_size,))
        requests = [
            BufferRequest("draft ids", 8 * positions, "io"),
            BufferRequest("draft logits", -(-positions * row // 4) * 4, "io"),
        ]
        spans = buffers.states
        requests += [BufferRequest("draft state", positions * span.length, "io") for span in spans]
        gives = buffers.about.hidden is not None
        if gives:
            requests.append(BufferRequest("draft hidden", positions * buffers.spans["input hidden"].length, "io"))
        ids, logits, *kept = await buffers.device.allocate_all(requests, buffers.owner)
        hidden = kept.pop() if gives else None
        states = [(span.buffer.handle, each.handle, span.length) for span, each in zip(spans, kept, strict=True)]
        return cls(positions, ids, logits, states, kept, hidden, reads)

    def bound(self, buffers: SequenceBuffers) -> dict[str, Span]:
        """The parts of buffers that the step's kernels bind, by the names of the sequence's buffers."""
        state = buffers.spans["state"]
        whole = {"input ids": self.input_ids, "logits": self.logits}
        for pair, span in zip(buffers.about.cache, buffers.cache_spans, strict=True):
            whole[f"kv {pair.past}"] = span.buffer
        whole |= {name: buffers.spans[name].buffer for name in cross_sizes(buffers.about)}
        if self.hidden is not None:
            whole["input hidden"] = self.hidden
        if self.reads is not None:
            whole["input hidden states"] = self.reads
        for each, span, kept in zip(buffers.about.states, buffers.states, self.kept, strict=True):
            whole |= {each.past: span.buffer, each.present: kept}
        spans = {name: (buffer.handle, 0, buffer.size) for name, buffer in whole.items()}
        return {"state": (state.buffer.handle, state.offset, state.length), **spans}

    def close(self) -> None:
        hidden = [self.hidden] if self.hidden is not None else []
        for buffer in (self.input_ids, self.logits, *self.kept, *hidden):
            buffer.close()


async def draft_kind(
    engine: GpuEngine, one: OneRow, positions: int, reads: DeviceBuffer | None
) -> TapeKind[DraftBuffers]:
    """The step over the last token and the drafts after it; a multi-token-prediction head `reads` hidden states. Raises
    OutOfMemoryError.
    """
    buffers = one.buffers
    drafts = await DraftBuffers.allocate(buffers, positions, reads)

    async def check(tape: int) -> None:
        for length in dict.fromkeys((PROBED[0], LONG[buffers.device.about().software])):
            await _check(engine, one, tape, drafts, min(length, buffers.capacity - positions - 1))

    name, bound = f"step over {positions} positions", drafts.bound(buffers)
    return TapeKind(name, positions, 1, drafts, bound, buffers.owner, check, along=True)


async def _check(engine: GpuEngine, one: OneRow, tape: int, drafts: DraftBuffers, length: int) -> None:
    """Compare a step after `length` positions with steps over one position: the logits of each position, and the
    caches.
    """
    buffers, device = one.buffers, one.buffers.device
    about, positions, ids, logits = buffers.about, drafts.positions, drafts.input_ids, drafts.logits
    row = byte_count(about.logits_dtype, (about.vocab_size,))
    requests = [BufferRequest("copy", logits.size, "kernels")]
    requests += [BufferRequest("copy", span.length, "kernels") for span in buffers.cache_spans]
    requests += [BufferRequest("copy", kept.size, "kernels") for kept in drafts.kept]
    expected, *copies = await device.allocate_all(requests, "tape check")
    after = [copies.pop() for _ in drafts.kept][::-1]
    """The states after each position."""
    try:
        await one.prefill([(7 * i + 3) % about.vocab_size for i in range(length)], 0)
        buffers.slide_for_check(length)
        if about.states:
            buffers.keep_states(0)
        tokens = [(11 * i + 5) % about.vocab_size for i in range(positions)]
        if drafts.reads is not None:
            buffers.fill_with_noise([drafts.reads.span()], about.cache_dtype)
            buffers.read_hidden(drafts.reads.span(), length)
        for place, token in enumerate(tokens):
            one.step_through([token], length + place)
            device.copy_tensors([(buffers.spans["logits"].sub(0, row), expected.span(place * row, row))])
            pairs = zip(buffers.states, after, strict=True)
            device.copy_tensors([(span, copy.span(place * span.length, span.length)) for span, copy in pairs])
        kept = [copy.span(0, span.length) for copy, span in zip(copies, buffers.cache_spans, strict=True)]
        device.copy_tensors(list(zip(buffers.cache_spans, kept, strict=True)))
        buffers.read_hidden(None, 0)
        # Run other tokens, so that positions that the step does not write differ.
        one.step_through([(token + 1) % about.vocab_size for token in reversed(tokens)], length)
        engine.fill(logits.handle, 0xFF)
        device.copy_cpu_to_device(ids.span(0, 8 * positions), array("q", tokens))
        buffers.set_length(length + 1)
        if about.states:
            buffers.bring_states(0)
        engine.play_once(tape, length + positions)
        message = f"a step over {positions} positions after {length} differs from steps over one position"
        await require_steps_of_one(engine, message, buffers, (logits.handle, expected.handle, positions * row), copies)
        compared = [
            Compared(state.present, kept.handle, copy.handle, kept.size, state.dtype)
            for state, kept, copy in zip(about.states, drafts.kept, after, strict=True)
        ]
        await require_alike(engine, message, compared, WIDENED_STEP, (), "float16" if about.needs_f16 else None)
    finally:
        buffers.read_hidden(None, 0)
        for copy in (expected, *copies, *after):
            copy.close()
