"""Computes the weight of a token relative to another token: exp of the difference of their logits, in integers."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

from .stage import NEGATIVE_INFINITY_KEY

__all__ = ["ONE", "POSITIVE_INFINITY_KEY", "temperature_scale", "token_weight"]

POSITIVE_INFINITY_KEY = 0xFF800000
ONE = 1 << 30
"""The weight of a token relative to an equal one."""

# 2**-f for f in [0, 1): 1 - f*(A1 - f*(A2 - ...)), each A in units of 2**-32; a minimax fit, relative error 8.5e-8.
_EXP2 = (2977029614, 1031565859, 237500345, 39538602, 4058330)

# log2(e), to 31 decimals.
_LOG2_E = Fraction(14426950408889634073599246810019, 10**31)


@lru_cache(maxsize=32)
def temperature_scale(temperature: float) -> tuple[int, int]:
    """log2(e) / temperature as (mantissa, shift), the factor in `token_weight`.

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


def _magnitude(key: int) -> tuple[bool, int, int]:
    """Sign, biased exponent and significand (shifted left by 7: 31 bits) of the finite float32 with this key."""
    negative = key < 0x80000000
    bits = (key ^ 0xFFFFFFFF if negative else key) & 0x7FFFFFFF
    exponent = bits >> 23
    if exponent == 0:
        return negative, 1, bits << 7
    return negative, exponent, ((bits & 0x7FFFFF) | 0x800000) << 7


def token_weight(key: int, top: int, scale: tuple[int, int]) -> int:
    """exp((logit - largest) / temperature) * 2**30 for the keys of both and `temperature_scale(temperature)`."""
    if key == top:
        return ONE
    if key <= NEGATIVE_INFINITY_KEY or top == POSITIVE_INFINITY_KEY:
        return 0
    # largest - logit, as difference * 2**(exponent - 157): both are brought to the larger exponent, seven bits below
    # float32's own last place, and cut off there.
    top_negative, top_exponent, a = _magnitude(top)
    negative, key_exponent, b = _magnitude(key)
    exponent = max(top_exponent, key_exponent)
    a >>= min(exponent - top_exponent, 31)
    b >>= min(exponent - key_exponent, 31)
    difference = b - a if top_negative else a + b if negative else a - b
    # The exponent of two, z in units of 2**-27.
    mantissa, shift = scale
    product = difference * mantissa
    shift -= exponent
    z = product >> min(shift, 64) if shift >= 0 else product << min(-shift, 32)
    octaves = z >> 27
    if octaves >= 31:
        return 0
    fraction = (z & 0x7FFFFFF) << 5
    power = _EXP2[4]
    power = _EXP2[3] - (power * fraction >> 32)
    power = _EXP2[2] - (power * fraction >> 32)
    power = _EXP2[1] - (power * fraction >> 32)
    power = _EXP2[0] - (power * fraction >> 32)
    power = 0x80000000 - (power * fraction >> 33)
    return (power + (1 << octaves)) >> (1 + octaves)
