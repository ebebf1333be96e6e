"""Constrained decoding: outputs that a JSON schema, a regular expression or a grammar allows, and no others."""

from __future__ import annotations

from .automaton import Automaton, NoAutomatonError, Position, automaton_of
from .constraint import Constraint, Encoder
from .guidance import KINDS, Guidance
from .matcher import Grammars, Matcher
from .vocabulary import SpecialTokens, TokenBytes, special_tokens, vocabulary

__all__ = [
    "KINDS",
    "Automaton",
    "Constraint",
    "Encoder",
    "Grammars",
    "Guidance",
    "Matcher",
    "NoAutomatonError",
    "Position",
    "SpecialTokens",
    "TokenBytes",
    "automaton_of",
    "special_tokens",
    "vocabulary",
]
