"""The decode loop of a generator: it runs the prompts of its rows and advances the rows together; a policy picks."""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ..adapters import ActiveAdapters, Adapters
from ..device.row_interface import Burst, RowDecoder
from ..errors import ClosedError, DeviceLostError, OptionError, PromptError
from ..memory import DeviceBuffer, DeviceSpan, Pools
from ..text.stream import StoppingStream
from .generator_params import GeneratorParams
from .loop import DecodeLoop
from .policy import Policy
from .prompt import Prompt
from .row import Row
from .step_counts import StepCounts
from .token_times import Timing

if TYPE_CHECKING:
    from ..device.speech_encoder import Features
    from ..model import Model

__all__ = ["RowLoop"]

T = TypeVar("T")

RECORDED_FIRST = 65_536
"""Prompts of at least this number of tokens have the decode step recorded before them. With a 1B model on an NVIDIA
H100 the first recording of a page takes some 3 s, a first prompt of 32,768 tokens 5 s and one of 131,072 tokens 71 s.
"""


class RowLoop(DecodeLoop):
    """Rows of one generator, which advance together by a token each, and the decoder that runs the model on them."""

    policy: Policy
    """The policy sets itself here when it is made."""

    def __init__(self, model: Model, params: GeneratorParams, pools: Pools | None) -> None:
        super().__init__(model, params)
        self.rows = [Row() for _ in range(params.rows)]
        self.timing = Timing()
        self.counts = StepCounts()
        self.stale = True
        """Whether the model has to run on the tokens from `valid` on before the next pick."""
        self.closed = False
        self.adapters = ActiveAdapters()
        self._opening = 0
        """The number of the model's recoveries when the decoder was made."""
        self._given: tuple[list[int], memoryview[float]] | None = None
        """The length of each row, and the logits that the caller set there."""
        self._pools = pools
        self._copies = len(self.rows) // self.options.batch_size
        """Rows of one prompt."""
        decode = params.stop_decoder()
        if decode is not None:
            for row in self.rows:
                row.text = partial(StoppingStream, decode, self.options.stop_strings)
        self._capture = "off"
        """The decoder's `capture` when the loop took it."""
        self.late = False
        """Whether max_time is over."""
        self._recoveries = params.options["recoveries"]
        """The remaining recoveries."""
        self._begun: float | None = None
        """The time of the first request for a token since the caller last changed the sequences."""

    @property
    def length(self) -> int:
        """The length of each row's sequence, padding included."""
        return len(self.rows[0])

    @property
    def sequences(self) -> int:
        """The number of sequences that the caller can read; with beams, the number that is returned."""
        return self.options.batch_size * self.options.num_return_sequences

    @property
    def finish_reason(self) -> str | None:
        """'stop' (the model, stop_token_ids or stop_strings ended all), 'time' (max_time), 'length', or None while more
        tokens can be generated."""
        return "stop" if self.policy.done else self.reason(self.rows, self.late)

    @property
    def ended(self) -> bool:
        """Whether the model ended the sequences, by an end-of-sequence token or because the beams are done."""
        return self.policy.done or self.hit_eos(self.rows)

    def append(self, prompts: Sequence[Prompt]) -> None:
        """Add tokens to the rows of each prompt."""
        for number, row in enumerate(self.rows):
            prompt = prompts[number // self._copies]
            self.policy.appending(number, len(prompt.ids))
            row.append(prompt.ids, prompt.padding)
        self._change()

    def resume(self, ids: Sequence[int], appended: Sequence[Sequence[int]]) -> None:
        """Make these ids the tokens of an empty row; the ranges of `appended` were appended, the others picked."""
        [row] = self.rows
        ends = [*(start for start, _ in appended[1:]), len(ids)]
        for (start, end), after in zip(appended, ends, strict=True):
            self.policy.appending(0, end - start)
            row.append(ids[start:end])
            row.tokens += ids[end:after]
        row.begin_text()
        self._change()

    def sense(self, given: Sequence[Features]) -> None:
        """Set the sounds before the next tokens, one for each prompt, or the pictures in the sequence."""
        self.senses.give(given)
        for row in self.rows:
            row.lost_logits()
        self._change()

    def rewind(self, length: int) -> None:
        """Cut every sequence; several rows only to 0."""
        for row in self.rows:
            row.cut(length)
        self.adapters.cut(length)
        self._change()
        self.policy.rewound(length)

    def _change(self) -> None:
        """Note that the sequences changed."""
        self._begun, self.late, self._given = None, False, None
        self.discard_ahead()

    def discard_ahead(self) -> None:
        self.stale = True
        for row in self.rows:
            row.discard_ahead()
        self.sample_first = False
        self.policy.discarded()

    def set_adapter(self, adapters: Adapters, name: str) -> None:
        """Run the tokens that the model has not seen with a LoRA adapter. As in the native package, these tokens
        include the last one if it was picked, but none that was appended before.
        """
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

    def begin(self) -> None:
        """Note the time at which a token is requested."""
        if self.timing.started is None or self._begun is None:
            now = self.model.host.now()
            self.timing.started = now if self.timing.started is None else self.timing.started
            self._begun = now if self._begun is None else self._begun

    def take(self) -> list[int]:
        """The next token of every row; padding for rows that have ended."""
        tokens, timing = self.policy.take(), self.timing
        timing.last_token = now = self.model.host.now()
        timing.first_token = timing.first_token or now
        timing.tokens += 1
        limit = self.options.max_time
        self.late = limit is not None and self._begun is not None and now - self._begun > 1000 * limit
        return tokens

    async def ready_decoder(self, unrecorded: bool = True) -> RowDecoder:
        """The decoder, made when it is first needed; with `unrecorded` its step may be recorded later."""
        new = self.decoder is None
        if new:
            self._opening = self.model.recoveries
            choice = self.adapters.pending[0] if self.adapters.at_start else None
            lora = await self.adapters.weights(choice) if choice else None
            unrecorded = unrecorded and self.policy.takes_unrecorded
            rows, model = len(self.rows), self.model
            self._use(await model.row_decoder(rows, self.max_length, self._pools, lora, unrecorded))
            if choice:
                self.adapters.chosen(choice)
        await self.policy.prepare(self.open_decoder(), new)
        return self.open_decoder()

    async def replace_scratch(self, scratch: Mapping[str, DeviceBuffer | DeviceSpan] | None) -> None:
        """Have tapes use these buffers from now on; submitted work keeps its buffers."""
        self.require_open()
        if self.decoder is not None:
            await self.model.replace_scratch(self.decoder, scratch)
        pools = replace(self._pools or Pools(), scratch=scratch)
        self._pools = None if pools == Pools() else pools

    def _use(self, decoder: RowDecoder) -> None:
        """Continue with this decoder."""
        self.decoder = decoder
        if self.model.original_length:
            decoder.rotate(self.long)
        self._capture = decoder.capture
        for number in range(len(self.rows)):
            decoder.set_search(self.options, number)
        self.run_ahead = self.policy.run_ahead(decoder)

    async def prefill(self) -> None:
        """Run the model on the tokens it has not seen."""
        decoder = await self.ready_for_prompt()
        assert self.run_ahead is not None
        self.stale = False
        try:
            while True:
                if not await self._prefill_rows(decoder):
                    # The sequence changed meanwhile.
                    return
                if not self.adapters.pending:
                    break
                choice = self.adapters.pending[0]
                self._use(await self.model.switched(decoder, await self.adapters.weights(choice)))
                self.adapters.chosen(choice)
                decoder = self.open_decoder()
                self.require_open()
            if decoder.capture != self._capture:
                # It was recorded after a cancelled wait.
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

    async def ready_for_prompt(self) -> RowDecoder:
        """The decoder with no work under way and with the factors for the sequences' length. It is recorded if a prompt
        is so long that recording after it, which computes the prompt twice, would delay the first token too much.
        """
        await self.flight.drain()
        self.counts.end(self.decoder)
        decoder = await self.ready_decoder()
        after, waiting = decoder.records_after, sum(len(row.tokens) - row.valid for row in self.rows)
        if after is not None and after <= 1 and waiting >= RECORDED_FIRST:
            for row in self.rows:
                row.unsettle(0)
            await decoder.record()
            self.require_open()
            self._use(decoder)
        self.require_open()
        await self.rotate(decoder)
        await self.senses.encode(self.model, decoder, self.rows, self._copies, self.require_open)
        return decoder

    async def _prefill_rows(self, decoder: RowDecoder) -> bool:
        """Prefill the rows; returns whether their sequences are still the same afterwards."""
        ends: dict[int, int] = {}
        copied: dict[int, int] = {}
        """Rows whose prompt runs in another row."""
        for number, row in enumerate(self.rows):
            first = number - number % self._copies
            if row.over:
                continue
            if self.options.min_length and row.padding:
                # Padding counts as in onnxruntime-genai, but the device does not receive it.
                least = max(0, self.options.min_length - len(row.padding))
                decoder.set_search(self.options.replace(min_length=least), number)
            if number != first and not row.valid and row.tokens == self.rows[first].tokens:
                copied[number] = first
            else:
                ends[number] = self.adapters.first(number, len(row.tokens))
        if len(await self.run_prompts(ends, self.unchanged)) < len(ends):
            return False
        if copied:
            decoder.reorder([copied.get(number, number) for number in range(len(self.rows))])
        for number, first in copied.items():
            self.rows[number].valid = self.rows[first].valid
        return True

    def unchanged(self, _row: int) -> bool:
        self.require_open()
        return not self.stale

    async def surviving(self, action: Callable[[], Awaitable[T]]) -> T:
        """The result of `action`. If the device is lost meanwhile, the model is opened on another one, at most
        `recoveries` times, and the action is repeated: the caches are computed again from the sequences.
        """
        while True:
            await self._leave_lost()
            opening = self.model.recoveries
            try:
                return await action()
            except (ClosedError, DeviceLostError) as error:
                if self.closed:
                    raise
                if opening != self.model.recoveries:
                    # Another generator has already opened the model again.
                    continue
                lost = isinstance(error, DeviceLostError)
                # The caller's objects on the device were lost with it.
                theirs = self._pools is not None or self.adapters.layers or self.adapters.pending
                if not lost or not self._recoveries or theirs:
                    raise
                self._recoveries -= 1
                await self.model.recover(opening, error)

    async def _leave_lost(self) -> None:
        """Release a decoder on a lost device."""
        if self.decoder is None or self._opening == self.model.recoveries:
            return
        await self.flight.drain()
        self.counts.end(self.decoder)
        self.decoder = self.run_ahead = None
        for row in self.rows:
            row.unsettle(0)
        self.discard_ahead()
        # A step of several rows advances all of them.
        self._repeats = len(self.rows) == 1

    @property
    def records_next(self) -> bool:
        """Whether the next token waits for the decode step to be recorded: after the first of a sequence, if that pays
        now.
        """
        return self.decoder is not None and self.decoder.records_after == 0 and not (self.stale or self.sample_first)

    async def record(self) -> None:
        """Record the decode step. That overwrites the caches, which are computed again."""
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
                # The last of the repeated steps is the one after the last pick.
                self.counts.step()

    def outgrow(self) -> None:
        """Have the caches computed again if the next step would run past the original length of a long rope."""
        if not self.stale and self.reach < self.max_length and self.length >= self.reach:
            self.lose()

    def queued(self, picks: int, numbers: Sequence[int]) -> Awaitable[Burst]:
        return self.policy.queued(picks, numbers)

    def read(self) -> Coroutine[Any, Any, None]:
        self.timing.wait(self.model.host.now())
        return super().read()

    def receive(self, burst: Burst, numbers: Sequence[int]) -> None:
        self.counts.cross(burst.crossings)
        self.timing.receive(burst)
        if not self.policy.received(burst):
            super().receive(burst, numbers)

    async def logits(self) -> memoryview[float]:
        """The logits from which the next tokens will be picked: float32 [vocab], or [rows, vocab] for several rows."""
        await self.policy.settle()
        decoder = self.open_decoder()
        if len(self.rows) == 1:
            return await decoder.row(0).logits()
        found = array("f")
        for number in range(len(self.rows)):
            found.frombytes((await decoder.row(number).logits()).cast("B"))
        return memoryview(found).cast("B").cast("f", (len(self.rows), self.model.config.vocab_size))

    async def set_logits(self, values: memoryview[float]) -> None:
        """Replace the logits from which the next tokens will be picked: float32 [rows * vocab]."""
        await self.policy.settle()
        kept = memoryview(values.tobytes()).cast("f")
        self._given = [len(row) for row in self.rows], kept
        self._put_given(self.open_decoder())

    def _put_given(self, decoder: RowDecoder) -> None:
        """Have the next tokens picked from the caller's logits, if there are any."""
        if self._given is None:
            return
        lengths, values = self._given
        if lengths != [len(row) for row in self.rows]:
            # Each given set of logits is used once.
            self._given = None
            return
        vocab = self.model.config.vocab_size
        for number in range(len(self.rows)):
            decoder.row(number).set_logits(values[number * vocab : (number + 1) * vocab])

    async def end(self) -> None:
        """Let submitted work finish and return the decoder to the model."""
        await self.flight.drain()
        self.counts.end(self.decoder)
        # A decoder on a lost device is gone with the device.
        there = self._opening == self.model.recoveries
        if there and self.decoder is not None and self.run_ahead is not None:
            await self.model.prefixes.leave(self, range(0, len(self.rows), self._copies))
            self.decoder.usual_burst = self.run_ahead.usual
            await self.decoder.close()
        self.adapters.release()
        await self.policy.close()

    def require_open(self) -> None:
        if self.closed:
            raise ClosedError("this generator was closed; make a new one")

    def require_tokens(self) -> None:
        self.require_open()
        if not self.length:
            raise PromptError("the sequence is empty; append_tokens first")

    def require_more(self) -> None:
        """Raise OptionError unless there is a token to generate."""
        self.require_tokens()
        if self.finish_reason is not None:
            raise OptionError(
                f"generation is done ({self.finish_reason}); append_tokens, rewind_to or make a new generator"
            )
        for number, row in enumerate(self.rows):
            if row.barren and not self.policy.explains_barren:
                row.require_logits(f"of row {number} " if len(self.rows) > 1 else "")
