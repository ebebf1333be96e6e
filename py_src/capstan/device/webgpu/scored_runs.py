"""Runs prompts with the logits of all positions. The GPU keeps only the scores of given tokens."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ...graph import GraphDescription
from ...memory import DeviceBuffer
from ..element_types import byte_count
from ..shortlist import ScoredToken, Shortlist
from .gpu_engine import GpuEngine
from .sequence_buffers import SequenceBuffers
from .tapes.prefill_tapes import PrefillTapes, Run

__all__ = ["LOGITS_BYTES", "SLOT", "ScoredRuns", "cut_scored", "scored_positions"]

LOGITS_BYTES = 64 << 20
"""Most bytes of the logits of a run: 256 positions of a vocabulary of 128,256 in float16."""

SLOT = 16
"""Bytes of a score: the token, which a kernel replaces by its logit; the best token; the best token's logit; the sum.
"""


def scored_positions(about: GraphDescription, most: int) -> int:
    """Tokens of the longest run: a power of two, at most `most`, whose logits have at most LOGITS_BYTES."""
    row = byte_count(about.logits_dtype, (about.vocab_size,))
    return 1 << (max(1, min(most, LOGITS_BYTES // row)).bit_length() - 1)


def cut_scored(start: int, end: int, most: int, lengths: Collection[int], back: int) -> list[Run]:
    """The runs over positions `start` to `end` of a sequence, each of at most `most`. A run with one of `lengths`,
    which have tapes, may begin before `start`, at `back` or later: it computes earlier positions again, with the same
    values.
    """
    runs: list[Run] = []
    while start < end:
        left = end - start
        covering = [length for length in lengths if left <= length <= end - back]
        within = [length for length in lengths if length <= left]
        if left < most and covering:
            runs.append(Run(end - min(covering), min(covering)))
        else:
            runs.append(Run(start, max(within) if within else min(left, most)))
        start = runs[-1].start + runs[-1].length
    return runs


@dataclass
class ScoredRuns:
    """The runs of one sequence. `tapes` are for runs of up to `positions` tokens, `binding` is for any number of
    them."""

    engine: GpuEngine
    about: GraphDescription
    buffers: SequenceBuffers
    """The sequence's buffers, with separate logits unless each run has one token."""
    slots: DeviceBuffer
    logits: DeviceBuffer | None
    """The logits of all positions of a run."""
    positions: int
    binding: int
    tapes: PrefillTapes | None
    why: str
    """The reason why each run has one token."""

    @property
    def report(self) -> str:
        """The report for RowDecoder.tape_passes."""
        if self.why:
            return f"a run for each token: {self.why}"
        how = "onnxruntime-web runs them" if self.tapes is None else self.tapes.report
        return f"runs of at most {self.positions} tokens: {how}"

    def wanted(self, start: int, end: int, back: int) -> list[int]:
        """The lengths of runs over these positions for which no tape was tried yet."""
        if self.tapes is None:
            return []
        lengths = self.tapes.lengths
        runs = cut_scored(start, end, self.positions, lengths, back)
        return self.tapes.untried({run.length for run in runs} & set(lengths))

    def cut(self, start: int, end: int, back: int) -> list[Run]:
        """The runs over these positions."""
        taped = {} if self.tapes is None else self.tapes.tapes
        return cut_scored(start, end, self.positions, [length for length, tape in taped.items() if tape], back)

    def ask(self, tokens: Sequence[int]) -> None:
        """Set the tokens to score."""
        slots = array("I", bytes(SLOT * len(tokens)))
        slots[::4] = array("I", tokens)
        self.buffers.device.copy_cpu_to_device(self.slots.span(0, SLOT * len(tokens)), slots)

    async def run(self, length: int, valid: int) -> None:
        """Run `length` tokens, whose inputs are already written; afterwards `valid` positions are valid."""
        if self.tapes is None or not self.tapes.play(length, valid):
            await self.engine.run(self.binding, valid, length, self.buffers.base)

    def keep(self, run: Run, done: int, first: int) -> None:
        """Score tokens by the logits that a run gave for position `done` and later ones; `first` is the first requested
        position. Scoring overwrites the token in its slot.
        """
        skipped, about, logits = done - run.start, self.about, self.buffers.logits
        rows, slots = run.length - skipped, self.slots.handle
        self.engine.score(logits, about.logits_dtype, about.vocab_size, skipped, rows, slots, first)

    async def read(self, count: int) -> list[ScoredToken]:
        """The scores of the first `count` tokens."""
        found = await self.buffers.device.copy_device_to_cpu(self.slots.span(0, SLOT * count))
        words, floats = array("I", found.data), array("f", found.data)
        scored = []
        for at in range(0, 4 * count, 4):
            best = Shortlist.read([floats[at + 3], floats[at + 2], words[at + 1]])
            scored.append(ScoredToken(Shortlist.read([1.0, floats[at], 0]).best[0][0], best))
        return scored

    async def release(self) -> None:
        """Free its resources; called while none of its work is under way."""
        if self.tapes is not None:
            await self.tapes.release()
        if self.logits is not None:
            self.engine.unbind(self.binding)
            self.logits.close()
        self.slots.close()
