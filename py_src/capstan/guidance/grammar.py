"""A grammar as data: what JSON schemas, regular expressions and Lark grammars become, and the EBNF text of it.

The text is for xgrammar (https://github.com/mlc-ai/xgrammar, docs/tutorials/ebnf_guided_generation), whose own readers
of schemas and regular expressions are not used: they let control characters and bare quotes into strings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

__all__ = [
    "ANY_CHARACTER",
    "Chars",
    "Choice",
    "Grammar",
    "Node",
    "Repeat",
    "Rule",
    "Series",
    "Text",
    "byte_runs",
    "chars",
]

Ranges = tuple[tuple[int, int], ...]
"""Code points, first and last of each range, ascending, apart from each other."""

_SURROGATES = (0xD800, 0xDFFF)
_LAST = 0x10FFFF
ANY_CHARACTER: Ranges = ((0, _SURROGATES[0] - 1), (_SURROGATES[1] + 1, _LAST))


@dataclass(frozen=True)
class Text:
    """Exactly this text, which may be empty."""

    text: str


@dataclass(frozen=True)
class Chars:
    """One character out of a set."""

    ranges: Ranges

    def without(self, other: Ranges) -> Chars:
        return Chars(intersected(self.ranges, complement(other)))

    def complement(self) -> Chars:
        return Chars(complement(self.ranges))

    def both(self, other: Ranges) -> Chars:
        return Chars(united((*self.ranges, *other)))


@dataclass(frozen=True)
class Series:
    """One after the other."""

    items: tuple[Node, ...]


@dataclass(frozen=True)
class Choice:
    """One of them."""

    items: tuple[Node, ...]


@dataclass(frozen=True)
class Repeat:
    """So many times, `most` None for any number."""

    item: Node
    least: int
    most: int | None


@dataclass(frozen=True)
class Rule:
    """A rule of the grammar, by its name."""

    name: str


Node = Text | Chars | Series | Choice | Repeat | Rule


def chars(*items: str | tuple[str, str]) -> Chars:
    """A set of single characters and ranges of them."""
    return Chars(united([(ord(i), ord(i)) if isinstance(i, str) else (ord(i[0]), ord(i[1])) for i in items]))


def united(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The union of ranges in any order."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return tuple(found)


def intersected(a: Ranges, b: Ranges) -> Ranges:
    """The characters that are in both."""
    return united((max(x[0], y[0]), min(x[1], y[1])) for x in a for y in b if max(x[0], y[0]) <= min(x[1], y[1]))


def complement(ranges: Ranges) -> Ranges:
    """All other characters; surrogates are none."""
    found, start = [], 0
    for first, last in united(ranges):
        if start < first:
            found.append((start, first - 1))
        start = last + 1
    if start <= _LAST:
        found.append((start, _LAST))
    return intersected(tuple(found), ANY_CHARACTER)


class Grammar:
    """Rules by name; the whole output must match the one named `root`."""

    def __init__(self) -> None:
        self.rules: dict[str, Node] = {}

    def add(self, name: str, node: Node) -> Rule:
        """A rule; a name that is taken gets a number."""
        unique, number = name, 1
        while unique in self.rules:
            number += 1
            unique = f"{name}_{number}"
        self.rules[unique] = node
        return Rule(unique)

    def reserve(self, name: str) -> Rule:
        """A rule whose content is `set` later, for rules that contain themselves."""
        return self.add(name, Text(""))

    def set(self, rule: Rule, node: Node) -> None:
        self.rules[rule.name] = node

    def include(self, other: Grammar, prefix: str) -> Rule:
        """All rules of another grammar under names of their own; its root."""
        for name, node in other.rules.items():
            self.rules[prefix + name] = _renamed(node, prefix)
        return Rule(f"{prefix}root")

    def text(self) -> str:
        """EBNF, a rule a line."""
        return "".join(f"{name} ::= {_written(node)}\n" for name, node in self.rules.items())


def _renamed(node: Node, prefix: str) -> Node:
    match node:
        case Rule(name):
            return Rule(prefix + name)
        case Series(items):
            return Series(tuple(_renamed(item, prefix) for item in items))
        case Choice(items):
            return Choice(tuple(_renamed(item, prefix) for item in items))
        case Repeat(item, least, most):
            return Repeat(_renamed(item, prefix), least, most)
        case _:
            return node


def _written(node: Node) -> str:
    match node:
        case Text(text):
            return '"' + "".join(_escaped(ord(character)) for character in text) + '"'
        case Chars(ranges):
            return _set(ranges)
        case Rule(name):
            return name
        case Series(items):
            return _joined(items, " ")
        case Choice(items):
            return _joined(items, " | ")
        case Repeat(item, least, most):
            counted = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((least, most))
            return f"({_written(item)})" + (counted or f"{{{least},{'' if most is None else most}}}")


def _joined(items: Sequence[Node], by: str) -> str:
    return "(" + by.join(_written(item) for item in items) + ")" if items else '""'


def _set(ranges: Ranges) -> str:
    """ASCII as a set, other characters as sequences of sets of bytes: of xgrammar's sets of larger characters only the
    last byte of each number counts (0.1.27)."""
    ascii_only = intersected(ranges, ((0, 0x7F),))
    branches = ["[" + "".join(_range(first, last) for first, last in ascii_only) + "]"] if ascii_only else []
    for first, last in intersected(ranges, complement(((0, 0x7F),))):
        for run in byte_runs(first, last):
            # A set of one character would become a text, which xgrammar writes in UTF-8; one named twice does not.
            names = [_range(low, high) if low < high else 2 * _escaped(low) for low, high in run]
            branches.append(" ".join(f"[{name}]" for name in names))
    return branches[0] if len(branches) == 1 and ascii_only else "(" + " | ".join(branches) + ")"


def byte_runs(first: int, last: int) -> Iterator[list[tuple[int, int]]]:
    """The UTF-8 of all characters from one to another: for each run the range of each byte."""
    for limit in (0x7FF, 0xFFFF):
        if first <= limit < last:
            yield from byte_runs(first, limit)
            yield from byte_runs(limit + 1, last)
            return
    for bits in (6, 12, 18):
        low = (1 << bits) - 1
        if first | low != last | low:
            if first & low:
                yield from byte_runs(first, first | low)
                yield from byte_runs((first | low) + 1, last)
                return
            if last & low != low:
                yield from byte_runs(first, (last & ~low) - 1)
                yield from byte_runs(last & ~low, last)
                return
    yield list(zip(chr(first).encode(), chr(last).encode(), strict=True))


def _range(first: int, last: int) -> str:
    return _escaped(first) if first == last else f"{_escaped(first)}-{_escaped(last)}"


def _escaped(code: int) -> str:
    """A character in a text or a set: letters, digits and blanks as they are, all others by number."""
    character = chr(code)
    if character == " " or (code < 128 and character.isalnum()):
        return character
    return f"\\u{code:04X}" if code < 0x10000 else f"\\U{code:08X}"
