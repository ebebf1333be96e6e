"""Runs a draft model on the sequence that a larger model continues."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

from ..device.row_interface import RowDecoder
from ..errors import DeviceLostError
from ..stages.search import SearchOptions

if TYPE_CHECKING:
    from ..model import Model

__all__ = ["DraftModel"]


class DraftModel:
    """One sequence of a draft model, which follows a sequence of a larger model with `vocab` tokens. Its picks are
    greedy, with the `logit_bias` of the larger model's search, and end no sequence. Tokens that one of the two
    vocabularies lacks are replaced by token 0.
    """

    def __init__(self, model: Model, search: SearchOptions, max_length: int, vocab: int) -> None:
        self._model = model
        self._search = SearchOptions(logit_bias=search.logit_bias)
        self._vocab = min(vocab, model.config.vocab_size)
        self.max_length = min(max_length, model.config.context_length)
        """The length of the larger model's sequence up to which drafts can be made, in tokens."""
        self._decoder: RowDecoder | None = None
        self._held: list[int] = []
        """The larger model's tokens on which the draft model ran."""
        self._long = False
        """Whether positions are rotated by the long factors of a long rope."""

    async def open(self) -> RowDecoder:
        """A new decoder of the draft model, in place of one on a lost device."""
        model = self._model
        if not model.healthy():
            await model.recover(model.recoveries, DeviceLostError("the device of the draft model was lost"))
        self._decoder, self._held, self._long = await model.row_decoder(1, self.max_length), [], False
        self._decoder.set_search(self._search)
        return self._decoder

    def holds(self, tokens: Sequence[int]) -> None:
        """Note that the draft model ran on these tokens of the sequence; it may have run on others after them."""
        self._held = list(tokens)

    async def catch_up(self, tokens: Sequence[int]) -> None:
        """Run the draft model on all of at least two tokens but the last. Called while none of its bursts is under
        way.
        """
        await self._run(tokens[:-1])

    async def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        """The `count` tokens that the draft model picks after `tokens`."""
        await self._run(tokens)
        assert self._decoder is not None
        found: list[int] = []
        while len(found) < count:
            burst = await self._decoder.submit(1, not found)
            found += (token if token < self._vocab else 0 for token in burst.ids)
        # The model did not run on the last draft.
        self._held = [*tokens, *found[:-1]]
        return found

    async def close(self) -> None:
        """Return the decoder to the draft model. Called while none of its bursts is under way."""
        decoder, self._decoder = self._decoder, None
        if decoder is not None and self._model.healthy():
            await decoder.close()

    async def _run(self, tokens: Sequence[int]) -> None:
        """Run the draft model on the tokens that it does not hold, and on the last one."""
        decoder = self._decoder
        assert decoder is not None, "`open` is called first"
        original = self._model.original_length
        if original and (len(tokens) > original) != self._long:
            self._long, self._held = not self._long, []
            await decoder.rest()
            decoder.rotate(self._long)
        pairs = zip(self._held, tokens[:-1], strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        past = decoder.row(0).reachable(same)
        self._held = list(tokens[:past])
        await decoder.rest()
        await decoder.row(0).prefill([token if token < self._vocab else 0 for token in tokens[past:]], past)
        self._held = list(tokens)
