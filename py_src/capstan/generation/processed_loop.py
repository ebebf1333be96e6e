"""The loop with a logits processor: a function of the caller's edits the logits before each pick."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..device.row_decoder import RowDecoder
from ..memory import Pools
from .generator_params import GeneratorParams
from .processors import checked_edits, checked_logits
from .row_loop import RowLoop

if TYPE_CHECKING:
    from ..model import Model

__all__ = ["ProcessedLoop"]


class ProcessedLoop(RowLoop):
    """Each step is run without a pick, then logits are edited, then the device picks. Nothing runs ahead."""

    def __init__(self, model: Model, params: GeneratorParams, pools: Pools | None) -> None:
        super().__init__(model, params, pools)
        self._processors = params.processors
        self._vocab = model.config.vocab_size

    async def advance(self) -> None:
        """Pick the next tokens."""
        if self.stale:
            await self.prefill()
            if self.stale:
                return
        going = [number for number, row in enumerate(self.rows) if not row.ended]
        try:
            if not self.sample_first:
                await self.open_decoder().run_picked(going)
                self.sample_first = True
            for number in going:
                await self._process(self.open_decoder(), number)
                self.require_open()
                if self.stale:
                    # The sequence was changed meanwhile.
                    return
        except BaseException:
            # The edits are lost with the exception: the logits are computed anew.
            for row in self.rows:
                row.lost_logits()
            self.discard_ahead()
            raise
        self._submit(1)
        await self.read()

    async def _process(self, decoder: RowDecoder, number: int) -> None:
        given, tokens = self._processors, self.rows[number].sequence
        if given.shortlist is not None:
            [found] = await decoder.shortlists(given.count, [number])
            edits = given.shortlist(tokens, [(token, logit) for logit, token in found.best])
            if edits:
                decoder.edit_logits(number, checked_edits(edits, self._vocab))
        elif given.logits is not None:
            logits = await decoder.logits(number)
            edited = given.logits(tokens, logits)
            decoder.set_logits(number, logits if edited is None else checked_logits(edited, self._vocab))
