"""Reads the values in a model's calls: JSON, Python's literals, Gemma's notation, and plain texts by their schema."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, NoReturn

__all__ = [
    "GEMMA",
    "JSON",
    "PYTHON",
    "Cursor",
    "Dialect",
    "MoreError",
    "NoCallError",
    "plain_value",
    "referred",
    "types_of",
]

MOST_DEPTH = 100
NAME = re.compile(r"[\w.\-/:]+")
SPACE = re.compile(r"\s*")
WORD = re.compile(r"[^\s,\[\]{}()\"'<>:=]+")
NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
WORDS = {"true": True, "false": False, "null": None}
PYTHON_WORDS = {**WORDS, "True": True, "False": False, "None": None}
KINDS = ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array"), (dict, "object"))


class MoreError(Exception):
    """The text so far may become a call."""


class NoCallError(Exception):
    """The text is not a call, regardless of its continuation."""


@dataclass(frozen=True)
class Dialect:
    """How values are written in a call: as JSON, as Python's literals, or in Gemma's notation."""

    words: Mapping[str, Any]
    """The words that are values."""
    quotes: tuple[str, ...]
    """The marks around strings."""
    bare_names: bool = False
    """Whether names in objects need no quotes."""


JSON = Dialect(WORDS, ('"',))
PYTHON = Dialect(PYTHON_WORDS, ('"', "'"))
GEMMA = Dialect(WORDS, ('<|"|>', '"'), bare_names=True)


class Cursor:
    """A place in a text that grows until it is `final`. Its methods read the required next text, and raise MoreError if
    the text ends too early, NoCallError if other text follows.
    """

    def __init__(self, text: str, at: int, final: bool) -> None:
        self.text, self.at, self.final = text, at, final

    @property
    def at_end(self) -> bool:
        return self.at >= len(self.text)

    def space(self) -> None:
        found = SPACE.match(self.text, self.at)
        self.at = found.end() if found else self.at

    def looks(self, mark: str) -> bool:
        """Whether this text comes next."""
        rest = self.text[self.at : self.at + len(mark)]
        if rest != mark and mark.startswith(rest) and not self.final:
            raise MoreError
        return rest == mark

    def take(self, *marks: str) -> str | None:
        """Take the first of the marks that comes next; None if none of them comes next."""
        for mark in marks:
            if self.looks(mark):
                self.at += len(mark)
                return mark
        return None

    def expect(self, *marks: str) -> str:
        found = self.take(*marks)
        if found is None:
            raise NoCallError
        return found

    def close(self, *marks: str) -> None:
        """Take a mark at the end of a call, which a model may omit at the end of its answer."""
        before = self.at
        self.space()
        if self.final and self.at_end:
            self.at = before
            return
        self.expect(*marks)

    def until(self, mark: str) -> str:
        """The text before a mark, which is skipped, too."""
        place = self.text.find(mark, self.at)
        if place < 0:
            self._cut()
        found, self.at = self.text[self.at : place], place + len(mark)
        return found

    def name(self) -> str:
        return self._matched(NAME)

    def value(self, dialect: Dialect = JSON, depth: int = 0) -> Any:
        if depth > MOST_DEPTH:
            raise NoCallError
        self.space()
        if self.take("{"):
            return self._object(dialect, depth)
        if self.take("["):
            return self._list(dialect, depth)
        if self._quote(dialect) is not None:
            return self._string(dialect)
        word = self._matched(WORD)
        if word in dialect.words:
            return dialect.words[word]
        if NUMBER.fullmatch(word) is None:
            raise NoCallError
        try:
            number = float(word) if set(word) & set(".eE") else int(word)
        except ValueError:
            raise NoCallError from None
        if not isfinite(number):
            raise NoCallError
        return number

    def _object(self, dialect: Dialect, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        self.space()
        if self.take("}"):
            return found
        while True:
            self.space()
            quoted = self._quote(dialect) is not None
            if not quoted and not dialect.bare_names:
                raise NoCallError
            name = self._string(dialect) if quoted else self._matched(WORD)
            self.space()
            self.expect(":")
            found[name] = self.value(dialect, depth + 1)
            self.space()
            if self.expect(",", "}") == "}":
                return found

    def _list(self, dialect: Dialect, depth: int) -> list[Any]:
        found: list[Any] = []
        self.space()
        if self.take("]"):
            return found
        while True:
            found.append(self.value(dialect, depth + 1))
            self.space()
            if self.expect(",", "]") == "]":
                return found

    def _quote(self, dialect: Dialect) -> str | None:
        if self.at_end:
            self._cut()
        return next((quote for quote in dialect.quotes if self.looks(quote)), None)

    def _string(self, dialect: Dialect) -> str:
        quote = self._quote(dialect) or ""
        if len(quote) > 1:
            self.at += len(quote)
            return self.until(quote)
        written = self._matched(re.compile(rf"{quote}[^{quote}\\]*(?:\\.[^{quote}\\]*)*{quote}", re.DOTALL), whole=True)
        # LFM2's template does not escape line feeds.
        inner = written.replace("\n", "\\n")
        try:
            found = json.loads(written, strict=False) if dialect is not PYTHON else ast.literal_eval(inner)
        except (ValueError, SyntaxError):
            raise NoCallError from None
        return str(found)

    def _matched(self, pattern: re.Pattern[str], whole: bool = False) -> str:
        """The next match of the pattern. Without `whole` the match may continue past the present text."""
        found = pattern.match(self.text, self.at)
        if found is None and (whole or self.at_end):
            self._cut()
        if found is None:
            raise NoCallError
        if not whole and found.end() == len(self.text) and not self.final:
            raise MoreError
        self.at = found.end()
        return found[0]

    def _cut(self) -> NoReturn:
        raise NoCallError if self.final else MoreError


def plain_value(text: str, schema: Any, root: Any) -> Any:
    """The value of a text without quotes, by its schema, whose references are resolved in `root`: a string, unless the
    schema excludes strings or the text is a value of another type in it.
    """
    types = types_of(schema, root)
    if types == {"string"}:
        return text
    cursor = Cursor(text, 0, True)
    try:
        value = cursor.value(PYTHON)
        cursor.space()
    except NoCallError:
        return text
    if not cursor.at_end:
        return text
    kind = kind_of(value)
    fits = not types or kind in types or (kind == "integer" and "number" in types)
    return value if fits or "string" not in types else text


def types_of(schema: Any, root: Any) -> set[str]:
    """The types that a schema admits; empty if unknown."""
    types: set[str] = set()
    waiting, seen = [schema], set()
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if not isinstance(each, Mapping):
            return set()
        names = ("anyOf", "oneOf", "allOf")
        branches: list[Any] = next((each[name] for name in names if isinstance(each.get(name), list)), [])
        if own := own_types(each):
            types |= own
        elif isinstance(each.get("$ref"), str):
            waiting.append(referred(each["$ref"], root))
        elif branches:
            waiting += branches
        else:
            return set()
    return types


def own_types(schema: Mapping[str, Any]) -> set[str]:
    """The types that a schema names, or the types of its fixed values."""
    given = schema.get("type")
    if isinstance(given, str):
        return {given}
    if isinstance(given, list):
        return {each for each in given if isinstance(each, str)}
    fixed = [schema["const"]] if "const" in schema else schema.get("enum")
    return {kind_of(each) for each in fixed} if isinstance(fixed, list) else set()


def kind_of(value: Any) -> str:
    """JSON's name for the type of a value."""
    return "null" if value is None else next(name for python, name in KINDS if isinstance(value, python))


def referred(reference: str, root: Any) -> Any:
    """The place in a schema that a reference names; None if there is none."""
    found = root
    for part in reference.removeprefix("#").split("/")[1:] if reference.startswith("#") else ["?"]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Sequence) and not isinstance(found, str) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            found = found.get(name) if isinstance(found, Mapping) else None
    return found
