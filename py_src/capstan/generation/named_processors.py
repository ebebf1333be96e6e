"""Keeps logits processors by name: a script of the page defines them, and later requests use them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any, overload

from ..errors import OptionError
from ..model_files.bounded_json import clipped
from .processors import LogitsProcessor, ShortlistProcessor

__all__ = ["logits_processor", "named_processor", "shortlist_processor"]

serials = count(1)


@dataclass(frozen=True)
class NamedProcessor:
    """A function under its `__name__`."""

    options: dict[str, Any]
    """The arguments of GeneratorParams."""
    serial: int
    """A new object for each definition, even under the same name."""


defined: dict[str, NamedProcessor] = {}


def logits_processor(function: LogitsProcessor) -> LogitsProcessor:
    """A decorator: `{ logitsProcessor: NAME }` in a page runs the model with this function as
    `GeneratorParams(logits_processor=...)`. A later function of the same name replaces it."""
    define(function, {"logits_processor": function})
    return function


@overload
def shortlist_processor(function: ShortlistProcessor, *, shortlist: int | None = None) -> ShortlistProcessor: ...


@overload
def shortlist_processor(
    function: None = None, *, shortlist: int | None = None
) -> Callable[[ShortlistProcessor], ShortlistProcessor]: ...


def shortlist_processor(
    function: ShortlistProcessor | None = None, *, shortlist: int | None = None
) -> ShortlistProcessor | Callable[[ShortlistProcessor], ShortlistProcessor]:
    """Like `logits_processor`, for `GeneratorParams(shortlist_processor=..., shortlist=...)`; parentheses are
    optional.
    """
    if function is None:
        return lambda given: shortlist_processor(given, shortlist=shortlist)
    define(function, {"shortlist_processor": function, "shortlist": shortlist})
    return function


def define(function: Callable[..., Any], options: dict[str, Any]) -> None:
    """Keep a function under its name. Raises OptionError for an object without a name."""
    name = getattr(function, "__name__", None)
    if not callable(function) or name is None:
        raise OptionError(f"a processor is {clipped(function)}; it must be a function with a name")
    defined[name] = NamedProcessor(options, next(serials))


def named_processor(name: Any) -> NamedProcessor:
    """The function of a name. Raises OptionError if there is none."""
    found = defined.get(name) if isinstance(name, str) else None
    if found is None:
        there = ", ".join(defined) or "none"
        raise OptionError(
            f"the logits processor {clipped(name)} is not defined; the defined ones are: {there}. Define it first, by "
            "llm.python(code) with @capstan.logits_processor or @capstan.shortlist_processor; a restarted worker has "
            "none"
        )
    return found
