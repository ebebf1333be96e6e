"""Joins the tokens of two texts as a tokenizer's post-processor does for a pair.

BERT, ModernBERT    [CLS] first [SEP] second [SEP]
XLM-RoBERTa         <s> first </s> </s> second </s>
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError, UnsupportedModelError

__all__ = ["PairTemplate", "longest_first"]

FIRST, SECOND = "A", "B"

Piece = tuple[str | list[int], int]
"""FIRST, SECOND or the ids of a special token, and the token_type_id."""


@dataclass(frozen=True)
class PairTemplate:
    """The order of two texts and of the special tokens around them."""

    pieces: tuple[Piece, ...]

    @classmethod
    def of(cls, post_processor: Mapping[str, Any] | None) -> PairTemplate:
        """The template in the `post_processor` of a tokenizer.json. Raises ConfigError, and UnsupportedModelError for
        one that puts no special token between two texts.
        """
        try:
            pieces = pieces_of(post_processor)
        except (TypeError, KeyError, ValueError) as error:
            raise ConfigError(
                f"tokenizer.json: post_processor: {error!r} while its template of pairs is read; copy the file again"
            ) from error
        order = [content for content, _ in pieces if isinstance(content, str)]
        first, second = (next((at for at, (it, _) in enumerate(pieces) if it == name), -1) for name in (FIRST, SECOND))
        if order != [FIRST, SECOND] or second - first < 2:
            kind = post_processor.get("type") if post_processor else None
            raise UnsupportedModelError(
                f"tokenizer.json: its post_processor ({kind}) has no template that separates the two texts of a pair; "
                "use a cross-encoder with the tokenizer.json of its own repository"
            )
        return cls(pieces)

    @property
    def added(self) -> int:
        """The number of special tokens."""
        return sum(len(content) for content, _ in self.pieces if not isinstance(content, str))

    def join(self, first: Sequence[int], second: Sequence[int]) -> tuple[list[int], list[int]]:
        """The ids of a pair, and the token_type_id of each."""
        texts = {FIRST: first, SECOND: second}
        ids: list[int] = []
        types: list[int] = []
        for content, kind in self.pieces:
            new = texts[content] if isinstance(content, str) else content
            ids += new
            types += [kind] * len(new)
        return ids, types


def pieces_of(processor: Mapping[str, Any] | None) -> tuple[Piece, ...]:
    """The pieces of a post-processor; () for one that adds nothing to a pair."""
    if processor is None or processor["type"] == "ByteLevel":
        return ()
    if processor["type"] == "Sequence":
        found = [pieces for each in processor["processors"] if (pieces := pieces_of(each))]
        return found[0] if len(found) == 1 else ()
    if processor["type"] == "TemplateProcessing":
        special = processor["special_tokens"]
        return tuple(template_piece(special, *next(iter(each.items()))) for each in processor["pair"])
    begin, end = [int(processor["cls"][1])], [int(processor["sep"][1])]
    if processor["type"] == "BertProcessing":
        return (begin, 0), (FIRST, 0), (end, 0), (SECOND, 1), (end, 1)
    if processor["type"] == "RobertaProcessing":
        return (begin, 0), (FIRST, 0), (end, 0), (end, 0), (SECOND, 0), (end, 0)
    raise ValueError(f"unknown type {processor['type']!r}")


def template_piece(special: Mapping[str, Any], kind: str, about: Mapping[str, Any]) -> Piece:
    content = str(about["id"]) if kind == "Sequence" else [int(each) for each in special[about["id"]]["ids"]]
    return content, int(about["type_id"])


def longest_first(first: int, second: int, most: int) -> tuple[int, int]:
    """How many tokens two texts keep so that both have `most` together: as in Rust's tokenizers, the longer text is cut
    to the length of the shorter one, then both to a half.
    """
    if first + second <= most:
        return first, second
    shorter, longer = sorted((first, second))
    longer = max(shorter, most - shorter)
    if shorter + longer > most:
        shorter = most // 2
        longer = most - shorter
    return (longer, shorter) if first > second else (shorter, longer)
