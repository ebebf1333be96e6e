"""Scores given texts or tokens for the page: the probability of each after its context."""

from __future__ import annotations

from typing import Any

from ..errors import PromptError
from ..generation.generator import Generator
from ..generation.generator_params import GeneratorParams
from ..generation.scored_pairs import Pair, pair_of, score_pair
from ..model import Model
from ..tokenizer import Tokenizer
from .adapter_requests import adapt
from .inspection import CONTEXT_TOKENS, texts_after
from .requests import ScoreRequest

__all__ = ["score"]


async def score(model: Model, request: ScoreRequest, usual_length: int) -> dict[str, Any]:
    """A ScoreResult of web/src/wire/protocol.ts. Without a max_length sequences have at most `usual_length` tokens; a
    sequence that begins like the one before it continues from there.
    """
    tokenizer = Tokenizer(model)
    pairs = [pair_of(model, tokenizer, f"sequences[{place}]", each) for place, each in enumerate(request["sequences"])]
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
    described: list[dict[str, Any]] = []
    async with Generator(model, params) as generator:
        await adapt(model, generator, request)
        for pair in pairs:
            about = await score_pair(generator, pair)
            texts = {"texts": texts_of(tokenizer, pair)} if request.get("token_texts") else {}
            described.append({**about, **texts})
        return {
            "sequences": described,
            "device": model.device_type,
            "adapter": model.adapter,
            "tape_passes": generator.tape_passes,
            "reused_tokens": generator.reused_tokens,
        }


def texts_of(tokenizer: Tokenizer, pair: Pair) -> list[str]:
    """The text that each token adds to the one before it."""
    whole, start = [*pair.context, *pair.tokens], len(pair.context)
    return [
        texts_after(tokenizer, whole[max(0, place - CONTEXT_TOKENS) : place])(whole[place])
        for place in range(start, len(whole))
    ]
