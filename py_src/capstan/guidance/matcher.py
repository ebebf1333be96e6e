"""The interface to a host's grammar library: grammars over a vocabulary, and the progress of an output in one."""

from __future__ import annotations

import re
from typing import Protocol

from ..errors import GuidanceError

__all__ = ["Grammars", "Matcher", "refusal"]


class Matcher(Protocol):
    """An output, token by token, and the grammar that it has to fit."""

    def accept(self, token: int) -> bool:
        """Go on by a token; False, and no change, if the grammar does not allow it."""

    def roll_back(self, tokens: int) -> None:
        """Take the last tokens back."""

    async def mask(self) -> bytes:
        """The tokens that may come next: u32 words, the lowest bit of the first one is token 0. An end-of-sequence
        token is among them where the output may end."""

    def ahead(self) -> str:
        """The text that must come next, "" if there is a choice."""

    def close(self) -> None:
        """Free it."""


class Grammars(Protocol):
    """Grammars over the vocabulary of one model."""

    async def compile(self, text: str) -> Matcher:
        """A matcher for a grammar in EBNF. Raises GuidanceError with the line and column."""


def refusal(said: str) -> GuidanceError:
    """The error for xgrammar's message about a grammar."""
    found = re.search(r"at line (\d+), column (\d+): (.*)", said)
    if found:
        return GuidanceError(f"ebnf, line {found[1]}, column {found[2]}: {found[3].rstrip('.')}; correct it")
    reason = re.sub(r"^\[FATAL\] \S+:\d+: ", "", said)
    return GuidanceError(f"the grammar cannot be compiled ({reason}); simplify it")
