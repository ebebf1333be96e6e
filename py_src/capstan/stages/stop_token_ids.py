"""The search option stop_token_ids: ids that end a sequence besides the model's end-of-sequence ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ..errors import OptionError
from .option import Option, ids_of_text, token_ids
from .stage import StageOptions

__all__ = ["MAX_STOP_TOKENS", "StopTokenIds"]

MAX_STOP_TOKENS = 1024


def _read(value: Any) -> tuple[int, ...]:
    ids = token_ids("stop_token_ids", value)
    if len(ids) > MAX_STOP_TOKENS:
        raise OptionError(f"there are {len(ids)} stop_token_ids; at most {MAX_STOP_TOKENS} are supported")
    return ids


@dataclass(frozen=True)
class StopTokenIds(StageOptions):
    """`stop_token_ids` (at most 1024): each ends the sequence as an end-of-sequence id does; the reason is 'stop'."""

    stop_token_ids: tuple[int, ...] = ()

    options: ClassVar[tuple[Option, ...]] = (
        Option("stop_token_ids", _read, help="stop at these tokens too", metavar="1,2,3", type=ids_of_text),
    )

    def check_vocabulary(self, vocab: int) -> None:
        for token in self.stop_token_ids:
            if token >= vocab:
                raise OptionError(f"stop_token_ids has {token}; ids of this model go from 0 to {vocab - 1}")
