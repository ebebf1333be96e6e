"""The prompts of a generator's rows: the decoder that runs them, up to the logits of the next picks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ..adapters import ActiveAdapters
from ..device.row_interface import RowDecoder
from ..device.shortlist import ScoredToken
from ..errors import ClosedError, OptionError, PromptError
from ..host.spans import span
from ..memory import DeviceBuffer, DeviceSpan, Pools
from ..text.stream import StoppingStream
from .generator_params import GeneratorParams
from .loop import DecodeLoop
from .row import Row
from .run_ahead import BURST_MS, RunAhead
from .step_counts import StepCounts
from .token_times import Timing

if TYPE_CHECKING:
    from ..model import Model

__all__ = ["RowPrompts"]

RECORDED_FIRST = 65_536
"""Tokens of a prompt from which on the decode step is recorded before it. With a 1B model on an NVIDIA H100 the first
recording of a page takes some 3 s, a first prompt of 32,768 tokens 5 s and one of 131,072 tokens 71."""


class RowPrompts(DecodeLoop):
    """Rows of one generator, and the decoder that runs the model on their tokens. RowLoop picks behind these."""

    burst_ms = BURST_MS
    """The length of an adapted burst, in milliseconds."""

    def __init__(self, model: Model, params: GeneratorParams, pools: Pools | None) -> None:
        super().__init__(model, params)
        self.rows = [Row() for _ in range(params.rows)]
        self.timing = Timing()
        self.counts = StepCounts()
        self.stale = True
        """The model has to run on the tokens from `valid` on before the next pick."""
        self.closed = False
        self.adapters = ActiveAdapters()
        self.rope_changes = 0
        """How often the caches were computed anew with other factors of a long rope."""
        self._opening = 0
        """The model's number of recoveries when the decoder was made."""
        self._given: tuple[list[int], memoryview[float]] | None = None
        """The length of each row, and the logits behind them that the caller gave."""
        self._pools = pools
        self._fixed_run_ahead = params.run_ahead
        self._copies = len(self.rows) // self.options.batch_size
        """Rows of one prompt."""
        decode = params.stop_decoder()
        if decode is not None:
            for row in self.rows:
                row.text = partial(StoppingStream, decode, self.options.stop_strings)
        self._capture = "off"
        """How the decoder ran its steps when it was taken."""

    @property
    def length(self) -> int:
        """The length of each row's sequence, padding included."""
        return len(self.rows[0])

    def discard_ahead(self) -> None:
        self.stale = True
        for row in self.rows:
            row.discard_ahead()
        self.sample_first = False

    async def ready_decoder(self, unrecorded: bool = True) -> RowDecoder:
        """The decoder, made when it is first needed; its step may be yet to be recorded if it may be `unrecorded`."""
        if self.decoder is None:
            self._opening = self._model.recoveries
            choice = self.adapters.pending[0] if self.adapters.at_start else None
            lora = await self.adapters.weights(choice) if choice else None
            rows, model = len(self.rows), self._model
            self._use(await model.row_decoder(rows, self.max_length, self._pools, lora, unrecorded))
            if choice:
                self.adapters.chosen(choice)
        return self.open_decoder()

    async def replace_scratch(self, scratch: Mapping[str, DeviceBuffer | DeviceSpan] | None) -> None:
        """Have tapes work in these buffers from now on; what was submitted has its own still."""
        self.require_open()
        if self.decoder is not None:
            await self._model.replace_scratch(self.decoder, scratch)
        pools = replace(self._pools or Pools(), scratch=scratch)
        self._pools = None if pools == Pools() else pools

    def _use(self, decoder: RowDecoder) -> None:
        """Go on with this decoder."""
        self.decoder = decoder
        if self._model.original_length:
            decoder.rotate(self.long)
        self._capture = decoder.capture
        for number in range(len(self.rows)):
            decoder.set_search(self.options, number)
        self.run_ahead = RunAhead(self._fixed_run_ahead, decoder.max_burst, decoder.usual_burst, self.burst_ms)

    async def prefill(self) -> None:
        """Run the model on the tokens it has not seen."""
        await self.flight.drain()
        self.counts.end(self.decoder)
        decoder = await self._ready_for_prompt()
        self.require_open()
        assert self.run_ahead is not None
        await self._rotate(decoder)
        self.stale = False
        try:
            while True:
                if not await self._prefill_rows(decoder):
                    # The sequence was changed meanwhile.
                    return
                if not self.adapters.pending:
                    break
                choice = self.adapters.pending[0]
                self._use(await self._model.switched(decoder, await self.adapters.weights(choice)))
                self.adapters.chosen(choice)
                decoder = self.open_decoder()
                self.require_open()
            if decoder.capture != self._capture:
                # It was recorded behind a wait that was cancelled.
                self._use(decoder)
            for number, row in enumerate(self.rows):
                if not row.over:
                    decoder.row(number).follow(row.sequence, row.unpicked, len(row.padding))
            self._put_given(decoder)
        except BaseException:
            self.stale = True
            raise
        self.sample_first = True
        self._repeats = False
        self.run_ahead.pause()
        self.timing.pause()
        self.counts.begin(decoder)

    async def score(self, start: int) -> list[ScoredToken]:
        """Score the tokens of the only row from `start` on, which is not 0. The model has seen all but the last one
        then. OptionError if the sequence is changed meanwhile."""
        [row] = self.rows
        await self.flight.drain()
        self.counts.end(self.decoder)
        decoder = await self._ready_for_prompt()
        self.require_open()
        await self._rotate(decoder)
        self.stale = False
        try:
            # The token before them is run with them: its logits may be gone.
            row.unsettle(start - 1)
            if await self.run_prompts({0: start - 1}, self._unchanged):
                # Another sequence may have had more of it.
                row.valid = decoder.row(0).reachable(min(row.valid, start - 1))
                if await self._run_tokens(0, start - 1, self._unchanged):
                    with span("score tokens", tokens=len(row.tokens) - start):
                        found = await decoder.row(0).score(row.tokens, row.valid)
                    if self._unchanged(0):
                        row.ran(len(row.tokens) - 1, False)
                        return found
        finally:
            # The logits behind the last one are those of a run to come.
            self.stale = True
        raise OptionError(f"score: the sequence of {len(row.tokens)} tokens was changed meanwhile; await it first")

    async def _ready_for_prompt(self) -> RowDecoder:
        """The decoder; recorded, where a prompt is so long that a recording behind it, which has it computed twice,
        would take longer than its first token may wait."""
        decoder = await self.ready_decoder()
        after, waiting = decoder.records_after, sum(len(row.tokens) - row.valid for row in self.rows)
        if after is not None and after <= 1 and waiting >= RECORDED_FIRST:
            for row in self.rows:
                row.unsettle(0)
            await decoder.record()
            self.require_open()
            self._use(decoder)
        return decoder

    async def _rotate(self, decoder: RowDecoder) -> None:
        """Rotate by the factors for the length of the sequences. If they change, they do for all positions, and the
        caches are void."""
        original = self._model.original_length
        if not original:
            return
        long = self.length > original
        await decoder.rest()
        if long != self.long:
            self.rope_changes += any(row.valid for row in self.rows)
            for row in self.rows:
                row.unsettle(0)
        self.long = long
        decoder.rotate(long)

    async def _prefill_rows(self, decoder: RowDecoder) -> bool:
        """Whether the rows are still the same afterwards."""
        ends: dict[int, int] = {}
        copied: dict[int, int] = {}
        """Rows of a prompt that is run for another one."""
        for number, row in enumerate(self.rows):
            first = number - number % self._copies
            if row.over:
                continue
            if self.options.min_length and row.padding:
                # Padding counts as in onnxruntime-genai, but the device does not see it.
                least = max(0, self.options.min_length - len(row.padding))
                decoder.set_search(self.options.replace(min_length=least), number)
            if number != first and not row.valid and row.tokens == self.rows[first].tokens:
                copied[number] = first
            else:
                ends[number] = self.adapters.first(number, len(row.tokens))
        if len(await self.run_prompts(ends, self._unchanged)) < len(ends):
            return False
        if copied:
            decoder.reorder([copied.get(number, number) for number in range(len(self.rows))])
        for number, first in copied.items():
            self.rows[number].valid = self.rows[first].valid
        return True

    def _unchanged(self, _row: int) -> bool:
        self.require_open()
        return not self.stale

    async def settle(self) -> None:
        """Have logits for the end of the sequences and nothing computed ahead of it."""
        self.require_tokens()
        if not self.stale and not self.sample_first:
            self.lose()
        while self.stale:
            self.require_tokens()
            await self.prefill()

    def _put_given(self, decoder: RowDecoder) -> None:
        """Have the next tokens picked from the logits that were given for them, if there are any."""
        if self._given is None:
            return
        lengths, values = self._given
        if lengths != [len(row) for row in self.rows]:
            # They served.
            self._given = None
            return
        vocab = self._model.config.vocab_size
        for number in range(len(self.rows)):
            decoder.row(number).set_logits(values[number * vocab : (number + 1) * vocab])

    def require_open(self) -> None:
        if self.closed:
            raise ClosedError("this generator was closed; make a new one")

    def require_tokens(self) -> None:
        self.require_open()
        if not self.length:
            raise PromptError("the sequence is empty; append_tokens first")
