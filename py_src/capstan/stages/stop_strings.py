"""stop_strings: texts that end a sequence once they were generated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ..errors import OptionError
from .option import Option, items
from .stage import StageOptions

__all__ = ["StopStrings"]


def _read(value: Any) -> tuple[str, ...]:
    strings = items("stop_strings", value, "strings")
    for string in strings:
        if not isinstance(string, str) or not string:
            raise OptionError(f"stop_strings has {string!r}; each must be a string of at least one character")
    return strings


@dataclass(frozen=True)
class StopStrings(StageOptions):
    """`stop_strings`: a sequence ends with the token that completes one of them in the text generated since tokens were
    last appended; the reason is 'stop'. The tokens stay in the sequence; `Generator.text` ends before the string."""

    stop_strings: tuple[str, ...] = ()

    options: ClassVar[tuple[Option, ...]] = (
        Option(
            "stop_strings",
            _read,
            help="stop where the answer has TEXT, and show nothing from there on; may be given several times",
            flag="stop",
            metavar="TEXT",
            type=str,
            repeated=True,
        ),
    )
