"""Makes grammars for the text of JSON values: strings, numbers, white space, and any value."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from .grammar import (
    ANY_CHARACTER,
    Chars,
    Choice,
    Edge,
    Grammar,
    Look,
    Machine,
    Node,
    Repeat,
    Rule,
    Series,
    Special,
    Text,
    chars,
    complement,
    intersected,
)

__all__ = [
    "BLANK",
    "CHARACTER",
    "FREE",
    "INTEGER",
    "NUMBER",
    "WRITABLE",
    "Layout",
    "any_value",
    "json_grammar",
    "literal",
    "other_key",
    "quoted",
    "string",
]

BLANK = Rule("blank")
"""The name of the rule for white space between any two parts; `json_grammar` defines it."""


@dataclass(frozen=True)
class Layout:
    """The text between the parts of arrays and objects."""

    blank: Node
    """The text after an opening bracket and before a closing one."""
    comma: Node
    colon: Node


FREE = Layout(BLANK, Series((BLANK, Text(","), BLANK)), Series((BLANK, Text(":"), BLANK)))
"""White space wherever JSON allows it."""


_BLANKS: Node = Choice(
    (
        *(Text(""), Text(" ")),
        Series((Text("\n"), Choice((Repeat(Text(" "), 0, 64), Repeat(Text("\t"), 1, 16))))),
    )
)

_HEX = chars(("0", "9"), ("A", "F"), ("a", "f"))
_ESCAPED = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_NEEDS_ESCAPE = ((0, 0x1F), (0x22, 0x22), (0x5C, 0x5C))
_PLAIN = Chars(intersected(ANY_CHARACTER, complement(_NEEDS_ESCAPE)))
"""Characters that are written without an escape."""
WRITABLE = intersected(ANY_CHARACTER, complement(((0, 7), (0x0B, 0x0B), (0x0E, 0x1F))))
"""The characters of _PLAIN, and those with an escape of one letter."""

CHARACTER: Node = Choice(
    (
        _PLAIN,
        Series((Text("\\"), chars('"', "\\", "/", "b", "f", "n", "r", "t"))),
        # No halves of surrogate pairs: a reader cannot decode one alone.
        Series((Text("\\u"), chars(("0", "9"), ("A", "C"), ("E", "F"), ("a", "c"), ("e", "f")), _HEX, _HEX, _HEX)),
        Series((Text("\\u"), chars("D", "d"), chars(("0", "7")), _HEX, _HEX)),
    )
)
"""One character of a string."""

DIGIT = chars(("0", "9"))
WHOLE: Node = Choice((Text("0"), Series((chars(("1", "9")), Repeat(DIGIT, 0, None)))))
_MINUS: Node = Repeat(Text("-"), 0, 1)
INTEGER: Node = Series((_MINUS, WHOLE))
NUMBER: Node = Series(
    (
        *(_MINUS, WHOLE),
        Repeat(Series((Text("."), Repeat(DIGIT, 1, None))), 0, 1),
        Repeat(Series((chars("e", "E"), Repeat(chars("+", "-"), 0, 1), Repeat(DIGIT, 1, 2))), 0, 1),
    )
)
"""Exponents have at most two digits, so that a reader's double holds the number."""


def json_grammar() -> tuple[Grammar, Rule]:
    """A grammar with a rule for white space and a reserved root, and the root's rule."""
    grammar = Grammar()
    root = grammar.reserve("root")
    grammar.add(BLANK.name, _BLANKS)
    return grammar, root


def literal(value: Any, layout: Layout = FREE) -> Node:
    """A given value, with texts and numbers as json.dumps writes them."""
    if not isinstance(value, list | dict):
        return Text(json.dumps(value, ensure_ascii=False))
    parts: list[Node] = []
    for item in value:
        key = (literal(item), layout.colon) if isinstance(value, dict) else ()
        inner = literal(value[item] if isinstance(value, dict) else item, layout)
        parts += (*((layout.comma,) if parts else ()), *key, inner)
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return Series((Text(opening), layout.blank, *parts, *((layout.blank,) if parts else ()), Text(closing)))


def string(content: Node) -> Node:
    """A string with that content."""
    return Series((Text('"'), content, Text('"')))


def any_value(grammar: Grammar, layout: Layout = FREE) -> Rule:
    """The rule for any JSON value."""
    value = Rule("json_value")
    if value.name in grammar.rules:
        return value
    grammar.reserve(value.name)
    text = grammar.add("json_string", string(Repeat(CHARACTER, 0, None)))
    pair = grammar.add("json_pair", Series((text, layout.colon, value)))
    items = Series((value, Repeat(Series((layout.comma, value)), 0, None), layout.blank))
    pairs = Series((pair, Repeat(Series((layout.comma, pair)), 0, None), layout.blank))
    grammar.set(
        value,
        Choice(
            (
                text,
                NUMBER,
                *(Text("true"), Text("false"), Text("null")),
                Series((Text("["), layout.blank, Repeat(items, 0, 1), Text("]"))),
                Series((Text("{"), layout.blank, Repeat(pairs, 0, 1), Text("}"))),
            )
        ),
    )
    return value


def quoted(node: Node) -> Node:
    """The node for the same text as the content of a JSON string, with characters escaped as JSON requires."""
    match node:
        case Text(text):
            return Text("".join(_ESCAPED.get(c) or (f"\\u{ord(c):04x}" if c < " " else c) for c in text))
        case Chars(ranges):
            plain = intersected(ranges, _PLAIN.ranges)
            escapes = [Text(text) for c, text in _ESCAPED.items() if intersected(ranges, ((ord(c), ord(c)),))]
            return Choice((*((Chars(plain),) if plain else ()), *escapes)) if plain or escapes else _control(ranges)
        case Series(items):
            return Series(tuple(quoted(item) for item in items))
        case Choice(items):
            return Choice(tuple(quoted(item) for item in items))
        case Repeat(item, least, most):
            return Repeat(quoted(item), least, most)
        case Machine():
            return _quoted_machine(node)
        case Rule() | Special() | Edge() | Look():
            return node


def _quoted_machine(machine: Machine) -> Machine:
    """The automaton for the same text as the content of a JSON string, with a state after each backslash. Control
    characters that have no escape of one letter are left out.
    """
    steps: list[tuple[tuple[int, int, int], ...]] = []
    escaping: dict[tuple[tuple[int, int, int], ...], int] = {}
    for row in machine.steps:
        found: list[tuple[int, int, int]] = []
        escapes: list[tuple[int, int, int]] = []
        for first, last, target in row:
            plain, letters = _written(first, last)
            found += ((*pair, target) for pair in plain)
            escapes += ((letter, letter, target) for letter in letters)
        if escapes:
            state = escaping.setdefault(tuple(escapes), len(machine.steps) + len(escaping))
            found.append((ord("\\"), ord("\\"), state))
        steps.append(tuple(found))
    return Machine((*steps, *escaping), (*machine.ends, *(False for _ in escaping)))


@lru_cache(maxsize=1024)
def _written(first: int, last: int) -> tuple[tuple[tuple[int, int], ...], list[int]]:
    """The characters of a range that are written without an escape, and the escape letters of the other characters."""
    letters = [ord(text[1]) for character, text in _ESCAPED.items() if first <= ord(character) <= last]
    return intersected(((first, last),), _PLAIN.ranges), letters


def _control(ranges: tuple[tuple[int, int], ...]) -> Node:
    return Choice(tuple(Text(f"\\u{code:04x}") for first, last in ranges for code in range(first, last + 1)))


def other_key(grammar: Grammar, names: set[str]) -> Node:
    """A string other than these names. It has no escapes, which could hide one of the names."""
    plain = grammar.add("key_end", Series((Repeat(_PLAIN, 0, None), Text('"'))))
    writable = {name for name in names if not set(name) & set(_ESCAPED) and not any(c < " " for c in name)}

    def after(prefix: str, among: set[str]) -> Node:
        nexts = sorted({name[len(prefix)] for name in among if len(name) > len(prefix)})
        elsewhere = _PLAIN.without(chars(*nexts).ranges) if nexts else _PLAIN
        branches: list[Node] = [Series((elsewhere, plain))]
        if prefix not in among:
            branches.append(Text('"'))
        for character in nexts:
            longer = prefix + character
            branches.append(
                Series((Text(character), after(longer, {name for name in among if name.startswith(longer)})))
            )
        return grammar.add("key", Choice(tuple(branches)))

    return Series((Text('"'), after("", writable)))
