"""min_length: ids that end a sequence cannot be picked while the sequence is shorter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from .option import Option
from .stage import NEGATIVE_INFINITY_KEY, Keys, Row, Stage, StageOptions

__all__ = ["MinLength"]


class _Options(Protocol):
    @property
    def min_length(self) -> int: ...
    @property
    def end_token_ids(self) -> Sequence[int]: ...


def _edit(keys: Keys, options: _Options, row: Row) -> None:
    for token in options.end_token_ids:
        if token < len(keys):
            keys[token] = NEGATIVE_INFINITY_KEY


@dataclass(frozen=True)
class MinLength(StageOptions):
    """`min_length` (tokens, including the prompt): in a shorter sequence end-of-sequence and stop ids count as -inf."""

    min_length: int = 0

    options: ClassVar[tuple[Option, ...]] = (
        Option.integer("min_length", 0, help="no end before the text has N tokens, including the prompt", stated=True),
    )
    stage: ClassVar[Stage | None] = Stage(
        "min_length",
        active=lambda options: options.min_length > 0 and bool(options.end_token_ids),
        words={"min_length": lambda options: options.min_length},
        edit=_edit,
        due=lambda options, row: row.length < options.min_length,
        edit_wgsl="""
fn edit_min_length(row: u32, token: u32, key: u32) -> u32 {
  let length = state[row * STATE_STRIDE] + state[row * STATE_STRIDE + 4u];
  return select(key, NEGATIVE_INFINITY_KEY, length < params.min_length && is_end(token));
}
""",
    )
