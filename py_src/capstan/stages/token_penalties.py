"""presence_penalty and frequency_penalty: generated tokens become less likely, by OpenAI's formula.

With c picks of a token since tokens were last appended (the prompt does not count), its logit becomes
l - (c * frequency_penalty + presence_penalty) if c > 0. Both penalties are multiples of 2**-24; the bracket is rounded
to float32, then the difference.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

from .float_arithmetic import ADD_WGSL, NEAREST_WGSL, SIGN, add_to_key, nearest_float
from .option import Option
from .stage import Keys, Row, Stage, StageOptions

__all__ = ["TokenPenalties"]

_UNIT = 24
_LIMIT = 2
_LIMITS = f"from {-_LIMIT} to {_LIMIT}"


def _fixed(value: float) -> int:
    """A penalty in units of 2**-24."""
    units: int = round(Fraction(value) * 2**_UNIT)
    return units


def _edit(keys: Keys, options: Any, row: Row) -> None:
    frequency, presence = _fixed(options.frequency_penalty), _fixed(options.presence_penalty)
    for token, picks in Counter(row.tokens[row.prompt :]).items():
        penalty = picks * frequency + presence
        if penalty and token < len(keys):
            bits = nearest_float(abs(penalty), -_UNIT)
            keys[token] = add_to_key(keys[token], bits if penalty < 0 else bits | SIGN)


def _within(penalty: float) -> bool:
    return -_LIMIT <= penalty <= _LIMIT


@dataclass(frozen=True)
class TokenPenalties(StageOptions):
    """`presence_penalty` and `frequency_penalty` (-2 to 2; 0 = off): the logit of each token picked since tokens were
    last appended falls by the first, and by the second for each pick.
    """

    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0

    options: ClassVar[tuple[Option, ...]] = (
        Option.real(
            "presence_penalty",
            _LIMITS,
            _within,
            "0 turns it off",
            help="lower the logits of generated tokens by P; below 0 raises them",
            metavar="P",
            page=True,
        ),
        Option.real(
            "frequency_penalty",
            _LIMITS,
            _within,
            "0 turns it off",
            help="lower the logits of generated tokens by P for each time; below 0 raises them",
            metavar="P",
            page=True,
        ),
    )
    stage: ClassVar[Stage | None] = Stage(
        "token_penalties",
        active=lambda options: bool(_fixed(options.presence_penalty) or _fixed(options.frequency_penalty)),
        words={
            "presence_penalty": lambda options: _fixed(options.presence_penalty) & 0xFFFFFFFF,
            "frequency_penalty": lambda options: _fixed(options.frequency_penalty) & 0xFFFFFFFF,
        },
        edit=_edit,
        counts=True,
        uses=(NEAREST_WGSL, ADD_WGSL),
        edit_wgsl="""
fn edit_token_penalties(row: u32, token: u32, key: u32) -> u32 {
  let picks = picks_of(row, token);
  if (picks == 0u) {
    return key;
  }
  let presence = bitcast<i32>(params.presence_penalty);
  let frequency = bitcast<i32>(params.frequency_penalty);
  // In units of 2^-24, two's complement.
  var penalty = multiply(picks, u32(abs(frequency)));
  if (frequency < 0) {
    penalty = sub64(vec2<u32>(0u, 0u), penalty);
  }
  penalty = add64(penalty, vec2<u32>(params.presence_penalty, select(0u, 0xffffffffu, presence < 0)));
  let raised = (penalty.y >> 31u) != 0u;
  if (raised) {
    penalty = sub64(vec2<u32>(0u, 0u), penalty);
  }
  if ((penalty.x | penalty.y) == 0u) {
    return key;
  }
  return add_to_key(key, nearest_float(penalty, -24) | select(0x80000000u, 0u, raised));
}
""",
    )
