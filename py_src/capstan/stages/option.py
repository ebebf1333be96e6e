"""Declares options of a search: type and limits, declared once for the API and for the command line."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ..errors import OptionError

__all__ = ["INTEGER_LIMIT", "Option", "ids_of_text", "integer", "items", "real", "switch", "token_ids"]

INTEGER_LIMIT = 2**31 - 1
MOST_ITEMS = 2**20
"""The most items of a list, from which the sampler makes a table."""


@dataclass(frozen=True)
class Option:
    """A search option.

    `read(value)` returns the value in its type, or raises OptionError with the value, the limit and the remedy. The
    command line has the option if there is a `help`.
    """

    name: str
    read: Callable[[Any], Any]
    help: str = ""
    flag: str = ""
    """The command line's name for it, if that differs from `name`."""
    metavar: str = "N"
    type: Callable[[str], Any] = float
    """The command line's reader of its text: int, float, or a function that raises OptionError."""
    repeated: bool = False
    """Whether the command line takes it several times, as a list."""
    drawing: bool = False
    """Whether it only affects sampling, so that greedy search ignores it."""
    stated: bool = False
    """Whether generation_config.json may have it."""
    page: bool = False
    """Whether it is a number that is an option of runs and completions in JavaScript (buildtools/wire.py), by the
    command line's name; other options are fields of `search` there.
    """

    @classmethod
    def integer(cls, name: str, low: int, high: int = INTEGER_LIMIT, **others: Any) -> Option:
        """An integer from `low` to `high`."""
        return cls(name, lambda value: integer(name, value, low, high), type=int, **others)

    @classmethod
    def real(cls, name: str, limits: str, holds: Callable[[float], bool], remedy: str = "", **others: Any) -> Option:
        """A finite number for which `holds` is true; `limits` is the condition in words."""

        def read(value: Any) -> float:
            number = real(name, value)
            if not holds(number):
                raise OptionError(f"{name} is {number}; it must be {limits}" + (f"; {remedy}" if remedy else ""))
            return number

        return cls(name, read, **others)

    @property
    def argument(self) -> str:
        """The command line's option."""
        return "--" + (self.flag or self.name.replace("_", "-"))


def integer(name: str, value: object, low: int, high: int, *, floats: bool = True) -> int:
    """The integer, if it is within the limits; with `floats` 5.0 is accepted. Raises OptionError otherwise."""
    if floats and isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral) and value == value // 1:
        value = int(float(value))
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise OptionError(f"{name} is {value!r}; it must be an integer from {low} to {high}") from None
    if not low <= number <= high:
        raise OptionError(f"{name} is {number}; it must be from {low} to {high}")
    return number


def real(name: str, value: object) -> float:
    """The finite number as a float. Raises OptionError for other values."""
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
    """Raise OptionError unless the value is True or False."""
    if not isinstance(value, bool):
        raise OptionError(f"{name} is {value!r}; it must be True or False")


def items(name: str, values: object, what: str) -> tuple[Any, ...]:
    """The items of a list; messages call them `what`. Raises OptionError for other values, a mapping, and a list with
    more than MOST_ITEMS.
    """
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise OptionError(f"{name} is {values!r}; it must be a list of {what}")
    found = tuple(islice(values, MOST_ITEMS + 1))
    if len(found) > MOST_ITEMS:
        raise OptionError(f"{name} has more than {MOST_ITEMS} items; shorten it")
    return found


def token_ids(name: str, values: object) -> tuple[int, ...]:
    """The ids of a list of token ids. Raises OptionError for other values."""
    found = items(name, values, "token ids")
    return tuple(integer(name, value, 0, INTEGER_LIMIT, floats=False) for value in found)


def ids_of_text(text: str) -> list[int]:
    """Read token ids in the command line's form: 1,2,3."""
    parts = [part.strip() for part in text.split(",")]
    wrong = next((part for part in parts if not (part.isascii() and part.isdigit())), None)
    if wrong is not None:
        raise OptionError(f"{wrong!r} is not a token id: give integers from 0, like 1,2,3")
    return [int(part) for part in parts]
