"""Runs a multi-token-prediction head beside the model whose hidden states it reads."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from ..device.hidden_rows import HiddenRows
from ..device.row_interface import DraftedRows, HeadedRow, HiddenRow
from .draft_model import DraftModel

__all__ = ["DraftHead"]

CHUNK = 256
"""Most tokens of one run of the head."""


class DraftHead(DraftModel):
    """A DraftModel that is a head of the larger model. Its position `i` reads token `i + 1` and the model's hidden
    state of token `i`, and gives the logits of token `i + 2`. The drafts after the first one follow from the head's own
    hidden states; right drafts are run again with those of the model.

    The head's cache begins with the first hidden state that was kept when drafts began (HiddenRows).
    """

    _first = 0
    """The position of the sequence at which the head's cache begins."""
    _hidden: HiddenRows | None = None
    """The hidden states of the larger model."""
    _own: HiddenRows | None = None
    """The head's."""
    _larger: HeadedRow | None = None
    """The larger model's decoder, on a device whose drafted steps run the head."""

    def read(self, larger: DraftedRows) -> None:
        """Read the hidden states of a new decoder of the larger model. Called after `open`."""
        if isinstance(larger, HiddenRow):
            assert isinstance(self._decoder, HiddenRow), "both are on the same device"
            self._hidden, self._own, self._first = larger.keep_hidden(), self._decoder.keep_hidden(), 0
        else:
            assert isinstance(larger, HeadedRow), "a head is loaded only to devices with such rows"
            self._larger = larger

    async def catch_up(self, tokens: Sequence[int]) -> None:
        assert self._larger is not None, "`read` is called first"
        assert self._decoder is not None, "`open` is called first"
        await self._larger.follow_with_head(self._decoder, tokens)

    async def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        hidden, own, last = self._hidden, self._own, len(tokens) - 1
        assert hidden is not None, "`read` is called first"
        assert own is not None
        if not hidden.first < last <= hidden.end:
            return []
        pairs = zip(self._held, tokens, strict=False)
        start = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)) - 1
        if not max(self._first, hidden.first) <= start:
            start = self._first = hidden.first
        self._held = []
        pick = 0
        for begin in range(start, last, CHUNK):
            end = min(begin + CHUNK, last)
            pick = await self._step(tokens[begin + 1 : end + 1], hidden.between(begin, end), begin)
        found = [pick]
        while len(found) < count:
            found.append(await self._step(found[-1:], own.between(own.end - 1, own.end), last + len(found) - 1))
        self._held = list(tokens)
        return found

    async def _step(self, tokens: Sequence[int], hidden: bytes, position: int) -> int:
        """Run the head on these tokens and hidden states, from a position of the sequence on; its pick after them."""
        decoder = self._decoder
        assert decoder is not None, "`open` is called first"
        assert isinstance(decoder, HiddenRow)
        decoder.give_hidden(hidden)
        await decoder.row(0).prefill(tokens, position - self._first)
        burst = await decoder.submit(1, True)
        return burst.ids[0] if burst.ids[0] < self._vocab else 0
