"""Picks tokens by the search options. The device makes these picks ahead of the reader."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from ..device.row_interface import Burst, RowDecoder
from ..device.shortlist import Shortlist
from .generator_params import GeneratorParams
from .policy import Policy
from .row_loop import RowLoop
from .run_ahead import RunAhead

__all__ = ["PlainPolicy"]


class PlainPolicy(Policy):
    """The policy of a plain search. Other policies replace some of its methods."""

    def __init__(self, loop: RowLoop, params: GeneratorParams) -> None:
        self.loop = loop
        loop.policy = self
        self.watched: int | None = None
        """The number of most probable tokens that are kept with each pick; None while picks run ahead."""
        self.log_probabilities: dict[int, dict[int, float]] = {}
        """The log probabilities at each row's last token, if they are watched."""
        self._looked: dict[int, tuple[Shortlist, memoryview[float]]] = {}
        """By row: the logits of the pick that is not read yet."""
        self._fixed_run_ahead = params.options["run_ahead"]

    def run_ahead(self, decoder: RowDecoder) -> RunAhead:
        return RunAhead(self._fixed_run_ahead, decoder.max_burst, decoder.usual_burst)

    async def advance(self) -> None:
        """Do the next work for a token: record the decode step, prefill, submit, or wait for a burst."""
        loop = self.loop
        loop.outgrow()
        if loop.records_next:
            await loop.record()
        if loop.stale:
            await loop.prefill()
        if not loop.stale:
            await self.pick()

    async def pick(self) -> None:
        """Request the next picks, ahead of the reader, and wait for the oldest."""
        loop = self.loop
        if self.watched is not None:
            await self.pick_prepared()
            return
        if loop.sample_first:
            assert loop.run_ahead is not None
            loop.submit(1)
            # Work queued right after the first pick delays a browser's report of the pick's end: 7 ms on an H200 for
            # sixteen steps. So the device limits the number of picks there.
            loop.submit(loop.run_ahead.after_first(loop.open_decoder().after_first))
        else:
            loop.fill()
        await loop.read()

    async def pick_prepared(self, prepare: Callable[[RowDecoder, int], Awaitable[None]] | None = None) -> None:
        """Pick a token of each row after `prepare` has changed its logits or its allowed tokens; nothing runs ahead.
        Watched logits are read before `prepare` changes them. The step over the last token is submitted first, so that
        the device works meanwhile.
        """
        loop, decoder, going = self.loop, self.loop.open_decoder(), self.loop.going
        if not loop.sample_first:
            with loop.losing():
                await decoder.run_picked(going)
            loop.sample_first = True
        for number in going:
            if self.watched is not None:
                [found] = await decoder.shortlists(max(1, self.watched), [number])
                self._looked[number] = found, await decoder.row(number).logits()
            if prepare is not None and not loop.stale:
                await prepare(decoder, number)
            if loop.stale:
                # The sequence changed meanwhile.
                return
        loop.submit(1)
        await loop.read()

    def queued(self, picks: int, numbers: Sequence[int]) -> Awaitable[Burst]:
        return self.loop.open_decoder().submit(picks, self.loop.sample_first, numbers)

    async def settle(self) -> None:
        loop = self.loop
        loop.require_tokens()
        if not loop.stale and not loop.sample_first:
            loop.lose()
        while loop.stale:
            loop.require_tokens()
            await loop.prefill()

    @property
    def ready(self) -> bool:
        """Whether the next token of every row is ready to read."""
        rows = self.loop.rows
        return all(row.ready or row.over for row in rows) and any(row.ready for row in rows)

    def take(self) -> list[int]:
        rows, pad = self.loop.rows, self.loop.options.pad_token_id
        tokens = [row.take(pad) for row in rows]
        self.log_probabilities = {number: self._likelihoods(number, tokens[number]) for number in self._looked}
        self._looked.clear()
        if any(row.ended for row in rows) and not all(row.over for row in rows):
            length = max(map(len, rows))
            for row, token in zip(rows, tokens, strict=True):
                if len(row) < length:
                    row.tail.append(token)
        return tokens

    def sequence(self, index: int) -> list[int]:
        """All ids of a sequence that the caller can read."""
        return self.loop.rows[index].sequence

    def discarded(self) -> None:
        self._looked.clear()

    def watch(self, count: int | None) -> None:
        """From the next pick on keep the log probabilities of `count` tokens, and of the pick; nothing runs ahead."""
        if count != self.watched and not self.loop.stale and not self.loop.sample_first:
            self.loop.lose()
        self.watched = count

    def _likelihoods(self, number: int, token: int) -> dict[int, float]:
        found, logits = self._looked[number]
        norm = found.best[0][0] + found.total
        return {other: logit - norm for logit, other in found.best[: self.watched]} | {token: logits[token] - norm}
