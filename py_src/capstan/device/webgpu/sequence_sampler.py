"""The sampler over one sequence's buffers, with the program that picks its tokens."""

from __future__ import annotations

from collections.abc import Sequence

from ...graph import GraphDescription
from ...memory import DeviceBuffer, DeviceSpan
from ...stages import Drafting, SamplerProgram, position_words
from ...stages.search import SearchOptions
from .engine import GpuEngine, SamplerSpec
from .sequence_buffers import SequenceBuffers

__all__ = ["SequenceSampler"]


class SequenceSampler:
    """Owns the engine's sampler, not the buffers."""

    def __init__(self, engine: GpuEngine, about: GraphDescription, buffers: SequenceBuffers) -> None:
        self._engine = engine
        self._vocab = about.vocab_size
        self._capacity = buffers.capacity
        self._search = (SearchOptions(), 0)
        """And the row that draws."""
        self._program: SamplerProgram | None = None
        self.handle = engine.make_sampler(
            SamplerSpec(
                logits=buffers.logits,
                logits_type=about.logits_dtype,
                vocab=about.vocab_size,
                state=_bound(buffers.spans["state"]),
                ring=_bound(buffers.spans["ring"]),
                ring_capacity=buffers.capacity,
                input_ids=buffers.input_ids,
                mask=buffers.mask,
                max_length=buffers.capacity,
                position_ids=buffers.positions,
                owner=buffers.owner,
            )
        )

    def set_search(self, options: SearchOptions, row: int) -> None:
        """See base.Decoder. Steps find no drafts until `set_drafts` is called."""
        self._search = (options, row)
        self._set_program(Drafting())

    def set_drafts(self, drafting: Drafting, input_ids: DeviceBuffer, logits: DeviceBuffer) -> None:
        """Let steps find drafts, for a tape that takes its ids and leaves its logits there."""
        self._set_program(drafting)
        self._engine.set_drafts(self.handle, input_ids.handle, logits.handle, 1 + drafting.most)

    def _set_program(self, drafting: Drafting) -> None:
        options, row = self._search
        self._program = options.sampler_program(self._vocab, self._capacity, row, drafting)
        self._engine.set_sampling(self.handle, self._program)

    def follow(self, tokens: Sequence[int], prompt: int, padding: int) -> None:
        """See base.Decoder."""
        if self._program is not None and self._program.row_words:
            self._engine.set_sampler_memory(self.handle, self._program.row(tokens, prompt, padding))

    def allow(self, mask: bytes) -> None:
        """See base.Decoder."""
        if self._program is not None and self._program.own_at is not None:
            self._engine.set_sampler_own(self.handle, position_words(()))
        self._engine.set_allowed(self.handle, mask)

    def follow_grammar(self, position: Sequence[int]) -> None:
        """See base.Decoder."""
        self._engine.set_sampler_own(self.handle, position_words(position))

    def destroy(self) -> None:
        """Free it; for when nothing picks with it any more."""
        self._engine.destroy_sampler(self.handle)


def _bound(span: DeviceSpan) -> tuple[int, int, int]:
    """As the engine takes it: handle, offset, bytes."""
    return span.buffer.handle, span.offset, span.length
