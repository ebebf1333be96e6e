"""The page's grammars (web/src/worker/grammars.ts), as capstan.guidance drives them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import GuidanceError
from ..guidance.matcher import refusal
from .errors import typed_errors

__all__ = ["PageGrammars"]


@contextmanager
def _refused() -> Iterator[None]:
    try:
        with typed_errors():
            yield
    except GuidanceError as error:
        raise refusal(str(error)) from error


class PageGrammars:
    """See capstan.guidance.matcher.Grammars."""

    def __init__(self, grammars: Any) -> None:
        self._js = grammars

    async def compile(self, text: str) -> PageMatcher:
        with _refused():
            return PageMatcher(await self._js.compile(text))


class PageMatcher:
    """See capstan.guidance.matcher.Matcher."""

    def __init__(self, matcher: Any) -> None:
        self._js = matcher

    def accept(self, token: int) -> bool:
        return bool(self._js.accept(token))

    def roll_back(self, tokens: int) -> None:
        self._js.rollBack(tokens)

    async def mask(self) -> bytes:
        with typed_errors():
            return bytes((await self._js.mask()).to_bytes())

    def ahead(self) -> str:
        return str(self._js.ahead())

    def close(self) -> None:
        self._js.close()
