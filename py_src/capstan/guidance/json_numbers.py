"""Makes grammars for numbers between bounds, written without an exponent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from fractions import Fraction
from math import log10

from .dfa import Dfa, explored
from .grammar import Choice, Node, Repeat, Series, Text, chars

__all__ = ["MOST_DIGITS", "MOST_STEP", "digits_of", "integer_range", "multiples", "number_range"]

FRACTION_DIGITS = 6
"""The most digits after the point, unless a bound has more; a reader's double rounds beyond 15 digits."""

MOST_DIGITS = 64
"""The most digits of a bound, before and after the point: the grammar grows with their square."""

MOST_STEP = 5000
"""The largest `multipleOf` of integers, since each remainder is a state. A fraction counts in units of its last digit,
times its number of digits.
"""

_DIGIT = chars(("0", "9"))
_MINUS, _POINT = 10, 11
"""The symbols after those of the ten digits."""


@dataclass(frozen=True)
class _Bounds:
    low: Decimal | None
    high: Decimal | None
    above: bool
    """Whether `low` itself is excluded."""
    below: bool


def digits_of(bound: float) -> int:
    """The number of digits of a bound, before and after the point, without an exponent."""
    if isinstance(bound, int) and abs(bound) >= 10**MOST_DIGITS:
        return int(bound.bit_length() * log10(2)) + 1
    exponent = Decimal(repr(bound)).as_tuple().exponent
    assert isinstance(exponent, int)
    return max(Decimal(repr(bound)).adjusted() + 1, 1) + max(-exponent, 0)


def integer_range(bounds: Mapping[str, float]) -> Node | None:
    """Integers within minimum, maximum, exclusiveMinimum and exclusiveMaximum; None if there are none."""
    found = _bounds(bounds)
    low = high = None
    if found.low is not None:
        low = int(found.low.to_integral_value(ROUND_CEILING))
        low += found.above and low == found.low
    if found.high is not None:
        high = int(found.high.to_integral_value(ROUND_FLOOR))
        high -= found.below and high == found.high
    branches: list[Node] = []
    if high is None or high >= 0:
        branches += _whole(max(low or 0, 0) if low is not None else 0, high)
    if low is None or low < 0:
        least = max(1, -high) if high is not None else 1
        branches += [Series((Text("-"), node)) for node in _whole(least, None if low is None else -low)]
    return Choice(tuple(branches)) if branches else None


def multiples(kind: str, step: float) -> Dfa | None:
    """Multiples of a step, written without an exponent; None for steps that are too small, too large or too long."""
    exact = Decimal(repr(step)).normalize() if step > 0 else Decimal(0)
    places = max(0, -int(exact.as_tuple().exponent)) if kind == "number" else 0
    # A number is a multiple if its digits without the point, padded to that many decimals, are a multiple of `size`.
    size = Fraction(exact).numerator if kind == "integer" else int(exact.scaleb(places))
    if size < 1 or size * (places + 1) > MOST_STEP:
        return None

    def after(state: tuple[str, int, int], symbol: int) -> tuple[str, int, int] | None:
        part, digits, remainder = state
        if symbol == _MINUS:
            return ("minus", 0, 0) if part == "start" else None
        if symbol == _POINT:
            return ("fraction", 0, remainder) if places and part in ("zero", "minus zero", "whole") else None
        if part in ("zero", "minus zero") or (digits == places and part == "fraction"):
            return None
        if part == "fraction":
            return part, digits + 1, (10 * remainder + symbol) % size
        if symbol == 0 and part != "whole":
            return "zero" if part == "start" else "minus zero", 0, 0
        return "whole", 0, (10 * remainder + symbol) % size

    def ends(state: tuple[str, int, int]) -> bool:
        part, digits, remainder = state
        described = part in ("zero", "whole") or (part == "fraction" and digits > 0)
        return described and remainder * 10 ** (places - digits) % size == 0

    symbols = [chars(character).ranges for character in "0123456789-."]
    return explored(("start", 0, 0), symbols, after, ends)


def number_range(bounds: Mapping[str, float]) -> Node | None:
    """Decimal numbers within the bounds of `integer_range`; None if there are none."""
    found = _bounds(bounds)
    zero = Decimal(0)
    branches: list[Node] = []
    if found.high is None or found.high >= 0:
        low_counts = found.low is not None and found.low >= 0
        low = found.low if found.low is not None and low_counts else zero
        branches += _decimals(low, found.above and low_counts, found.high, found.below)
    if found.low is None or found.low < 0:
        low = -found.high if found.high is not None and found.high < 0 else zero
        above = found.below if found.high is not None and found.high < 0 else True
        high = None if found.low is None else -found.low
        branches += [Series((Text("-"), node)) for node in _decimals(low, above, high, found.above)]
    return Choice(tuple(branches)) if branches else None


def _bounds(given: Mapping[str, float]) -> _Bounds:
    exact = {name: Decimal(repr(value)) for name, value in given.items()}
    lows = [(exact[name], name != "minimum") for name in ("minimum", "exclusiveMinimum") if name in exact]
    highs = [(exact[name], name == "maximum") for name in ("maximum", "exclusiveMaximum") if name in exact]
    low, above = max(lows) if lows else (None, False)
    high, at = min(highs) if highs else (None, True)
    return _Bounds(low, high, above, not at)


def _whole(low: int, high: int | None) -> list[Node]:
    """Integers of at least 0 from `low` to `high`, without leading zeros."""
    if high is not None and high < low:
        return []
    found = []
    first, last = len(str(low)), len(str(high if high is not None else low))
    for length in range(first, last + 1):
        least = str(low) if length == first else "1" + "0" * (length - 1)
        most = str(high) if length == last and high is not None else "9" * length
        found.append(_same_length(least, most))
    if high is None:
        found.append(Series((chars(("1", "9")), Repeat(_DIGIT, last, None))))
    return found


def _same_length(low: str, high: str) -> Node:
    if not low:
        return Text("")
    if low == "0" * len(low) and high == "9" * len(low):
        return Repeat(_DIGIT, len(low), len(low))
    if low[0] == high[0]:
        return Series((Text(low[0]), _same_length(low[1:], high[1:])))
    rest = len(low) - 1
    branches: list[Node] = [Series((Text(low[0]), _same_length(low[1:], "9" * rest)))]
    if int(low[0]) + 1 < int(high[0]):
        between = chars((str(int(low[0]) + 1), str(int(high[0]) - 1)))
        branches.append(Series((between, Repeat(_DIGIT, rest, rest))))
    branches.append(Series((Text(high[0]), _same_length("0" * rest, high[1:]))))
    return Choice(tuple(branches))


def _decimals(low: Decimal, above: bool, high: Decimal | None, below: bool) -> list[Node]:
    """Decimal numbers from `low` to `high`, which are at least 0; `above` and `below` exclude the bounds themselves."""
    if high is not None and (high < low or (high == low and (above or below))):
        return []
    whole, digits = _split(low)
    last, last_digits = (None, "") if high is None else _split(high)
    room = max(FRACTION_DIGITS, len(digits), len(last_digits))
    if last == whole:
        return _cell(whole, digits, above, last_digits, below, room)
    found = _cell(whole, digits, above, None, False, room)
    between = _whole(whole + 1, None if last is None else last - 1)
    fraction = Repeat(Series((Text("."), Repeat(_DIGIT, 1, room))), 0, 1)
    found += [Series((node, fraction)) for node in between]
    if last is not None:
        found += _cell(last, None, False, last_digits, below, room)
    return found


def _split(value: Decimal) -> tuple[int, str]:
    """The integer part of a number, and its digits after the point."""
    whole, _, digits = f"{value:f}".partition(".")
    return int(whole), digits.rstrip("0")


def _cell(whole: int, low: str | None, above: bool, high: str | None, below: bool, room: int) -> list[Node]:
    """Numbers with this integer part whose digits after the point are between two bounds."""
    empty, digits = _fractions(low, above, high, below, room)
    found: list[Node] = [Text(str(whole))] if empty else []
    if digits is not None:
        found.append(Series((Text(f"{whole}."), digits)))
    return found


def _fractions(low: str | None, above: bool, high: str | None, below: bool, room: int) -> tuple[bool, Node | None]:
    """Whether the empty run of digits is between the two bounds, and the runs of one to `room` digits between them;
    None means no bound.
    """
    low = None if low == "" and not above else low
    empty = low is None and not (high == "" and below)
    if room == 0 or (high == "" and below):
        return empty, None
    if low is None and high is None:
        return empty, Repeat(_DIGIT, 1, room)
    branches: list[Node] = []
    least = int(low[0]) if low else 0
    most = 9 if high is None else int(high[0]) if high else 0
    for digit in range(least, most + 1):
        low_next = None if low is None or digit > least else low[1:]
        high_next = None if high is None or digit < most else high[1:]
        short, more = _fractions(low_next, above, high_next, below, room - 1)
        if more is not None:
            branches.append(Series((Text(str(digit)), Repeat(more, 0, 1) if short else more)))
        elif short:
            branches.append(Text(str(digit)))
    return empty, Choice(tuple(branches)) if branches else None
