"""Defines logits processors, which are functions of the caller that edit logits before a pick, and checks the values
that they return.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import OptionError
from ..stages import integer

__all__ = ["SHORTLIST", "LogitsProcessor", "Processors", "ShortlistProcessor", "checked_edits", "checked_logits"]

LogitsProcessor = Callable[[list[int], "memoryview[float]"], Any]
"""Receives a row's sequence and its logits, float32 [vocab], writable. Edits them and returns None, or returns other
logits.
"""
ShortlistProcessor = Callable[[list[int], list[tuple[int, float]]], "Mapping[int, float] | None"]
"""Receives a row's sequence and its best tokens with their logits, largest first. Returns new logits of any tokens."""

SHORTLIST = 64
"""The default number of tokens in a shortlist."""


@dataclass(frozen=True)
class Processors:
    """The processor that edits logits before the stages; at most one of the two kinds."""

    logits: LogitsProcessor | None = None
    shortlist: ShortlistProcessor | None = None
    count: int = SHORTLIST
    """The number of tokens in the shortlist."""

    def check(self, vocab: int, run_ahead: int | None, num_beams: int) -> None:
        """Raise OptionError for a wrong combination, or a value out of range."""
        if self.logits is not None and self.shortlist is not None:
            raise OptionError("logits_processor and shortlist_processor were both given; give one of them")
        integer("shortlist", self.count, 1, vocab)
        if self.logits is None and self.shortlist is None:
            return
        if run_ahead not in (None, 1):
            raise OptionError(
                f"run_ahead is {run_ahead}, but the given processor runs before each pick; leave run_ahead "
                "out, or give 1"
            )
        if num_beams > 1:
            raise OptionError(
                f"num_beams is {num_beams} and a processor was given: it edits the logits of a single pick; "
                "leave one of them out"
            )

    @property
    def given(self) -> bool:
        """Whether there is a processor."""
        return self.logits is not None or self.shortlist is not None


def checked_edits(edits: Any, vocab: int) -> dict[int, float]:
    """A mapping of ids to numbers; OptionError for anything else."""
    if not isinstance(edits, Mapping):
        raise OptionError(
            f"the shortlist_processor returned {edits!r}; it must return a mapping of ids to logits, or None"
        )
    checked = {}
    for token, logit in edits.items():
        token = integer("a token of the shortlist_processor", token, 0, vocab - 1, floats=False)
        if isinstance(logit, bool) or not isinstance(logit, (int, float)) or logit != logit:
            raise OptionError(f"the shortlist_processor gave token {token} the logit {logit!r}; it must be a number")
        checked[token] = float(logit)
    return checked


def checked_logits(logits: Any, vocab: int) -> memoryview[float]:
    """A buffer of float32 [vocab], or a sequence of `vocab` numbers; OptionError for anything else."""
    try:
        view = memoryview(logits)
    except TypeError:
        view = memoryview(array("f", logits)) if isinstance(logits, Sequence) else memoryview(b"")
    if view.format != "f" or view.nbytes != 4 * vocab:
        raise OptionError(
            f"the logits_processor returned {view.nbytes} bytes of format {view.format!r}; it must return {vocab} "
            "float32, or None to keep the given ones"
        )
    return view.cast("B").cast("f")
