"""Logits stages: what a search does to a row of logits between the model and the pick, one module a stage.

A module has the stage's search options with their limits (a dataclass, one of the bases of `SearchOptions`), and its
`Stage`: when it is active, its definition in integers on the CPU, the same in WGSL, and its parameters. The bases of
`SearchOptions` are the only list of them: the order there is the order in which they edit a row. The command line takes
its options from there too. A module that only decides when a sequence ends has no `Stage`.
"""

from __future__ import annotations

from .bad_words import BadWords
from .guided import FORBIDDEN_KEY, STACK, GrammarTable, Guided, position_words
from .logit_bias import LogitBias
from .max_time import MaxTime
from .min_length import MinLength
from .min_p import MinP
from .no_repeat_ngram import NoRepeatNgram
from .option import Option, integer, real, switch, token_ids
from .program import Drafting, SamplerProgram, sampler_program
from .repetition_penalty import RepetitionPenalty
from .selection import Selection, temperature_scale
from .stage import NEGATIVE_INFINITY_KEY, Row, Stage, StageOptions
from .stop_strings import StopStrings
from .stop_token_ids import StopTokenIds
from .token_penalties import TokenPenalties

__all__ = [
    "FORBIDDEN_KEY",
    "NEGATIVE_INFINITY_KEY",
    "STACK",
    "BadWords",
    "GrammarTable",
    "Guided",
    "LogitBias",
    "MaxTime",
    "MinLength",
    "MinP",
    "NoRepeatNgram",
    "Option",
    "RepetitionPenalty",
    "Row",
    "Drafting",
    "SamplerProgram",
    "Selection",
    "Stage",
    "StageOptions",
    "StopStrings",
    "StopTokenIds",
    "TokenPenalties",
    "integer",
    "position_words",
    "real",
    "sampler_program",
    "switch",
    "temperature_scale",
    "token_ids",
]
