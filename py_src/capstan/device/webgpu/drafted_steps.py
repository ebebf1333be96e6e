"""Finds drafts on the GPU and verifies them, in steps of one decoder."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from ...memory import DeviceBuffer
from ...stages import Drafting
from ...stages.speculation_options import Speculation
from ..row_interface import Burst
from .gpu_engine import GpuEngine
from .row_sampler import RowSampler
from .tapes.draft_tapes import DraftBuffers
from .tapes.row_tapes import RowTape

__all__ = ["DraftedSteps"]

NOTHING = 0xFFFFFFFE
"""The ring's mark for a position at which a drafted step picked no id: advance.wgsl."""


class DraftedSteps:
    """Owns the tape over several positions. `make` returns the tape for a number of positions and the hidden states
    that it reads, or the reason why there is none.
    """

    def __init__(
        self,
        engine: GpuEngine,
        sampler: RowSampler,
        make: Callable[[int, DeviceBuffer | None], Awaitable[RowTape[DraftBuffers] | str]],
    ) -> None:
        self._engine = engine
        self._sampler = sampler
        self._make = make
        self._made: RowTape[DraftBuffers] | None = None

    @property
    def positions(self) -> int:
        """The largest number of tokens that a step can give."""
        return self._tape().buffers.positions

    @property
    def tape(self) -> int:
        """The tape over all positions."""
        return self._tape().tape

    @property
    def report(self) -> dict[str, str]:
        """See RowDecoder.tape_passes."""
        return {} if self._made is None else {"drafts": self._made.report}

    @property
    def hidden(self) -> DeviceBuffer | None:
        """The hidden states that the tape gives, if the model has a multi-token-prediction head or is one."""
        return self._tape().buffers.hidden

    async def make(self, positions: int, reads: DeviceBuffer | None = None) -> str | None:
        """Make the tape over `positions` positions; a multi-token-prediction head `reads` hidden states. Returns the
        reason if there is none. Called while no burst is under way.
        """
        made = self._made
        if made is None or (made.buffers.positions, made.buffers.reads) != (positions, reads):
            await self.release()
            found = await self._make(positions, reads)
            if isinstance(found, str):
                return found
            self._made = found
        return None

    def find(self, options: Speculation, drafter: RowSampler | None, head: Sequence[int] = ()) -> None:
        """Let steps find drafts, or take the picks of a `drafter`; for `head` see GpuEngine.set_drafts."""
        drafting = Drafting(options.max_draft_tokens, options.searched, options.chained)
        buffers = self._tape().buffers
        self._sampler.set_drafts(drafting, buffers.input_ids, buffers.logits, drafter, buffers.states, head)

    def submit(self, steps: int, length: int, cursor: int, drafter: tuple[int, int]) -> Awaitable[Burst]:
        """Queue `steps` steps. The sequence has at most `length` positions; its last pick is in the ring before
        `cursor`. `drafter` are the tapes of the draft model's steps over two tokens and over one, 0 without one.
        """
        made = self._tape()
        positions, sampler = made.buffers.positions, self._sampler.handle
        numbers = self._engine.drafted_burst(made.tape, sampler, steps, positions, length, cursor, *drafter)
        return _burst(numbers, positions)

    async def release(self) -> None:
        """Free the tape."""
        made, self._made = self._made, None
        if made is not None:
            await made.release()

    def _tape(self) -> RowTape[DraftBuffers]:
        if self._made is None:
            raise ValueError("call prepare_drafts before submit_drafted")
        return self._made


async def _burst(numbers: Awaitable[Sequence[float]], positions: int) -> Burst:
    """Read a burst of drafted steps. Each step has the ids that it picked, which may be fewer than its positions."""
    submitted, done, readable, host, entered, *found = await numbers
    steps = [
        [int(token) for token in found[start : start + positions] if token != NOTHING]
        for start in range(0, len(found), positions)
    ]
    ids = tuple(token for step in steps for token in step)
    return Burst((ids,), submitted, done, readable, host, entered, tuple(map(len, steps)))
