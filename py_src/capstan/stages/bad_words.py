"""bad_words_ids: runs of tokens that must not occur, as in Hugging Face's transformers."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any, ClassVar

from ..errors import OptionError
from .option import Option, ids_of_text, items, token_ids
from .stage import NEGATIVE_INFINITY_KEY, Keys, Row, Stage, StageOptions

__all__ = ["BadWords"]


def _read(value: Any) -> tuple[tuple[int, ...], ...]:
    lists = items("bad_words_ids", value, "lists of token ids")
    words = tuple(token_ids("an entry of bad_words_ids", word) for word in lists)
    if not all(words):
        raise OptionError("bad_words_ids has an empty list; leave it out")
    return words


def of_text(text: str) -> list[list[int]]:
    """Read the command line's form: 1,2;3."""
    return [ids_of_text(part) for part in text.split(";")]


def _banned(options: Any) -> list[tuple[int, ...]]:
    """The lists, except those of only an end-of-sequence id, which stays allowed."""
    return [word for word in options.bad_words_ids if len(word) > 1 or word[0] not in options.eos_token_ids]


def _edit(keys: Keys, options: Any, row: Row) -> None:
    tokens = list(row.tokens)
    for word in _banned(options):
        before = len(word) - 1
        if before <= len(tokens) and tokens[len(tokens) - before :] == [*word[:-1]] and word[-1] < len(keys):
            keys[word[-1]] = NEGATIVE_INFINITY_KEY


def _table(options: Any, vocab: int) -> array[int]:
    """The end of each word (a banned list of ids) in the table, then the ids of all words."""
    words = [word for word in _banned(options) if max(word) < vocab]
    ends, at = [], len(words)
    for word in words:
        at += len(word)
        ends.append(at)
    return array("I", [*ends, *(token for word in words for token in word)])


@dataclass(frozen=True)
class BadWords(StageOptions):
    """`bad_words_ids` (lists of ids): the last token of a list is banned if the sequence ends in the other ids of the
    list. A list of only an end-of-sequence id is ignored.
    """

    bad_words_ids: tuple[tuple[int, ...], ...] = ()

    options: ClassVar[tuple[Option, ...]] = (
        Option("bad_words_ids", _read, help="never generate these tokens", metavar="1,2;3", type=of_text, stated=True),
    )
    stage: ClassVar[Stage | None] = Stage(
        "bad_words",
        active=lambda options: bool(_banned(options)),
        words={"bad_words": lambda options: len(_banned(options))},
        table=_table,
        edit=_edit,
        sequence=True,
        ban_wgsl="""
fn ban_bad_words(row: u32, part: u32, parts: u32) {
  let length = sequence_length(row);
  for (var word = part; word < params.bad_words; word += parts) {
    var begin = params.bad_words;
    if (word != 0u) {
      begin = table_bad_words(word - 1u);
    }
    let last = table_bad_words(word) - 1u;
    let before = last - begin;
    var same = before <= length;
    for (var i = 1u; same && i <= before; i++) {
      same = table_bad_words(last - i) == sequence_token(row, length - i);
    }
    if (same) {
      ban(row, table_bad_words(last));
    }
  }
}
""",
    )

    def check_vocabulary(self, vocab: int) -> None:
        for token in (token for word in self.bad_words_ids for token in word):
            if token >= vocab:
                raise OptionError(f"bad_words_ids has {token}; ids of this model go from 0 to {vocab - 1}")
