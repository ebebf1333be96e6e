"""Defines the characters of an expression's classes: \\d, \\w, \\s, `.` and \\p{...}.

Libraries differ in them: a class certainly has the characters that it has in all libraries, and possibly those that it
has in some.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from .grammar import Ranges, chars, complement, intersected, united

__all__ = ["CATEGORIES", "OWN", "PORTABLE", "Classes", "properties"]

_DIGIT = chars(("0", "9")).ranges
_WORD = chars(("0", "9"), ("A", "Z"), ("a", "z"), "_").ranges
_BLANK = chars(
    *(("\t", "\r"), " ", "\xa0", "\u1680", ("\u2000", "\u200a"), "\u2028", "\u2029", "\u202f", "\u205f", "\u3000")
).ranges
_SPACE = united((*_BLANK, (0x85, 0x85)))
CATEGORIES = (
    *("L", "Lu", "Ll", "Lt", "Lm", "Lo", "M", "Mn", "Mc", "Me", "N", "Nd", "Nl", "No", "P", "Pc", "Pd", "Ps", "Pe"),
    *("Pi", "Pf", "Po", "S", "Sm", "Sc", "Sk", "So", "Z", "Zs", "Zl", "Zp", "Cc", "Cf"),
)
"""The names of general categories in \\p{...}, by the Unicode version of this Python."""
_EMOJI_PARTS: Ranges = (
    *((0x23, 0x23), (0x2A, 0x2A), (0x30, 0x39), (0x200D, 0x200D), (0x20E3, 0x20E3), (0xFE0F, 0xFE0F)),
    *((0x1F1E6, 0x1F1FF), (0x1F3FB, 0x1F3FF), (0x1F9B0, 0x1F9B3), (0xE0020, 0xE007F)),
)
_PICTOGRAPHS: Ranges = (
    *((0x231A, 0x231B), (0x23E9, 0x23F3), (0x2600, 0x2604), (0x2614, 0x2615), (0x2648, 0x2653), (0x2702, 0x2702)),
    *((0x2705, 0x2705), (0x2708, 0x270D), (0x2728, 0x2728), (0x2753, 0x2755), (0x2763, 0x2764), (0x27A1, 0x27A1)),
    *((0x2B50, 0x2B50), (0x2B55, 0x2B55), (0x1F300, 0x1F320), (0x1F330, 0x1F335), (0x1F337, 0x1F37C)),
    *((0x1F380, 0x1F393), (0x1F3A0, 0x1F3C4), (0x1F3C6, 0x1F3CA), (0x1F3E0, 0x1F3F0), (0x1F400, 0x1F43E)),
    *((0x1F442, 0x1F4F7), (0x1F4F9, 0x1F4FC), (0x1F500, 0x1F53D), (0x1F550, 0x1F567), (0x1F5FB, 0x1F64F)),
    *((0x1F680, 0x1F6C5), (0x1F90D, 0x1F93A), (0x1F93C, 0x1F945), (0x1F947, 0x1F9AF), (0x1F9B4, 0x1F9FF)),
)
"""Old emoji, as blocks without a gap."""
_EMOJI: Mapping[str, Ranges] = {
    "Emoji_Component": _EMOJI_PARTS,
    "Extended_Pictographic": _PICTOGRAPHS,
    "Emoji_Presentation": intersected(_PICTOGRAPHS, ((0x1F300, 0x1F320), (0x1F400, 0x1F43E), (0x1F600, 0x1F64F))),
    "Regional_Indicator": ((0x1F1E6, 0x1F1FF),),
}
"""Properties of emoji. Properties that grow with each version of Unicode have only their old characters here."""


@dataclass(frozen=True)
class Classes:
    """The characters of an expression's classes, by letter, and of `.`."""

    surely: Mapping[str, Ranges]
    possibly: Callable[[], Mapping[str, Ranges]]
    portable: bool
    """Whether the expression is for libraries that differ."""


_OWN: Mapping[str, Ranges] = {"d": _DIGIT, "w": _WORD, "s": _SPACE, ".": complement(((10, 10),))}
OWN = Classes(_OWN, lambda: _OWN, False)
"""Rust's classes, without Unicode's digits and letters."""


@cache
def _python_or_javascript() -> Mapping[str, Ranges]:
    every = "".join(map(chr, range(0x110000)))
    digits, words = ([(run.start(), run.end() - 1) for run in re.finditer(rf"\{name}+", every)] for name in "dw")
    return {
        "d": united(digits),
        "w": united(words),
        "s": united((*_SPACE, (0x1C, 0x1F), (0xFEFF, 0xFEFF))),
        ".": complement(((10, 10),)),
    }


PORTABLE = Classes(
    {"d": _DIGIT, "w": _WORD, "s": _BLANK, ".": complement(((10, 10), (13, 13), (0x2028, 0x2029)))},
    _python_or_javascript,
    True,
)
"""The common part of Python's and JavaScript's classes."""


def properties(name: str) -> Ranges | None:
    """The characters with a property, such as Lu, or Emoji_Component."""
    if name in CATEGORIES:
        return general_category(name)
    return _EMOJI.get(name)


@cache
def general_category(name: str) -> Ranges:
    """The characters of a general category, such as Lu, or of all that begin with its letter."""
    found: list[tuple[int, int]] = []
    for code in range(0x110000):
        if unicodedata.category(chr(code)).startswith(name):
            if found and found[-1][1] == code - 1:
                found[-1] = (found[-1][0], code)
            else:
                found.append((code, code))
    return tuple(found)
