"""Describes tokens to add to sequences."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from dataclasses import dataclass
from itertools import islice
from operator import index
from typing import TYPE_CHECKING, Any

from ..errors import PromptError

if TYPE_CHECKING:
    from ..model_files.genai_config import GenaiConfig

__all__ = ["Prompt", "checked_prompts", "checked_tokens", "require_fitting"]

MOST_CHARACTERS = 1024
"""The most characters of a token: no vocabulary has longer ones."""


def require_fitting(texts: Iterable[object], config: GenaiConfig) -> None:
    """Raise PromptError for texts that are too long for the model under any tokenization. Callers check before they
    encode, because encoding takes seconds for each million characters. Values that are not texts are ignored.
    """
    characters = sum(len(text) for text in texts if isinstance(text, str))
    most = config.context_length * MOST_CHARACTERS
    if characters > most:
        raise PromptError(
            f"the prompt has {characters} characters; the model's context_length of {config.context_length} tokens "
            f"holds at most {most} characters: shorten it"
        )


@dataclass(frozen=True)
class Prompt:
    """Ids to add to a sequence, and the padding that followed them."""

    ids: list[int]
    padding: tuple[int, ...] = ()


def checked_prompts(
    tokens: Any, batch_size: int, config: GenaiConfig, present: int, max_length: int, pad: int
) -> list[Prompt]:
    """One prompt for each of `batch_size` sequences of `present` tokens.

    `tokens` is a list of `batch_size` rows, an array [batch_size, tokens], or all rows in one list, one after another.
    Rows are equally long: shorter prompts end in padding ids, which the model does not run. A single sequence has no
    padding, and takes its tokens with or without the outer list.

    Raises PromptError for rows of another number or of different lengths, for no tokens or a row of only padding, for
    values that are not ids of the vocabulary, and for more tokens than max_length allows.
    """
    source = tokens.tolist() if hasattr(tokens, "tolist") else tokens
    vocab_size, context_length = config.vocab_size, config.context_length
    room = max_length - present
    values = list(islice(source, batch_size * max(room, 1) + 1))
    nested = bool(values) and all(isinstance(value, Iterable) and not isinstance(value, str) for value in values)
    rows = [values]
    if nested:
        given = [value.tolist() if hasattr(value, "tolist") else value for value in values]
        rows = [list(islice(row, max(room, 1) + 1)) for row in given]
        for row, taken in zip(given, rows, strict=True):
            if len(taken) > room:
                raise _too_many(row, 1, present, max_length, context_length)
    if not nested and len(values) > batch_size * room:
        raise _too_many(source, batch_size, present, max_length, context_length)
    if not nested and batch_size > 1:
        length, rest = divmod(len(values), batch_size)
        if rest:
            raise PromptError(
                f"{len(values)} tokens in one list cannot be {batch_size} rows of equal length; give a list for each "
                "row, all equally long"
            )
        rows = [values[row * length : (row + 1) * length] for row in range(batch_size)]
    if len(rows) != batch_size:
        raise PromptError(
            f"{len(rows)} rows of tokens were given; batch_size is {batch_size}: give one for each sequence"
        )
    lengths = sorted({len(row) for row in rows})
    if len(lengths) > 1:
        raise PromptError(
            f"rows have from {lengths[0]} to {lengths[-1]} tokens; pad them at the end to the same length with "
            f"pad_token_id ({pad}), as tokenizer.encode_batch(texts, {pad}) does"
        )
    checked = [checked_tokens(row, vocab_size, present, max_length, context_length) for row in rows]
    return [Prompt(ids) for ids in checked] if batch_size == 1 else [_parted(ids, pad) for ids in checked]


def _parted(ids: list[int], pad: int) -> Prompt:
    end = next((place + 1 for place in reversed(range(len(ids))) if ids[place] != pad), 0)
    if not end:
        raise PromptError(f"a row has only padding ({pad}); each row needs another token")
    return Prompt(ids[:end], tuple(ids[end:]))


def checked_tokens(
    tokens: Iterable[int], vocab_size: int, present: int, max_length: int, context_length: int
) -> list[int]:
    """Ids to add to a sequence of `present` tokens.

    Raises PromptError for no tokens, values that are not ids of the vocabulary, or more tokens than max_length allows.
    """
    ids: list[int] = []
    for place, token in enumerate(tokens):
        if present + len(ids) == max_length:
            raise _too_many(tokens, 1, present, max_length, context_length)
        try:
            ids.append(index(token))
        except TypeError:
            raise PromptError(f"token {place} is {token!r}; ids are integers from 0 to {vocab_size - 1}") from None
    if not ids:
        raise PromptError("no tokens were given; append at least one")
    for place, token in enumerate(ids):
        if not 0 <= token < vocab_size:
            raise PromptError(f"token {place} is {token}; ids go from 0 to {vocab_size - 1}")
    return ids


def _too_many(
    tokens: Iterable[Any], batch_size: int, present: int, max_length: int, context_length: int
) -> PromptError:
    """The error for a prompt that is too long, made without counting all tokens: their number is unlimited."""
    total = present + len(tokens) // batch_size if isinstance(tokens, Sized) else f"more than {max_length}"
    found = f"the sequence would have {total} tokens; max_length is {max_length}"
    if max_length < context_length:
        return PromptError(f"{found}; shorten the prompt or raise max_length")
    return PromptError(f"{found}, the model's context length; shorten the prompt")
