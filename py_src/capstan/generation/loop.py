"""Runs the decode loop: it runs the tokens of rows on a decoder, and submits bursts of picks that run ahead of the
reader.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..device.row_interface import Burst, PackedRows, RowDecoder
from ..errors import CapstanError, PromptError
from ..host.spans import span
from .flight import Flight
from .generator_params import GeneratorParams
from .hearing import Hearing
from .row import Row
from .run_ahead import RunAhead
from .seeing import Seeing

if TYPE_CHECKING:
    from ..model import Model

__all__ = ["DecodeLoop"]


class DecodeLoop:
    """Base of RowLoop, whose rows advance together, and of RowPool, whose rows come and go.

    Callers of waiting methods must hold the loop's lock: concurrent users would overwrite the decoder's buffers.
    """

    def __init__(self, model: Model, params: GeneratorParams) -> None:
        self.options = params.search
        self.max_length = params.length_limit(model.config.context_length)
        self.rows: list[Row] = []
        """By the decoder's row."""
        self.decoder: RowDecoder | None = None
        self.run_ahead: RunAhead | None = None
        self.flight = Flight()
        self.sample_first = False
        """Whether the logits for the next picks are valid."""
        self.adapted: Hashable = None
        """The LoRA adapters with which the caches were computed."""
        self.long = False
        """Whether the rows are rotated by the long factors of a long rope."""
        self.rope_changes = 0
        """The number of times that the caches were computed again with other factors of a long rope."""
        self.reused = 0
        """The number of prompt tokens whose caches came from other sequences."""
        self.recomputed = 0
        """The number of tokens that ran again because caches no longer held the positions before them."""
        self._repeats = False
        """Replays the same token runs, prompts as prompts and picks as steps."""
        self.model = model
        self.ends = frozenset(self.options.end_token_ids)
        self.senses: Hearing | Seeing = Hearing() if model.config.vision is None else Seeing()

    @property
    def cache_key(self) -> Hashable:
        """The part of the caches' key other than the tokens: loops with different keys share no prefix."""
        return self.adapted, self.long

    @property
    def reach(self) -> int:
        """The length up to which picks may be queued, in tokens: with the short factors of a long rope one past the
        original length, since the model does not run on the last pick.
        """
        original = self.model.original_length
        return min(self.max_length, original + 1) if original and not self.long else self.max_length

    @property
    def going(self) -> list[int]:
        """The rows that still need picks."""
        return [number for number, row in enumerate(self.rows) if not row.ended]

    def reason(self, rows: Sequence[Row], late: bool = False) -> str | None:
        """The reason why rows are done: 'stop' (the model, stop_token_ids or stop_strings ended all), 'time' (it is
        `late`), 'length', or None.
        """
        if all(row.over for row in rows):
            return "stop"
        return "time" if late else "length" if len(rows[0]) >= self.max_length else None

    def hit_eos(self, rows: Sequence[Row]) -> bool:
        """Whether all rows are over, one of them by an end-of-sequence token of the model."""
        return all(row.over for row in rows) and any(row.end in self.options.eos_token_ids for row in rows)

    def discard_ahead(self) -> None:
        """Discard the tokens that were computed past the end of the sequences, and the logits."""
        raise NotImplementedError

    def lose(self) -> None:
        """Note that logits or ids are lost, so that the next tokens are computed again."""
        for row in self.rows:
            row.lost_logits()
        self.discard_ahead()

    @contextmanager
    def losing(self) -> Iterator[None]:
        """Mark the logits as lost if the block fails or is cancelled."""
        try:
            yield
        except BaseException:
            self.lose()
            raise

    def open_decoder(self) -> RowDecoder:
        if self.decoder is None:
            raise PromptError("there is no decoder yet; append_tokens and generate a token first")
        return self.decoder

    async def rotate(self, decoder: RowDecoder) -> None:
        """Rotate by the factors for the length of the sequences. New factors apply to all positions, so a change makes
        the caches invalid.
        """
        original = self.model.original_length
        if not original:
            return
        long = len(self.rows[0]) > original
        await decoder.rest()
        if long != self.long:
            self.rope_changes += any(row.valid for row in self.rows)
            for row in self.rows:
                row.unsettle(0)
        self.long = long
        decoder.rotate(long)

    async def run_prompts(self, ends: Mapping[int, int], unchanged: Callable[[int], bool]) -> list[int]:
        """Run the model on the tokens of the rows in `ends`, each up to its end; tokens that another sequence has in
        its caches are copied from there. Returns the rows whose sequences did not change meanwhile.
        """
        done: list[int] = []
        self.senses.require(self.model, self.decoder)
        self.model.prefixes.follow(self)
        await self.open_decoder().rest()
        for numbers in self._groups(list(ends)):
            found = [number for number in numbers if await self._bring(number, unchanged)]
            together = await self._run_together({number: ends[number] for number in found}, unchanged)
            for number in found:
                if number in together or await self.run_tokens(number, ends[number], unchanged):
                    done.append(number)
        # A row may have changed while another row's prompt ran.
        return [number for number in done if unchanged(number)]

    def _groups(self, waiting: list[int]) -> Iterator[list[int]]:
        """The rows whose prompts may run together, group by group; groups of one if the decoder runs none together. A
        row with the same start as another one comes after it, to take that start over.
        """
        if not isinstance(self.decoder, PackedRows):
            yield from ([number] for number in waiting)
            return
        there: list[Row] = []
        while waiting:
            chosen: list[int] = []
            for number in waiting:
                if not self.model.prefixes.waits(self.rows[number], [self.rows[each] for each in chosen], there):
                    chosen.append(number)
            yield chosen
            there += [self.rows[number] for number in chosen]
            waiting = [number for number in waiting if number not in chosen]

    async def _bring(self, number: int, unchanged: Callable[[int], bool]) -> bool:
        """Take over the common start of another sequence; False if the row's sequence changed meanwhile."""
        decoder, row = self.open_decoder(), self.rows[number]
        if not unchanged(number):
            return False
        valid = row.valid
        row.valid = decoder.row(number).reachable(valid)
        found = await self.model.prefixes.bring(self, number)
        if not unchanged(number):
            return False
        self.reused += found - row.valid
        self.recomputed += max(0, valid - found)
        row.valid = found
        return True

    async def _run_together(self, ends: Mapping[int, int], unchanged: Callable[[int], bool]) -> Collection[int]:
        """Run the tokens of several rows at once, as far as the decoder can; returns these rows. With a `chunk_size`
        each row runs alone, and so do repeated runs, which ran alone at first.
        """
        decoder, alone = self.decoder, self.options.chunk_size or self._repeats
        if alone or not isinstance(decoder, PackedRows):
            return []
        prompts = {
            number: (row.tokens[row.valid : end], row.valid)
            for number, row, end in ((number, self.rows[number], end) for number, end in ends.items())
            if row.valid < end and unchanged(number)
        }
        if len(prompts) < 2:
            return []
        with span("run tokens of several rows", tokens=sum(len(ids) for ids, _ in prompts.values())):
            ran = await decoder.prefill_together(prompts)
        for number in ran:
            if unchanged(number):
                self.rows[number].ran(ends[number], False)
        return ran

    async def run_tokens(self, number: int, end: int, unchanged: Callable[[int], bool]) -> bool:
        """Run a row's tokens; False if its sequence changed meanwhile."""
        decoder, row = self.open_decoder(), self.rows[number]
        while unchanged(number) and row.valid < end:
            stop = row.next_run() if self._repeats else end
            part = row.tokens[row.valid : stop][: self.options.chunk_size]
            picked = self._repeats and not row.is_appended(row.valid, len(part))
            with span("run tokens", tokens=len(part)):
                await (decoder.step(part) if picked else decoder.row(number).prefill(part, row.valid))
            if not unchanged(number):
                return False
            if picked:
                row.valid += 1
            else:
                row.ran(row.valid + len(part), self._repeats)
        return unchanged(number)

    def submit(self, picks: int) -> bool:
        """Queue a burst of `picks` picks, fewer at the end of a sequence; False if there was nothing to pick."""
        going = self.going
        picks = min([picks, *(self.rows[number].room(self.reach) for number in going)])
        if picks <= 0 or not going:
            return False
        self.flight.add(picks, self.queued(picks, going), self.rows, going)
        self.sample_first = False
        return True

    def queued(self, picks: int, numbers: Sequence[int]) -> Awaitable[Burst]:
        """Queue `picks` picks for these rows."""
        return self.open_decoder().submit(picks, self.sample_first, numbers)

    def fill(self) -> None:
        """Queue bursts until the device's limit of bursts is under way."""
        assert self.run_ahead is not None
        while len(self.flight) < self.open_decoder().max_in_flight and self.submit(self.run_ahead.next()):
            pass

    async def read(self) -> None:
        """Wait for the oldest burst under way and take its ids, except those of rows that changed meanwhile. If no ids
        are left, an error is ignored, since the next use of the device reports it.
        """
        submitted = self.flight.oldest()
        try:
            found = await submitted.burst
        except BaseException as error:
            if isinstance(error, CapstanError) and not submitted.fresh:
                return
            # The GPU has continued, but a cancelled wait or a fault lost the ids.
            self.lose()
            raise
        if submitted.fresh:
            self.receive(found, submitted.fresh)

    def receive(self, burst: Burst, numbers: Sequence[int]) -> None:
        """Add the ids of a burst to these rows."""
        assert self.run_ahead is not None
        self.run_ahead.observe(burst)
        for number in numbers:
            self.rows[number].receive(burst.rows[number], self.ends)
