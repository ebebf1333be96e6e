"""The tokenizer of CPython, as capstan.tokenizer drives it; its packages are in the extra `reference`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

__all__ = ["LocalBackend"]


LONGEST_RANGE, MOST_NUMBERS = 100_000, 1_000_000
"""Numbers that one `range` of a chat template has at most, and all together: a template that goes on for ever is the
model's, not the user's."""


def to_json(value: Any, indent: int | None = None) -> str:
    """As transformers has it for chat templates: in the given order, and without HTML's escapes."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


@contextmanager
def no_panic() -> Iterator[None]:
    """Turns a Rust panic, a BaseException in Python, into an error of the input."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"the tokenizers package failed: {error}") from error


class LocalBackend:
    """On CPython: the `tokenizers` package, and jinja2 for chat templates (imported when first used)."""

    def __init__(self, tokenizer_json: str, tokenizer_config_json: str = "{}") -> None:
        import tokenizers

        with no_panic():
            self._tokenizer = tokenizers.Tokenizer.from_str(tokenizer_json)

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        with no_panic():
            return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        with no_panic():
            return str(self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def render(self, template: str, variables: Mapping[str, Any]) -> str:
        from jinja2.sandbox import ImmutableSandboxedEnvironment  # type: ignore[import-not-found, unused-ignore]

        def raise_exception(message: str) -> None:
            raise ValueError(message)

        left = MOST_NUMBERS

        def counted(*given: int) -> range:
            nonlocal left
            numbers = range(*given)
            left -= len(numbers)
            if len(numbers) > LONGEST_RANGE or left < 0:
                raise ValueError(
                    f"its ranges have more than {LONGEST_RANGE} numbers, or {MOST_NUMBERS} in all; shorten its loops"
                )
            return numbers

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["range"] = counted
        environment.globals["raise_exception"] = raise_exception
        environment.filters["tojson"] = to_json
        return str(environment.from_string(template).render(**variables))
