"""logit_bias: a number is added to the logits of some tokens, in float32."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ..errors import OptionError
from .float_arithmetic import ADD_WGSL, NEAREST_WGSL, add_to_key, float32_bits, float32_of
from .option import INTEGER_LIMIT, Option, integer
from .stage import Keys, Row, Stage, StageOptions

__all__ = ["LogitBias"]


def _read(value: Any) -> tuple[tuple[int, float], ...]:
    """A mapping of ids (in JSON: decimal strings) to numbers, or pairs of both, as pairs in the order of the ids."""
    try:
        pairs = [tuple(pair) for pair in (value.items() if isinstance(value, Mapping) else value)]
        if isinstance(value, str) or any(len(pair) != 2 for pair in pairs):
            raise TypeError
    except TypeError:
        raise OptionError(f"logit_bias is {value!r}; it must map token ids to numbers, as in {{12: -5.0}}") from None
    found: dict[int, float] = {}
    for token, bias in pairs:
        if isinstance(value, Mapping) and isinstance(token, str) and token.isascii() and token.isdigit():
            token = int(token)
        found[integer("a token of logit_bias", token, 0, INTEGER_LIMIT, floats=False)] = float32_of(
            "a logit_bias", bias
        )
    return tuple(sorted(found.items()))


def of_text(text: str) -> list[tuple[int, float]]:
    """Read the command line's form: 12:-5,7:1.5."""
    pairs = []
    for part in text.split(","):
        token, _, bias = part.strip().partition(":")
        try:
            pairs.append((int(token), float(bias)))
        except ValueError:
            raise OptionError(f"{part!r} is not a token id with a number: write them like 12:-5,7:1.5") from None
    return pairs


def _edit(keys: Keys, options: Any, row: Row) -> None:
    for token, bias in options.logit_bias:
        if token < len(keys):
            keys[token] = add_to_key(keys[token], float32_bits(bias))


def _table(options: Any, vocab: int) -> array[int]:
    words = array("I", bytes(4 * vocab))
    for token, bias in options.logit_bias:
        if token < vocab:
            words[token] = float32_bits(bias)
    return words


@dataclass(frozen=True)
class LogitBias(StageOptions):
    """`logit_bias` ({id: number}): the number, a float32, is added to the token's logit before all penalties."""

    logit_bias: tuple[tuple[int, float], ...] = ()

    options: ClassVar[tuple[Option, ...]] = (
        Option("logit_bias", _read, help="add numbers to logits", metavar="ID:X,ID:X", type=of_text),
    )
    stage: ClassVar[Stage | None] = Stage(
        "logit_bias",
        active=lambda options: any(bias for _, bias in options.logit_bias),
        table=_table,
        edit=_edit,
        uses=(NEAREST_WGSL, ADD_WGSL),
        edit_wgsl="""
fn edit_logit_bias(row: u32, token: u32, key: u32) -> u32 {
  return add_to_key(key, table_logit_bias(token));
}
""",
    )

    def check_vocabulary(self, vocab: int) -> None:
        for token, _ in self.logit_bias:
            if token >= vocab:
                raise OptionError(f"logit_bias has the token {token}; ids of this model go from 0 to {vocab - 1}")
