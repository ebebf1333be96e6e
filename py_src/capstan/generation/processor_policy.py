"""Picks tokens with a logits processor: a function of the caller edits the logits before each pick."""

from __future__ import annotations

from ..device.row_interface import RowDecoder
from .generator_params import GeneratorParams
from .plain_policy import PlainPolicy
from .processors import checked_edits, checked_logits
from .row_loop import RowLoop

__all__ = ["ProcessorPolicy"]


class ProcessorPolicy(PlainPolicy):
    """The loop runs each step without a pick, edits the logits, then the device picks. Nothing runs ahead."""

    def __init__(self, loop: RowLoop, params: GeneratorParams) -> None:
        super().__init__(loop, params)
        self._processors = params.processors
        self._vocab = loop.model.config.vocab_size

    async def pick(self) -> None:
        await self.pick_prepared(self._process)

    async def _process(self, decoder: RowDecoder, number: int) -> None:
        # An exception loses the edits: the logits are computed again.
        with self.loop.losing():
            await self._edit(decoder, number)
            self.loop.require_open()

    async def _edit(self, decoder: RowDecoder, number: int) -> None:
        given, tokens, row = self._processors, self.loop.rows[number].sequence, decoder.row(number)
        if given.shortlist is not None:
            [found] = await decoder.shortlists(given.count, [number])
            edits = given.shortlist(tokens, [(token, logit) for logit, token in found.best])
            if edits:
                row.edit_logits(checked_edits(edits, self._vocab))
        elif given.logits is not None:
            logits = await row.logits()
            edited = given.logits(tokens, logits)
            row.set_logits(logits if edited is None else checked_logits(edited, self._vocab))
