"""Edits the logits of a row between the model and the pick. Each module has one stage.

A module has the stage's search options with their limits (a dataclass, one of the bases of `SearchOptions`), and its
`Stage`: the condition for its activity, its definition in integers on the CPU, the same in WGSL, and its parameters.
The bases of `SearchOptions` are the only list of stages, in the order in which they edit a row. The command line also
takes its options from there. A module that only decides when a sequence ends has no `Stage`.
"""

from __future__ import annotations

from .guided import FORBIDDEN_KEY, STACK, GrammarTable, position_words
from .option import Option, integer, switch
from .program import Drafting, SamplerProgram
from .stage import NEGATIVE_INFINITY_KEY, Row, Stage, StageOptions
from .timestamps import TimestampTokens
from .weight import temperature_scale

__all__ = [
    "FORBIDDEN_KEY",
    "NEGATIVE_INFINITY_KEY",
    "STACK",
    "Drafting",
    "GrammarTable",
    "Option",
    "Row",
    "SamplerProgram",
    "Stage",
    "StageOptions",
    "TimestampTokens",
    "integer",
    "position_words",
    "switch",
    "temperature_scale",
]
