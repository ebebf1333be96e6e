"""Checks a request for guidance (the kind of grammar, and the grammar's text), and turns the grammar into rules."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from ..errors import GuidanceError, OptionError
from .automaton import Automaton, automaton_of
from .ebnf import parse_ebnf
from .grammar import Grammar, NodeError
from .json_schema import json_schema_grammar
from .lark import lark_grammar
from .regex import parse_regex
from .vocabulary import SpecialTokens

__all__ = ["KINDS", "Guidance"]

KINDS = ("json_schema", "regex", "lark_grammar", "ebnf")


@dataclass(frozen=True)
class Guidance:
    """A grammar that outputs must fit. Raises OptionError for an unknown kind, and GuidanceError, with the place, for
    an invalid grammar.
    """

    kind: str
    data: str
    enable_ff_tokens: bool = False
    """Whether text that must come next is appended without a model step for each of its tokens."""
    special: Callable[[], SpecialTokens] = field(default=SpecialTokens, repr=False, compare=False)
    """The special tokens that a grammar may name."""
    grammar: Grammar = field(init=False, repr=False, compare=False)
    """The grammar as rules."""

    def __post_init__(self) -> None:
        for name, value in (("type", self.kind), ("data", self.data)):
            if not isinstance(value, str):
                raise OptionError(f"guidance {name} is {value!r}; it must be a string")
        if not isinstance(self.enable_ff_tokens, bool):
            raise OptionError(f"enable_ff_tokens is {self.enable_ff_tokens!r}; it must be True or False")
        if not self.kind or not self.data:
            raise OptionError("Guidance type and data must be provided together; give both")
        if self.kind not in KINDS:
            raise OptionError(f"Unsupported guidance type: {self.kind} (only {', '.join(KINDS)} are supported)")
        half = re.search("[\ud800-\udfff]", self.data)
        if half:
            line, column = (
                self.data.count("\n", 0, half.start()) + 1,
                half.start() - self.data.rfind("\n", 0, half.start()),
            )
            raise GuidanceError(
                f"{self.kind}, line {line}, column {column}: {half[0]!r} is half of a surrogate pair, which "
                "UTF-8 cannot encode; write whole characters"
            )
        try:
            object.__setattr__(self, "grammar", self._grammar())
        except NodeError as error:
            raise self.refusal(error) from error
        except RecursionError:
            raise GuidanceError(f"{self.kind}: it is nested too deeply; simplify it") from None

    def automaton(self) -> Automaton:
        """A new automaton for each call. Raises GuidanceError."""
        try:
            return automaton_of(self.grammar)
        except NodeError as error:
            raise self.refusal(error) from error

    def refusal(self, error: NodeError) -> GuidanceError:
        return GuidanceError(f"{self.kind}: {error.what}; {error.remedy}")

    def _grammar(self) -> Grammar:
        match self.kind:
            case "json_schema":
                return json_schema_grammar(self.data)
            case "regex":
                grammar = Grammar()
                grammar.add("root", parse_regex(self.data))
                return grammar
            case "lark_grammar":
                return lark_grammar(self.data, self.special)
            case _:
                return parse_ebnf(self.data)
