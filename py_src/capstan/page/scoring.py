"""Scores given texts or tokens for the page: how probable each is behind its context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import OptionError, PromptError
from ..generation.generator import Generator
from ..generation.generator_params import GeneratorParams
from ..generation.scoring import begin_of
from ..model import Model
from ..tokenizer import Tokenizer
from .adapters import adapt
from .inspection import CONTEXT_TOKENS, texts_behind
from .requests import ScoredSequence, ScoreRequest

__all__ = ["score"]


async def score(model: Model, request: ScoreRequest, usual_length: int) -> dict[str, Any]:
    """A ScoreResult of web/src/protocol.ts. The sequences have `usual_length` at most where the request has no
    max_length; one that begins as the one before it goes on from there."""
    tokenizer = Tokenizer(model)
    pairs = [pair_of(model, tokenizer, place, each) for place, each in enumerate(request["sequences"])]
    params = GeneratorParams(model)
    length = request.get("max_length")
    params.set_search_options(max_length=usual_length if length is None else length)
    for place, pair in enumerate(pairs):
        if len(pair.context) + len(pair.tokens) > params.search.max_length:
            raise PromptError(
                f"sequences[{place}] has {len(pair.context)} tokens of context and {len(pair.tokens)} to be scored; "
                f"max_length is {params.search.max_length}: raise it, up to the model's context_length "
                f"{model.config.context_length}, or shorten the context"
            )
    told: list[dict[str, Any]] = []
    async with Generator(model, params) as generator:
        await adapt(model, generator, request)
        for pair in pairs:
            shared = common(generator.get_sequence(), pair.context)
            generator.rewind_to(shared)
            if pair.context[shared:]:
                generator.append_tokens(pair.context[shared:])
            scores = await generator.score_async(pair.tokens)
            about = {
                "context_tokens": len(pair.context),
                "token_ids": pair.tokens,
                "log_probabilities": [each.log_probability for each in scores],
                "greedy": [each.token == each.best for each in scores],
            }
            texts = {"texts": texts_of(tokenizer, pair)} if request.get("token_texts") else {}
            told.append({**about, **texts})
        return {
            "sequences": told,
            "device": model.device_type,
            "adapter": model.adapter,
            "tape_passes": generator.tape_passes,
            "reused_tokens": generator.reused_tokens,
        }


@dataclass(frozen=True)
class Pair:
    """Tokens to be scored, and those before them."""

    context: list[int]
    tokens: list[int]


def pair_of(model: Model, tokenizer: Tokenizer, place: int, given: ScoredSequence) -> Pair:
    """The tokens of a sequence. A text and its context are tokenized as one; spaces at the context's end are the text's
    then, to which tokenizers join them. Raises OptionError, PromptError."""
    name = f"sequences[{place}]"
    ids, text = given.get("token_ids"), given.get("text")
    context_ids, context = given.get("context_ids"), given.get("context")
    if (ids is None) == (text is None):
        raise OptionError(f"{name} has {'neither' if ids is None else 'both'} text and token_ids; give one of them")
    if ids is not None:
        if context is not None or not context_ids:
            raise OptionError(f"{name} has token_ids: give what is before them as context_ids, of one token or more")
        return Pair(list(context_ids), list(ids))
    if context_ids is not None:
        raise OptionError(f"{name} has text: give what is before it as context, a text, or as none")
    context, text = context or "", text or ""
    kept = context.rstrip()
    whole = tokenizer.encode(context + text)
    before = len(tokenizer.encode(kept)) if kept else 0
    if not before:
        begin = begin_of(model.config)
        whole, before = (whole if whole[:1] == [begin] else [begin, *whole]), 1
    if not whole[before:]:
        raise PromptError(f"{name} has no token behind its context; give a text of one or more")
    return Pair(whole[:before], whole[before:])


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences begin with alike."""
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def texts_of(tokenizer: Tokenizer, pair: Pair) -> list[str]:
    """The text that each token adds to the one before it."""
    whole, start = [*pair.context, *pair.tokens], len(pair.context)
    return [
        texts_behind(tokenizer, whole[max(0, place - CONTEXT_TOKENS) : place])(whole[place])
        for place in range(start, len(whole))
    ]
