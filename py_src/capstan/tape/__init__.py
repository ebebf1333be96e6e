"""The recorded decode step as data, and the passes over it: no GPU is needed to import or test any of this.

recording.py   what the device was asked for during one captured run, as frozen dataclasses
passes.py      recording -> the operations to replay, each pass a pure function
key.py         what a tape is valid for
"""

from __future__ import annotations

from .key import TapeKey
from .passes import (
    TableGroup,
    captured_half,
    check_replayable,
    copies_lost_by_ort,
    direct_dispatches,
    reaching_definition,
    slice_for,
    without_clears,
)
from .recording import BindGroup, Clear, Command, Copy, Dispatch, DispatchIndirect, Op, Pipeline, Recording, Write

__all__ = [
    "BindGroup",
    "Clear",
    "Command",
    "Copy",
    "Dispatch",
    "DispatchIndirect",
    "Op",
    "Pipeline",
    "Recording",
    "TableGroup",
    "TapeKey",
    "Write",
    "captured_half",
    "check_replayable",
    "copies_lost_by_ort",
    "direct_dispatches",
    "reaching_definition",
    "slice_for",
    "without_clears",
]
