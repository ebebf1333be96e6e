"""Computes float32 arithmetic with integers, rounded to nearest with ties to even. Python and WGSL get the same
results.

WGSL's own arithmetic may be off by units in the last place, be fused, and flush subnormal numbers.
"""

from __future__ import annotations

import struct

from ..errors import OptionError
from .option import real

__all__ = [
    "ADD_WGSL",
    "LARGEST",
    "NEAREST_WGSL",
    "SIGN",
    "add_to_key",
    "float32_bits",
    "float32_of",
    "key_of_parts",
    "nearest_float",
    "parts_of_key",
]

SIGN = 0x80000000
INFINITY = 0x7F800000
LARGEST = (2 - 2.0**-23) * 2.0**127


def float32_of(name: str, value: object) -> float:
    """A finite number rounded to float32. Raises OptionError for other values."""
    number = real(name, value)
    if abs(number) > LARGEST:
        raise OptionError(f"{name} is {number}; it must be a float32, at most 3.4e38 in size")
    return float(struct.unpack("f", struct.pack("f", number))[0])


def float32_bits(value: float) -> int:
    """The bits of a float32."""
    return int(struct.unpack("I", struct.pack("f", value))[0])


def parts_of_key(key: int) -> tuple[bool, int, int] | None:
    """Sign, significand and binary exponent of the float32 with this key; None for an infinity."""
    negative = key < SIGN
    bits = (~key if negative else key) & 0x7FFFFFFF
    if bits >= INFINITY:
        return None
    return negative, bits & 0x7FFFFF | (0x800000 if bits >> 23 else 0), max(bits >> 23, 1) - 150


def key_of_parts(negative: bool, bits: int) -> int:
    """The key of a float32 by its sign and the rest of its bits; +0 and -0 have one key."""
    if bits == 0:
        return SIGN
    return ~(bits | SIGN) & 0xFFFFFFFF if negative else bits | SIGN


def nearest_float(significand: int, exponent: int) -> int:
    """The bits of the float32 nearest to significand * 2**exponent, ties to even; the significand is above 0."""
    leading = exponent + significand.bit_length() - 1
    if leading > 127:
        return INFINITY
    drop = max(leading - 23, -149) - exponent
    if drop <= 0:
        rounded = significand << -drop
    else:
        rounded, rest = significand >> drop, significand & ((1 << drop) - 1)
        half = 1 << (drop - 1)
        rounded += rest > half or (rest == half and rounded & 1)
    return min((max(leading + 126, 0) << 23) + rounded, INFINITY)


def add_to_key(key: int, bits: int) -> int:
    """The key of the sum of the float32 with this key and a finite one, given by its bits."""
    parts = parts_of_key(key)
    if parts is None:
        return key
    negative, significand, exponent = parts
    magnitude = bits & 0x7FFFFFFF
    other = magnitude & 0x7FFFFF | (0x800000 if magnitude >> 23 else 0)
    other_exponent = max(magnitude >> 23, 1) - 150
    lower = min(exponent, other_exponent)
    total = (-significand if negative else significand) << (exponent - lower)
    total += (-other if bits >> 31 else other) << (other_exponent - lower)
    return key_of_parts(total < 0, nearest_float(abs(total), lower) if total else 0)


NEAREST_WGSL = """
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
"""
"""Needs `sub64`."""

ADD_WGSL = """
// The key of the sum of the float32 with this key and a finite one, given by its bits; exact, then rounded once.
fn add_to_key(key: u32, bits: u32) -> u32 {
  let negative = key < 0x80000000u;
  let own = select(key, ~key, negative) & 0x7fffffffu;
  if (own >= 0x7f800000u) {
    return key;
  }
  let given = bits & 0x7fffffffu;
  // The one of the larger magnitude first.
  let swap = given > own;
  let a = select(own, given, swap);
  let b = select(given, own, swap);
  let a_negative = select(negative, (bits >> 31u) != 0u, swap);
  let b_negative = select((bits >> 31u) != 0u, negative, swap);
  let a_exponent = max(a >> 23u, 1u);
  let b_exponent = max(b >> 23u, 1u);
  // Both 32 bits up; what the smaller loses below that is one bit that says whether there was anything.
  let larger = vec2<u32>(0u, (a & 0x7fffffu) | select(0u, 0x800000u, (a >> 23u) != 0u));
  let other = vec2<u32>(0u, (b & 0x7fffffu) | select(0u, 0x800000u, (b >> 23u) != 0u));
  let distance = min(a_exponent - b_exponent, 63u);
  var smaller = shifted_right(other, distance);
  let back = shifted_left(smaller, distance);
  if (back.x != other.x || back.y != other.y) {
    smaller.x |= 1u;
  }
  let sum = add64(larger, smaller);
  let difference = sub64(larger, smaller);
  let same = a_negative == b_negative;
  let total = vec2<u32>(select(difference.x, sum.x, same), select(difference.y, sum.y, same));
  if ((total.x | total.y) == 0u) {
    return 0x80000000u;
  }
  let magnitude = nearest_float(total, i32(a_exponent) - 182);
  if (magnitude == 0u) {
    return 0x80000000u;
  }
  return select(magnitude | 0x80000000u, ~(magnitude | 0x80000000u), a_negative);
}
"""
"""Needs NEAREST_WGSL, `add64` and `sub64`."""
