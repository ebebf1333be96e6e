"""A grammar as EBNF for xgrammar (https://github.com/mlc-ai/xgrammar, docs/tutorials/ebnf_guided_generation).

xgrammar's own readers of schemas and regular expressions are not used: they let control characters and bare quotes into
strings.
"""

from __future__ import annotations

from collections.abc import Iterable

from .grammar import (
    Chars,
    Choice,
    Edge,
    Grammar,
    Look,
    Machine,
    Node,
    Ranges,
    Repeat,
    Rule,
    Series,
    Special,
    Text,
    byte_runs,
    complement,
    intersected,
)

__all__ = ["ebnf_text"]


def ebnf_text(grammar: Grammar) -> str:
    """The rules, one a line; each state of a machine is one."""
    return _Writer().grammar(grammar)


class _Writer:
    def __init__(self) -> None:
        self._machines: dict[int, str] = {}
        """The names of machines that have rules, by address."""
        self._lines: list[str] = []
        """Their rules."""

    def grammar(self, grammar: Grammar) -> str:
        rules = [f"{name} ::= {self._written(node)}\n" for name, node in grammar.rules.items()]
        return "".join(rules + self._lines)

    def _written(self, node: Node) -> str:
        match node:
            case Text(text):
                return '"' + "".join(_escaped(ord(character)) for character in text) + '"'
            case Chars(ranges):
                return _set(ranges)
            case Special():
                return " ".join(f"[{2 * _escaped(byte)}]" for byte in node.data)
            case Rule(name):
                return name
            case Series(items):
                return _joined(map(self._written, items), " ")
            case Choice(items):
                return _joined(map(self._written, items), " | ")
            case Repeat(item, least, most):
                counted = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((least, most))
                return f"({self._written(item)})" + (counted or f"{{{least},{'' if most is None else most}}}")
            case Machine():
                return f"{self._machine(node)}_0"
            case Edge() | Look():
                raise AssertionError("regex.py makes a Machine of these")

    def _machine(self, machine: Machine) -> str:
        name = self._machines.get(id(machine))
        if name is None:
            name = self._machines[id(machine)] = f"machine_{len(self._machines)}"
            for state, (ranges, ends) in enumerate(zip(machine.steps, machine.ends, strict=True)):
                sets: dict[int, list[tuple[int, int]]] = {}
                for first, last, target in ranges:
                    sets.setdefault(target, []).append((first, last))
                branches = [f"{_set(tuple(each))} {name}_{target}" for target, each in sets.items()]
                text = " | ".join([*branches, '""'] if ends else branches)
                self._lines.append(f"{name}_{state} ::= {text}\n")
        return name


def _joined(items: Iterable[str], by: str) -> str:
    written = by.join(items)
    return f"({written})" if written else '""'


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


def _range(first: int, last: int) -> str:
    return _escaped(first) if first == last else f"{_escaped(first)}-{_escaped(last)}"


def _escaped(code: int) -> str:
    """A character in a text or a set: letters, digits and blanks as they are, all others by number."""
    character = chr(code)
    if character == " " or (code < 128 and character.isalnum()):
        return character
    return f"\\u{code:04X}" if code < 0x10000 else f"\\U{code:08X}"
