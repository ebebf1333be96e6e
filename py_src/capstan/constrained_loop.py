"""The decode loop where a grammar says which tokens may come next: a pick a burst, its mask written before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from .device.row_decoder import RowDecoder
from .errors import OptionError
from .generator_params import GeneratorParams
from .guidance import Constraint
from .memory import Pools
from .prompt import Prompt
from .row_loop import RowLoop

if TYPE_CHECKING:
    from .model import Model

__all__ = ["ConstrainedLoop"]


class ConstrainedLoop(RowLoop):
    """The mask of a pick depends on the pick before it, so nothing runs ahead. The model's step over the last token
    needs no mask: it is submitted first, and the device works at it while the masks are made.

    Raises OptionError for beams, a fixed run-ahead, or forced tokens of several rows.
    """

    def __init__(self, model: Model, params: GeneratorParams, pools: Pools | None) -> None:
        super().__init__(model, params, pools)
        guidance = params.guidance
        assert guidance is not None
        if params.search.num_beams > 1:
            raise OptionError(
                f"guidance together with num_beams {params.search.num_beams}; a grammar follows one sequence: set "
                "num_beams to 1"
            )
        if (params.run_ahead or 1) > 1:
            raise OptionError(
                f"run_ahead is {params.run_ahead}; with guidance each pick waits for its mask: leave run_ahead at None"
            )
        if guidance.enable_ff_tokens and len(self.rows) > 1:
            raise OptionError(
                f"enable_ff_tokens with {len(self.rows)} rows, each with other tokens to force; leave it False"
            )
        self.options = replace(self.options, guided=True)
        self._constraints = [Constraint(guidance) for _ in self.rows]
        self._forced = 0
        """Tokens at the end of those that are ready that no model step picked."""

    def append(self, prompts: Sequence[Prompt]) -> None:
        before = [(len(row.tokens), row.over) for row in self.rows]
        super().append(prompts)
        for row, constraint, (start, ended) in zip(self.rows, self._constraints, before, strict=True):
            constraint.appended(start, len(row.tokens), ended)

    def rewind(self, length: int) -> None:
        super().rewind(length)
        for constraint in self._constraints:
            constraint.rewound(length)

    def discard_ahead(self) -> None:
        super().discard_ahead()
        self._forced = 0

    def take(self) -> list[int]:
        valid = self.rows[0].valid
        forced, self._forced = self._forced, min(self._forced, max(0, len(self.rows[0].ready) - 1))
        tokens = super().take()
        if forced > self._forced:
            # The model has not seen the token before it.
            self.rows[0].unsettle(valid)
        return tokens

    async def ready_decoder(self) -> RowDecoder:
        for constraint in self._constraints:
            await constraint.prepare(self._model.grammars, self._model.encoder)
        return await super().ready_decoder()

    async def advance(self) -> None:
        await self.ready_decoder()
        if await self._force():
            return
        if self.stale:
            await self.prefill()
            if self.stale:
                return
        decoder = self.open_decoder()
        going = [number for number, row in enumerate(self.rows) if not row.ended]
        if not self.sample_first:
            try:
                await decoder.run_picked(going)
            except BaseException:
                for row in self.rows:
                    row.lost_logits()
                self.discard_ahead()
                raise
            self.sample_first = True
        for number in going:
            decoder.allow(number, await self._constraints[number].allowed(self.rows[number].tokens))
            if self.stale:
                # The sequence was changed meanwhile.
                return
        self._submit(1)
        await self.read()

    async def settle(self) -> None:
        if self._forced:
            # They are found again.
            self.discard_ahead()
        await super().settle()

    async def _force(self) -> bool:
        """Hand out the tokens that must come next without asking the model; whether there were any."""
        [row, *others] = self.rows
        if others or row.ended:
            return False
        found = await self._constraints[0].forced(row.tokens, self.max_length - self.length)
        if found:
            self.stale, self.sample_first = True, False
            self._forced = len(found)
            row.ready.extend(found)
        return bool(found)

    async def end(self) -> None:
        await super().end()
        for constraint in self._constraints:
            constraint.close()
