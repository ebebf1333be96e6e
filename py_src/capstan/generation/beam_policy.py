"""Picks the tokens of a beam search, whose rows are beams. The device picks in bursts of steps, or the host picks at
each step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Sequence

from ..device.beam_interface import BeamBurst, BeamOptions, BeamRows, Round
from ..device.row_interface import Burst, RowDecoder
from ..device.shortlist import Shortlist
from ..fallback import fall_back
from ..stages.sampling import finite_logits
from .beam_search import Beams, continuations, looked_at, without_numbers
from .generator_params import GeneratorParams
from .plain_policy import PlainPolicy
from .row_loop import RowLoop

__all__ = ["BeamPolicy"]


class BeamPolicy(PlainPolicy):
    """Advances the rows of beam searches; each step keeps the best continuations.

    A device that searches by itself (BeamRows) runs ahead and returns the results of each step; hypotheses are kept
    here. On other devices, with stages that edit logits, and after logits were requested between two tokens, the host
    chooses: it reads the best tokens of each row, or all logits, and reorders the caches before each step.
    """

    def __init__(self, loop: RowLoop, params: GeneratorParams) -> None:
        super().__init__(loop, params)
        self._options = loop.options
        self._beams = self._new_beams()
        """By prompt."""
        self._asked: RowDecoder | None = None
        """The last decoder that was asked whether it searches by itself."""
        self._searching: BeamRows | None = None
        """That decoder; None if the host has to choose."""
        self._by_host = False
        """Whether the host chooses from now on in place of the decoder."""
        self._rounds: deque[tuple[Round | None, ...]] = deque()
        """The results of steps whose tokens were not returned yet, by prompt."""
        self._chosen: list[int] = []
        """The tokens of the next step, which the host chose and did not return yet."""
        self._pending = False
        """Whether the last tokens were returned and the model did not run on them yet."""

    @property
    def done(self) -> bool:
        return all(beams.done for beams in self._beams)

    @property
    def ready(self) -> bool:
        return bool(self._chosen) or (bool(self._rounds) and not self._barren)

    def sequence(self, index: int) -> list[int]:
        """The index-th hypothesis, best first, those of the first prompt before those of the second."""
        prompt, place = divmod(index, self._options.num_return_sequences)
        return self._beams[prompt].best(place + 1, self._sequences_of(prompt))[place]

    def rewound(self, length: int) -> None:
        self._beams = self._new_beams()
        self._by_host = False

    def take(self) -> list[int]:
        if self._rounds:
            tokens = [
                token for prompt, found in enumerate(self._rounds.popleft()) for token in self._take(prompt, found)
            ]
        else:
            tokens, self._chosen = self._chosen, []
            for row, token in zip(self.loop.rows, tokens, strict=True):
                row.tokens.append(token)
            self._pending = True
        return tokens

    def _take(self, prompt: int, found: Round | None) -> list[int]:
        """Continue a prompt's rows with the device's choices."""
        count = self._options.num_beams
        rows = self.loop.rows[prompt * count : (prompt + 1) * count]
        for row in rows:
            row.ready.popleft()
        choices = self._beams[prompt].take(found, lambda beam: rows[beam].sequence, len(rows[0]))
        old = [row.tokens for row in rows]
        for row, choice in zip(rows, choices, strict=True):
            row.tokens = [*old[choice.parent], choice.token]
        return [choice.token for choice in choices]

    def discarded(self) -> None:
        super().discarded()
        self._rounds.clear()
        self._chosen, self._pending = [], False

    async def prepare(self, decoder: RowDecoder, new: bool) -> None:
        # Preparing a search may overwrite the caches.
        if self._asked is not decoder and not any(row.valid for row in self.loop.rows):
            self._searching = await self._prepared(decoder)
            self._asked = decoder

    async def _prepared(self, decoder: RowDecoder) -> BeamRows | None:
        """The decoder, if it searches beams by itself."""
        if self._edited or not isinstance(decoder, BeamRows):
            return None
        reason = await decoder.prepare_beams(BeamOptions(self._options.num_beams, self._wide, self.loop.ends))
        if reason is None:
            return decoder
        fall_back("beam search on the GPU", reason, "the host chooses the beams of each step")
        return None

    async def pick(self) -> None:
        """Choose the tokens of the next step, or have the device choose the tokens of several steps."""
        if self._barren:
            raise without_numbers()
        if self._by_host or self._asked is not self.loop.decoder or self._searching is None:
            await self._pick_here()
        else:
            await super().pick()

    def queued(self, picks: int, numbers: Sequence[int]) -> Awaitable[Burst]:
        assert self._searching is not None
        if self.loop.sample_first:
            self._begin(self._searching)
        return self._searching.submit_beams(picks, self.loop.sample_first)

    def _begin(self, decoder: BeamRows) -> None:
        """Begin a search at the end of the sequences."""
        sources: list[int] = []
        for prompt in range(self._options.batch_size):
            first = prompt * self._options.num_beams
            rows = self.loop.rows[first : first + self._options.num_beams]
            alike = all(row.tokens == rows[0].tokens for row in rows)
            sources += [first if alike else first + place for place in range(len(rows))]
        decoder.begin_beams([score for beams in self._beams for score in beams.scores], sources)
        for row in self.loop.rows:
            # After the prompt all beams have the same caches.
            row.unsettle(row.appended[0][1])

    def received(self, burst: Burst) -> bool:
        if isinstance(burst, BeamBurst):
            self._rounds.extend(burst.rounds)
        return False

    @property
    def _barren(self) -> bool:
        """Whether no tokens could be chosen in the next step."""
        if not self._rounds:
            return False
        return any(found is None and not beams.done for found, beams in zip(self._rounds[0], self._beams, strict=True))

    async def _pick_here(self) -> None:
        await self.settle()
        decoder = self.loop.open_decoder()
        parents: list[int] = []
        chosen: list[int] = []
        for prompt, beams in enumerate(self._beams):
            first, sequences = prompt * beams.count, self._sequences_of(prompt)
            found = [] if beams.done else await self._continuations(decoder, range(first, first + beams.count))
            if self.loop.stale:
                # The sequence changed meanwhile.
                return
            choices = beams.choose(found, sequences)
            parents += [first + choice.parent for choice in choices]
            chosen += [choice.token for choice in choices]
        decoder.reorder(parents)
        old = self.loop.rows
        self.loop.rows = [old[parent].copy() for parent in parents]
        self._chosen = chosen

    async def settle(self) -> None:
        if not self.loop.stale and not self.loop.sample_first:
            # The caches must be computed again here. If the host chooses from now on, this happens once instead of at
            # each token.
            self._by_host = True
        await super().settle()
        if self._pending:
            with self.loop.losing():
                await self.loop.open_decoder().step([row.tokens[-1] for row in self.loop.rows])
            self._pending = False
            for row in self.loop.rows:
                row.valid = len(row.tokens)

    async def _continuations(self, decoder: RowDecoder, numbers: Sequence[int]) -> list[list[tuple[float, int]]]:
        if not self._edited:
            return [continuations(found) for found in await decoder.shortlists(self._wide, numbers)]
        found = []
        for number in numbers:
            row = self.loop.rows[number]
            logits = finite_logits(await decoder.row(number).logits(), self._options, row.sequence, row.unpicked)
            found.append(continuations(Shortlist.of(logits, self._wide)))
        return found

    @property
    def _edited(self) -> bool:
        """Whether a stage edits logits."""
        return any(stage.edit is not None for stage in self._options.stages())

    @property
    def _wide(self) -> int:
        """The number of continuations of each beam that compete."""
        return min(looked_at(self._options), self.loop.model.config.vocab_size)

    def _sequences_of(self, prompt: int) -> list[list[int]]:
        count = self._options.num_beams
        return [row.sequence for row in self.loop.rows[prompt * count : (prompt + 1) * count]]

    def _new_beams(self) -> list[Beams]:
        search = self._options
        return [
            Beams(search.num_beams, search.length_penalty, search.early_stopping, self.loop.ends, search.pad_token_id)
            for _ in range(search.batch_size)
        ]
