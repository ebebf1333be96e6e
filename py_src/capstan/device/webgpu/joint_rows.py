"""Decodes several sequences together on WebGPU: each is a row, and one step of a tape advances all rows.

RowSource makes JointRows, and the generation loop calls them as a row_interface.RowDecoder. Prompt ids go in
(`prefill`), bursts of picked ids come out (`submit`); KV caches and logits stay on the GPU.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence

from ...fallback import fall_back
from ...stages.search import SearchOptions
from ..beam_interface import BeamBurst, BeamOptions
from ..lora_weights import LoraWeights
from ..row_interface import ONE, Burst, RowPrompts
from .beam_steps import BeamSteps
from .decoder import WebGpuDecoder
from .gpu_engine import GpuEngine
from .joint_row import JointRow
from .packed_prompts import LONGEST, TOGETHER, PackedPrompts
from .row_buffers import RowBuffers
from .row_sampler import RowSampler, read_burst
from .sampled_rows import SampledRows
from .tapes.beam_tapes import BeamBuffers
from .tapes.pack_tapes import PackBuffers, placed
from .tapes.row_tapes import RowTape

__all__ = ["JointRows"]


class JointRows(SampledRows):
    """A RowDecoder that advances all its rows with one tape. It is also a beam_interface.BeamRows and a
    row_interface.PackedRows, with a tape for each; these protocols document the methods.

    A decoder of one sequence runs the prefill; its KV cache and logits are then copied to the spans of the row. Prompts
    of several rows that run together fill these spans directly, except for the last token of each prompt, which a step
    of all rows runs.
    """

    records_after = None

    def __init__(
        self,
        engine: GpuEngine,
        one: WebGpuDecoder,
        tape: RowTape[RowBuffers],
        give_back: Callable[[JointRows], Awaitable[None]],
        make_beams: Callable[[], Awaitable[RowTape[BeamBuffers] | str]],
        make_packs: Callable[[bool], Awaitable[RowTape[PackBuffers] | str | None]] | None,
    ) -> None:
        buffers = tape.buffers
        logits = [buffers.part("logits", row) for row in range(buffers.rows)]
        super().__init__(RowSampler(engine, buffers, buffers.rows), logits, buffers.require_open)
        self._one = one
        self._buffers = buffers
        self._tape = tape
        self._give_back = give_back
        self._options: list[SearchOptions | None] = [None] * buffers.rows
        self._search: SearchOptions | None = None
        self.capture = one.capture
        self.max_in_flight = one.max_in_flight
        self.max_burst = one.max_burst
        self.after_first = one.after_first
        self.usual_burst = one.usual_burst
        self._rows = [JointRow(row, one, buffers, self._sampler) for row in range(buffers.rows)]
        self._beams = BeamSteps(engine, buffers, make_beams)
        self._packed = PackedPrompts(engine, buffers, one.scratch, make_packs)

    @property
    def reusable(self) -> bool:
        """Whether the next generator may use these rows: none of their buffers belongs to the user."""
        return self._buffers.given is None and self._one.reusable

    @property
    def sequence(self) -> WebGpuDecoder:
        """The decoder that runs the prompts, with the scratch of all tapes."""
        return self._one

    @property
    def capture_note(self) -> str | None:
        return self._one.capture_note

    @property
    def tape_passes(self) -> dict[str, str]:
        return {**self._one.tape_passes, "rows": self._tape.report, **self._beams.report, **self._packed.report}

    def row(self, number: int) -> JointRow:
        return self._rows[number]

    def set_search(self, options: SearchOptions, row: int = 0) -> None:
        self._options[row] = options
        given = [each for each in self._options if each is not None]
        # Rows differ only in min_length. The sampler gets the largest one; a row with a smaller one adds the difference
        # to its count of tokens.
        least = max(each.min_length for each in given)
        chosen = options.replace(min_length=least)
        if chosen != self._search:
            self._sampler.set_search(chosen)
            self._search = chosen
            for each_row in self._rows:
                each_row.follow_again()
        for number, each in enumerate(self._options):
            if each is not None:
                self._buffers.set_uncounted(number, least - each.min_length)

    async def record(self) -> None:
        """Does nothing: the step of all rows is recorded when the rows are made."""

    async def warm_up(self) -> None:
        await self._one.warm_up()

    def rotate(self, long: bool) -> None:
        # The tape binds the buffers of the recording decoder.
        self._one.rotate(long)

    async def rest(self) -> None:
        self._require_open()
        await self._one.rest()
        self._require_open()

    async def make_packs(self) -> None:
        """Make the tape of runs over tokens of any rows, which overwrites the rows' buffers."""
        await self._one.rest()
        await self._packed.ready(now=True)

    async def prefill_together(self, prompts: RowPrompts) -> Collection[int]:
        self._require_open()
        chosen = {row: (ids, past) for row, (ids, past) in prompts.items() if self._packs(row, len(ids), past)}
        if len(chosen) < 2:
            return ()
        if not self._buffers.unstepped <= chosen.keys():
            reason = "the last token of another row, which a separate decoder ran, is not known"
            fall_back(TOGETHER, reason, "they are run one after another")
            return ()
        await self._one.rest()
        if any(len(ids) > 1 for ids, _ in chosen.values()) and not await self._packed.ready():
            return ()
        self._require_open()
        tokens = []
        for row, (ids, past) in chosen.items():
            self._buffers.make_room(row, past, len(ids))
            tokens += placed(self._buffers, row, ids[:-1], past)
        if tokens:
            self._packed.run(tokens)
        with self._device.batch():
            for row, (ids, past) in chosen.items():
                self._rows[row].go_on(ids[-1], past + len(ids))
            for row, length in enumerate(self._buffers.lengths):
                if not length:
                    # A step at length 0 would write before the row.
                    self._rows[row].begin(1)
        # The other rows repeat their last step, with the same values.
        self._engine.play_once(self._tape.tape, max(self._buffers.lengths))
        return chosen

    def _packs(self, row: int, count: int, past: int) -> bool:
        """Whether a row's prompt of `count` tokens may run together with prompts of other rows. Such runs place no
        features.
        """
        if self._one.buffers.places_any(past, count):
            return False
        return count <= min(LONGEST, self._buffers.most_ahead(row))

    def set_lora(self, lora: LoraWeights | None) -> None:
        # The tape binds the buffers of the recording decoder, so the LoRA adapter is set there.
        self._one.set_lora(lora)

    def take_over(self, other: JointRows) -> None:
        """Copy the sequences of other rows, of the same number and capacity, and continue them."""
        self._require_open()
        for row, length in zip(self._rows, other._buffers.lengths, strict=True):
            self._buffers.take(row.number, other._buffers)
            row.begin(length)
        self._buffers.unstepped = set(other._buffers.unstepped)

    def reorder(self, parents: Sequence[int]) -> None:
        self._require_open()
        buffers, lengths = self._buffers, list(self._buffers.lengths)
        moved = {row: parent for row, parent in enumerate(parents) if row != parent}
        buffers.copy(moved)
        for row, parent in moved.items():
            self._rows[row].begin(lengths[parent])
        buffers.unstepped = {row for row, parent in enumerate(parents) if parent in buffers.unstepped}

    def submit(self, picks: int, sample_first: bool, rows: Sequence[int] = ONE) -> Awaitable[Burst]:
        self._require_open()
        buffers, lengths, cursor = self._buffers, self._buffers.lengths, self._buffers.cursor
        first = max(lengths) + (1 if sample_first else 0)
        buffers.cursor += picks
        for row in rows:
            # The first step runs the pick before it, which is counted already.
            run = lengths[row] - (0 if sample_first else 1)
            buffers.make_room(row, run, lengths[row] + picks - run)
            lengths[row] = min(lengths[row] + picks, self.capacity)
        self._steps += picks - 1 if sample_first else picks
        buffers.unstepped.clear()
        numbers = self._engine.burst(self._tape.tape, self._sampler.handle, picks, sample_first, first, cursor)
        return read_burst(numbers, self.rows, frozenset(rows))

    async def prepare_beams(self, options: BeamOptions) -> str | None:
        self._require_open()
        return await self._beams.prepare(options)

    def begin_beams(self, scores: Sequence[float], sources: Sequence[int]) -> None:
        self._require_open()
        self._beams.begin(scores, sources, self._buffers.lengths)

    def submit_beams(self, picks: int, choose_first: bool) -> Awaitable[BeamBurst]:
        self._require_open()
        buffers, cursor = self._buffers, self._buffers.cursor
        first = max(buffers.lengths) + (1 if choose_first else 0)
        buffers.cursor += picks
        buffers.lengths[:] = [min(length + picks, self.capacity) for length in buffers.lengths]
        self._steps += picks - 1 if choose_first else picks
        return self._beams.submit(picks, choose_first, first, cursor)

    async def run_picked(self, rows: Sequence[int] = ONE) -> None:
        self._require_open()
        self._steps += 1
        for row in rows:
            self._buffers.make_room(row, self._buffers.lengths[row] - 1, 1)
        self._engine.play_once(self._tape.tape, max(self._buffers.lengths))

    async def step(self, tokens: Sequence[int]) -> None:
        self._require_open()
        with self._device.batch():
            self._buffers.set_inputs(tokens)
            self._buffers.unstepped.clear()
            for row, length in enumerate(list(self._buffers.lengths)):
                self._buffers.make_room(row, length, 1)
                self._rows[row].begin(length + 1)
        self._steps += 1
        self._engine.play_once(self._tape.tape, max(self._buffers.lengths))

    async def close(self) -> None:
        if not self._buffers.closed:
            await self._give_back(self)

    async def destroy(self) -> None:
        """Free the tape, the sampler and the buffers, and give back the decoder that ran the prompts."""
        if self._buffers.closed:
            return
        self._buffers.closed = True
        await self._engine.idle()
        self._sampler.destroy()
        await self._beams.release()
        await self._packed.release()
        await self._tape.release()
        await self._one.close()
        if self.borrowed is not None:
            self.borrowed.end()
