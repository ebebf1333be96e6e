"""Defines the search options, with the names and meanings of onnxruntime-genai's `search` section.

`SearchOptions` is checked when it is made. One option has no effect, here and in onnxruntime-genai: diversity_penalty,
about which `warn_ignored` warns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

from ..errors import OptionError
from ..fallback import fall_back
from .bad_words import BadWords
from .guided import Guided
from .logit_bias import LogitBias
from .max_time import MaxTime
from .min_length import MinLength
from .min_p import MinP
from .no_repeat_ngram import NoRepeatNgram
from .option import Option, integer, real, switch, token_ids
from .program import Drafting, SamplerProgram, sampler_program
from .repetition_penalty import RepetitionPenalty
from .selection import Selection
from .stage import Stage, StageOptions
from .stop_strings import StopStrings
from .stop_token_ids import StopTokenIds
from .timestamps import Timestamps
from .token_penalties import TokenPenalties

__all__ = [
    "DRAWING",
    "MAX_EOS_TOKENS",
    "MAX_ROWS",
    "PICKING",
    "STAGES",
    "STAGE_OPTIONS",
    "STATED",
    "SearchOptions",
]

MAX_EOS_TOKENS = 1024
"""With the same number of stop ids they take 8 KiB of the sampler's parameters, of which every device binds 64 KiB."""

MAX_ROWS = 32
"""Most sequences of a batch, and most beams of a sequence, as in onnxruntime-genai."""


@dataclass(frozen=True)
class SearchOptions(
    Timestamps,
    MinLength,
    LogitBias,
    RepetitionPenalty,
    TokenPenalties,
    NoRepeatNgram,
    BadWords,
    Guided,
    Selection,
    MinP,
    StopTokenIds,
    StopStrings,
    MaxTime,
):
    """The choice of the next token and the end of a sequence; lengths include the prompt.

    The bases are the stages of a row of logits, in this order; each documents its options. Others:

    - `max_length` (tokens, >= 1; 0 means `context_length`).
    - `batch_size` prompts are continued together. `num_beams` (1: no beam search) are followed for each, and
      `num_return_sequences` are returned: the best beams, or sampled sequences.
    - A beam search scores a sequence of n tokens by the sum of its log-probabilities over n ** `length_penalty`; with
      `early_stopping` it ends when `num_beams` sequences have ended, else when no better one can follow.
    - `diversity_penalty` is for groups of beams, which neither Capstan nor onnxruntime-genai has: any value is
      accepted, without effect.
    - `chunk_size` is the most prompt tokens of one prefill run; a device may take fewer (None or 0: the device's
      limit).
    - `past_present_share_buffer` accepts either value: the device decides whether past and present are one buffer.

    Raises OptionError for a value of the wrong type or out of range.
    """

    max_length: int = 0
    batch_size: int = 1
    chunk_size: int | None = None
    num_beams: int = 1
    num_return_sequences: int = 1
    length_penalty: float = 1.0
    diversity_penalty: float = 0.0
    early_stopping: bool = True
    past_present_share_buffer: bool = True
    eos_token_ids: tuple[int, ...] = ()
    pad_token_id: int = 0
    context_length: int | None = None

    def __post_init__(self) -> None:
        for name in _INTEGERS:
            self._set(name, integer(name, getattr(self, name), *_INTEGERS[name], floats=name != "pad_token_id"))
        if self.context_length is not None:
            self._set("context_length", integer("context_length", self.context_length, 1, 2**31 - 1))
        if self.chunk_size is not None:
            self._set("chunk_size", integer("chunk_size", self.chunk_size, 0, 2**31 - 1) or None)
        for name in ("early_stopping", "past_present_share_buffer"):
            switch(name, getattr(self, name))
        for name in ("length_penalty", "diversity_penalty"):
            self._set(name, real(name, getattr(self, name)))
        for option in STAGE_OPTIONS:
            self._set(option.name, option.read(getattr(self, option.name)))
        for base in _STAGE_BASES:
            base.check(self)
        self._set("eos_token_ids", _eos_token_ids(self.eos_token_ids))
        if self.context_length is not None:
            if self.max_length == 0:
                self._set("max_length", self.context_length)
            if self.max_length > self.context_length:
                raise OptionError(
                    f"max_length ({self.max_length}) cannot be greater than the model's context_length "
                    f"({self.context_length}); lower it"
                )
        if self.max_length and self.min_length > self.max_length:
            raise OptionError(f"min_length ({self.min_length}) cannot be greater than max_length ({self.max_length})")

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names that `replace` and a `search` section may give, sorted."""
        fixed = {"eos_token_ids", "pad_token_id", "context_length", "guided", "grammar", "seed", "timestamps"}
        return tuple(sorted(f.name for f in fields(cls) if f.name not in fixed))

    @classmethod
    def from_config(
        cls,
        search: Mapping[str, object],
        *,
        eos_token_ids: int | Iterable[int] = (),
        pad_token_id: int = 0,
        context_length: int | None = None,
    ) -> SearchOptions:
        """Options of a `genai_config.json`: its `search` section, and ids and context length of its `model` section.

        Raises OptionError.
        """
        ids = (eos_token_ids,) if isinstance(eos_token_ids, int) else tuple(eos_token_ids)
        base = cls(eos_token_ids=ids, pad_token_id=pad_token_id, context_length=context_length)
        return base.replace(**search)

    def replace(self, **options: object) -> SearchOptions:
        """A copy with these options changed; a drawn seed is kept unless `random_seed` is given. Raises OptionError."""
        valid = self.names()
        for name in options:
            if name not in valid:
                raise OptionError(f"{name!r} is not a search option; the options are {', '.join(valid)}")
        values: dict[str, object] = {f.name: getattr(self, f.name) for f in fields(self)}
        if "random_seed" in options:
            values["seed"] = -1
        values.update(options)
        return SearchOptions(**values)  # type: ignore[arg-type]  # __post_init__ checks every type

    def picking(self) -> dict[str, bool | float]:
        """The options for picking a token, by name; `do_sample` is False if the search is greedy."""
        # A penalty is rounded to float32.
        return {"do_sample": not self.greedy, **{name: round(getattr(self, name), 6) for name in PICKING}}

    def warn_ignored(self) -> None:
        """Count a diversity_penalty as a fallback."""
        if self.diversity_penalty:
            reason = "neither Capstan nor onnxruntime-genai has groups of beams"
            fall_back(f"diversity_penalty {self.diversity_penalty:g}", reason, "the search ignores it")

    def check_vocabulary(self, vocab: int) -> None:
        """Raise OptionError for an id outside the vocabulary of `vocab` tokens."""
        for base in _STAGE_BASES:
            base.check_vocabulary(self, vocab)

    @property
    def end_token_ids(self) -> tuple[int, ...]:
        """All ids that end a sequence."""
        return (*self.eos_token_ids, *self.stop_token_ids)

    def stages(self) -> tuple[Stage, ...]:
        """The stages that these options make active, in order."""
        return tuple(stage for stage in STAGES if stage.active(self))

    def sampler_program(
        self, vocab: int, capacity: int, first_row: int = 0, drafting: Drafting | None = None
    ) -> SamplerProgram:
        """The sampler's program on the GPU for a vocabulary of `vocab` tokens and rows of `capacity` positions, which
        draw like the rows from number `first_row`; with `drafting` it finds drafts.
        """
        return sampler_program(STAGES, self, vocab, capacity, first_row, drafting or Drafting())


_INTEGERS: dict[str, tuple[int, int]] = {
    "max_length": (0, 2**31 - 1),
    "batch_size": (1, MAX_ROWS),
    "num_beams": (1, MAX_ROWS),
    "num_return_sequences": (1, MAX_ROWS),
    "pad_token_id": (0, 2**31 - 1),
}

_STAGE_BASES: tuple[type[StageOptions], ...] = tuple(
    base for base in SearchOptions.__bases__ if issubclass(base, StageOptions)
)

STAGES: tuple[Stage, ...] = tuple(base.stage for base in _STAGE_BASES if base.stage)
"""Every stage, in the order in which they edit a row."""

STAGE_OPTIONS: tuple[Option, ...] = tuple(option for base in _STAGE_BASES for option in base.options)
"""The options of all stages, with their limits."""

STATED: tuple[str, ...] = ("do_sample", *(option.name for option in STAGE_OPTIONS if option.stated))
"""The search options of generation_config.json."""

DRAWING: tuple[str, ...] = tuple(option.name for option in STAGE_OPTIONS if option.stated and option.drawing)
"""The search options of a model's files that only affect sampling, besides do_sample."""

PICKING: tuple[str, ...] = tuple(option.name for option in STAGE_OPTIONS if option.stated and option.page)
"""The search options that a page shows for a model, besides do_sample."""


def _eos_token_ids(values: Iterable[int]) -> tuple[int, ...]:
    ids = token_ids("eos_token_ids", values)
    if len(ids) > MAX_EOS_TOKENS:
        raise OptionError(f"there are {len(ids)} eos_token_ids; at most {MAX_EOS_TOKENS} are supported")
    return ids
