"""The decode loop of a generator, whose rows advance together: picks, run-ahead, what is discarded."""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from ..adapters import Adapters
from ..device.row_interface import Burst, RowDecoder
from ..device.shortlist import Shortlist
from ..errors import ClosedError, DeviceLostError, OptionError
from ..memory import Pools
from .generator_params import GeneratorParams
from .prompt import Prompt
from .row_prompts import RowPrompts

if TYPE_CHECKING:
    from ..model import Model

__all__ = ["RowLoop"]

T = TypeVar("T")


class RowLoop(RowPrompts):
    """Rows that advance together, a token each. A policy replaces `pick`, which asks for the next tokens."""

    def __init__(self, model: Model, params: GeneratorParams, pools: Pools | None) -> None:
        super().__init__(model, params, pools)
        self.late = False
        """max_time is over."""
        self.watched: int | None = None
        """How many of the most probable tokens are told with each pick; None while picks run ahead untold."""
        self.log_probabilities: list[dict[int, float]] = [{} for _ in self.rows]
        """Those of each row's last token."""
        self._looked: dict[int, tuple[Shortlist, memoryview[float]]] = {}
        """By row: the logits of the pick that nobody has read."""
        self._recoveries = params.recoveries
        """Losses of the device that may still come."""
        self._begun: float | None = None
        """When a token was first asked for since the sequences were last changed from outside."""

    @property
    def finish_reason(self) -> str | None:
        """'eos', 'stop' (stop_token_ids or stop_strings ended all), 'time' (max_time), 'length', or None while more
        tokens can be generated."""
        return self.reason(self.rows, self.late)

    @property
    def ready(self) -> bool:
        """Whether the next token of every row is at hand."""
        return all(row.ready or row.over for row in self.rows) and any(row.ready for row in self.rows)

    @property
    def sequences(self) -> int:
        """The number of sequences that the caller can read."""
        return len(self.rows)

    def sequence(self, index: int) -> list[int]:
        """All ids of a row."""
        return self.rows[index].sequence

    def append(self, prompts: Sequence[Prompt]) -> None:
        """Add tokens to the rows of each prompt."""
        for number, row in enumerate(self.rows):
            prompt = prompts[number // self._copies]
            row.append(prompt.ids, prompt.padding)
        self._change()

    def rewind(self, length: int) -> None:
        """Cut every sequence; several rows to nothing."""
        for row in self.rows:
            row.cut(length)
        self.adapters.cut(length)
        self._change()

    def set_adapter(self, adapters: Adapters, name: str) -> None:
        """Run the tokens that the model has not seen with a LoRA adapter. As in the native package, these include the
        last token if it was picked, but no token that was appended before."""
        before = [len(row.tokens) for row in self.rows]
        if not self.stale and not self.sample_first:
            before = [max(0, length - 1) for length in before]
        self.adapters.add(adapters, name, before)
        self._given = None
        # If adapters change within a sequence, no other sequence can share its caches.
        self.adapted = object() if any(before) else self.adapters.layers
        if not self.stale and not self.sample_first:
            self.lose()
        self.stale = True

    def take(self) -> list[int]:
        """The next token of every row; padding of those that are over."""
        tokens = [row.take(self.options.pad_token_id) for row in self.rows]
        self.log_probabilities = [self._likelihoods(number, token) for number, token in enumerate(tokens)]
        if not all(row.over for row in self.rows):
            length = max(map(len, self.rows))
            for row, token in zip(self.rows, tokens, strict=True):
                if len(row) < length:
                    row.tail.append(token)
        self._tell()
        return tokens

    def watch(self, count: int | None) -> None:
        """From the next pick on tell the log probabilities of so many tokens, and of the pick; nothing runs ahead."""
        if count != self.watched and not self.stale and not self.sample_first:
            self.lose()
        self.watched = count

    def _likelihoods(self, number: int, token: int) -> dict[int, float]:
        if number not in self._looked:
            return {}
        found, logits = self._looked.pop(number)
        norm = found.best[0][0] + found.total
        return {other: logit - norm for logit, other in found.best[: self.watched]} | {token: logits[token] - norm}

    def begin(self) -> None:
        """Note the time at which a token is requested."""
        if self.timing.started is None or self._begun is None:
            now = self._model.host.now()
            self.timing.started = now if self.timing.started is None else self.timing.started
            self._begun = now if self._begun is None else self._begun

    def _tell(self) -> None:
        """Tokens are handed out."""
        now = self._model.host.now()
        self.timing.token(now)
        limit = self.options.max_time
        self.late = limit is not None and self._begun is not None and now - self._begun > 1000 * limit

    def _change(self) -> None:
        """The sequences are others."""
        self._begun, self.late, self._given = None, False, None
        self.discard_ahead()

    def discard_ahead(self) -> None:
        super().discard_ahead()
        self._looked.clear()

    async def surviving(self, action: Callable[[], Awaitable[T]]) -> T:
        """The result of `action`. If the device is lost meanwhile, the model is opened on another one, within
        `recoveries`, and the action done again: what was computed is computed anew from the sequences."""
        while True:
            await self._leave_lost()
            opening = self._model.recoveries
            try:
                return await action()
            except (ClosedError, DeviceLostError) as error:
                if self.closed:
                    raise
                if opening != self._model.recoveries:
                    # Another generator has opened the model anew.
                    continue
                lost = isinstance(error, DeviceLostError)
                # The caller's objects on the device were lost with it.
                theirs = self._pools is not None or self.adapters.layers or self.adapters.pending
                if not lost or not self._recoveries or theirs:
                    raise
                self._recoveries -= 1
                await self._model.recover(opening, error)

    async def _leave_lost(self) -> None:
        """Let go of a decoder on a device that is no more."""
        if self.decoder is None or self._opening == self._model.recoveries:
            return
        await self.flight.drain()
        self.counts.end(self.decoder)
        self.decoder = self.run_ahead = None
        for row in self.rows:
            row.unsettle(0)
        self.discard_ahead()
        # Steps of several rows are of all of them.
        self._repeats = len(self.rows) == 1

    @property
    def records_next(self) -> bool:
        """Whether the next token waits for the decode step to be recorded: behind the first of a sequence, if that pays
        now."""
        return self.decoder is not None and self.decoder.records_after == 0 and not (self.stale or self.sample_first)

    async def record(self) -> None:
        """Have the decode step recorded. That overwrites the caches: what was computed is computed again."""
        decoder = self.open_decoder()
        await self.flight.drain()
        self.counts.end(decoder)
        computed, picked = any(row.valid for row in self.rows), not (self.stale or self.sample_first)
        for row in self.rows:
            row.unsettle(0)
        self.discard_ahead()
        self._repeats = True
        await decoder.record()
        self.require_open()
        self._use(decoder)
        if computed:
            reused = self.reused
            await self.prefill()
            self.reused = reused
            if picked:
                # The last of the steps that were run again is the one behind the last pick.
                self.counts.step()

    async def advance(self) -> None:
        """Do what brings the next token nearer: record the decode step, prefill, submit, or wait for a burst."""
        self.outgrow()
        if self.records_next:
            await self.record()
        if self.stale:
            await self.prefill()
        if not self.stale:
            await self.pick()

    def outgrow(self) -> None:
        """Have the caches computed anew if the next step would run past the original length of a long rope."""
        if not self.stale and self.reach < self.max_length and self.length >= self.reach:
            self.lose()

    async def pick(self) -> None:
        """Ask for the next picks, ahead of the reader, and wait for the oldest."""
        if self.watched is not None:
            await self.pick_prepared()
            return
        if self.sample_first:
            assert self.run_ahead is not None
            self.submit(1)
            # Work queued right behind the first pick delays the moment at which a browser reports the pick's end: 7 ms
            # on an H200 for sixteen steps. So the device says how many it takes there.
            self.submit(self.run_ahead.behind_first(self.open_decoder().behind_first))
        else:
            self.fill()
        await self.read()

    async def pick_prepared(self, prepare: Callable[[RowDecoder, int], Awaitable[None]] | None = None) -> None:
        """Pick a token of each row once `prepare` has changed its logits, or what may be picked: nothing runs ahead.
        Logits that are watched are read before that. The step over the last token is submitted first, so that the
        device works meanwhile."""
        decoder, going = self.open_decoder(), self.going
        if not self.sample_first:
            with self.losing():
                await decoder.run_picked(going)
            self.sample_first = True
        for number in going:
            if self.watched is not None:
                [found] = await decoder.shortlists(max(1, self.watched), [number])
                self._looked[number] = found, await decoder.row(number).logits()
            if prepare is not None and not self.stale:
                await prepare(decoder, number)
            if self.stale:
                # The sequence was changed meanwhile.
                return
        self.submit(1)
        await self.read()

    async def read(self) -> None:
        self.timing.wait(self._model.host.now())
        await super().read()

    def receive(self, burst: Burst, numbers: Sequence[int]) -> None:
        self.counts.cross(burst.crossings)
        self.timing.receive(burst)
        super().receive(burst, numbers)

    async def logits(self) -> memoryview[float]:
        """The logits the next tokens will be picked from: float32 [vocab], or [rows, vocab] of several rows."""
        await self.settle()
        decoder = self.open_decoder()
        if len(self.rows) == 1:
            return await decoder.row(0).logits()
        found = array("f")
        for number in range(len(self.rows)):
            found.frombytes((await decoder.row(number).logits()).cast("B"))
        return memoryview(found).cast("B").cast("f", (len(self.rows), self._model.config.vocab_size))

    async def set_logits(self, values: memoryview[float]) -> None:
        """Replace them: float32 [rows * vocab]."""
        await self.settle()
        kept = memoryview(values.tobytes()).cast("f")
        self._given = [len(row) for row in self.rows], kept
        self._put_given(self.open_decoder())

    async def end(self) -> None:
        """Let what is under way finish and give the decoder back."""
        await self.flight.drain()
        self.counts.end(self.decoder)
        # A decoder on a device that was lost went with it.
        there = self._opening == self._model.recoveries
        if there and self.decoder is not None and self.run_ahead is not None:
            await self._model.prefixes.leave(self, range(0, len(self.rows), self._copies))
            self.decoder.usual_burst = self.run_ahead.usual
            await self.decoder.close()
        self.adapters.release()

    def _require_logits(self) -> None:
        """Raise if the next token of a row could not be picked."""
        for number, row in enumerate(self.rows):
            row.require_logits(f"of row {number} " if len(self.rows) > 1 else "")

    def require_more(self) -> None:
        """Raise unless there is a token to generate."""
        self.require_tokens()
        if self.finish_reason is not None:
            raise OptionError(f"generation is done ({self.finish_reason}); append_tokens, rewind_to or a new generator")
        self._require_logits()
