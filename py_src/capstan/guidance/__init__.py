"""Constrains decoding to outputs that a JSON schema, a regular expression or a grammar allows."""

from __future__ import annotations

from .automaton import Automaton, NoTableError, Position, automaton_of
from .constraint import Constraint, Encoder
from .guidance_request import KINDS, Guidance
from .masks import Masks, TokenWalk, TokenWalks
from .model_vocabulary import ModelVocabulary
from .vocabulary import SpecialTokens, TokenBytes, vocabulary

__all__ = [
    "KINDS",
    "Automaton",
    "Constraint",
    "Encoder",
    "Guidance",
    "Masks",
    "ModelVocabulary",
    "NoTableError",
    "Position",
    "SpecialTokens",
    "TokenBytes",
    "TokenWalk",
    "TokenWalks",
    "automaton_of",
    "vocabulary",
]
