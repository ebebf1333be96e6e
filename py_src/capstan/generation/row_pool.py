"""Lets sequences join and leave one decoder of several rows. Each step advances all active sequences."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..device.row_interface import RowDecoder
from ..errors import ClosedError, OptionError, OutOfMemoryError, PromptError
from ..fallback import fall_back
from ..host import wait_here
from ..host.leaving import when_dropped
from .generator_params import GeneratorParams
from .loop import DecodeLoop
from .prompt import checked_prompts
from .row import Row
from .run_ahead import RunAhead

if TYPE_CHECKING:
    from ..model import Model

__all__ = ["PooledSequence", "RowPool", "poolable"]

SPARE = 4
"""A decoder with this many times the needed rows, or more, is replaced by a smaller one."""


@dataclass(eq=False)
class Member:
    """A sequence of the pool."""

    limit: int
    """The largest number of tokens."""
    row: Row = field(default_factory=Row)
    place: int | None = None
    """Its row of the decoder."""
    stale: bool = True
    """Whether the model has to run on its tokens before the next pick."""
    parked: bool = True
    """Whether no more of its tokens are needed for now."""
    closed: bool = False
    failed: OutOfMemoryError | None = None
    """Whether there was no memory for the sequence's row."""

    @property
    def going(self) -> bool:
        """Whether more picks are needed."""
        return not (self.parked or self.row.ended or self.row.barren) and self.row.room(self.limit) > 0

    def void(self) -> None:
        """Discard the tokens that were computed past the sequence's end, and the logits."""
        self.row.discard_ahead()
        self.stale, self.failed = True, None


class RowPool(DecodeLoop):
    """Sequences of a model that pick by the same options, each up to `max_length` tokens. They join and leave at any
    time: the prompt of a new sequence runs while no step is under way, and the sequence is a row of all later steps. A
    released row is free for the next sequence; to add rows, all sequences move to a decoder of twice the rows, with
    their caches.

    Each sequence gets the tokens that it would get alone. Options are for one sequence without beams, processors, stop
    strings or `max_time`; sampled tokens are drawn without a caller's seed, and the seed changes when a sequence joins.
    """

    def __init__(self, model: Model, params: GeneratorParams) -> None:
        super().__init__(model, params)
        self._members: list[Member] = []
        self._turn = asyncio.Lock()
        """Serialises access: concurrent users would overwrite the decoder's buffers."""

    def join(self, limit: int | None = None) -> PooledSequence:
        """A new, empty sequence, of at most `limit` tokens if that is given. It takes a row when its first token is
        requested.
        """
        member = Member(self.max_length if limit is None else min(limit, self.max_length))
        self._members.append(member)
        return PooledSequence(self, self.model, member)

    async def bring(self, wanted: Member) -> None:
        """Make the next token of a sequence available. Raises the errors of RowLoop."""
        async with self._turn:
            wanted.parked = False
            while not wanted.row.ready:
                self._require_more(wanted)
                await self._advance()

    async def leave(self, member: Member) -> None:
        """Free the sequence's row; the decoder is released with the last sequence."""
        async with self._turn:
            if member.closed:
                return
            member.closed = True
            member.void()
            self._members.remove(member)
            if member.place is not None:
                await self.model.prefixes.keep(self, [member.place])
                self.rows[member.place] = Row()
            if not self._members:
                await self._end()

    def finish_reason(self, member: Member) -> str | None:
        return self.reason([member.row]) or ("length" if len(member.row) >= member.limit else None)

    def _require_more(self, member: Member) -> None:
        row = member.row
        if member.closed:
            raise ClosedError("this sequence was closed; make a new one")
        if not len(row):
            raise PromptError("the sequence is empty; append_tokens first")
        reason = self.finish_reason(member)
        if reason is not None:
            raise OptionError(f"generation is done ({reason}); append_tokens, rewind_to or make a new sequence")
        row.require_logits()
        if member.failed is not None:
            # The next request for a token tries again.
            failed, member.failed, member.parked = member.failed, None, True
            raise failed

    @property
    def going(self) -> list[int]:
        return [member.place for member in self._at_work() if not member.stale and member.place is not None]

    def discard_ahead(self) -> None:
        for member in self._members:
            member.void()

    async def _advance(self) -> None:
        """Do the next work for tokens: run prompts, submit, or read a burst."""
        await self._seat()
        if any(member.stale for member in self._at_work()):
            while self.flight:
                await self.read()
            await self._take_in(self.open_decoder())
            self.sample_first = True
            self.submit(1)
        else:
            self.fill()
        if self.flight:
            await self.read()

    async def _take_in(self, decoder: RowDecoder) -> None:
        """Compute the logits for the next pick of every active sequence: by a step, or by running its new prompt."""
        with self.losing():
            if not self.options.greedy:
                self._draw_again(decoder)
            if self.going:
                await decoder.run_picked(self.going)
            await self._prefill(decoder)
        assert self.run_ahead is not None
        self.run_ahead.pause()

    async def _prefill(self, decoder: RowDecoder) -> None:
        """Run the model on the new tokens of all sequences; a sequence that changed meanwhile stays stale."""
        waiting = {member.place: member for member in self._at_work() if member.stale and member.place is not None}
        changes = {place: member.row.changes for place, member in waiting.items()}
        ends = {place: len(member.row.tokens) for place, member in waiting.items()}
        for place in await self.run_prompts(ends, lambda place: waiting[place].row.changes == changes[place]):
            member = waiting[place]
            decoder.row(place).follow(member.row.sequence, member.row.unpicked)
            member.stale = False

    def _at_work(self) -> list[Member]:
        return [member for member in self._members if member.going and member.place is not None]

    def _draw_again(self, decoder: RowDecoder) -> None:
        """Draw with another seed: a row's draws depend on the seed, its length and its number, and an earlier sequence
        may have had the same length and number.
        """
        self.options = self.options.replace(random_seed=-1)
        for place in range(decoder.rows):
            decoder.set_search(self.options, place)
        for member in self._at_work():
            if member.place is not None and not member.stale:
                sequence = [*member.row.sequence, *member.row.ready]
                decoder.row(member.place).follow(sequence, member.row.unpicked)

    async def _seat(self) -> None:
        """Give each sequence with tokens a row, in another decoder if this one has too few rows or far too many."""
        wanted = [member for member in self._members if len(member.row) and (member.place is not None or member.going)]
        rows = 1 << max(0, len(wanted) - 1).bit_length()
        if self.decoder is None or self.decoder.rows < len(wanted) or self.decoder.rows >= SPARE * rows:
            try:
                await self._move(rows)
            except OutOfMemoryError as error:
                if self.decoder is None:
                    raise
                # Sequences with a row continue.
                for member in wanted[self.decoder.rows :]:
                    member.failed = error
        taken = {member.place for member in self._members}
        free = [place for place in range(len(self.rows)) if place not in taken]
        for member in wanted:
            if member.place is None and free:
                member.place = free.pop(0)
                self.rows[member.place] = member.row

    async def _move(self, rows: int) -> None:
        """Continue over a decoder of `rows` rows."""
        while self.flight:
            await self.read()
        old, new = self.decoder, await self.model.row_decoder(rows, self.max_length)
        seated = [member for member in self._members if member.place is not None]
        async with AsyncExitStack() as undo:
            undo.push_async_callback(new.close)
            for place in range(rows):
                new.set_search(self.options, place)
            await new.rest()
            undo.pop_all()
        for place, member in enumerate(seated):
            assert old is not None
            assert member.place is not None
            caches = old.row(member.place).caches()
            member.row.lost_logits()
            member.void()
            # A model with states has no cache rows, since states belong to one position: `reachable` makes its tokens
            # run again.
            if caches is not None:
                new.row(place).adopt(caches, member.row.valid)
            member.place = place
        self.decoder = new
        self.rows = [member.row for member in seated] + [Row() for _ in range(rows - len(seated))]
        self.run_ahead = RunAhead(None, new.max_burst, new.usual_burst)
        if old is not None:
            await old.close()

    async def _end(self) -> None:
        await self.flight.drain()
        decoder, self.decoder = self.decoder, None
        self.rows = []
        if decoder is not None:
            await decoder.close()


class PooledSequence:
    """A sequence of a pool, with the part of a Generator that an engine's request uses."""

    def __init__(self, pool: RowPool, model: Model, member: Member) -> None:
        self._pool, self._model, self._member = pool, model, member
        self._last: list[int] = []

        def free() -> Coroutine[Any, Any, None] | None:
            # Called without a wait: the caller that moves the pool holds its lock, and would wait for this call.
            return None if member.closed else pool.leave(member)

        when_dropped(self, model.host, free)

    def append_tokens(self, tokens: Iterable[Any]) -> None:
        """Add tokens. Raises the PromptError of Generator.append_tokens."""
        member, row = self._member, self._member.row
        if member.closed:
            raise ClosedError("this sequence was closed; make a new one")
        pad = self._pool.options.pad_token_id
        prompts = checked_prompts(tokens, 1, self._model.config, len(row), member.limit, pad)
        row.append(prompts[0].ids)
        member.void()
        member.parked = False

    def rewind_to(self, new_length: int) -> None:
        """Cut the sequence to its first `new_length` tokens. Raises OptionError outside 0 to the present length."""
        row = self._member.row
        if not 0 <= new_length <= len(row):
            raise OptionError(f"rewind_to({new_length}): the sequence has {len(row)} tokens")
        row.cut(new_length)
        self._member.void()

    def park(self) -> None:
        """Stop picking until tokens are appended; tokens computed ahead are discarded."""
        self._member.void()
        self._member.parked = True

    def get_sequence(self, index: int = 0) -> list[int]:
        """All its token ids; `index` is 0."""
        if index:
            raise OptionError(f"sequence {index} was requested; there is only sequence 0")
        return self._member.row.sequence

    def token_count(self) -> int:
        return len(self._member.row)

    @property
    def finish_reason(self) -> str | None:
        """'stop', 'length', or None while more tokens can be generated."""
        return self._pool.finish_reason(self._member)

    @property
    def hit_eos(self) -> bool:
        """Whether the model itself ended the sequence, by an end-of-sequence token."""
        return self._pool.hit_eos([self._member.row])

    def generate_next_token(self) -> None:
        """Generate a token; read it with get_next_tokens. Raises AsyncRequiredError where it would have to wait."""
        if not self._member.row.ready:
            bringing = self._pool.bring(self._member)
            wait_here(self._model.host, bringing, "generate_next_token", "await generate_next_token_async()")
        self._take()

    async def generate_next_token_async(self) -> None:
        """`generate_next_token` for callers that can wait."""
        if not self._member.row.ready:
            await self._pool.bring(self._member)
        self._take()

    def _take(self) -> None:
        self._last = [self._member.row.take(self._pool.options.pad_token_id)]

    def get_next_tokens(self) -> list[int]:
        """The token of the last generate_next_token."""
        return list(self._last)

    def close(self) -> None:
        """Leave the pool. Closing twice is harmless."""
        wait_here(self._model.host, self.aclose(), "close", "await aclose()")

    async def aclose(self) -> None:
        """`close` for callers that can wait."""
        await self._pool.leave(self._member)


def poolable(model: Model, params: GeneratorParams) -> bool:
    """Whether a sequence with these options may join a pool: it must get the same tokens there, or sampled tokens
    without a caller's seed. The rows of a pool share one kind of rotary factors; those of a long rope change with the
    length.
    """
    search = params.search
    alone = (
        search.stop_strings
        or search.max_time is not None
        or params.guidance
        or params.processors.given
        or params.speculation
    )
    if params.rows > 1 or alone or not (search.greedy or search.random_seed < 0):
        return False
    longest, original = params.length_limit(model.config.context_length), model.original_length
    if original and longest > original + 1:
        why = (
            f"a max_length of {longest} is past the original length of {original}, where the factors change (long rope)"
        )
        fall_back("steps that requests share", why, "this request runs in separate steps; lower its max_length")
        return False
    return True
