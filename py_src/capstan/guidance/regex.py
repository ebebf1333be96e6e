"""Reads regular expressions as a grammar, in the syntax that Rust's `regex` crate, Python and JavaScript share.

The whole output must match. `\\d` and `\\w` are ASCII's, `\\s` is Unicode's white space, `.` is any character except a
line feed (with `(?s)` any). Back references are refused, with their column. A schema's `pattern` is for any library: it
matches a text only if it matches in both Python and JavaScript, whose classes differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from ..errors import GuidanceError
from ..model_files.bounded_json import clipped
from .character_classes import CATEGORIES, OWN, PORTABLE, Classes, properties
from .grammar import (
    ANY_CHARACTER,
    MOST_DEPTH,
    Chars,
    Choice,
    Edge,
    Look,
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
from .nfa import ANYTHING, plain

__all__ = ["counted", "parse_regex", "parse_searched"]

LONGEST = 20_000
"""The most characters of an expression."""
MOST_REPEATS = 10_000
"""The largest count of a repetition, since each is a state."""

_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "a": "\a", "0": "\0"}
_NOT_POSSIBLE = {
    "G": "an anchor",
    **dict.fromkeys("123456789k", "a back reference"),
}
_UNFOLDED = 0x3000
"""Larger sets are assumed to have both cases of each letter."""


def parse_regex(pattern: str) -> Node:
    """The node for the whole expression. Raises GuidanceError with the column."""
    parser = _Parser(pattern, OWN)
    return parser.checked(lambda: plain(parser.whole(_choice)))


def parse_searched(pattern: str, possibly: bool = False) -> Node:
    """The node for texts in which an expression matches anywhere, as in JSON Schema's `pattern`: in all libraries or,
    with `possibly`, in at least one. plain() resolves its look-around. Raises GuidanceError with the column.
    """
    parser = _Parser(pattern, PORTABLE, possibly)
    return parser.checked(lambda: parser.whole(_found))


def _found(branches: list[Node]) -> Node:
    """Allow any text before and after each branch that is not anchored."""
    nodes: list[Node] = []
    for branch in branches:
        items = branch.items if isinstance(branch, Series) else (branch,)
        start, end = items[:1] == (Edge(False),), items[-1:] == (Edge(True),)
        within = items[int(start) : len(items) - int(end)]
        nodes.append(Series((*(() if start else (ANYTHING,)), *within, *(() if end else (ANYTHING,)))))
    return _choice(nodes)


class _Parser:
    def __init__(self, pattern: str, classes: Classes, possibly: bool = False) -> None:
        self._text = pattern
        self._classes = classes
        self._at = 0
        self._depth = 0
        self._ignore_case = False
        self._dot_all = False
        self._possibly = possibly
        """Whether classes have the characters that they have in one library instead of all; inverted within a negation.
        """

    def checked(self, read: Callable[[], Node]) -> Node:
        if len(self._text) > LONGEST:
            remedy = f"at most {LONGEST} are read: write rules, or an enum in a schema"
            self._refuse(f"it has {len(self._text)} characters", remedy, LONGEST)
        try:
            return read()
        except NodeError as error:
            self._refuse(error.what, error.remedy)

    def whole(self, joined: Callable[[list[Node]], Node]) -> Node:
        """Read the whole expression; `joined` makes one node of its branches."""
        branches = [self._branch()]
        while self._take("|"):
            branches.append(self._branch())
        if self._at < len(self._text):
            self._refuse("a group that is not open is closed", "write \\) for the character")
        return joined(branches)

    def _branch(self) -> Node:
        if self._text.startswith("(?", self._at):
            self._flags_at_start()
        return _sequence(self._items())

    def _flags_at_start(self) -> None:
        close = self._text.find(")", self._at)
        flags = self._text[self._at + 2 : close] if close > 0 else ""
        if flags and set(flags) <= set("isu"):
            self._ignore_case |= "i" in flags
            self._dot_all |= "s" in flags
            self._at = close + 1

    def _items(self) -> list[Node]:
        items: list[Node] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            items.append(self._repeated(self._atom()))
        return items

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
            return Chars(ANY_CHARACTER) if self._dot_all else Chars(self._class("."))
        if character == "^" or (character == "\\" and self._take("A")):
            return Edge(False)
        if character == "$" or (character == "\\" and (self._take("z") or self._take("Z"))):
            # In some libraries `$` also matches before a line feed at the end.
            line_feed = (Repeat(Text("\n"), 0, 1),) if self._possibly and self._classes.portable else ()
            return Series((*line_feed, Edge(True))) if line_feed else Edge(True)
        if character == "\\" and self._text[self._at : self._at + 1] in ("b", "B"):
            return self._word_boundary(self._next() == "b")
        if character == "\\":
            return self._folded(self._escape(start))
        if character in "*+?":
            self._refuse(f"{character!r} repeats nothing", f"write \\{character} for the character", start)
        if character == "{" and self._counts(start) is not None:
            self._refuse("a repetition of nothing", "write \\{ for the character", start)
        return self._folded(chars(character))

    def _in_parentheses(self, start: int) -> Node:
        kept = self._ignore_case, self._dot_all, self._possibly
        look = None
        if self._take("?"):
            look = next((sign for sign in ("=", "!", "<=", "<!") if self._take(sign)), None)
            if look is not None:
                self._possibly ^= look.endswith("!")
            elif self._take("P<") or self._take("<"):
                self._at = self._text.find(">", self._at) + 1 or len(self._text)
            else:
                self._group_flags(start)
        self._depth += 1
        if self._depth > MOST_DEPTH:
            self._refuse(f"{self._depth} groups within each other", f"use at most {MOST_DEPTH}", start)
        node = self._group()
        self._depth -= 1
        if not self._take(")"):
            self._refuse("the group is not closed", "add a )", start)
        self._ignore_case, self._dot_all, self._possibly = kept
        return node if look is None else Look(node, "<" in look, "!" in look)

    def _class(self, letter: str) -> Ranges:
        """The characters that a class has in all libraries; with `_possibly`, those that it has in at least one."""
        return (self._classes.possibly() if self._possibly else self._classes.surely)[letter]

    def _word_boundary(self, positive: bool) -> Node:
        word, other = Chars(self._classes.surely["w"]), Chars(complement(self._classes.possibly()["w"]))
        # A boundary depends on the characters before and after: a word character, another one, or none.
        before: dict[str, Node] = {"word": Look(word, True, False), "other": Look(other, True, False), "": Edge(False)}
        behind: dict[str, Node] = {"word": Look(word, False, False), "other": Look(other, False, False), "": Edge(True)}
        # Libraries disagree about an empty text.
        pairs = [(a, b) for a in before for b in behind if a or b]
        found = [(a, b) for a, b in pairs if ("word" in (a, b) and a != b) is positive]
        return Choice(tuple(Series((before[a], behind[b])) for a, b in found))

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
                self._refuse(f"(?{flag} is not supported", "use (?:…), (?i:…), (?s:…) or (?<name>…)", start)

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
            self._take("?")  # A lazy repetition matches the same texts.
            if self._take("+"):
                self._refuse("possessive repetition is not supported", "write it without the +")
            item = Repeat(item, least, most)
        return item

    def _counts(self, start: int) -> tuple[int, int | None] | None:
        """The counts after a {, which was read; None if it begins no repetition."""
        close = self._text.find("}", self._at)
        least, comma, most = self._text[self._at : close].partition(",")
        if close < 0 or not least.isdecimal() or not (most == "" or most.isdecimal()):
            return None
        self._at = close + 1
        low = counted(least)
        high = (counted(most) if most else None) if comma else low
        if max(low, high or 0) > MOST_REPEATS:
            self._refuse(f"{max(low, high or 0)} repetitions", f"use at most {MOST_REPEATS}", start)
        if high is not None and high < low:
            self._refuse(f"from {low} to {high} repetitions", "put the smaller number first", start)
        return low, high

    def _escape(self, start: int) -> Chars:
        if self._at >= len(self._text):
            self._refuse("a backslash at the end", "write \\\\ for the character", start)
        character = self._next()
        if character in "dws":
            return Chars(self._class(character))
        if character in "DWS":
            self._possibly ^= True
            found = complement(self._class(character.lower()))
            self._possibly ^= True
            return Chars(found)
        if character in _CONTROLS:
            return chars(_CONTROLS[character])
        if character in "xuU":
            return chars(self._by_number(character, start))
        if character in "pP":
            ranges = self._property(start)
            return Chars(ranges if character == "p" else complement(ranges))
        if character in _NOT_POSSIBLE:
            self._refuse(f"\\{character} is {_NOT_POSSIBLE[character]}", "it is not supported", start)
        if character.isascii() and character.isalnum():
            self._refuse(f"\\{character} is not known", f"write {character} for the character", start)
        return chars(character)

    def _property(self, start: int) -> Ranges:
        name = self._next() if self._at < len(self._text) else ""
        if name == "{":
            close = self._text.find("}", self._at)
            name = self._text[self._at : close] if close > 0 else "{"
            self._at = close + 1 or len(self._text)
        found = properties(name)
        if found is None:
            self._refuse(f"the property {clipped(name)}", f"use one of the categories {', '.join(CATEGORIES)}", start)
        return found

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
        self._possibly ^= negated
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
        self._possibly ^= negated
        ranges = self._folded(Chars(united(found))).ranges
        ranges = complement(ranges) if negated else Chars(ranges).without(complement(ANY_CHARACTER)).ranges
        if not ranges:
            self._refuse("a set of no characters", "no text matches it", start)
        return Chars(ranges)

    def _member(self, start: int) -> tuple[tuple[int, int], ...]:
        at = self._at
        character = self._next()
        portable = self._classes.portable
        if character == "[" and self._text[self._at : self._at + 1] in (":", "."):
            self._refuse("a named class inside a set", "write the ranges, such as a-z", at)
        if not portable and (character == "[" or self._text.startswith(("&&", "--", "~~"), at)):
            self._refuse("sets of sets are not supported", f"write \\{character} for the character", at)
        if character == "\\" and self._take("b"):
            if not portable:
                self._refuse("\\b in a set", "write \\x08 for a backspace", at)
            return chars("\b").ranges
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


def counted(digits: str) -> int:
    """The number of repetitions; limit + 1 if it has more digits than the limit."""
    return int(digits) if len(digits) < 9 else MOST_REPEATS + 1


def _sequence(items: list[Node]) -> Node:
    """Adjacent single characters become one text."""
    joined: list[Node] = []
    alone: list[str] = []
    for item in [*items, None]:
        if isinstance(item, Chars) and len(item.ranges) == 1 and item.ranges[0][0] == item.ranges[0][1]:
            alone.append(chr(item.ranges[0][0]))
            continue
        if alone:
            joined.append(Text("".join(alone)))
            alone = []
        if item is not None:
            joined.append(item)
    return joined[0] if len(joined) == 1 else Series(tuple(joined)) if joined else Text("")


def _choice(branches: list[Node]) -> Node:
    return branches[0] if len(branches) == 1 else Choice(tuple(branches))
