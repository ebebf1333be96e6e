"""What a stage is, and the checks that options of every stage share."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ..errors import OptionError

__all__ = ["NEGATIVE_INFINITY_KEY", "Row", "Stage", "StageOptions", "integer", "real", "switch"]


NEGATIVE_INFINITY_KEY = 0x007FFFFF


@dataclass(frozen=True)
class Row:
    """What a stage may know of a row besides its logits."""

    length: int
    """Tokens of the sequence so far."""
    tokens: Sequence[int] = ()
    """The sequence, prompt and generated; may be left out if no active stage has `counts`."""


@dataclass(frozen=True)
class Stage:
    """A stage of the search. Functions take the `SearchOptions`; a WGSL function is named after the stage.

    Keys and weights are those of capstan.sampling, which also says where they are changed.
    """

    name: str
    active: Callable[[Any], bool]
    """Whether these options make it change anything. A stage that does not is left out of the kernels."""
    words: Mapping[str, Callable[[Any], int]] = field(default_factory=dict)
    """Its parameters, u32: fields of `params` in WGSL."""
    edit: Callable[[list[int], Any, Row], None] | None = None
    """Change the keys of a row, [vocabulary], in place."""
    due: Callable[[Any, Row], bool] = lambda _options, _row: True
    """Whether `edit` changes this row; the reference sampler does without keys where it may."""
    edit_wgsl: str = ""
    """`fn edit_NAME(row: u32, token: u32, key: u32) -> u32`: the same for one token. It may read `params`,
    `state[row * STATE_STRIDE]` (the length) and, with `counts`, `token_count(row, token)`."""
    weigh: Callable[[Sequence[int], Any], list[int]] | None = None
    """The weights of the tokens that top_k and top_p have left, from their weights; the largest, 2**30, must stay."""
    weigh_wgsl: str = ""
    """`fn weigh_NAME(weight: u32) -> u32`: the same."""
    counts: bool = False
    """Whether it asks how often a token is in the sequence. The counts are on the GPU: u32 [rows, vocabulary], set
    from the sequence whenever it was changed from outside, increased by each pick, so that they follow a rewind."""


class StageOptions:
    """Options of a stage: base of a frozen dataclass with their names, defaults and docs."""

    stage: ClassVar[Stage | None] = None

    def check(self) -> None:
        """Bring the options to their types; OptionError for a wrong type or a value out of range."""

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


def integer(name: str, value: object, low: int, high: int, *, floats: bool = True) -> int:
    """The integer, if it is one and within the limits; with `floats` 5.0 is one. OptionError otherwise."""
    if floats and isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral) and value == value // 1:
        value = int(float(value))
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise OptionError(f"{name} is {value!r}; it must be an integer from {low} to {high}")
    number = operator.index(value)
    if not low <= number <= high:
        raise OptionError(f"{name} is {number}; it must be from {low} to {high}")
    return number


def real(name: str, value: object) -> float:
    """The finite number as a float; OptionError otherwise."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise OptionError(f"{name} is {value!r}; it must be a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise OptionError(f"{name} is {number}; it must be a finite number")
    return number


def switch(name: str, value: object) -> None:
    """OptionError unless it is True or False."""
    if not isinstance(value, bool):
        raise OptionError(f"{name} is {value!r}; it must be True or False")
