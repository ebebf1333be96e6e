"""no_repeat_ngram_size: no run of this number of tokens occurs twice, as in onnxruntime-genai and transformers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from .option import Option
from .stage import NEGATIVE_INFINITY_KEY, Keys, Row, Stage, StageOptions

__all__ = ["NoRepeatNgram"]


def _edit(keys: Keys, options: Any, row: Row) -> None:
    size = options.no_repeat_ngram_size
    tokens = list(row.tokens)
    last = tokens[len(tokens) - size + 1 :]
    for start in range(len(tokens) - size + 1):
        token = tokens[start + size - 1]
        if tokens[start : start + size - 1] == last and token < len(keys):
            keys[token] = NEGATIVE_INFINITY_KEY


@dataclass(frozen=True)
class NoRepeatNgram(StageOptions):
    """`no_repeat_ngram_size` (0 = off): bans a token that would end a run of this many tokens which the sequence,
    prompt included, already contains.
    """

    no_repeat_ngram_size: int = 0

    options: ClassVar[tuple[Option, ...]] = (
        Option.integer("no_repeat_ngram_size", 0, help="never repeat a run of N tokens of the text", stated=True),
    )
    stage: ClassVar[Stage | None] = Stage(
        "no_repeat_ngram",
        active=lambda options: options.no_repeat_ngram_size > 0,
        words={"ngram_size": lambda options: options.no_repeat_ngram_size},
        edit=_edit,
        due=lambda options, row: len(row.tokens) >= options.no_repeat_ngram_size,
        sequence=True,
        ban_wgsl="""
fn ban_no_repeat_ngram(row: u32, part: u32, parts: u32) {
  let length = sequence_length(row);
  let before = params.ngram_size - 1u;
  if (length < params.ngram_size) {
    return;
  }
  for (var end = before + part; end < length; end += parts) {
    var same = true;
    for (var i = 1u; same && i <= before; i++) {
      same = sequence_token(row, end - i) == sequence_token(row, length - i);
    }
    if (same) {
      ban(row, sequence_token(row, end));
    }
  }
}
""",
    )
