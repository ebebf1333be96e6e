"""The loop of a beam search: rows are beams, which the host chooses at each step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..device.rows import RowDecoder
from ..device.shortlist import Shortlist
from ..memory import Pools
from ..stages.sampling import finite_logits
from .beam_search import Beams, continuations, looked_at
from .generator_params import GeneratorParams
from .row_loop import RowLoop

if TYPE_CHECKING:
    from ..model import Model

__all__ = ["BeamLoop"]


class BeamLoop(RowLoop):
    """Rows of which each step keeps the best continuations: their caches are reordered on the device, and no step runs
    ahead of the choice. The host reads the best tokens of each row, and all logits where a stage edits them."""

    def __init__(self, model: Model, params: GeneratorParams, pools: Pools | None) -> None:
        super().__init__(model, params, pools)
        self._beams = self._new_beams()
        """By prompt."""
        self._chosen: list[int] = []
        """The tokens of the next step, which were not handed out yet."""
        self._pending = False
        """The last tokens were handed out, and the model was not run on them yet."""

    @property
    def sequences(self) -> int:
        return self.options.batch_size * self.options.num_return_sequences

    @property
    def finish_reason(self) -> str | None:
        return "eos" if all(beams.done for beams in self._beams) else super().finish_reason

    @property
    def ready(self) -> bool:
        return bool(self._chosen)

    def sequence(self, index: int) -> list[int]:
        """The index-th hypothesis, best first, those of the first prompt before those of the second."""
        prompt, place = divmod(index, self.options.num_return_sequences)
        return self._beams[prompt].best(place + 1, self._sequences_of(prompt))[place]

    def rewind(self, length: int) -> None:
        super().rewind(length)
        self._beams = self._new_beams()

    def take(self) -> list[int]:
        tokens, self._chosen = self._chosen, []
        for row, token in zip(self.rows, tokens, strict=True):
            row.tokens.append(token)
        self._pending = True
        self._tell()
        return tokens

    def discard_ahead(self) -> None:
        super().discard_ahead()
        self._chosen, self._pending = [], False

    async def pick(self) -> None:
        """Choose the tokens of the next step."""
        await self.settle()
        decoder = self.open_decoder()
        parents: list[int] = []
        chosen: list[int] = []
        for prompt, beams in enumerate(self._beams):
            first, sequences = prompt * beams.count, self._sequences_of(prompt)
            found = [] if beams.done else await self._continuations(decoder, range(first, first + beams.count))
            if self.stale:
                # The sequence was changed meanwhile.
                return
            choices = beams.choose(found, sequences)
            parents += [first + choice.parent for choice in choices]
            chosen += [choice.token for choice in choices]
        decoder.reorder(parents)
        old = self.rows
        self.rows = [old[parent].copy() for parent in parents]
        self._chosen = chosen

    async def settle(self) -> None:
        await super().settle()
        if self._pending:
            with self.losing():
                await self.open_decoder().step([row.tokens[-1] for row in self.rows])
            self._pending = False
            for row in self.rows:
                row.valid = len(row.tokens)

    async def _continuations(self, decoder: RowDecoder, numbers: Sequence[int]) -> list[list[tuple[float, int]]]:
        count = min(looked_at(self.options), self._model.config.vocab_size)
        if not any(stage.edit is not None for stage in self.options.stages()):
            return [continuations(found) for found in await decoder.shortlists(count, numbers)]
        found = []
        for number in numbers:
            row = self.rows[number]
            logits = finite_logits(await decoder.logits(number), self.options, row.sequence, row.unpicked)
            found.append(continuations(Shortlist.of(logits, count)))
        return found

    def _sequences_of(self, prompt: int) -> list[list[int]]:
        count = self.options.num_beams
        return [row.sequence for row in self.rows[prompt * count : (prompt + 1) * count]]

    def _new_beams(self) -> list[Beams]:
        options = self.options
        made = (options.num_beams, options.length_penalty, options.early_stopping, self._ends, options.pad_token_id)
        return [Beams(*made) for _ in range(options.batch_size)]
