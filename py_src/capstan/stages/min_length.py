"""min_length: end-of-sequence ids cannot be picked while the sequence is shorter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from .stage import NEGATIVE_INFINITY_KEY, Row, Stage, StageOptions, integer

__all__ = ["MinLength"]


class _Options(Protocol):
    @property
    def min_length(self) -> int: ...
    @property
    def eos_token_ids(self) -> Sequence[int]: ...


def _edit(keys: list[int], options: _Options, row: Row) -> None:
    for token in options.eos_token_ids:
        if token < len(keys):
            keys[token] = NEGATIVE_INFINITY_KEY


@dataclass(frozen=True)
class MinLength(StageOptions):
    """`min_length` (tokens, prompt and new ones together): in a shorter sequence end-of-sequence ids count as -inf."""

    min_length: int = 0

    stage: ClassVar[Stage | None] = Stage(
        "min_length",
        active=lambda options: options.min_length > 0 and bool(options.eos_token_ids),
        words={"min_length": lambda options: options.min_length},
        edit=_edit,
        due=lambda options, row: row.length < options.min_length,
        edit_wgsl="""
fn edit_min_length(row: u32, token: u32, key: u32) -> u32 {
  return select(key, NEGATIVE_INFINITY_KEY, state[row * STATE_STRIDE] < params.min_length && is_eos(token));
}
""",
    )

    def check(self) -> None:
        self._set("min_length", integer("min_length", self.min_length, 0, 2**31 - 1))
