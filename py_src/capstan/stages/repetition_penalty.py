"""repetition_penalty: tokens that the sequence has already become less likely, as in onnxruntime-genai.

The logit l of each token of the sequence, prompt included, becomes l / penalty, or l * penalty where l is negative
(Keskar et al., "CTRL", 2019), rounded once to float32. Both sides compute that in integers: WGSL's division may be off
by 2.5 units in the last place.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import ClassVar, Protocol

from ..errors import OptionError
from .stage import Row, Stage, StageOptions, real

__all__ = ["RepetitionPenalty"]

_SIGN = 0x80000000
_INFINITY = 0x7F800000
_LEAST, _LARGEST = 2.0**-126, (2 - 2.0**-23) * 2.0**127


class _Options(Protocol):
    @property
    def repetition_penalty(self) -> float: ...


def _penalty(options: _Options) -> tuple[int, int]:
    """The penalty as significand (24 bits, the first one set) and exponent of two."""
    fraction, exponent = math.frexp(options.repetition_penalty)
    return int(fraction * 2**24), exponent - 24


def _edit(keys: list[int], options: _Options, row: Row) -> None:
    penalty = _penalty(options)
    for token in set(row.tokens):
        if token < len(keys):
            keys[token] = penalised(keys[token], penalty)


def penalised(key: int, penalty: tuple[int, int]) -> int:
    """The key of a penalised logit, from the logit's."""
    negative = key < _SIGN
    bits = (~key if negative else key) & 0x7FFFFFFF
    if bits == 0 or bits >= _INFINITY:
        return key
    exponent, significand = max(bits >> 23, 1) - 150, bits & 0x7FFFFF | (0x800000 if bits >> 23 else 0)
    factor, factor_exponent = penalty
    if negative:
        bits = nearest_float(significand * factor, exponent + factor_exponent)
    else:
        shift = 24 - significand.bit_length()
        quotient, rest = divmod(significand << (shift + 26), factor)
        bits = nearest_float(2 * quotient + (rest > 0), exponent - shift - factor_exponent - 27)
    if bits == 0:
        return _SIGN
    return ~(bits | _SIGN) & 0xFFFFFFFF if negative else bits | _SIGN


def nearest_float(significand: int, exponent: int) -> int:
    """The bits of the float32 nearest to significand * 2**exponent, of two the even one; the significand is above 0."""
    leading = exponent + significand.bit_length() - 1
    if leading > 127:
        return _INFINITY
    drop = max(leading - 23, -149) - exponent
    if drop <= 0:
        rounded = significand << -drop
    else:
        rounded, rest = significand >> drop, significand & ((1 << drop) - 1)
        half = 1 << (drop - 1)
        rounded += rest > half or (rest == half and rounded & 1)
    return min((max(leading + 126, 0) << 23) + rounded, _INFINITY)


@dataclass(frozen=True)
class RepetitionPenalty(StageOptions):
    """`repetition_penalty` (> 0; 1 = off; above 1 against repetition, below 1 for it): the logit of each token that is
    in the sequence, prompt included, is divided by it, or multiplied where it is negative."""

    repetition_penalty: float = 1.0

    stage: ClassVar[Stage | None] = Stage(
        "repetition_penalty",
        active=lambda options: options.repetition_penalty != 1,
        words={
            "penalty": lambda options: _penalty(options)[0],
            "penalty_exponent": lambda options: _penalty(options)[1] & 0xFFFFFFFF,
        },
        edit=_edit,
        counts=True,
        edit_wgsl="""
fn edit_repetition_penalty(row: u32, token: u32, key: u32) -> u32 {
  let negative = key < 0x80000000u;
  var bits = select(key, ~key, negative) & 0x7fffffffu;
  if (bits == 0u || bits >= 0x7f800000u || token_count(row, token) == 0u) {
    return key;
  }
  let biased = bits >> 23u;
  var significand = (bits & 0x7fffffu) | select(0u, 0x800000u, biased != 0u);
  var exponent = i32(max(biased, 1u)) - 150;
  let factor_exponent = bitcast<i32>(params.penalty_exponent);
  if (negative) {
    bits = nearest_float(multiply(significand, params.penalty), exponent + factor_exponent);
  } else {
    let shift = countLeadingZeros(significand) - 8u;
    var rest = significand << shift;
    var quotient = 0u;
    for (var i = 0u; i < 27u; i++) {
      quotient <<= 1u;
      if (rest >= params.penalty) {
        rest -= params.penalty;
        quotient |= 1u;
      }
      rest <<= 1u;
    }
    quotient = (quotient << 1u) | select(0u, 1u, rest != 0u);
    bits = nearest_float(vec2<u32>(quotient, 0u), exponent - i32(shift) - factor_exponent - 27);
  }
  if (bits == 0u) {
    return 0x80000000u;
  }
  return select(bits | 0x80000000u, ~(bits | 0x80000000u), negative);
}

// The bits of the float32 nearest to significand * 2^exponent, of two the even one; the significand is above 0.
fn nearest_float(significand: vec2<u32>, exponent: i32) -> u32 {
  let length = select(firstLeadingBit(significand.x), 32u + firstLeadingBit(significand.y), significand.y != 0u) + 1u;
  let leading = exponent + i32(length) - 1;
  if (leading > 127) {
    return 0x7f800000u;
  }
  let drop = max(leading - 23, -149) - exponent;
  var rounded = 0u;
  if (drop <= 0) {
    rounded = significand.x << u32(-drop);
  } else if (drop <= i32(length)) {
    let half = shifted_right(significand, u32(drop - 1));
    rounded = shifted_right(significand, u32(drop)).x;
    let rest = sub64(significand, shifted_left(half, u32(drop - 1)));
    if ((half.x & 1u) != 0u && ((rest.x | rest.y) != 0u || (rounded & 1u) != 0u)) {
      rounded += 1u;
    }
  }
  return min((u32(max(leading + 126, 0)) << 23u) + rounded, 0x7f800000u);
}

fn shifted_right(value: vec2<u32>, by: u32) -> vec2<u32> {
  if (by >= 32u) {
    return vec2<u32>(value.y >> (by - 32u), 0u);
  }
  return vec2<u32>((value.x >> by) | select(0u, value.y << (32u - by), by != 0u), value.y >> by);
}

fn shifted_left(value: vec2<u32>, by: u32) -> vec2<u32> {
  if (by >= 32u) {
    return vec2<u32>(0u, value.x << (by - 32u));
  }
  return vec2<u32>(value.x << by, (value.y << by) | select(0u, value.x >> (32u - by), by != 0u));
}
""",
    )

    def check(self) -> None:
        given = real("repetition_penalty", self.repetition_penalty)
        if not _LEAST <= given <= _LARGEST:
            raise OptionError(f"repetition_penalty is {given}; it must be greater than 0 and a float32; 1 turns it off")
        self._set("repetition_penalty", struct.unpack("f", struct.pack("f", given))[0])
