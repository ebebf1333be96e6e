"""Defines the options of speculation: how drafts of the next tokens are found, and how many."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import OptionError
from .option import Option, switch

__all__ = ["MAX_DRAFTS", "SPECULATION_OPTIONS", "Speculation"]

MAX_DRAFTS = 16
NGRAM_SIZE = 3
"""The default of `ngram_size` for a model without a draft model."""
SPECULATION_OPTIONS = (
    Option.integer(
        "ngram_size",
        2,
        MAX_DRAFTS,
        flag="speculate",
        help="draft the tokens that followed the last N tokens earlier, and verify them in one step: 2 to 16",
    ),
    Option.integer(
        "max_draft_tokens",
        1,
        MAX_DRAFTS,
        flag="draft-tokens",
        help="drafts of a step with --speculate or --draft-model: 1 to 16",
    ),
)
"""The options that are also flags of the command line."""


@dataclass(frozen=True)
class Speculation:
    """The options of drafting. Limits and names are onnxruntime-genai's; other values raise OptionError.

    The drafts are the tokens that followed the latest earlier occurrence of the last `ngram_size` tokens: at most
    `max_draft_tokens`. With `chained` they continue past the end of the sequence, as if the earlier drafts were part of
    it. Without an `ngram_size` the model's draft model makes the drafts; a model without one takes the last 3 tokens.
    With `always` steps are drafted even if they take longer than steps without drafts.
    """

    ngram_size: int | None = None
    max_draft_tokens: int = 4
    chained: bool = True
    always: bool = False

    def __post_init__(self) -> None:
        for option in SPECULATION_OPTIONS:
            value = getattr(self, option.name)
            if value is not None or option.name != "ngram_size":
                object.__setattr__(self, option.name, option.read(value))
        for name in ("chained", "always"):
            switch(name, getattr(self, name))

    @property
    def searched(self) -> int:
        """The number of last tokens that are searched in the earlier sequence."""
        return self.ngram_size or NGRAM_SIZE

    def require_one_sequence(self, rows: int, beams: int) -> None:
        """Raise OptionError for several rows or beams, which speculation excludes."""
        if beams > 1:
            raise OptionError(f"num_beams is {beams}; beams are not drafted: set num_beams=1, or leave speculation off")
        if rows > 1:
            raise OptionError(
                f"{rows} rows were requested; speculation is for one sequence: set batch_size and "
                "num_return_sequences to 1, or leave speculation off"
            )
