"""Runs the sampler on the buffers of one sequence or of joint rows, with the program that picks their tokens."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Sequence

from ...memory import DeviceBuffer
from ...stages import Drafting, SamplerProgram, position_words
from ...stages.search import SearchOptions
from ..row_interface import ONE, Burst
from .gpu_engine import GpuEngine, SamplerSpec
from .row_buffers import RowBuffers
from .sequence_buffers import SequenceBuffers

__all__ = ["RowSampler", "read_burst"]


class RowSampler:
    """Owns the engine's sampler, not the buffers."""

    def __init__(self, engine: GpuEngine, buffers: SequenceBuffers | RowBuffers, rows: int = 1) -> None:
        about = buffers.about
        self.engine = engine
        self.buffers = buffers
        self._search = (SearchOptions(), 0)
        """The search options, and the number of the first row that draws."""
        self._program: SamplerProgram | None = None
        state, ring = buffers.spans["state"], buffers.spans["ring"]
        self.handle = engine.make_sampler(
            SamplerSpec(
                logits=buffers.handle("logits"),
                logits_type=about.logits_dtype,
                vocab=about.vocab_size,
                state=(state.buffer.handle, state.offset, state.length),
                ring=(ring.buffer.handle, ring.offset, ring.length),
                ring_capacity=buffers.capacity,
                input_ids=buffers.handle("input ids"),
                mask=buffers.handle("mask"),
                max_length=buffers.capacity,
                position_ids=buffers.handle("positions") if "positions" in buffers.spans else None,
                owner=buffers.owner,
                rows=rows,
            )
        )

    def set_search(self, options: SearchOptions, row: int = 0) -> None:
        """Set the search options of later picks; random draws are those of row number `row` and the rows after it.
        Steps find no drafts until `set_drafts` is called."""
        self._search = (options, row)
        self._set_program(Drafting())

    def set_drafts(
        self,
        drafting: Drafting,
        input_ids: DeviceBuffer,
        logits: DeviceBuffer,
        drafter: RowSampler | None,
        states: Sequence[tuple[int, int, int]],
        head: Sequence[int],
    ) -> None:
        """Let steps find drafts, for a tape with ids and logits in these buffers; the picks of a `drafter` are the
        drafts. For `states` and `head` see GpuEngine.set_drafts.
        """
        self._set_program(drafting)
        other = 0 if drafter is None else drafter.handle
        self.engine.set_drafts(self.handle, input_ids.handle, logits.handle, 1 + drafting.most, other, states, head)

    def _set_program(self, drafting: Drafting) -> None:
        options, row = self._search
        self._program = options.sampler_program(self.buffers.about.vocab_size, self.buffers.capacity, row, drafting)
        self.engine.set_sampling(self.handle, self._program)

    def follow(self, tokens: Sequence[int], prompt: int, padding: int, row: int = 0) -> None:
        """See row_interface.DecoderRow."""
        if self._program is not None and self._program.row_words:
            self.engine.set_sampler_memory(self.handle, self._program.row(tokens, prompt, padding), row)

    def allow(self, mask: bytes, row: int = 0) -> None:
        """See row_interface.DecoderRow."""
        if self._program is not None and self._program.own_at is not None:
            self.engine.set_sampler_own(self.handle, position_words(()), row)
        self.engine.set_allowed(self.handle, mask, row)

    def follow_grammar(self, position: Sequence[int], row: int = 0) -> None:
        """See row_interface.DecoderRow."""
        self.engine.set_sampler_own(self.handle, position_words(position), row)

    def destroy(self) -> None:
        """Free the sampler once no step uses it."""
        self.engine.destroy_sampler(self.handle)


async def read_burst(numbers: Awaitable[Sequence[float]], rows: int = 1, asked: Collection[int] = ONE) -> Burst:
    """Read a Burst from the engine's numbers; rows outside `asked` get no ids."""
    submitted, done, readable, host, entered, *found = await numbers
    picks = len(found) // rows
    ids = (tuple(map(int, found[row * picks : (row + 1) * picks])) if row in asked else () for row in range(rows))
    return Burst(tuple(ids), submitted, done, readable, host, entered)
