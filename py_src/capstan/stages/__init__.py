"""Logits stages: what a search does to a row of logits between the model and the pick, one module a stage.

A module has the stage's search options with their limits (a dataclass, one of the bases of `SearchOptions`), and its
`Stage`: when it is active, its definition in integers on the CPU, the same in WGSL, and its parameters. The bases of
`SearchOptions` are the only list of them: the order there is the order in which they edit a row.
"""

from __future__ import annotations

from .min_length import MinLength
from .min_p import MinP
from .program import SamplerProgram, sampler_program
from .repetition_penalty import RepetitionPenalty
from .selection import Selection, temperature_scale
from .stage import NEGATIVE_INFINITY_KEY, Row, Stage, StageOptions, integer, real, switch

__all__ = [
    "NEGATIVE_INFINITY_KEY",
    "MinLength",
    "MinP",
    "RepetitionPenalty",
    "Row",
    "SamplerProgram",
    "Selection",
    "Stage",
    "StageOptions",
    "integer",
    "real",
    "sampler_program",
    "switch",
    "temperature_scale",
]
