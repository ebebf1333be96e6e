"""Reads grammars in the EBNF of llama.cpp and xgrammar: `root ::= "a" [0-9]+ (b | c)?`.

`#` begins a comment; repetitions are `*`, `+`, `?`, `{2}`, `{2,}` and `{2,5}`. The rule `root` is the whole output.
"""

from __future__ import annotations

from .grammar import ANY_CHARACTER, Chars, Choice, Grammar, Node, NodeError, Rule, Series, Text
from .regex import counted
from .scanner import Scanner

__all__ = ["parse_ebnf"]

_NAME = r"[A-Za-z_][A-Za-z0-9_.-]*"
_RULE = rf"({_NAME})\s*::="
_COUNTS = r"\{\s*(\d+)\s*(,?)\s*(\d*)\s*\}"


def parse_ebnf(text: str) -> Grammar:
    """The grammar of a text. Raises GuidanceError with line and column."""
    return _Reader(text).read()


class _Reader:
    def __init__(self, text: str) -> None:
        self._scan = Scanner("ebnf", text, r"(?:\s|#[^\n]*)*")
        self._named: list[tuple[str, int]] = []
        """Rules that are used, with their places."""

    def read(self) -> Grammar:
        scan = self._scan
        try:
            return self._rules()
        except NodeError as error:
            scan.refuse(error.what, error.remedy)

    def _rules(self) -> Grammar:
        grammar = Grammar()
        scan = self._scan
        while not scan.ends():
            at = scan.at
            found = scan.expect(_RULE, "a rule, such as root ::= ...,")
            if ours(found[1]) in grammar.rules:
                scan.refuse(f"the rule {found[1]} is already defined", "give it another name", at)
            grammar.set(grammar.reserve(ours(found[1])), self._choice())
            if not scan.ends() and not scan.looks(_RULE):
                scan.refuse(f"{scan.text[scan.at]!r} is not expected here", "correct it")
        for name, at in self._named:
            if ours(name) not in grammar.rules:
                scan.refuse(f"there is no rule {name}", "add it", at)
        if ours("root") not in grammar.rules:
            scan.refuse("the rule root, which the output must fit, is missing", "add it")
        grammar.rules = {"root": Rule(ours("root")), **grammar.rules}
        return grammar

    def _choice(self) -> Node:
        branches = [self._series()]
        while self._scan.take(r"\|"):
            branches.append(self._series())
        return branches[0] if len(branches) == 1 else Choice(tuple(branches))

    def _series(self) -> Node:
        items: list[Node] = []
        while (item := self._item()) is not None:
            items.append(self._repeated(item))
        return items[0] if len(items) == 1 else Series(tuple(items)) if items else Text("")

    def _item(self) -> Node | None:
        scan = self._scan
        scan.skip()
        at = scan.at
        if scan.take(r"\("):
            if scan.take("="):
                scan.refuse("look-ahead is not supported", "leave it out", at)
            node = scan.deeper(self._choice, at)
            if not scan.take(r"\)"):
                scan.refuse("the group is not closed", "add a )", at)
            return node
        quote = scan.take("[\"']")
        if quote:
            return Text(scan.quoted(quote[0]))
        if scan.take(r"\["):
            return scan.character_set()
        if scan.take(r"\."):
            return Chars(ANY_CHARACTER)
        if scan.looks(_RULE):
            return None
        name = scan.take(_NAME)
        if name:
            self._named.append((name[0], at))
            return Rule(ours(name[0]))
        return None

    def _repeated(self, item: Node) -> Node:
        scan = self._scan
        while True:
            scan.skip()
            at = scan.at
            sign = scan.take(r"[*+?]")
            if sign:
                least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[sign[0]]
                item = scan.repeated(item, least, most, at)
                continue
            counts = scan.take(_COUNTS)
            if not counts:
                return item
            least = counted(counts[1])
            item = scan.repeated(item, least, (counted(counts[3]) if counts[3] else None) if counts[2] else least, at)


def ours(name: str) -> str:
    """A rule's name in the grammar that is compiled."""
    return "rule_" + name.replace("-", "_minus_").replace(".", "_dot_")
