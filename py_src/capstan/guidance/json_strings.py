"""Makes grammars for the strings of a schema: `pattern`, `format` and lengths, alone or together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache

from ..errors import GuidanceError
from .dfa import Dfa, both, lengths
from .grammar import Node, NodeError, Repeat
from .json_text import CHARACTER, WRITABLE, quoted, string
from .nfa import determined, looks
from .regex import parse_regex, parse_searched
from .schema_keywords import Schema, count, refuse
from .string_formats import ANY_TEXT, FORMATS, WIDER

__all__ = ["searched", "string_node", "strings"]

_CONDITIONS = ("pattern", "format", "minLength", "maxLength")


def string_node(schema: Schema, at: str) -> Node:
    """The strings, in quotes, that fit a schema."""
    least, most = _bounds(schema, at)
    patterns, formats = _listed(schema, "pattern"), _formats(schema, at)
    if not patterns and not formats:
        return string(Repeat(CHARACTER, least, most))
    alone = len(patterns) + len(formats) == 1 and least == 0 and most is None
    node = (_pattern(patterns[0], at) if patterns else parse_regex(FORMATS[formats[0]])) if alone else None
    if node is None or looks(node):
        node = strings(schema, at).machine()
    return string(quoted(node))


def strings(schema: Schema, at: str) -> Dfa:
    """An automaton for the strings that fit a schema. Refuses a schema that no string fits."""
    least, most = _bounds(schema, at)
    patterns, formats = _listed(schema, "pattern"), _formats(schema, at)
    asked = [name for name in _CONDITIONS if name in schema]
    try:
        found = both([lengths(0, None, WRITABLE), *(searched(pattern, f"{at}/pattern") for pattern in patterns)])
        formatted = both([found, *(_format(kind, bool(patterns)) for kind in formats)])
        # If no text of the format fits the pattern, only the pattern counts.
        found = formatted if formatted.ends or not patterns else found
        if least or most is not None:
            found = both([found, lengths(least, most, WRITABLE)])
        return found.require_some(f"no text fits {' and '.join(asked)}", "correct them, or use one pattern")
    except NodeError as error:
        refuse(f"{at}/{asked[0]}", error.what, error.remedy)


def searched(pattern: str, at: str, possibly: bool = False) -> Dfa:
    """An automaton for the texts in which a pattern matches; `at` is the pattern's place in the schema. See
    parse_searched.
    """
    try:
        return _searched(pattern, possibly)
    except NodeError as error:
        refuse(at, error.what, error.remedy)
    except GuidanceError as error:
        raise GuidanceError(f"json_schema {at}: {error}") from error


@lru_cache(maxsize=64)
def _searched(pattern: str, possibly: bool) -> Dfa:
    return determined(parse_searched(pattern, possibly))


def _pattern(pattern: str, at: str) -> Node:
    try:
        return parse_searched(pattern)
    except GuidanceError as error:
        raise GuidanceError(f"json_schema {at}/pattern: {error}") from error


@cache
def _format(kind: str, beside_a_pattern: bool) -> Dfa:
    return determined(parse_regex(WIDER.get(kind, FORMATS[kind]) if beside_a_pattern else FORMATS[kind]))


def _listed(schema: Schema, name: str) -> Sequence[str]:
    """A keyword's values; only a merged schema has several."""
    found = schema.get(name, [])
    return [found] if isinstance(found, str) else found


def _formats(schema: Schema, at: str) -> list[str]:
    """The formats that are enforced. An unknown format is refused, unless the schema has a pattern, which the format
    then only names.
    """
    found = []
    for kind in _listed(schema, "format"):
        if kind in FORMATS:
            found.append(kind)
        elif kind not in ANY_TEXT and "pattern" not in schema:
            remedy = f"use one of {', '.join((*FORMATS, *ANY_TEXT))}; or write a pattern"
            refuse(f"{at}/format", f"{kind!r}", remedy)
    return found


def _bounds(schema: Schema, at: str) -> tuple[int, int | None]:
    least, most = count(schema, "minLength", at, 0) or 0, count(schema, "maxLength", at, None)
    if most is not None and least > most:
        refuse(f"{at}/minLength", f"{least}", f"maxLength is {most}")
    return least, most
