"""Checks whether a regular expression of a tokenizer.json may take exponential time on some text.

The libraries backtrack: if a repeated part can match one text in two ways, as in `(a+)+$`, the ways double with each
character, and nothing can interrupt them. So expressions are checked when a tokenizer is made. An expression's
positions (its characters and sets) and their successors are a graph. The expression is ambiguous if two different walks
along a loop, or from one loop to another, read the same text; this matters only if it can still fail after the loop.
"""

from __future__ import annotations

import re
import string
import unicodedata
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

from .python_spelling import PRIVATE, InnerSet, PythonSpelling, UnreadError

__all__ = ["UnreadError", "Walks", "danger", "walks_of"]

LONGEST = 10_000
MOST_POSITIONS = 1_000
MOST_VISITS = 100_000
MANY = 10
"""A repetition of at least this number counts as unlimited; a smaller one counts as its limits, up to two."""
_EACH_CATEGORY = "AaǅʰªÀàΩжあ漢한\u0301\u0903\u20dd٣7Ⅷ½‿_-—([)]«»!、+∑$€^`ˆ©🙂 \u00a0\u2028\u2029\u3000\t\r\n\u200b\0"
_POSIX: dict[str, Callable[[str], bool | None]] = {
    "alpha": str.isalpha,
    "alnum": str.isalnum,
    "digit": str.isdigit,
    "lower": str.islower,
    "upper": str.isupper,
    "space": str.isspace,
    "blank": " \t".__contains__,
    "cntrl": lambda character: character < " " or character == "\x7f",
    "graph": lambda character: "!" <= character <= "~",
    "print": lambda character: " " <= character <= "~",
    "ascii": lambda _: True,
    "xdigit": string.hexdigits.__contains__,
    "word": lambda character: character.isalnum() or character == "_",
}
"""Classes by name, for ASCII: `punct` differs between libraries, and so do all classes beyond ASCII."""
_FOREIGN = {"Han", "Hiragana", "Katakana", "Hangul", "Thai", "Lao", "Arabic", "Hebrew", "Cyrillic", "Greek"}
"""Scripts without a character of ASCII."""
_MEMBERS = sorted({*map(chr, range(128)), *_EACH_CATEGORY})
"""Characters of every general category, with which sets are compared; the characters in an expression are added."""


_Test = Callable[[str], bool | None]
"""Whether a character is in a set; None if unknown."""


@lru_cache(maxsize=256)
def danger(expression: str) -> str | None:
    """The reason why an expression may take exponential time; None if it does not."""
    try:
        if len(expression) > LONGEST:
            raise UnreadError(f"it has {len(expression)} characters; at most {LONGEST} are read")
        return walks_of(expression).danger()
    except (UnreadError, re.error, OverflowError, RecursionError) as error:
        return f"it cannot be checked ({error})"


@dataclass
class Part:
    """The first and last positions of a part of an expression, with the number of ways."""

    first: Counter[int] = field(default_factory=Counter)
    last: Counter[int] = field(default_factory=Counter)
    final: set[int] = field(default_factory=set)
    """The positions after which nothing can fail any more."""
    empty: int = 0
    """The number of ways in which it matches the empty text."""
    always: bool = False
    """Whether it always matches the empty text."""


class Walks:
    """The positions of an expression, and the successors of each. Raises UnreadError and re.error for an expression
    that cannot be read.
    """

    def __init__(self, expression: str) -> None:
        self.tests: list[_Test] = []
        """Whether each position matches a character."""
        self._matches: dict[int, frozenset[str]] = {}
        """The members that each position matches, computed on demand."""
        self.follow: list[Counter[int]] = []
        self._visits = 0
        self.looked_at: list[Part] = []
        """The contents of look-around."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            spelled = PythonSpelling(expression)
            parsed = parser.parse(spelled.text)
        self._meanings = spelled.meanings
        self._flags: int = parsed.state.flags
        within = [part for each in self._meanings if isinstance(each, InnerSet) for part in each.parts]
        self._members = frozenset({*_MEMBERS, *map(chr, chain(_named(parsed), *map(_named, within)))})
        self.least = int(parsed.getwidth()[0])
        """The smallest number of characters that it matches."""
        self.whole = self._series(list(parsed))

    # Parts of an expression.

    def _series(self, items: list[Any]) -> Part:
        whole = Part(empty=1, always=True)
        for kind, given in items:
            whole = self._joined(whole, self._item(kind, given))
        return whole

    def _joined(self, a: Part, b: Part) -> Part:
        self._link(a.last, b.first)
        return Part(
            a.first + _times(b.first, a.empty),
            b.last + _times(a.last, b.empty),
            b.final | (a.final if b.always else set()),
            min(2, a.empty * b.empty),
            a.always and b.always,
        )

    def _item(self, kind: Any, given: Any) -> Part:
        if kind in (op.LITERAL, op.NOT_LITERAL, op.ANY, op.IN):
            return self._position(kind, given)
        if kind is op.BRANCH:
            parts = [self._series(list(each)) for each in given[1]]
            whole = Part(empty=min(2, sum(part.empty for part in parts)), always=any(part.always for part in parts))
            for part in parts:
                whole.first += part.first
                whole.last += part.last
                whole.final |= part.final
            return whole
        if kind is op.SUBPATTERN:
            _, added, taken, items = given
            kept, self._flags = self._flags, (self._flags | added) & ~taken
            part = self._series(list(items))
            self._flags = kept
            return part
        if kind is op.ATOMIC_GROUP:
            return self._series(list(given))
        if kind in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
            return self._repeated(*given)
        if kind in (op.ASSERT, op.ASSERT_NOT):
            self.looked_at.append(self._series(list(given[1])))
            return Part(empty=1)
        if kind is op.AT:
            return Part(empty=1)
        raise UnreadError("it has a back reference")

    def _repeated(self, least: int, most: Any, item: Any) -> Part:
        def part() -> Part:
            return self._series(list(item))

        whole = Part(empty=1, always=True)
        if most is op.MAXREPEAT or most >= MANY:
            loop = part()
            self._link(loop.last, loop.first)
            if loop.empty and most is not op.MAXREPEAT:
                # Each of these may match the empty text.
                self._link(loop.last, loop.first)
            if least == 0:
                loop = Part(loop.first, loop.last, loop.final, 1, True)
            return loop
        for _ in range(min(least, 2)):
            whole = self._joined(whole, part())
        for _ in range(min(most - least, 2)):
            one = part()
            whole = self._joined(whole, Part(one.first, one.last, one.final, min(2, 1 + one.empty), True))
        return whole

    def _position(self, kind: Any, given: Any) -> Part:
        if len(self.tests) >= MOST_POSITIONS:
            raise UnreadError(f"it has more than {MOST_POSITIONS} characters and sets")
        position = len(self.tests)
        self.tests.append(self._holds(kind, given))
        self.follow.append(Counter())
        return Part(Counter([position]), Counter([position]), {position}, 0, False)

    def _holds(self, kind: Any, given: Any) -> _Test:
        if kind is op.ANY:
            return lambda character: True
        if kind in (op.LITERAL, op.NOT_LITERAL):
            return self._one(given, kind is op.LITERAL)
        negated = any(each is op.NEGATE for each, _ in given)
        tests = [self._member(each, value) for each, value in given if each is not op.NEGATE]
        return lambda character: _signed(_any(test(character) for test in tests), not negated)

    def _member(self, kind: Any, given: Any) -> _Test:
        if kind is op.RANGE:
            cases = self._cases if self._flags & re.IGNORECASE else lambda character: {character}
            return lambda character: any(given[0] <= ord(case) <= given[1] for case in cases(character))
        if kind is op.CATEGORY:
            return _CLASSES[given]
        return self._one(given, True)

    def _one(self, code: int, positive: bool) -> _Test:
        """A test for a character, or for the meaning of a private one; `positive` or negated."""
        if 0 <= code - PRIVATE < len(self._meanings):
            test = self._meant(self._meanings[code - PRIVATE])
            return lambda character: _signed(test(character), positive)
        same = self._cases(chr(code)) if self._flags & re.IGNORECASE else {chr(code)}
        return lambda character: (character in same) == positive

    def _meant(self, meaning: str | InnerSet) -> _Test:
        """The test for a property, a class or a set."""
        if isinstance(meaning, InnerSet):
            parts = [self._holds(*part[0]) for part in meaning.parts]
            # A character is in all parts if it is outside of none.
            return lambda character: _signed(_any(_signed(part(character), False) for part in parts), meaning.negated)
        if meaning.startswith("["):
            holds, positive = _POSIX.get(meaning.strip("[:^]")), "^" not in meaning
            return lambda character: _signed(holds(character) if holds and character.isascii() else None, positive)
        sign, name = meaning[0] == "p", meaning[1:]
        if re.fullmatch(r"[CLMNPSZ][a-z]?", name):
            return lambda character: unicodedata.category(character).startswith(name) == sign
        foreign = name.rpartition("=")[2] in _FOREIGN
        return lambda character: not sign if foreign and character.isascii() else None

    @staticmethod
    def _cases(character: str) -> set[str]:
        return {case for case in (character, character.lower(), character.upper()) if len(case) == 1}

    def _link(self, last: Counter[int], first: Counter[int]) -> None:
        for position, ways in last.items():
            self.follow[position] += _times(first, ways)

    # Walks that read the same text.

    def danger(self) -> str | None:
        """See the module's `danger`."""
        reached = [self.after(position) for position in range(len(self.follow))]
        loop = [{p for p in found if q in reached[p]} for q, found in enumerate(reached)]
        """By position, the positions in a loop with it."""
        for q, around in enumerate(loop):
            if around <= self.whole.final or min(around) < q:
                continue
            if any(self.follow[p][r] > 1 for p in around for r in around):
                return "a repeated part can match nothing, or the same, in two ways"
            pairs = self._reached((q, q), around, around) if len(around) > 1 else set()
            if any(a != b and (q, q) in self._reached((a, b), around, around) for a, b in pairs):
                return "a repeated part can match the same text in two ways"
        for p, around in enumerate(loop):
            for q in reached[p] if around else ():
                ends = loop[q] and q not in around and q not in self.whole.final
                if ends and (p, q, q) in self._reached((p, p, q), around, reached[p], loop[q]):
                    return "two repeated parts can match the same text"
        return None

    def after(self, position: int) -> set[int]:
        """The positions that may come after one, at any distance."""
        found: set[int] = set()
        waiting = [position]
        while waiting:
            more = self.follow[waiting.pop()].keys() - found
            found |= more
            waiting += more
        return found

    def _reached(self, begin: tuple[int, ...], *within: set[int]) -> set[tuple[int, ...]]:
        """The positions that walks side by side reach while they read the same text, each within its own set of
        positions.
        """
        found: set[tuple[int, ...]] = set()
        waiting = [begin]
        while waiting:
            for following in self._steps(waiting.pop(), within):
                self._visits += 1
                if self._visits > MOST_VISITS:
                    raise UnreadError(f"its check takes more than {MOST_VISITS} steps")
                if following not in found:
                    found.add(following)
                    waiting.append(following)
        return found

    def _steps(self, at: tuple[int, ...], within: tuple[set[int], ...]) -> Iterator[tuple[int, ...]]:
        ways: list[tuple[tuple[int, ...], frozenset[str]]] = [((), self._members)]
        for position, allowed in zip(at, within, strict=True):
            ways = [
                ((*before, after), common)
                for before, read in ways
                for after in self.follow[position].keys() & allowed
                if (common := read & self.matched(after))
            ]
        for following, _ in ways:
            yield following

    def matched(self, position: int) -> frozenset[str]:
        if position not in self._matches:
            test = self.tests[position]
            self._matches[position] = frozenset(each for each in self._members if test(each) is not False)
        return self._matches[position]


_CLASSES: dict[Any, Callable[[str], bool]] = {
    op.CATEGORY_DIGIT: str.isdecimal,
    op.CATEGORY_NOT_DIGIT: lambda character: not character.isdecimal(),
    op.CATEGORY_SPACE: str.isspace,
    op.CATEGORY_NOT_SPACE: lambda character: not character.isspace(),
    op.CATEGORY_WORD: lambda character: character.isalnum() or character == "_",
    op.CATEGORY_NOT_WORD: lambda character: not (character.isalnum() or character == "_"),
}


def _any(found: Iterable[bool | None]) -> bool | None:
    """Whether one is true; None if unknown."""
    values = set(found)
    return True if True in values else None if None in values else False


def _signed(value: bool | None, positive: bool) -> bool | None:
    return None if value is None else value == positive


def _named(parsed: Iterable[Any]) -> Iterator[int]:
    """The characters that an expression names, and the ends of its ranges."""
    for kind, given in parsed:
        if kind in (op.LITERAL, op.NOT_LITERAL):
            yield given
        elif kind is op.RANGE:
            yield from given
        elif kind is op.IN:
            yield from _named(given)
        elif kind is op.BRANCH:
            for each in given[1]:
                yield from _named(each)
        elif kind is op.SUBPATTERN:
            yield from _named(given[3])
        elif kind is op.ATOMIC_GROUP:
            yield from _named(given)
        elif kind in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
            yield from _named(given[2])
        elif kind in (op.ASSERT, op.ASSERT_NOT):
            yield from _named(given[1])


def _times(ways: Counter[int], times: int) -> Counter[int]:
    return Counter({position: min(2, times * count) for position, count in ways.items() if times})


@lru_cache(maxsize=256)
def walks_of(expression: str) -> Walks:
    """The walks of an expression, read once."""
    return Walks(expression)
