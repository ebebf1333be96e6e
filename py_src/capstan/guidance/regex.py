"""Regular expressions as a grammar: the syntax that Rust's `regex` crate, Python and JavaScript share.

The whole output must match. `\\d` and `\\w` are ASCII's, `\\s` is Unicode's white space, `.` is anything but a line
feed (with `(?s)` anything). Anchors may stand at the ends, where they change nothing. Look-around,
back references and word boundaries are refused, with their column.
"""

from __future__ import annotations

import unicodedata
from functools import cache
from typing import NoReturn

from ..errors import GuidanceError
from ..model_files.json_text import clipped
from .grammar import (
    ANY_CHARACTER,
    MOST_DEPTH,
    Chars,
    Choice,
    Node,
    NodeError,
    Ranges,
    Repeat,
    Series,
    Text,
    chars,
    complement,
    united,
)

__all__ = ["Anchored", "counted", "parse_regex", "parse_searched"]

MOST_REPEATS = 10_000
"""A counted repetition is as many states."""

_DIGIT = chars(("0", "9"))
_WORD = chars(("0", "9"), ("A", "Z"), ("a", "z"), "_")
_SPACE = chars(
    *(("\t", "\r"), " ", "\x85", "\xa0", "\u1680", ("\u2000", "\u200a")),
    *("\u2028", "\u2029", "\u202f", "\u205f", "\u3000"),
)
_CLASSES = {"d": _DIGIT, "w": _WORD, "s": _SPACE}
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "a": "\a", "0": "\0"}
_NOT_POSSIBLE = {
    **dict.fromkeys("bB", "a word boundary"),
    **dict.fromkeys("AzZG", "an anchor"),
    **dict.fromkeys("123456789k", "a back reference"),
}
CATEGORIES = (
    *("L", "Lu", "Ll", "Lt", "Lm", "Lo", "M", "Mn", "Mc", "Me", "N", "Nd", "Nl", "No", "P", "Pc", "Pd", "Ps", "Pe"),
    *("Pi", "Pf", "Po", "S", "Sm", "Sc", "Sk", "So", "Z", "Zs", "Zl", "Zp", "Cc", "Cf"),
)
"""The names in \\p{...}, by the Unicode version of this Python."""
_UNFOLDED = 0x3000
"""Sets with more characters are taken to have both cases of each letter already."""


class Anchored:
    """A branch of an expression, and whether it is anchored at the start and at the end."""

    def __init__(self, node: Node, start: bool, end: bool) -> None:
        self.node, self.start, self.end = node, start, end


def parse_regex(pattern: str) -> Node:
    """The node for the whole expression. Raises GuidanceError with the column."""
    return _choice([branch.node for branch in _Parser(pattern).whole()])


def parse_searched(pattern: str) -> list[Anchored]:
    """The branches of an expression that may match anywhere in a text, as JSON Schema's `pattern`."""
    return _Parser(pattern).whole()


class _Parser:
    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self._depth = 0
        self._ignore_case = False
        self._dot_all = False

    def whole(self) -> list[Anchored]:
        try:
            return self._whole()
        except NodeError as error:
            self._refuse(error.what, error.remedy)

    def _whole(self) -> list[Anchored]:
        branches = [self._anchored()]
        while self._take("|"):
            branches.append(self._anchored())
        if self._at < len(self._text):
            self._refuse("a group that is not open is closed", "write \\) for the character")
        return branches

    def _anchored(self) -> Anchored:
        if self._text.startswith("(?", self._at):
            self._flags_at_start()
        start = False
        while self._take("^") or self._take("\\A"):
            start = True
        items = self._items()
        end = False
        while self._take("$") or self._take("\\z") or self._take("\\Z"):
            end = True
        if end and self._at < len(self._text) and self._text[self._at] not in "|":
            self._refuse("an anchor inside the expression never matches", "take it out, or write \\$")
        return Anchored(_sequence(items), start, end)

    def _flags_at_start(self) -> None:
        close = self._text.find(")", self._at)
        flags = self._text[self._at + 2 : close] if close > 0 else ""
        if flags and set(flags) <= set("isu"):
            self._ignore_case |= "i" in flags
            self._dot_all |= "s" in flags
            self._at = close + 1

    def _items(self) -> list[Node]:
        items: list[Node] = []
        while self._at < len(self._text) and not self._ends_here():
            items.append(self._repeated(self._atom()))
        return items

    def _ends_here(self) -> bool:
        return self._text[self._at] in "|)$" or self._text.startswith(("\\z", "\\Z"), self._at)

    def _group(self) -> Node:
        branches = [_sequence(self._items())]
        while self._take("|"):
            branches.append(_sequence(self._items()))
        return _choice(branches)

    def _atom(self) -> Node:
        start = self._at
        character = self._next()
        if character == "(":
            return self._in_parentheses(start)
        if character == "[":
            return self._folded(self._set(start))
        if character == ".":
            return Chars(ANY_CHARACTER) if self._dot_all else Chars(complement(((10, 10),)))
        if character == "\\":
            return self._folded(self._escape(start))
        if character in "*+?":
            self._refuse(f"{character!r} repeats nothing", f"write \\{character} for the character", start)
        if character == "^":
            self._refuse("an anchor inside the expression never matches", "take it out, or write \\^", start)
        if character == "{" and self._counts(start) is not None:
            self._refuse("a repetition of nothing", "write \\{ for the character", start)
        return self._folded(chars(character))

    def _in_parentheses(self, start: int) -> Node:
        kept = self._ignore_case, self._dot_all
        if self._take("?"):
            if self._take("P<") or (
                self._text.startswith("<", self._at) and self._text[self._at + 1 :][:1] not in "=!"
            ):
                self._at = self._text.find(">", self._at) + 1 or len(self._text)
            elif self._text[self._at :][:1] in ("=", "!", "<"):
                self._refuse("look-around is not supported", "write what is allowed instead", start)
            else:
                self._group_flags(start)
        self._depth += 1
        if self._depth > MOST_DEPTH:
            self._refuse(f"{self._depth} groups within each other", f"there may be {MOST_DEPTH}", start)
        node = self._group()
        self._depth -= 1
        if self._at < len(self._text) and self._text[self._at] in "$\\":
            self._refuse("an anchor inside the expression never matches", "take it out, or write \\$")
        if not self._take(")"):
            self._refuse("the group is not closed", "add a )", start)
        self._ignore_case, self._dot_all = kept
        return node

    def _group_flags(self, start: int) -> None:
        on = True
        while not self._take(":"):
            flag = self._next() if self._at < len(self._text) else ""
            if flag == "-":
                on = False
            elif flag == "i":
                self._ignore_case = on
            elif flag == "s":
                self._dot_all = on
            else:
                self._refuse(f"(?{flag} is not supported", "there are (?:…), (?i:…), (?s:…) and (?<name>…)", start)

    def _repeated(self, item: Node) -> Node:
        while self._at < len(self._text):
            start = self._at
            if self._text[start] in "*+?":
                least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[self._next()]
            elif self._text[start] == "{":
                self._at += 1
                counts = self._counts(start)
                if counts is None:
                    self._refuse("a counted repetition is not closed", "write {2}, {2,} or {2,5}, or \\{", start)
                least, most = counts
            else:
                break
            self._take("?")  # Lazy: which texts match is the same.
            if self._take("+"):
                self._refuse("possessive repetition is not supported", "write it without the +")
            item = Repeat(item, least, most)
        return item

    def _counts(self, start: int) -> tuple[int, int | None] | None:
        """The numbers behind a {, which was read; None if it begins no repetition."""
        close = self._text.find("}", self._at)
        least, comma, most = self._text[self._at : close].partition(",")
        if close < 0 or not least.isdecimal() or not (most == "" or most.isdecimal()):
            return None
        self._at = close + 1
        low = counted(least)
        high = (counted(most) if most else None) if comma else low
        if max(low, high or 0) > MOST_REPEATS:
            self._refuse(f"{max(low, high or 0)} repetitions", f"there may be {MOST_REPEATS}", start)
        if high is not None and high < low:
            self._refuse(f"from {low} to {high} repetitions", "put the smaller number first", start)
        return low, high

    def _escape(self, start: int) -> Chars:
        if self._at >= len(self._text):
            self._refuse("a backslash at the end", "write \\\\ for the character", start)
        character = self._next()
        if character.lower() in _CLASSES:
            found = _CLASSES[character.lower()]
            return found if character.islower() else Chars(complement(found.ranges))
        if character in _CONTROLS:
            return chars(_CONTROLS[character])
        if character in "xuU":
            return chars(self._by_number(character, start))
        if character in "pP":
            found = Chars(general_category(self._property(start)))
            return found if character == "p" else found.complement()
        if character in _NOT_POSSIBLE:
            self._refuse(f"\\{character} is {_NOT_POSSIBLE[character]}", "it is not supported", start)
        if character.isascii() and character.isalnum():
            self._refuse(f"\\{character} is not known", f"write {character} for the character", start)
        return chars(character)

    def _property(self, start: int) -> str:
        name = self._next() if self._at < len(self._text) else ""
        if name == "{":
            close = self._text.find("}", self._at)
            name = self._text[self._at : close] if close > 0 else "{"
            self._at = close + 1 or len(self._text)
        if name not in CATEGORIES:
            self._refuse(f"the property {clipped(name)}", f"there are the categories {', '.join(CATEGORIES)}", start)
        return name

    def _by_number(self, kind: str, start: int) -> str:
        if self._take("{"):
            close = self._text.find("}", self._at)
            digits = self._text[self._at : close] if close > 0 else ""
            self._at = close + 1 or len(self._text)
        else:
            count = {"x": 2, "u": 4, "U": 8}[kind]
            digits = self._text[self._at : self._at + count]
            self._at += count
            digits = digits if len(digits) == count else ""
        try:
            code = int(digits, 16)
            if 0xD800 <= code <= 0xDFFF:
                raise ValueError
            return chr(code)
        except (ValueError, OverflowError):
            return self._refuse(f"\\{kind} needs the number of a character", "write \\x41, \\u0041 or \\u{41}", start)

    def _set(self, start: int) -> Chars:
        negated = self._take("^")
        found: list[tuple[int, int]] = []
        first = True
        while not self._text.startswith("]", self._at) or first:
            first = False
            if self._at >= len(self._text):
                self._refuse("the set is not closed", "add a ]", start)
            low = self._member(start)
            if self._text.startswith("-", self._at) and not self._text.startswith("-]", self._at):
                at = self._at
                self._at += 1
                if self._at >= len(self._text):
                    self._refuse("the set is not closed", "add a ]", start)
                high = self._member(start)
                if len(low) != 1 or len(high) != 1 or low[0][0] != low[0][1] or high[0][0] != high[0][1]:
                    self._refuse("a range from or to a class", "put the - last, or write \\-", at)
                if high[0][0] < low[0][0]:
                    self._refuse("a range that ends before it begins", "put the lower character first", at)
                low = ((low[0][0], high[0][0]),)
            found.extend(low)
        self._at += 1
        ranges = self._folded(Chars(united(found))).ranges
        ranges = complement(ranges) if negated else Chars(ranges).without(complement(ANY_CHARACTER)).ranges
        if not ranges:
            self._refuse("a set of no characters", "no text matches it", start)
        return Chars(ranges)

    def _member(self, start: int) -> tuple[tuple[int, int], ...]:
        at = self._at
        character = self._next()
        if character == "[" and self._text[self._at :][:1] in (":", "."):
            self._refuse("a named class inside a set", "write the ranges, such as a-z", at)
        if character == "[" or self._text.startswith(("&&", "--", "~~"), at):
            self._refuse("sets of sets are not supported", f"write \\{character} for the character", at)
        if character == "\\" and self._text.startswith("b", self._at):
            self._refuse("\\b in a set", "write \\x08 for a backspace", at)
        return self._escape(at).ranges if character == "\\" else chars(character).ranges

    def _folded(self, found: Chars) -> Chars:
        """With `(?i)`, both cases of each letter."""
        if not self._ignore_case or sum(last - first + 1 for first, last in found.ranges) > _UNFOLDED:
            return found
        both = list(found.ranges)
        for first, last in found.ranges:
            for code in range(first, last + 1):
                for other in (chr(code).lower(), chr(code).upper()):
                    if len(other) == 1:
                        both.append((ord(other), ord(other)))
        return Chars(united(both))

    def _next(self) -> str:
        self._at += 1
        return self._text[self._at - 1]

    def _take(self, text: str) -> bool:
        found = self._text.startswith(text, self._at)
        if found:
            self._at += len(text)
        return found

    def _refuse(self, what: str, remedy: str, at: int | None = None) -> NoReturn:
        column = (self._at if at is None else at) + 1
        raise GuidanceError(f"regex {clipped(self._text)}, column {column}: {what}; {remedy}")


@cache
def general_category(name: str) -> Ranges:
    """The characters of a general category, such as Lu, or of all that begin with its letter."""
    found: list[tuple[int, int]] = []
    for code in range(0x110000):
        if unicodedata.category(chr(code)).startswith(name):
            if found and found[-1][1] == code - 1:
                found[-1] = (found[-1][0], code)
            else:
                found.append((code, code))
    return tuple(found)


def counted(digits: str) -> int:
    """The number of repetitions; one more than the limit if the digits are too many for any number below it."""
    return int(digits) if len(digits) < 9 else MOST_REPEATS + 1


def _sequence(items: list[Node]) -> Node:
    """Characters that stand alone become one text."""
    joined: list[Node] = []
    for item in items:
        single = isinstance(item, Chars) and len(item.ranges) == 1 and item.ranges[0][0] == item.ranges[0][1]
        if single:
            assert isinstance(item, Chars)
            text = chr(item.ranges[0][0])
            if joined and isinstance(joined[-1], Text):
                joined[-1] = Text(joined[-1].text + text)
            else:
                joined.append(Text(text))
        else:
            joined.append(item)
    return joined[0] if len(joined) == 1 else Series(tuple(joined)) if joined else Text("")


def _choice(branches: list[Node]) -> Node:
    return branches[0] if len(branches) == 1 else Choice(tuple(branches))
