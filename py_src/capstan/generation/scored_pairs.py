"""Makes tokens to score after a context, from texts or ids. A sequence that begins like the previous sequence continues
from their common part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import OptionError, PromptError
from ..text.stream import alike
from ..tokenizer import Tokenizer
from .generator import Generator
from .prompt import require_fitting
from .token_scores import begin_of

if TYPE_CHECKING:
    from ..model import Model

__all__ = ["Pair", "pair_of", "score_pair"]


async def score_pair(generator: Generator, pair: Pair) -> dict[str, Any]:
    """The scores of a pair; the generator continues from where the context differs from its sequence."""
    shared = alike(generator.get_sequence(), pair.context)
    generator.rewind_to(shared)
    if pair.context[shared:]:
        generator.append_tokens(pair.context[shared:])
    scores = await generator.score_async(pair.tokens)
    return {
        "context_tokens": len(pair.context),
        "token_ids": pair.tokens,
        "log_probabilities": [each.log_probability for each in scores],
        "greedy": [each.token == each.best for each in scores],
    }


@dataclass(frozen=True)
class Pair:
    """Tokens to score, and the context before them."""

    context: list[int]
    tokens: list[int]


def pair_of(model: Model, tokenizer: Tokenizer, name: str, given: Mapping[str, Any]) -> Pair:
    """The tokens of a sequence. A text and its context are tokenized as one; spaces at the context's end then belong to
    the text, because tokenizers join them to it. Raises OptionError, PromptError, which name the pair.
    """
    ids, text = given.get("token_ids"), given.get("text")
    context_ids, context = given.get("context_ids"), given.get("context")
    if (ids is None) == (text is None):
        raise OptionError(f"{name} has {'neither' if ids is None else 'both'} of text and token_ids; give one of them")
    if ids is not None:
        if context is not None or not context_ids:
            raise OptionError(f"{name} has token_ids: give the tokens before them as context_ids, one or more")
        return Pair(list(context_ids), list(ids))
    if context_ids is not None:
        raise OptionError(f"{name} has text and context_ids: give its context as a text, too, or leave it out")
    context, text = context or "", text or ""
    require_fitting((context, text), model.config)
    kept = context.rstrip()
    whole = tokenizer.encode_prompt(context + text)
    before = len(tokenizer.encode_prompt(kept) if kept else tokenizer.beginning)
    if not before:
        begin = begin_of(model.config)
        whole, before = (whole if whole[:1] == [begin] else [begin, *whole]), 1
    if not whole[before:]:
        raise PromptError(f"{name} has no token after its context; give a longer text")
    return Pair(whole[:before], whole[before:])
