"""Holds the search options of generators."""

from __future__ import annotations

import numbers
import struct
from typing import Any

from ..errors import OptionError
from ..generation.generator_params import GeneratorParams as CapstanParams
from ..stages.native_speculation import checked_speculative, speculation_of
from ..stages.search import SearchOptions
from .genai_model import Model

__all__ = ["GeneratorParams"]

NATIVE = (
    *("batch_size", "chunk_size", "diversity_penalty", "do_sample", "early_stopping", "length_penalty", "max_length"),
    *("min_length", "no_repeat_ngram_size", "num_beams", "num_return_sequences", "past_present_share_buffer"),
    *("random_seed", "repetition_penalty", "temperature", "top_k", "top_p"),
)
"""The native package's search options, whose types and defaults are those of SearchOptions."""
ABSENT: dict[str, float | bool] = {"past_present_share_buffer": False, "top_p": 0.0}
"""The native package's values of options that a file omits, if they differ from Capstan's; a top_p of 0 means off, like
1.
"""


class GeneratorParams:
    """The search options of a model's generators, initially those of its configuration.

    As in the native package, the type of a value is checked when it is set, its range when a generator is made.
    Capstan's further search options are also accepted.
    """

    def __init__(self, model: Model, /) -> None:
        self._model = model
        self._given: dict[str, Any] = {}
        search, configured = model.capstan.search, model.capstan.config.search
        self._defaults = {
            name: shown(configured.get(name, ABSENT.get(name, getattr(search, name)))) for name in NATIVE
        } | {"max_length": shown(search.max_length)}
        self._speculative = dict(model.capstan.speculative)
        self._guidance: tuple[str, str, bool] | None = None

    def get_search_options(self) -> dict[str, float | bool]:
        """The native package's options by name: switches as bool, all others as float."""
        return self._defaults | {name: shown(value) for name, value in self._given.items() if name in NATIVE}

    def set_search_options(self, **options: Any) -> None:
        """Change options. Raises OptionError for an unknown name or a value of another type, and then changes none."""
        checked = {}
        for name, value in options.items():
            checked[name] = checked_option(name, value)
        self._given |= checked

    def get_speculative_options(self) -> dict[str, float | bool]:
        """Options of speculation by name."""
        return dict(self._speculative)

    def set_speculative_options(self, **options: Any) -> None:
        """Change options of speculation; an `ngram_size` enables it. OptionError for an unknown name, a value of
        another type or out of range.
        """
        for name, value in options.items():
            self._speculative[name] = checked_speculative(name, value)

    def set_guidance(self, type: str, data: str, enable_ff_tokens: bool = False) -> None:
        """Constrain outputs by a grammar of type 'json_schema', 'regex' or 'lark_grammar', which is compiled when a
        generator is made.
        """
        self._guidance = (type, data, enable_ff_tokens)

    def of_capstan(self) -> CapstanParams:
        """Convert these options to capstan's GeneratorParams. Raises OptionError for a value out of range."""
        params = CapstanParams(self._model.capstan)
        for name in ("max_length", "batch_size"):
            if self._given.get(name) == 0:
                raise OptionError(f"{name} is 0; it must be at least 1")
        params.set_search_options(**self._given)
        if self._guidance is not None:
            params.set_guidance(*self._guidance)
        model = self._model.capstan
        chosen = speculation_of(self._speculative, model.has_draft_model)
        # Without such options, and without those in the file, the multi-token-prediction head drafts tokens.
        if chosen is not None or model.draft_model is None or model.speculative["ngram_size"]:
            params.set_speculation(chosen)
        return params


def shown(value: Any) -> float | bool:
    """Convert a value for get_search_options: numbers are rounded to float32."""
    if isinstance(value, bool):
        return value
    if value is None:
        return 0.0
    number = float(value)
    return number if number.is_integer() else float(struct.unpack("f", struct.pack("f", number))[0])


def checked_option(name: str, value: Any) -> Any:
    """Check the value of a search option, and convert it for Capstan. Raises OptionError for an unknown name or another
    type.
    """
    if name not in SearchOptions.names():
        raise OptionError(f"{name!r} is not a search option; the options are {', '.join(SearchOptions.names())}")
    if name not in NATIVE:
        return value
    usual = getattr(SearchOptions, name)
    if isinstance(usual, bool):
        if not isinstance(value, bool):
            raise OptionError(f"{name} is {value!r}; it must be True or False")
        return value
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise OptionError(f"{name} is {value!r}; it must be a number")
    number = float(value)
    if name == "chunk_size":
        return max(0, int(number))
    if isinstance(usual, int) and not number.is_integer():
        raise OptionError(f"{name} is {value!r}; it must be a whole number")
    return value
