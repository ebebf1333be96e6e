"""repetition_penalty: tokens that the sequence has already become less likely, as in onnxruntime-genai.

The logit l of each token of the sequence, including the prompt, becomes l / penalty, or l * penalty if l is negative
(Keskar et al., "CTRL", 2019), rounded once to float32. Both sides compute that in integers: WGSL's division may be off
by 2.5 units in the last place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

from ..errors import OptionError
from .float_arithmetic import LARGEST, NEAREST_WGSL, float32_of, key_of_parts, nearest_float, parts_of_key
from .option import Option, real
from .stage import Keys, Row, Stage, StageOptions

__all__ = ["RepetitionPenalty"]

_LEAST = 2.0**-126


def _read(value: object) -> float:
    given = real("repetition_penalty", value)
    if not _LEAST <= given <= LARGEST:
        raise OptionError(f"repetition_penalty is {given}; it must be greater than 0 and a float32; 1 turns it off")
    return float32_of("repetition_penalty", given)


class _Options(Protocol):
    @property
    def repetition_penalty(self) -> float: ...


def _penalty(options: _Options) -> tuple[int, int]:
    """The penalty as significand (24 bits, the first one set) and binary exponent."""
    fraction, exponent = math.frexp(options.repetition_penalty)
    return int(fraction * 2**24), exponent - 24


def _edit(keys: Keys, options: _Options, row: Row) -> None:
    penalty = _penalty(options)
    for token in set(row.tokens):
        if token < len(keys):
            keys[token] = penalised(keys[token], penalty)


def penalised(key: int, penalty: tuple[int, int]) -> int:
    """The key of a penalised logit, from the key of the logit."""
    parts = parts_of_key(key)
    if parts is None or parts[1] == 0:
        return key
    negative, significand, exponent = parts
    factor, factor_exponent = penalty
    if negative:
        bits = nearest_float(significand * factor, exponent + factor_exponent)
    else:
        shift = 24 - significand.bit_length()
        quotient, rest = divmod(significand << (shift + 26), factor)
        bits = nearest_float(2 * quotient + (rest > 0), exponent - shift - factor_exponent - 27)
    return key_of_parts(negative, bits)


@dataclass(frozen=True)
class RepetitionPenalty(StageOptions):
    """`repetition_penalty` (> 0; 1 = off; above 1 against repetition, below 1 for it): the logit of each token in the
    sequence, including the prompt, is divided by it, or multiplied if it is negative.
    """

    repetition_penalty: float = 1.0

    options: ClassVar[tuple[Option, ...]] = (
        Option(
            "repetition_penalty",
            _read,
            help="divide the logits of tokens that the text has by P",
            metavar="P",
            stated=True,
            page=True,
        ),
    )
    stage: ClassVar[Stage | None] = Stage(
        "repetition_penalty",
        active=lambda options: options.repetition_penalty != 1,
        words={
            "penalty": lambda options: _penalty(options)[0],
            "penalty_exponent": lambda options: _penalty(options)[1] & 0xFFFFFFFF,
        },
        edit=_edit,
        counts=True,
        uses=(NEAREST_WGSL,),
        edit_wgsl="""
fn edit_repetition_penalty(row: u32, token: u32, key: u32) -> u32 {
  let negative = key < 0x80000000u;
  var bits = select(key, ~key, negative) & 0x7fffffffu;
  if (bits == 0u || bits >= 0x7f800000u || !has_token(row, token)) {
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
""",
    )
