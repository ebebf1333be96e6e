"""Converts between texts and token ids, with the array shapes of the native package."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

from .. import tokenizer as capstan_tokenizer
from ..errors import ArgumentTypeError, OptionError
from .genai_tensors import Tensor, as_array, numpy, token_rows

__all__ = ["TokenizerStream", "checked_text", "decoded", "encoded_batch"]


class TokenizerStream:
    """Decodes ids one at a time; `Tokenizer.create_stream` makes it."""

    def __init__(self) -> None:
        raise TypeError("TokenizerStream: No constructor defined!")

    @classmethod
    def _of(cls, stream: capstan_tokenizer.TokenizerStream) -> TokenizerStream:
        made = cls.__new__(cls)
        made._stream = stream
        return made

    _stream: capstan_tokenizer.TokenizerStream

    def decode(self, token: int, /) -> str:
        """The text that this id completes."""
        if numpy is not None and isinstance(token, numpy.ndarray) and token.ndim == 0:
            token = token.item()
        return self._stream.decode(index(token))


def checked_text(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ArgumentTypeError(
            f"the text has no UTF-8 form: character {error.start} is half of a surrogate pair; replace it"
        ) from error
    return text


def encoded_batch(tokenizer: capstan_tokenizer.Tokenizer, texts: Sequence[str], pad: int) -> Tensor:
    """Token ids of several texts, int32 [texts, tokens], shorter ones padded at the end."""
    rows = [tokenizer.encode(checked_text(text)) for text in texts]
    if not rows:
        raise OptionError("encode_batch: there are no texts; give at least one")
    longest = max(map(len, rows))
    padded = [row + [pad] * (longest - len(row)) for row in rows]
    return Tensor(as_array([token for row in padded for token in row], "int32", [len(rows), longest]))


def decoded(tokenizer: capstan_tokenizer.Tokenizer, tokens: Any) -> str:
    """The text of token ids: a number, a list or an array of one or two dimensions."""
    return tokenizer.decode([token for row in token_rows(tokens) for token in row])
