"""Reads a grammar's text from left to right. Its errors name the line and the column."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NoReturn

from ..errors import GuidanceError
from .grammar import MOST_DEPTH, Chars, Node, Repeat, chars
from .regex import MOST_REPEATS

__all__ = ["Scanner"]

_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "b": "\b", "0": "\0"}
_DIGITS = {"x": 2, "u": 4, "U": 8}


class Scanner:
    """`skip` matches the text between tokens: blanks and comments."""

    def __init__(self, kind: str, text: str, skip: str) -> None:
        self.kind, self.text = kind, text
        self._skip = re.compile(skip)
        self._depth = 0
        self.at = 0

    def skip(self) -> None:
        found = self._skip.match(self.text, self.at)
        self.at = found.end() if found else self.at

    def looks(self, pattern: str) -> re.Match[str] | None:
        """The match of the pattern if it comes next, after skipped text."""
        self.skip()
        return re.compile(pattern).match(self.text, self.at)

    def take(self, pattern: str) -> re.Match[str] | None:
        """Like `looks`, and moves past the match."""
        found = self.looks(pattern)
        if found:
            self.at = found.end()
        return found

    def deeper(self, read: Callable[[], Node], at: int) -> Node:
        """The content of a group that was opened at `at`."""
        self._depth += 1
        if self._depth > MOST_DEPTH:
            self.refuse(f"{self._depth} groups within each other", f"use at most {MOST_DEPTH}", at)
        node = read()
        self._depth -= 1
        return node

    def expect(self, pattern: str, what: str) -> re.Match[str]:
        found = self.take(pattern)
        if not found:
            self.refuse(f"{what} is expected here", "correct it")
        return found

    def ends(self) -> bool:
        self.skip()
        return self.at >= len(self.text)

    def quoted(self, quote: str) -> str:
        """Read the text up to the closing quote; the opening one was read before."""
        start = self.at - 1
        found = ""
        while not self.text.startswith(quote, self.at):
            if self.at >= len(self.text) or self.text[self.at] == "\n":
                self.refuse("the text is not closed", f"add a {quote}", start)
            found += self.character()
        self.at += 1
        return found

    def character(self) -> str:
        """One character of a text or a set, plain or escaped."""
        start = self.at
        self.at += 1
        if self.text[start] != "\\":
            return self.text[start]
        name = self.text[self.at : self.at + 1]
        self.at += 1
        if name in _DIGITS:
            digits = self.text[self.at : self.at + _DIGITS[name]]
            self.at += len(digits)
            try:
                code = int(digits, 16)
                if len(digits) < _DIGITS[name] or 0xD800 <= code <= 0xDFFF:
                    raise ValueError
                return chr(code)
            except (ValueError, OverflowError):
                self.refuse(f"\\{name} needs {_DIGITS[name]} digits of a character's number", "correct it", start)
        if name == "" or (name.isalnum() and name not in _ESCAPES):
            self.refuse(f"\\{name} is not known", "write \\\\ for a backslash", start)
        return _ESCAPES.get(name, name)

    def character_set(self) -> Chars:
        """Read the set up to its ]; the [ was read before."""
        start = self.at - 1
        negated = self.text.startswith("^", self.at)
        self.at += negated
        found = chars()
        while not self.text.startswith("]", self.at):
            if self.at >= len(self.text):
                self.refuse("the set is not closed", "add a ]", start)
            at = self.at
            low = high = self.character()
            if self.text.startswith("-", self.at) and not self.text.startswith("-]", self.at):
                self.at += 1
                if self.at >= len(self.text):
                    self.refuse("the set is not closed", "add a ]", start)
                high = self.character()
            if high < low:
                self.refuse("a range that ends before it begins", "put the lower character first", at)
            found = found.both(chars((low, high)).ranges)
        self.at += 1
        from_all = Chars(((0, 0x10FFFF),)).without(found.ranges if negated else found.complement().ranges)
        if not from_all.ranges:
            self.refuse("a set of no characters", "no text matches it", start)
        return from_all

    def repeated(self, item: Node, least: int, most: int | None, at: int) -> Node:
        """The repetition that was read at `at`. Refuses invalid counts."""
        if max(least, most or 0) > MOST_REPEATS:
            self.refuse(f"{max(least, most or 0)} repetitions", f"use at most {MOST_REPEATS}", at)
        if most is not None and most < least:
            self.refuse(f"from {least} to {most} repetitions", "put the smaller number first", at)
        return Repeat(item, least, most)

    def refuse(self, what: str, remedy: str, at: int | None = None) -> NoReturn:
        at = min(self.at if at is None else at, len(self.text))
        line = self.text.count("\n", 0, at) + 1
        column = at - (self.text.rfind("\n", 0, at) + 1) + 1
        raise GuidanceError(f"{self.kind}, line {line}, column {column}: {what}; {remedy}")
