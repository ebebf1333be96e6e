"""Reads onnxruntime-genai's options of speculation, which a generator or the section `speculative` of a model's
genai_config.json sets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ConfigError, OptionError
from ..fallback import fall_back
from .option import Option
from .speculation_options import MAX_DRAFTS, SPECULATION_OPTIONS, Speculation

__all__ = ["SPECULATIVE", "checked_speculative", "configured_speculative", "speculation_of"]

SPECULATIVE: dict[str, float | bool] = {
    "max_draft_tokens": 4.0,
    "ngram_size": 0.0,
    "ngram_chained_lookup": False,
    "min_adaptive_k": 0.0,
    "cooldown": False,
}
"""The native package's defaults."""
READ = {option.name: option.read for option in (*SPECULATION_OPTIONS, Option.integer("min_adaptive_k", 1, MAX_DRAFTS))}
"""The checks of number options; 0 turns each off except max_draft_tokens."""


def checked_speculative(name: str, value: Any) -> float | bool:
    """Check the value of an option of speculation. Raises OptionError for an unknown name, another type, or a value out
    of range.
    """
    if name not in SPECULATIVE:
        raise OptionError(f"{name!r} is not a speculative option; the options are {', '.join(SPECULATIVE)}")
    if isinstance(SPECULATIVE[name], bool):
        if not isinstance(value, bool):
            raise OptionError(f"{name} is {value!r}; it must be True or False")
        return value
    if value == 0 and name != "max_draft_tokens" and not isinstance(value, bool):
        return 0.0
    return float(READ[name](value))


def configured_speculative(section: Mapping[str, Any] | None, file: str) -> dict[str, float | bool]:
    """The options of speculation that a file sets, with the defaults of the others. Raises ConfigError for a wrong
    value, with its place in the file.
    """
    found = dict(SPECULATIVE)
    for name, value in (section or {}).items():
        try:
            found[name] = checked_speculative(name, value)
        except OptionError as error:
            raise ConfigError(f"{file}: speculative.{name}: {error}; correct the file") from error
    return found


def speculation_of(asked: Mapping[str, float | bool], by_model: bool) -> Speculation | None:
    """Convert these options to capstan's Speculation, with drafts of the model's draft model if it is `by_model`; None
    if speculation is off. Raises OptionError for options that do not fit together.
    """
    size, most = int(asked["ngram_size"]), int(asked["max_draft_tokens"])
    if not size and asked["ngram_chained_lookup"]:
        raise OptionError("ngram_chained_lookup is True and ngram_size is 0; set ngram_size from 2 to 16")
    if size and by_model:
        raise OptionError(
            f"ngram_size is {size}, and the model has a draft model in model.draft; set ngram_size to 0, or take the "
            "draft model out of the file"
        )
    if not size and not by_model:
        return None
    if asked["min_adaptive_k"] and asked["min_adaptive_k"] < most:
        fall_back(
            f"steps of min_adaptive_k ({asked['min_adaptive_k']:g}) drafts",
            "a step has a fixed number of positions",
            f"each step drafts up to max_draft_tokens ({most}), or nothing if that is slow",
        )
    if by_model:
        return Speculation(max_draft_tokens=most)
    return Speculation(size, most, bool(asked["ngram_chained_lookup"]))
