"""The decode loop where a grammar says which tokens may come next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..device.row_interface import RowDecoder
from ..errors import OptionError
from ..fallback import fall_back
from ..guidance import Constraint, Masks, NoTableError
from ..memory import Pools
from ..stages import STACK
from .generator_params import GeneratorParams
from .prompt import Prompt
from .row_loop import RowLoop

if TYPE_CHECKING:
    from ..model import Model

__all__ = ["ConstrainedLoop"]


class ConstrainedLoop(RowLoop):
    """If the device follows the grammar's automaton, it makes the masks itself, and picks run ahead as without a
    grammar. If it cannot compute a mask, it picks nothing, and that pick waits for a mask from the host.

    A pick that waits: the mask depends on the pick before it, so nothing runs ahead. The model's step over the last
    token needs no mask: it is submitted first, and the device works at it while the masks are made. All picks wait on
    devices that follow no grammar, for an automaton that the device cannot follow, and with forced tokens.

    Raises OptionError for beams, or forced tokens of several rows or with a fixed run-ahead.
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
        if guidance.enable_ff_tokens and len(self.rows) > 1:
            raise OptionError(
                f"enable_ff_tokens with {len(self.rows)} rows, each with other tokens to force; leave it False"
            )
        if guidance.enable_ff_tokens and (params.run_ahead or 1) > 1:
            raise OptionError(
                f"run_ahead is {params.run_ahead}; with enable_ff_tokens each pick waits for its mask: leave run_ahead "
                "at None, or enable_ff_tokens at False"
            )
        self.options = replace(self.options, guided=True)
        self._guidance = guidance
        tokens = model.token_bytes()
        self._automaton = guidance.automaton()
        self._constraints = [Constraint(guidance, self._automaton, tokens) for _ in self.rows]
        self._masks = Masks(self._automaton, model.token_walks, tokens.stop)
        self._prepared = False
        self._followed = False
        """Whether the device steps the automaton with each pick."""
        self._told = False
        """Whether the device knows each row's state in the automaton."""
        self._forced = 0
        """How many of the last ready tokens the grammar forced, so that no model step picked them."""

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
        self._forced, self._told = 0, False

    def take(self) -> list[int]:
        valid = self.rows[0].valid
        forced, self._forced = self._forced, min(self._forced, max(0, len(self.rows[0].ready) - 1))
        tokens = super().take()
        if forced > self._forced:
            # The model has not seen the token before it.
            self.rows[0].unsettle(valid)
        return tokens

    async def ready_decoder(self, unrecorded: bool = True) -> RowDecoder:
        decoder = await super().ready_decoder(unrecorded)
        if not self._prepared:
            if decoder.follows_grammars and not self._guidance.enable_ff_tokens:
                self._follow(decoder)
            self._prepared = True
        return decoder

    def _follow(self, decoder: RowDecoder) -> None:
        """Give the device the grammar's automaton."""
        try:
            table = self._automaton.table(self._model.token_bytes())
        except NoTableError as error:
            fall_back(
                "a grammar that the GPU follows", f"{self._guidance.kind}: {error}", "each pick waits for its mask"
            )
            return
        self.options = replace(self.options, grammar=table)
        self._followed = True
        for number in range(len(self.rows)):
            decoder.set_search(self.options, number)

    async def advance(self) -> None:
        await self.ready_decoder()
        self.outgrow()
        if self._force():
            return
        # The device did not know a mask, or nothing fits: the host finds out.
        barren = any(row.barren for row in self.rows)
        if barren:
            self.lose()
        if self.stale:
            await self.prefill()
        if self.stale:
            return
        if not barren and (self._told or self._tell_positions()):
            await self.pick()
        else:
            await self.pick_prepared(self._mask)

    def _tell_positions(self) -> bool:
        """Let the device follow the rows from their current positions; False if it cannot."""
        if not self._followed:
            return False
        stacks = [
            stack
            for row, constraint in zip(self.rows, self._constraints, strict=True)
            for stack in constraint.position([*row.tokens, *row.ready])
        ]
        if max(map(len, stacks)) > STACK:
            return False
        for number, stack in enumerate(stacks):
            if not self.rows[number].ended:
                self.open_decoder().row(number).follow_grammar(stack)
        self._told = True
        return True

    async def _mask(self, decoder: RowDecoder, number: int) -> None:
        """Have the host say which tokens a row may pick."""
        mask = self._constraints[number].allowed(self.rows[number].tokens, self._masks)
        if not self.stale:
            decoder.row(number).allow(mask)

    def _require_logits(self) -> None:
        if not self._followed:
            super()._require_logits()

    async def settle(self) -> None:
        if self._forced:
            # They are found again.
            self.discard_ahead()
        await super().settle()

    def _force(self) -> bool:
        """Hand out the tokens that must come next without asking the model; whether there were any."""
        [row, *others] = self.rows
        if others or row.ended or not self._guidance.enable_ff_tokens:
            return False
        found = self._constraints[0].forced(row.tokens, self.max_length - self.length, self._model.encoder())
        if found:
            self.stale, self.sample_first = True, False
            self._forced = len(found)
            row.ready.extend(found)
        return bool(found)

    async def end(self) -> None:
        await super().end()
        self._masks.close()
