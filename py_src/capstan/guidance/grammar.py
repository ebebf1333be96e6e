"""Represents a grammar as data. JSON schemas, regular expressions and other grammars are all converted to this
representation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

__all__ = [
    "ANY_CHARACTER",
    "Chars",
    "Choice",
    "Edge",
    "Grammar",
    "Look",
    "MOST_DEPTH",
    "Machine",
    "Node",
    "NodeError",
    "Repeat",
    "Rule",
    "Series",
    "Special",
    "Text",
    "byte_runs",
    "chars",
]

Ranges = tuple[tuple[int, int], ...]
"""Ranges of code points, first and last of each, ascending and not adjacent."""

_SURROGATES = (0xD800, 0xDFFF)
_LAST = 0x10FFFF
MOST_STATES = 100_000
"""The largest grammar, in states."""
MOST_RULES = 5_000
MOST_DEPTH = 64
"""The deepest nesting of groups."""
_CALLED = 8
"""A repeated part with at least this many states is made once and shared."""
ANY_CHARACTER: Ranges = ((0, _SURROGATES[0] - 1), (_SURROGATES[1] + 1, _LAST))


class NodeError(Exception):
    """An invalid node. The reader of the grammar's text knows the place and turns it into a GuidanceError."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what)
        self.what, self.remedy = what, remedy


def bounded(states: int) -> int:
    if states > MOST_STATES:
        raise NodeError(
            f"it takes {states} states; at most {MOST_STATES} are allowed", "ask for fewer alternatives or repetitions"
        )
    return states


@dataclass(frozen=True)
class Text:
    """The node for exactly this text, which may be empty."""

    text: str

    def __post_init__(self) -> None:
        for character in self.text:
            if _SURROGATES[0] <= ord(character) <= _SURROGATES[1]:
                raise NodeError(
                    f"{character!r} is half of a surrogate pair, which UTF-8 cannot encode", "write whole characters"
                )

    @property
    def states(self) -> int:
        return len(self.text)

    @property
    def empty(self) -> bool:
        """Whether the empty text matches."""
        return not self.text


@dataclass(frozen=True)
class Chars:
    """The node for one character of a set."""

    ranges: Ranges
    empty = False

    def __post_init__(self) -> None:
        if any(_SURROGATES[0] <= edge <= _SURROGATES[1] for pair in self.ranges for edge in pair):
            raise NodeError("a set has half of a surrogate pair, which UTF-8 cannot encode", "write whole characters")

    @property
    def states(self) -> int:
        return 1 + len(self.ranges) // 4

    def without(self, other: Ranges) -> Chars:
        return Chars(intersected(self.ranges, complement(other)))

    def complement(self) -> Chars:
        return Chars(complement(self.ranges))

    def both(self, other: Ranges) -> Chars:
        return Chars(united((*self.ranges, *other)))


@dataclass(frozen=True)
class Special:
    """A special token of the vocabulary, by its id."""

    token: int
    empty = False

    @property
    def data(self) -> bytes:
        """The bytes that automata read for this token: its id between two bytes 0xFF, which neither text nor other
        tokens contain.
        """
        return b"\xff%d\xff" % self.token

    @property
    def states(self) -> int:
        return len(self.data)


@dataclass(frozen=True)
class Series:
    """The node for items one after the other."""

    items: tuple[Node, ...]
    states: int = field(init=False, repr=False, compare=False)
    empty: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "states", bounded(sum(item.states for item in self.items)))
        object.__setattr__(self, "empty", all(item.empty for item in self.items))


@dataclass(frozen=True)
class Choice:
    """The node for one of several items."""

    items: tuple[Node, ...]
    states: int = field(init=False, repr=False, compare=False)
    empty: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "states", bounded(1 + sum(item.states for item in self.items)))
        object.__setattr__(self, "empty", any(item.empty for item in self.items))


@dataclass(frozen=True)
class Repeat:
    """The node for an item that occurs `least` to `most` times; None for `most` means no limit."""

    item: Node
    least: int
    most: int | None
    states: int = field(init=False, repr=False, compare=False)
    empty: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        times = max(1, self.least, self.most or 0)
        states = self.item.states * times if self.item.states < _CALLED else self.item.states + times
        if self.item.empty and times > 1:
            # Each of these may be left out: every state leads to all later ones.
            states = (self.item.states * times) ** 2
        object.__setattr__(self, "states", bounded(states))
        object.__setattr__(self, "empty", self.item.empty or self.least == 0)


@dataclass(frozen=True)
class Rule:
    """The node that refers to a rule of the grammar by the rule's name."""

    name: str
    states = 1
    empty = False


@dataclass(frozen=True, eq=False)
class Machine:
    """The node for a deterministic automaton over characters; it begins in state 0, and each state can reach an end."""

    steps: tuple[tuple[tuple[int, int, int], ...], ...]
    """By state: the first and the last character of each range, and the next state."""
    ends: tuple[bool, ...]
    """By state, whether the text may end there."""
    states: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "states", bounded(sum(1 + len(ranges) // 4 for ranges in self.steps)))

    @property
    def empty(self) -> bool:
        return self.ends[0]


@dataclass(frozen=True)
class Edge:
    """The node for the start or the end of the text. Only nfa.py reads this node and Look, to make a Machine."""

    end: bool
    states = 1
    empty = True


@dataclass(frozen=True)
class Look:
    """The node for look-around: it matches the empty text if the following text begins with `item` or, with `behind`,
    if the preceding text ends with `item`; `negated` inverts this condition.
    """

    item: Node
    behind: bool
    negated: bool
    empty = True

    @property
    def states(self) -> int:
        return self.item.states


Node = Text | Chars | Special | Series | Choice | Repeat | Rule | Machine | Edge | Look


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
    """The characters outside of these ranges, without surrogates."""
    found, start = [], 0
    for first, last in united(ranges):
        if start < first:
            found.append((start, first - 1))
        start = last + 1
    if start <= _LAST:
        found.append((start, _LAST))
    return intersected(tuple(found), ANY_CHARACTER)


class Grammar:
    """Rules by name; the whole output must match the rule named `root`."""

    def __init__(self) -> None:
        self.rules: dict[str, Node] = {}
        self._states = 0
        self._numbers: dict[str, int] = {}
        """The last number given to each name."""

    def add(self, name: str, node: Node) -> Rule:
        """Add a rule; if the name is already used, a number is appended to it."""
        unique = name
        while unique in self.rules:
            self._numbers[name] = self._numbers.get(name, 1) + 1
            unique = f"{name}_{self._numbers[name]}"
        if len(self.rules) >= MOST_RULES:
            raise NodeError(f"it takes more than {MOST_RULES} rules", "ask for fewer alternatives or repetitions")
        self.set(Rule(unique), node)
        return Rule(unique)

    def reserve(self, name: str) -> Rule:
        """Add a rule whose content is `set` later, for rules that contain themselves."""
        return self.add(name, Text(""))

    def set(self, rule: Rule, node: Node) -> None:
        before = self.rules.get(rule.name)
        self._states = bounded(self._states + node.states - (before.states if before else 0))
        self.rules[rule.name] = node

    def include(self, other: Grammar, prefix: str) -> Rule:
        """Add all rules of another grammar under new names; returns its root."""
        for name, node in other.rules.items():
            self.add(prefix + name, _renamed(node, prefix))
        return Rule(f"{prefix}root")


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


def byte_runs(first: int, last: int) -> Iterator[list[tuple[int, int]]]:
    """The UTF-8 encodings of a range of characters, as runs: a run has the first and the last value of each byte."""
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
