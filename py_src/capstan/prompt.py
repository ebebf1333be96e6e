"""Tokens that are to be added to a sequence."""

from __future__ import annotations

from collections.abc import Iterable
from operator import index

from .errors import PromptError

__all__ = ["checked_tokens"]


def checked_tokens(tokens: Iterable[int], vocab_size: int, present: int, max_length: int) -> list[int]:
    """Ids to add to a sequence of `present` tokens.

    Raises PromptError for no tokens, text, what is no id of the vocabulary, or more than max_length allows.
    """
    if isinstance(tokens, str):
        raise PromptError("tokens is text; append its ids, tokenizer.encode(text)")
    ids = []
    for place, token in enumerate(tokens):
        try:
            ids.append(index(token))
        except TypeError:
            raise PromptError(f"token {place} is {token!r}; ids are integers from 0 to {vocab_size - 1}") from None
    if not ids:
        raise PromptError("no tokens were given; append at least one")
    for place, token in enumerate(ids):
        if not 0 <= token < vocab_size:
            raise PromptError(f"token {place} is {token}; ids go from 0 to {vocab_size - 1}")
    if present + len(ids) > max_length:
        raise PromptError(
            f"the sequence would have {present + len(ids)} tokens, max_length is {max_length}; "
            "shorten the prompt or raise max_length"
        )
    return ids
