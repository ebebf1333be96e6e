"""Reads grammars in Lark's notation, like llguidance. Rules are in lower case, terminals in upper case; the rule
`start` is the whole output.

Here a terminal is a rule like others, not a word that a lexer splits off first: texts are allowed if the grammar allows
them in any reading. `%ignore`d text may follow each terminal and each text of a rule. Also supported: `%json { schema
}`, `%regex { "substring_chunks": [...] }`, `%import common.NAME`; in rules, special tokens of the model as `<|name|>`
and by their ids as `<[5]>`, `<[5-7,9]>`. A special token that ends outputs must be last. Refused: lookaround,
templates, `%declare`, `&` and `~` of terminals.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from ..errors import GuidanceError
from ..model_files.bounded_json import clipped
from .grammar import Choice, Grammar, Node, NodeError, Repeat, Rule, Series, Special, Text, chars
from .json_schema import json_schema_grammar
from .regex import counted, parse_regex
from .scanner import Scanner
from .vocabulary import SpecialTokens

__all__ = ["lark_grammar"]

_RULE = r"[?!]*(_?[a-z][a-z0-9_]*)"
_TERMINAL = r"(_?[A-Z][A-Z0-9_]*)"
_HEAD = rf"(?:{_RULE}|{_TERMINAL})(\.-?\d+)?\s*:"
_BLANKS = r"(?:[ \t\r\f]|//[^\n]*|\\\n)*"
_LINES = r"(?:\s|//[^\n]*)*"
_IDS = r"\d{1,9}(?:-\d{1,9})?"
_SPECIAL = rf"<(?:\[({_IDS}(?:,{_IDS})*)\]|[^<>\s]+)>"
_NEXT_BRANCH = _LINES + r"\|"

COMMON = {
    "DIGIT": r"[0-9]",
    "HEXDIGIT": r"[a-fA-F0-9]",
    "INT": r"[0-9]+",
    "SIGNED_INT": r"[+-]?[0-9]+",
    "DECIMAL": r"[0-9]+\.[0-9]*|\.[0-9]+",
    "FLOAT": r"[0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?",
    "SIGNED_FLOAT": r"[+-]?([0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)",
    "NUMBER": r"[0-9]+|[0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?",
    "SIGNED_NUMBER": r"[+-]?([0-9]+|[0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)",
    "ESCAPED_STRING": r'"([^"\\\n]|\\[^\n])*"',
    "LCASE_LETTER": r"[a-z]",
    "UCASE_LETTER": r"[A-Z]",
    "LETTER": r"[A-Za-z]",
    "WORD": r"[A-Za-z]+",
    "CNAME": r"[A-Za-z_][A-Za-z0-9_]*",
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(\r?\n)+",
}
"""The terminals that `%import common.NAME` defines."""


def lark_grammar(text: str, special: Callable[[], SpecialTokens] = SpecialTokens) -> Grammar:
    """The grammar of a text, with the special tokens that it may name. Raises GuidanceError with line and column."""
    return _Reader(text, special).read()


class _Reader:
    def __init__(self, text: str, special: Callable[[], SpecialTokens]) -> None:
        self._scan = Scanner("lark_grammar", text, _BLANKS)
        self._special = special
        self._ends: dict[int, int] = {}
        """The first place of each special token that ends outputs."""
        self._grammar = Grammar()
        self._named: list[tuple[str, int]] = []
        """The names in use, with their places."""
        self._ignored: list[Node] = []
        self._ignore: Rule | None = None
        self._in_terminal = False

    def read(self) -> Grammar:
        try:
            return self._read()
        except NodeError as error:
            self._scan.refuse(error.what, error.remedy)

    def _read(self) -> Grammar:
        scan, grammar = self._scan, self._grammar
        root = grammar.reserve("root")
        if scan.looks(r"(?s).*%ignore"):
            self._ignore = grammar.reserve("ignored")
        self._lines()
        while not scan.ends():
            self._statement()
            if not scan.ends() and not scan.looks("\n"):
                scan.refuse(f"{scan.text[scan.at]!r} is not expected here", "begin a new line")
            self._lines()
        for name, at in self._named:
            if ours(name) not in grammar.rules:
                scan.refuse(f"there is no {name}", "add it", at)
        if ours("start") not in grammar.rules:
            scan.refuse("the rule start, which the output must fit, is missing", "add it")
        if self._ignore is not None:
            grammar.set(self._ignore, Repeat(Choice(tuple(self._ignored)), 0, None))
        grammar.set(root, Rule(ours("start")))
        if self._ends:
            self._require_last()
            for name, node in [*grammar.rules.items()]:
                grammar.set(Rule(name), self._without_ends(node))
        return grammar

    def _lines(self) -> None:
        self._scan.take(_LINES)

    def _statement(self) -> None:
        scan = self._scan
        at = scan.at
        directive = scan.take(r"%([a-z_]+)")
        if directive:
            self._directive(directive[1], at)
            return
        found = scan.expect(_HEAD, "a rule, such as start: ...,")
        name = found[1] or found[2]
        if ours(name) in self._grammar.rules:
            scan.refuse(f"{name} is already defined", "give it another name", at)
        self._in_terminal = found[2] is not None
        rule = self._grammar.reserve(ours(name))
        self._grammar.set(rule, self._choice())

    def _directive(self, name: str, at: int) -> None:
        scan = self._scan
        if name == "ignore":
            self._in_terminal = True
            self._ignored.append(self._choice())
        elif name == "import":
            found = scan.take(r"common\.([A-Z_]+)(?:\s*->\s*([A-Z_]+))?")
            if not found or found[1] not in COMMON:
                scan.refuse("only common's terminals can be imported", f"there are {', '.join(COMMON)}", at)
            self._grammar.add(ours(found[2] or found[1]), parse_regex(COMMON[found[1]]))
        elif name != "llguidance":
            scan.refuse(f"%{name} is not supported", "leave it out", at)
        elif not scan.take(r"\{\s*\}"):
            scan.refuse("%llguidance has options, none of which is supported", "write %llguidance {}", at)

    def _choice(self) -> Node:
        branches = [self._series()]
        while self._scan.take(_NEXT_BRANCH):
            branches.append(self._series())
        return branches[0] if len(branches) == 1 else Choice(tuple(branches))

    def _series(self) -> Node:
        items: list[Node] = []
        while (item := self._item()) is not None:
            items.append(self._repeated(item))
        self._scan.take(r"->\s*[a-z_][a-z0-9_]*")
        return items[0] if len(items) == 1 else Series(tuple(items)) if items else Text("")

    def _item(self) -> Node | None:
        scan = self._scan
        scan.skip()
        at = scan.at
        for opening, closing in (("(", ")"), ("[", "]")):
            if scan.take("\\" + opening):
                self._lines()
                node = scan.deeper(self._choice, at)
                self._lines()
                if not scan.take("\\" + closing):
                    scan.refuse("the group is not closed", f"add a {closing}", at)
                return node if opening == "(" else Repeat(node, 0, 1)
        if scan.take('"'):
            return self._spaced(self._text(at))
        if scan.take("/"):
            return self._spaced(self._regex(at))
        if scan.take("%json"):
            return self._spaced(self._json())
        if scan.take("%regex"):
            return self._spaced(self._substring(at))
        special = scan.take(_SPECIAL)
        if special:
            return self._special_tokens(special, at)
        if scan.looks("[~&%]"):
            scan.refuse(f"{scan.text[at]!r} is not supported here", "write the texts that are allowed", at)
        found = scan.take(rf"{_RULE}|{_TERMINAL}")
        if not found:
            return None
        if (
            scan.looks(r"[{(]")
            and scan.text[scan.at - 1] != " "
            and scan.text[scan.at] == "{"
            and not scan.looks(r"\{\d")
        ):
            scan.refuse("templates are not supported", "write a rule for each use", at)
        name = found[1] or found[2]
        self._named.append((name, at))
        return self._spaced(Rule(ours(name))) if found[2] else Rule(ours(name))

    def _special_tokens(self, named: re.Match[str], at: int) -> Node:
        """One special token by its text, or several by their ids."""
        scan, known = self._scan, self._special()
        if self._in_terminal:
            scan.refuse(f"{named[0]} in a terminal", "name special tokens in rules", at)
        found: list[int] = []
        for part in (named[1] or "").split(",") if named[1] else ():
            first, _, last = part.partition("-")
            ids = range(int(first), int(last or first) + 1)
            among = [token for token in known.ids.values() if token in ids]
            if not ids or len(among) < len(ids):
                scan.refuse(f"{part} has tokens that are not special", "write text as text", at)
            found += among
        if not named[1] and named[0] not in known.ids:
            there = ", ".join(sorted(known.ids)) or "none"
            scan.refuse(
                f"there is no special token {clipped(named[0])}", f"the special tokens are {clipped(there)}", at
            )
        found = found or [known.ids[named[0]]]
        for token in found:
            if token in known.ends:
                self._ends.setdefault(token, at)
        nodes = [Special(token) if token in self._ends else self._spaced(Special(token)) for token in found]
        return nodes[0] if len(nodes) == 1 else Choice(tuple(nodes))

    def _require_last(self) -> None:
        """Refuse a special token that ends outputs and is not last."""
        waiting: list[tuple[Node, bool]] = [(Rule("root"), True)]
        seen: set[tuple[str, bool]] = set()
        while waiting:
            node, last = waiting.pop()
            match node:
                case Special(token) if token in self._ends and not last:
                    remedy = "put it last"
                    self._scan.refuse(
                        "a special token that ends outputs is followed by more", remedy, self._ends[token]
                    )
                case Series(items):
                    waiting += [(item, last and number == len(items)) for number, item in enumerate(items, 1)]
                case Choice(items):
                    waiting += [(item, last) for item in items]
                case Repeat(item, _, most):
                    waiting.append((item, last and most == 1))
                case Rule(name) if (name, last) not in seen:
                    seen.add((name, last))
                    waiting.append((self._grammar.rules[name], last))

    def _without_ends(self, node: Node) -> Node:
        """The node without its last special token if that ends the output: the token is not part of the text."""
        match node:
            case Special(token):
                return Text("") if token in self._ends else node
            case Series(items):
                return Series(tuple(map(self._without_ends, items)))
            case Choice(items):
                return Choice(tuple(map(self._without_ends, items)))
            case Repeat(item, least, most):
                return Repeat(self._without_ends(item), least, most)
            case _:
                return node

    def _spaced(self, node: Node) -> Node:
        """The node followed by ignored text, in a rule."""
        return node if self._in_terminal or self._ignore is None else Series((node, self._ignore))

    def _text(self, at: int) -> Node:
        scan = self._scan
        text = scan.quoted('"')
        if scan.text.startswith("i", scan.at):
            scan.at += 1
            return Series(tuple(chars(*{character.lower(), character.upper()}) for character in text))
        if scan.take(r"\.\."):
            scan.expect('"', "the last character of the range")
            last = scan.quoted('"')
            if len(text) != 1 or len(last) != 1 or last < text:
                scan.refuse("a range is from one character to a later one", 'write "a".."z"', at)
            return chars((text, last))
        return Text(text)

    def _regex(self, at: int) -> Node:
        scan = self._scan
        start = scan.at
        while not scan.text.startswith("/", scan.at):
            if scan.at >= len(scan.text) or scan.text[scan.at] == "\n":
                scan.refuse("the expression is not closed", "add a /", at)
            scan.at += 2 if scan.text[scan.at] == "\\" else 1
        pattern = scan.text[start : scan.at].replace("\\/", "/")
        scan.at += 1
        flags = ""
        while scan.text[scan.at : scan.at + 1] in tuple("imslux"):
            flags += scan.text[scan.at]
            scan.at += 1
        if set(flags) - set("isu"):
            scan.refuse(f"the flags {flags}", "use i, s and u", at)
        try:
            return parse_regex(f"(?{flags})" * bool(flags) + pattern)
        except GuidanceError as error:
            scan.refuse(str(error), "or write it as rules", at)

    def _substring(self, at: int) -> Node:
        """A run of adjacent chunks of a `substring_chunks` list."""
        given, _ = self._value()
        if not isinstance(given, dict) or len(given) != 1 or not given.keys() & {"substring_chunks", "substring_chars"}:
            remedy = 'write {"substring_chunks": ["a", "b"]} or {"substring_chars": "ab"}'
            self._scan.refuse(f"%regex {clipped(given)} is not supported", remedy, at)
        ((name, value),) = given.items()
        chunks = list(value) if name == "substring_chars" and isinstance(value, str) else value
        if not isinstance(chunks, list) or not all(isinstance(chunk, str) for chunk in chunks):
            self._scan.refuse(f"{name} is {clipped(value)}", "write a text, or a list of texts", at)
        rest: Node = Text("")
        starts: list[Node] = [rest]
        for chunk in reversed(chunks):
            rest = self._grammar.add("substring", Choice((Text(""), Series((Text(chunk), rest)))))
            starts.append(rest)
        return Choice(tuple(starts))

    def _json(self) -> Node:
        scan = self._scan
        schema, at = self._value()
        try:
            found = json_schema_grammar(json.dumps(schema))
        except GuidanceError as error:
            scan.refuse(str(error), "or write it as rules", at)
        return self._grammar.include(found, f"json_{at}_")

    def _value(self) -> tuple[Any, int]:
        """The JSON value that comes next, and its place."""
        scan = self._scan
        scan.skip()
        at = scan.at
        try:
            found, end = json.JSONDecoder().raw_decode(scan.text, at)
        except json.JSONDecodeError as error:
            scan.refuse(f"it is not JSON ({error.msg})", "correct it", error.pos)
        except ValueError:
            scan.refuse("an integer of thousands of digits", "write a smaller one", at)
        scan.at = end
        return found, at

    def _repeated(self, item: Node) -> Node:
        scan = self._scan
        while True:
            scan.skip()
            at = scan.at
            sign = scan.take(r"[*+?]")
            counts = None if sign else scan.take(r"\{(\d+)(,?)(\d*)\}|~\s*(\d+)(?:(\.\.)(\d+))?")
            if sign:
                least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[sign[0]]
            elif counts:
                least = counted(counts[1] or counts[4])
                more, last = counts[2] or counts[5], counts[3] or counts[6]
                most = (counted(last) if last else None) if more else least
            else:
                return item
            item = scan.repeated(item, least, most, at)


def ours(name: str) -> str:
    """A rule's name in the grammar that is compiled."""
    return f"rule_{name}"
