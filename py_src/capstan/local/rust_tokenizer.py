"""Implements the backend of capstan.tokenizer on CPython; its packages are in the extra `reference`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

__all__ = ["LocalBackend"]


@contextmanager
def no_panic() -> Iterator[None]:
    """Convert a panic of the Rust library into a ValueError. In Python such a panic is a BaseException, which callers
    would not catch.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"the tokenizers package failed: {error}") from error


class LocalBackend:
    """Tokenizes on CPython with the `tokenizers` package."""

    def __init__(self, tokenizer_json: str, tokenizer_config_json: str = "{}") -> None:
        import tokenizers  # noqa: PLC0415  (in the extra `reference`)

        with no_panic():
            self._tokenizer = tokenizers.Tokenizer.from_str(tokenizer_json)
        # A file may enable truncation and padding, like those of encoders; as with transformers, both are off here.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        with no_panic():
            return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        with no_panic():
            return str(self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens))
