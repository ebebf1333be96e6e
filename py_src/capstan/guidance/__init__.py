"""Constrained decoding: outputs that a JSON schema, a regular expression or a grammar allows, and no others."""

from __future__ import annotations

from .constraint import Constraint, Encoder
from .guidance import KINDS, Guidance
from .matcher import Grammars, Matcher
from .vocabulary import vocabulary

__all__ = ["KINDS", "Constraint", "Encoder", "Grammars", "Guidance", "Matcher", "vocabulary"]
