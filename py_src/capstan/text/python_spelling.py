"""Translates regular expressions of other libraries to Python's syntax."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

__all__ = ["PRIVATE", "InnerSet", "PythonSpelling", "UnreadError"]

MOST_WITHIN = 10
"""The deepest nesting of sets."""
PRIVATE = 0xF0000
"""The first of the characters that stand for properties while Python reads an expression."""
_TOKEN = re.compile(
    r"\\[pP](?P<property>\{[^{}]*\}|[A-Z])|\\[xu]\{(?P<number>[0-9a-fA-F]{1,6})\}|\\."
    r"|(?P<posix>\[:\^?\w+:\])|\[\^?\]?|&&|\(\?<(?![=!])|.",
    re.DOTALL,
)
# A library reads a line end (\R) and a character with its marks (\X) in only one way, so that each is one position.
_SPELLINGS = {
    "|": "|()",
    "(?<": "(?P<",
    "\\z": "\\Z",
    "\\G": "",
    "\\h": "[0-9a-fA-F]",
    "\\R": "[\\n-\\r\\x85\u2028\u2029]",
    "\\X": "(?s:.)",
}


class UnreadError(Exception):
    """An expression with a syntax that Python lacks, or with too many positions."""


@dataclass(frozen=True)
class InnerSet:
    """A set within another set, or an intersection: the members of each part, as read by Python."""

    negated: bool
    parts: list[Any]


class PythonSpelling:
    """An expression in Python's syntax: other spellings become Python's, and properties become private-use characters.
    Each `|` gets an empty group after it: without it Python would make one set of `a|A`. Raises UnreadError and
    re.error.
    """

    def __init__(self, expression: str) -> None:
        self.meanings: list[str | InnerSet] = []
        """Properties, classes and sets, by the private characters that stand for them."""
        tokens = _TOKEN.finditer(expression)
        self.text = "".join(
            self._set(found[0], tokens, 0) if found[0].startswith("[") and not found["posix"] else self._token(found)
            for found in tokens
        )

    def _token(self, found: re.Match[str], within: bool = False) -> str:
        """A token outside of sets, or `within` one."""
        token = found[0]
        if found["property"]:
            return self._private(token[1] + found["property"].strip("{}"))
        if found["number"]:
            return "\\U" + found["number"].zfill(8)
        if within:
            return self._private(token) if found["posix"] else token.replace("\\h", "0-9a-fA-F")
        return _SPELLINGS.get(token, token)

    def _set(self, opening: str, tokens: Iterator[re.Match[str]], depth: int) -> str:
        """A set after its opening; a private character for one in another set, or an intersection."""
        if depth > MOST_WITHIN:
            raise UnreadError(f"it nests more than {MOST_WITHIN} sets")
        parts = ["\\]" if opening.endswith("]") else ""]
        negated = "^" in opening
        for found in tokens:
            token = found[0]
            if token == "&&":
                parts.append("")
            elif token.startswith("[") and not found["posix"]:
                parts[-1] += self._set(token, tokens, depth + 1)
            elif token != "]":
                parts[-1] += self._token(found, within=True) if parts[-1] or token != "^" else "\\^"
            elif depth or len(parts) > 1:
                return self._private(InnerSet(negated, [list(parser.parse(f"[{part}]")) for part in parts]))
            else:
                return f"[{'^' * negated}{parts[0]}]"
        raise UnreadError("a set has no end")

    def _private(self, meaning: str | InnerSet) -> str:
        self.meanings.append(meaning)
        return chr(PRIVATE + len(self.meanings) - 1)
