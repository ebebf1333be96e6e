"""Scores given tokens: how probable each token is by the model's own logits after all tokens before it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ..device.shortlist import LARGEST, ScoredToken
from ..errors import LogitsError, OptionError
from ..host.spans import span
from .prompt import checked_prompts
from .row_loop import RowLoop

if TYPE_CHECKING:
    from ..model_files.genai_config import GenaiConfig

__all__ = ["Score", "begin_of", "score_tokens"]


@dataclass(frozen=True)
class Score:
    """The score of a token of a sequence: a softmax of the model's own logits at its place, before search options."""

    token: int
    log_probability: float
    """The natural logarithm."""
    best: int
    """The most probable token there, the lowest id among equals."""
    best_log_probability: float

    @classmethod
    def of(cls, token: int, scored: ScoredToken) -> Score:
        """Raises LogitsError if no logit is finite."""
        (top, best), total = scored.found.best[0], scored.found.total
        if top <= -LARGEST:
            raise LogitsError(
                f"score: all logits for token {token} are NaN or -inf; take the model in float32, whose "
                "numbers are larger; `await model.find_not_finite(ids)` names the node where it begins"
            )
        return cls(token, scored.logit - top - total, best, -total)


async def score_tokens(loop: RowLoop, config: GenaiConfig, tokens: Iterable[int]) -> list[Score]:
    """See Generator.score_async; the caller must hold the loop's lock."""
    loop.require_open()
    _require_one_sequence(loop)
    start = loop.length
    if not start:
        raise OptionError(
            "score: the sequence is empty, so that the first token has no context; append_tokens a context first, "
            f"such as [{begin_of(config)}], the token that begins the model's texts"
        )
    prompts = checked_prompts(tokens, 1, config, start, loop.max_length, loop.options.pad_token_id)
    loop.append(prompts)
    try:
        found = await loop.surviving(partial(_scored, loop, start))
        return [Score.of(token, each) for token, each in zip(prompts[0].ids, found, strict=True)]
    except BaseException:
        if loop.rows[0].tokens[start:] == prompts[0].ids:
            loop.rewind(start)
        raise


async def _scored(loop: RowLoop, start: int) -> list[ScoredToken]:
    """Score the tokens of the only row from `start` (at least 1) on. Afterwards the model has seen all but the last
    token. OptionError if the sequence changes meanwhile.
    """
    [row] = loop.rows
    decoder = await loop.ready_for_prompt()
    loop.stale = False
    try:
        # The token before them runs with them, since its logits may be gone.
        row.unsettle(start - 1)
        if await loop.run_prompts({0: start - 1}, loop.unchanged):
            # The start may have come from another sequence's caches.
            row.valid = decoder.row(0).reachable(min(row.valid, start - 1))
            if await loop.run_tokens(0, start - 1, loop.unchanged):
                with span("score tokens", tokens=len(row.tokens) - start):
                    found = await decoder.row(0).score(row.tokens, row.valid)
                if loop.unchanged(0):
                    row.ran(len(row.tokens) - 1, False)
                    return found
    finally:
        # The logits after the last token come from a later run.
        loop.stale = True
    raise OptionError(f"score: the sequence of {len(row.tokens)} tokens was changed meanwhile; await it first")


def begin_of(config: GenaiConfig) -> int:
    """The token before texts without a context: the beginning-of-sequence id, or an end-of-sequence id."""
    return config.eos_token_ids[0] if config.bos_token_id is None else config.bos_token_id


def _require_one_sequence(loop: RowLoop) -> None:
    """Raise OptionError for sequences whose tokens cannot be scored."""
    if loop.options.num_beams > 1:
        raise OptionError(f"score: num_beams is {loop.options.num_beams}; set it to 1")
    if len(loop.rows) > 1:
        raise OptionError(
            f"score: this generator has {len(loop.rows)} rows; score each sequence with a generator of batch_size 1, "
            "one after another"
        )
    if loop.adapters.layers and loop.adapted != loop.adapters.layers:
        raise OptionError(
            "score: an adapter was set after tokens of the sequence; set it for a new generator before its first token"
        )
