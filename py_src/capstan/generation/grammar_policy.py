"""Picks tokens under a grammar, which determines the allowed next tokens."""

from __future__ import annotations

from dataclasses import replace

from ..device.row_interface import RowDecoder
from ..errors import OptionError
from ..fallback import fall_back
from ..guidance import Constraint, Masks, NoTableError
from ..stages import STACK
from .generator_params import GeneratorParams
from .plain_policy import PlainPolicy
from .row_loop import RowLoop

__all__ = ["GrammarPolicy"]


class GrammarPolicy(PlainPolicy):
    """If the device follows the grammar's automaton, it makes the masks itself, and picks run ahead as without a
    grammar. If it cannot compute a mask, it picks nothing, and that pick waits for a mask from the host.

    If a pick waits, nothing runs ahead, because its mask depends on the pick before it. The model's step over the last
    token needs no mask: it is submitted first, and the device computes it while the masks are made. All picks wait on
    devices that follow no grammar, for an automaton that the device cannot follow, and with forced tokens.

    Raises OptionError for beams, or forced tokens of several rows or with a fixed run-ahead.
    """

    def __init__(self, loop: RowLoop, params: GeneratorParams) -> None:
        super().__init__(loop, params)
        guidance = params.guidance
        assert guidance is not None
        if params.search.num_beams > 1:
            raise OptionError(
                f"num_beams is {params.search.num_beams} with guidance, which follows one sequence: set num_beams to 1"
            )
        if guidance.enable_ff_tokens and len(loop.rows) > 1:
            raise OptionError(
                f"enable_ff_tokens is True with {len(loop.rows)} rows; it works for one row: leave it False"
            )
        run_ahead = params.options["run_ahead"]
        if guidance.enable_ff_tokens and (run_ahead or 1) > 1:
            raise OptionError(
                f"run_ahead is {run_ahead}; with enable_ff_tokens each pick waits for its mask: leave run_ahead "
                "at None, or enable_ff_tokens at False"
            )
        loop.options = replace(loop.options, guided=True)
        self._guidance = guidance
        tokens = loop.model.vocabulary.token_bytes()
        self._automaton = guidance.automaton()
        self._constraints = [Constraint(guidance, self._automaton, tokens) for _ in loop.rows]
        self._masks = Masks(self._automaton, loop.model.vocabulary.token_walks, tokens.stop)
        self._prepared = False
        self.explains_barren = False
        """Whether the device steps the automaton with each pick. If it cannot compute a mask, it picks nothing."""
        self._given = False
        """Whether the device knows each row's state in the automaton."""

    def appending(self, number: int, count: int) -> None:
        row = self.loop.rows[number]
        start = len(row.tokens)
        self._constraints[number].appended(start, start + count, row.over)

    def rewound(self, length: int) -> None:
        for constraint in self._constraints:
            constraint.rewound(length)

    def discarded(self) -> None:
        super().discarded()
        self._given = False

    async def prepare(self, decoder: RowDecoder, new: bool) -> None:
        if not self._prepared:
            if decoder.follows_grammars and not self._guidance.enable_ff_tokens:
                self._follow(decoder)
            self._prepared = True

    def _follow(self, decoder: RowDecoder) -> None:
        """Pass the grammar's automaton to the device."""
        try:
            table = self._automaton.table(self.loop.model.vocabulary.token_bytes())
        except NoTableError as error:
            fall_back(
                "a grammar that the GPU follows", f"{self._guidance.kind}: {error}", "each pick waits for its mask"
            )
            return
        self.loop.options = replace(self.loop.options, grammar=table)
        self.explains_barren = True
        for number in range(len(self.loop.rows)):
            decoder.set_search(self.loop.options, number)

    async def advance(self) -> None:
        loop = self.loop
        await loop.ready_decoder()
        loop.outgrow()
        if self._force():
            return
        # The device could not make a mask, or no token fits; the host decides.
        barren = any(row.barren for row in loop.rows)
        if barren:
            loop.lose()
        if loop.stale:
            await loop.prefill()
        if loop.stale:
            return
        if not barren and (self._given or self._give_positions()):
            await self.pick()
        else:
            await self.pick_prepared(self._mask)

    def _give_positions(self) -> bool:
        """Let the device follow the rows from their current positions; False if it cannot."""
        if not self.explains_barren:
            return False
        stacks = [
            stack
            for row, constraint in zip(self.loop.rows, self._constraints, strict=True)
            for stack in constraint.position([*row.tokens, *row.ready])
        ]
        if max(map(len, stacks)) > STACK:
            return False
        for number, stack in enumerate(stacks):
            if not self.loop.rows[number].ended:
                self.loop.open_decoder().row(number).follow_grammar(stack)
        self._given = True
        return True

    async def _mask(self, decoder: RowDecoder, number: int) -> None:
        """Make the mask of a row on the host."""
        mask = self._constraints[number].allowed(self.loop.rows[number].tokens, self._masks)
        if not self.loop.stale:
            decoder.row(number).allow(mask)

    async def settle(self) -> None:
        if self.loop.rows[0].forced:
            # The forced tokens are found again.
            self.loop.discard_ahead()
        await super().settle()

    def _force(self) -> bool:
        """Add the tokens that must come next without running the model; returns whether there were any."""
        loop, [row, *others] = self.loop, self.loop.rows
        if others or row.ended or not self._guidance.enable_ff_tokens:
            return False
        found = self._constraints[0].forced(row.tokens, loop.max_length - loop.length, loop.model.vocabulary.encoder())
        if found:
            loop.stale, loop.sample_first = True, False
            row.forced = len(found)
            row.ready.extend(found)
        return bool(found)

    async def close(self) -> None:
        self._masks.close()
