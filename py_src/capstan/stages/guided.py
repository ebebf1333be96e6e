"""guided: only tokens that a grammar allows can be picked.

Which ones is said by a bit mask that the host writes before each pick (capstan.guidance). A token that is not allowed
gets a key below every other, so that it is not picked either where all allowed ones count as -inf. This stage edits
last: what another one does to a token cannot let it in.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any, ClassVar

from .option import switch
from .stage import Row, Stage, StageOptions

__all__ = ["FORBIDDEN_KEY", "Guided"]

FORBIDDEN_KEY = 0
_ALL = 0xFFFFFFFF


def _edit(keys: list[int], _options: Any, row: Row) -> None:
    for index, word in enumerate(array("I", row.allowed)):
        if word == _ALL:
            continue
        for token in range(32 * index, min(32 * index + 32, len(keys))):
            if not word >> (token & 31) & 1:
                keys[token] = FORBIDDEN_KEY


@dataclass(frozen=True)
class Guided(StageOptions):
    """`guided` is no option of a search: guidance sets it."""

    guided: bool = False

    stage: ClassVar[Stage | None] = Stage(
        "guided",
        active=lambda options: bool(options.guided),
        edit=_edit,
        allowed=True,
        edit_wgsl="""
fn edit_guided(row: u32, token: u32, key: u32) -> u32 {
  return select(0u, key, is_allowed(row, token));
}
""",
    )

    def check(self) -> None:
        switch("guided", self.guided)
