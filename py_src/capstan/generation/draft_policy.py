"""Picks tokens that a draft model has drafted, when that is faster."""

from __future__ import annotations

from ..device.row_interface import Burst, DraftedRows
from ..errors import OutOfMemoryError
from .draft_head import DraftHead
from .draft_model import DraftModel
from .generator_params import GeneratorParams
from .plain_policy import PlainPolicy
from .row_loop import RowLoop
from .speculation import ModelWorth
from .speculation_policy import SpeculationPolicy

__all__ = ["DraftPolicy"]


class DraftPolicy(SpeculationPolicy):
    """A SpeculationPolicy whose drafts are greedy picks of the model's draft model or multi-token-prediction head."""

    def __init__(self, loop: RowLoop, params: GeneratorParams) -> None:
        super().__init__(loop, params)
        model = loop.model
        assert model.draft_model is not None, "chosen only for a model with a draft model"
        self._worth = self._model_worth = ModelWorth(self.stats, self._speculation.always)
        kind = DraftHead if model.draft_model.is_head else DraftModel
        self._draft = kind(model.draft_model, params.search, loop.max_length, model.config.vocab_size)
        self._abreast = False
        """Whether the draft model has run on all tokens but the last, those of bursts under way included."""

    async def _prepare_drafts(self, decoder: DraftedRows) -> str | None:
        self._abreast = False
        try:
            drafter = await self._draft.open()
            if isinstance(self._draft, DraftHead):
                self._draft.read(decoder)
            return await decoder.prepare_drafts(self._speculation, drafter)
        except OutOfMemoryError as error:
            return f"the draft model has no sequence: {error}"

    @property
    def _reach(self) -> int:
        return min(self.loop.reach, self._draft.max_length)

    async def pick(self) -> None:
        loop = self.loop
        verifier = None if loop.sample_first else self._verifier
        if loop.flight and verifier is not None and self._worth.on and not self._abreast:
            # The draft model follows the picks under way, so these come first.
            await loop.read()
            return
        [row] = loop.rows
        room = bool(loop.flight) or row.room(self._reach) > self._speculation.max_draft_tokens
        drafting = self._worth.on and self.watched is None
        if verifier is None or not drafting or not room or len(row) + len(row.ready) < 2:
            self._abreast = False
            await PlainPolicy.pick(self)
            return
        if self._finds_drafts and not self._abreast:
            await self._draft.catch_up([*row.tokens, *row.ready])
            self._abreast = True
        if not loop.stale:
            await self._fill_drafted(verifier)
        # Else the sequence changed meanwhile.

    async def _drafts(self) -> list[int]:
        [row] = self.loop.rows
        return await self._draft.propose([*row.tokens, *row.ready], self._speculation.max_draft_tokens)

    def _submit_plain(self) -> bool:
        # Drafted steps under way may leave room for more of them.
        return not self._finds_drafts and super()._submit_plain()

    def received(self, burst: Burst) -> bool:
        drafted = super().received(burst)
        if drafted and self._finds_drafts:
            [row] = self.loop.rows
            self._draft.holds([*row.tokens, *row.ready][:-1])
        return drafted

    def _verified(self, ids: tuple[int, ...]) -> None:
        self.stats.verified(self._speculation.max_draft_tokens, len(ids))
        self._worth.gave(len(ids))

    def _imagine(self, ids: tuple[int, ...]) -> None:
        self.stats.plain += len(ids)
        if self._verifier is not None:
            self._model_worth.passed(len(ids))

    async def close(self) -> None:
        await self._draft.close()
