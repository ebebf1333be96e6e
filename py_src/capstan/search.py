"""Search options, named and meant as in onnxruntime-genai's `search` section, and their form for the GPU.

`SearchOptions` is checked when it is made: an option that Capstan does not implement is accepted only at the value
where it changes nothing, so no option is ever accepted and ignored.
"""

from __future__ import annotations

import math
import numbers
import operator
import secrets
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from fractions import Fraction
from functools import lru_cache

from .errors import OptionError

__all__ = ["MAX_EOS_TOKENS", "SAMPLER_WORDS", "WORDS_VERSION", "SearchOptions", "temperature_scale"]

MAX_EOS_TOKENS = 16
"""How many end-of-sequence ids fit into the parameters of the GPU sampler."""

SAMPLER_WORDS = 28
"""Length of `SearchOptions.sampler_words()` in u32 words."""

WORDS_VERSION = 1
"""Layout version of the words; the GPU sampler refuses another one."""

_GREEDY, _SAMPLE = 0, 1

# log2(e), to 31 decimals.
_LOG2_E = Fraction(14426950408889634073599246810019, 10**31)

# Options of onnxruntime-genai that are accepted at one value only, where they change nothing: value, remedy.
_NEUTRAL: dict[str, tuple[object, str]] = {
    "num_beams": (1, "beam search is not implemented; leave it at 1"),
    "num_return_sequences": (1, "make one generator for each sequence"),
    "repetition_penalty": (1.0, "it is not implemented; leave it at 1.0"),
    "no_repeat_ngram_size": (0, "it is not implemented; leave it at 0"),
    "length_penalty": (1.0, "it belongs to beam search, which is not implemented; leave it at 1.0"),
    "diversity_penalty": (0.0, "it belongs to beam search, which is not implemented; leave it at 0.0"),
    "past_present_share_buffer": (True, "past and present are always one buffer here; set it to true"),
}


@dataclass(frozen=True)
class SearchOptions:
    """How the next token is chosen and when a sequence ends; lengths count prompt and new tokens together.

    - `max_length` (tokens, >= 1; 0 means `context_length`) and `min_length` (end-of-sequence ids cannot be chosen
      while the sequence is shorter).
    - `do_sample` false, or `top_k` 1, is greedy: the largest logit, the lowest id among equals.
    - `temperature` (> 0), then `top_k` (0 = off), then `top_p` (0 < p <= 1; 1 = off) over what `top_k` left.
    - `random_seed` (-1 = draw one; 0 to 2**64 - 1). `seed` is the number in use, also when it was drawn.
    - `batch_size` rows; `chunk_size` is the most prompt tokens of one prefill run, of which a device may take fewer
      (None: as many as it takes).
    - `early_stopping` concerns beam search only: with one beam either value means the same.

    Raises OptionError for a value of the wrong type or out of range.
    """

    max_length: int = 0
    min_length: int = 0
    do_sample: bool = False
    top_k: int = 50
    top_p: float = 1.0
    temperature: float = 1.0
    random_seed: int = -1
    batch_size: int = 1
    chunk_size: int | None = None
    num_beams: int = 1
    num_return_sequences: int = 1
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    length_penalty: float = 1.0
    diversity_penalty: float = 0.0
    early_stopping: bool = True
    past_present_share_buffer: bool = True
    eos_token_ids: tuple[int, ...] = ()
    pad_token_id: int = 0
    context_length: int | None = None
    seed: int = field(default=-1, repr=False)

    def __post_init__(self) -> None:
        for name in _INTEGERS:
            self._set(name, _integer(name, getattr(self, name), *_INTEGERS[name]))
        for name in ("chunk_size", "context_length"):
            if getattr(self, name) is not None:
                self._set(name, _integer(name, getattr(self, name), 1, 2**31 - 1))
        for name in ("do_sample", "early_stopping", "past_present_share_buffer"):
            if not isinstance(getattr(self, name), bool):
                raise OptionError(f"{name} is {getattr(self, name)!r}; it must be True or False")
        for name in ("temperature", "top_p", "repetition_penalty", "length_penalty", "diversity_penalty"):
            self._set(name, _real(name, getattr(self, name)))
        if self.temperature <= 0:
            raise OptionError(
                f"temperature is {self.temperature}; it must be greater than 0; for greedy search set do_sample=False"
            )
        if not 0 < self.top_p <= 1:
            raise OptionError(f"top_p is {self.top_p}; it must be greater than 0 and at most 1; 1 turns it off")
        for name, (neutral, remedy) in _NEUTRAL.items():
            if getattr(self, name) != neutral:
                raise OptionError(f"{name} is {getattr(self, name)!r}; only {neutral!r} is supported: {remedy}")
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
        if self.random_seed >= 0:
            self._set("seed", self.random_seed)
        elif self.seed < 0:
            self._set("seed", secrets.randbits(53))  # 53 bits: exact in a JSON reader that knows doubles only

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names that `replace` and a `search` section may give, sorted."""
        fixed = {"eos_token_ids", "pad_token_id", "context_length", "seed"}
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

        A `top_p` of 0 in the section means off, as it does in onnxruntime-genai. Raises OptionError.
        """
        options = dict(search)
        if not isinstance(options.get("top_p"), bool) and options.get("top_p") == 0:
            options["top_p"] = 1.0
        ids = (eos_token_ids,) if isinstance(eos_token_ids, int) else tuple(eos_token_ids)
        base = cls(eos_token_ids=ids, pad_token_id=pad_token_id, context_length=context_length)
        return base.replace(**options)

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

    @property
    def greedy(self) -> bool:
        """Whether the largest logit is taken, without a random number."""
        return not self.do_sample or self.top_k == 1

    @property
    def top_p_bits(self) -> int:
        """`top_p` as a fraction of 2**32, at least 1; 0 when it is off."""
        bits = max(1, round(Fraction(self.top_p) * 2**32))
        return 0 if bits >= 2**32 else bits

    def sampler_words(self) -> array[int]:
        """The parameters of the GPU sampler, `SAMPLER_WORDS` u32 words; `struct Params` in sampler.wgsl mirrors them.

        0 mode (0 greedy, 1 sample), 1 top_k (0 off), 2 top_p_bits (0 off), 3 and 4 temperature_scale (mantissa, shift
        as i32), 5 and 6 seed (low, high), 7 pad_token_id, 8 min_length, 9 number of end-of-sequence ids,
        10 WORDS_VERSION, 11 zero, 12 to 27 end-of-sequence ids.
        """
        mantissa, shift = temperature_scale(self.temperature)
        words = [
            _GREEDY if self.greedy else _SAMPLE,
            0 if self.greedy else self.top_k,
            0 if self.greedy else self.top_p_bits,
            mantissa,
            shift & 0xFFFFFFFF,
            self.seed & 0xFFFFFFFF,
            self.seed >> 32,
            self.pad_token_id,
            self.min_length,
            len(self.eos_token_ids),
            WORDS_VERSION,
            0,
            *self.eos_token_ids,
        ]
        return array("I", words + [0] * (SAMPLER_WORDS - len(words)))


_INTEGERS: dict[str, tuple[int, int]] = {
    "max_length": (0, 2**31 - 1),
    "min_length": (0, 2**31 - 1),
    "top_k": (0, 2**31 - 1),
    "random_seed": (-1, 2**64 - 1),
    "batch_size": (1, 65535),
    "num_beams": (1, 2**31 - 1),
    "num_return_sequences": (1, 2**31 - 1),
    "no_repeat_ngram_size": (0, 2**31 - 1),
    "pad_token_id": (0, 2**31 - 1),
    "seed": (-1, 2**64 - 1),
}


def _integer(name: str, value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise OptionError(f"{name} is {value!r}; it must be an integer from {low} to {high}")
    number = operator.index(value)
    if not low <= number <= high:
        raise OptionError(f"{name} is {number}; it must be from {low} to {high}")
    return number


def _real(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise OptionError(f"{name} is {value!r}; it must be a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise OptionError(f"{name} is {number}; it must be a finite number")
    return number


def _eos_token_ids(values: Iterable[int]) -> tuple[int, ...]:
    ids = tuple(_integer("eos_token_ids", value, 0, 2**31 - 1) for value in values)
    if len(ids) > MAX_EOS_TOKENS:
        raise OptionError(f"there are {len(ids)} eos_token_ids; at most {MAX_EOS_TOKENS} are supported")
    return ids


@lru_cache(maxsize=32)
def temperature_scale(temperature: float) -> tuple[int, int]:
    """log2(e) / temperature as (mantissa, shift), the form that `sampling.token_weight` multiplies by.

    mantissa, in [2**31, 2**32), times 2**(130 - shift) is the quotient, rounded to nearest.
    """
    scale = _LOG2_E / Fraction(temperature)
    exponent = scale.numerator.bit_length() - scale.denominator.bit_length() - 32
    while scale >= Fraction(2) ** (exponent + 32):
        exponent += 1
    mantissa = round(scale / Fraction(2) ** exponent)
    if mantissa == 2**32:
        mantissa, exponent = 2**31, exponent + 1
    return mantissa, 130 - exponent
