"""Limits the time and memory of a tokenizer.json. Its library cannot be interrupted, so all limits are checked before
the call.

When the tokenizer is made, an expression that takes exponential time on some text raises an error, and so does a
replacement that enlarges a text too much. Expressions that take quadratic time are allowed, but only for texts with
short runs.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError, OptionError
from ..model_files.bounded_json import clipped
from .expressions import UnreadError, danger, walks_of
from .searches import LONGEST_RUN, longest_run, searched_again

__all__ = ["TextLimits", "require_bounded"]

MOST_GROWTH = 1_000
"""The most characters that one character may become."""
LONGEST_TOKEN = 1_000
"""The longest token that may be searched at each character of a text: a token of a unigram model, or an added one."""
LONGEST_WORD = 500
"""The longest word of which a word piece model may search each part."""
PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
LISTS = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders"}
OTHER = "\U0010ffff"
"""Stands for all characters that no replacement names."""


@dataclass(frozen=True)
class TextLimits:
    """The bounds of a tokenizer's texts."""

    expressions: tuple[tuple[str, str], ...]
    """The path and the text of each expression that is searched in a text."""
    normalizers: tuple[Mapping[str, Any], ...]
    """The parts that change a text before these expressions read it."""

    def require(self, text: str) -> None:
        """Raise OptionError for a text that would take long."""
        if len(text) <= LONGEST_RUN:
            return
        searches = [(*each, reads) for each in self.expressions for reads in searched_again(each[1])]
        changed = normalized(text, self.normalizers) if searches else None
        for path, expression, reads in searches:
            run = len(text) if changed is None else max(longest_run(each, reads) for each in (text, changed))
            if run > LONGEST_RUN:
                raise OptionError(
                    f"text: it has a run of {run} characters, which {path} of tokenizer.json reads again from each "
                    f"character ({clipped(expression)}); such a run may have at most {LONGEST_RUN}: give the text in "
                    "parts"
                )


def require_bounded(content: Mapping[str, Any]) -> TextLimits:
    """The bounds of the texts. Raises ConfigError for a part that could take exponential time, with its path."""
    found = [each for part in PARTS for each in expressions(content.get(part), part)]
    for path, expression in found:
        reason = danger(expression)
        if reason:
            raise ConfigError(
                f"tokenizer.json: {path}: {clipped(expression)} may take exponential time: {reason}; write it so that "
                "each text is matched in one way, or copy the model's own file again"
            )
    for part in LISTS:
        if growth(list(steps(content.get(part), LISTS[part]))) > MOST_GROWTH:
            raise ConfigError(
                f"tokenizer.json: {part}: its replacements can make more than {MOST_GROWTH} characters of one; copy "
                "the model's own file again"
            )
    require_short_tokens(content)
    require_ids(content)
    require_whole_characters(content["model"])
    searched = tuple(each for each in found if not each[0].startswith("decoder"))
    return TextLimits(searched, tuple(steps(content.get("normalizer"), LISTS["normalizer"])))


def normalized(text: str, normalizers: Iterable[Mapping[str, Any]]) -> str | None:
    """A text with the runs of characters that normalizers leave; None if that is unknown for a normalizer."""
    for part in normalizers:
        kind: Any = part.get("type")
        pattern = part.get("pattern")
        literal = pattern.get("String") if isinstance(pattern, Mapping) else None
        if kind in ("NFC", "NFD", "NFKC", "NFKD"):
            text = unicodedata.normalize(kind, text)
        elif kind == "Lowercase":
            text = text.lower()
        elif kind == "Replace" and isinstance(literal, str) and literal:
            text = text.replace(literal, str(part.get("content")))
        elif kind not in ("Prepend", "Strip"):
            return None
    return text


def require_short_tokens(content: Mapping[str, Any]) -> None:
    """Raise ConfigError for tokens and words that would be searched again and again in a long text."""
    model, added = content["model"], content.get("added_tokens")
    vocabulary = model.get("vocab")
    listed = vocabulary if isinstance(vocabulary, list) else []
    pieces = [item[0] for item in listed if isinstance(item, list) and item]
    marked = [item.get("content") for item in added if isinstance(item, Mapping)] if isinstance(added, list) else []
    for path, tokens in (("model.vocab", pieces), ("added_tokens", marked)):
        longest = max((len(token) for token in tokens if isinstance(token, str)), default=0)
        if longest > LONGEST_TOKEN:
            raise ConfigError(
                f"tokenizer.json: {path}: a token has {longest} characters; at most {LONGEST_TOKEN} are allowed, "
                "since it is searched at each character of a text: copy the model's own file again"
            )
    most = model.get("max_input_chars_per_word")
    if isinstance(most, int) and most > LONGEST_WORD:
        raise ConfigError(
            f"tokenizer.json: model.max_input_chars_per_word is {most}; it may be at most {LONGEST_WORD}, since each "
            "part of a word is searched: set it to 100, as in BERT"
        )


def require_whole_characters(model: Mapping[str, Any]) -> None:
    """Raise ConfigError for a merge whose second token a prefix would cut inside a character.

    Rust's tokenizers removes one byte for each character of `continuing_subword_prefix`, unchecked: the process may
    end.
    """
    prefix, merges = model.get("continuing_subword_prefix"), model.get("merges")
    if not isinstance(prefix, str) or not prefix or not isinstance(merges, list):
        return
    for index, merge in enumerate(merges):
        parts = merge.split(" ") if isinstance(merge, str) else merge
        second = parts[-1] if isinstance(parts, list) and parts else None
        if isinstance(second, str) and cut_inside(second.encode(errors="replace"), len(prefix)):
            raise ConfigError(
                f"tokenizer.json: model.merges[{index}]: {clipped(second)} does not begin with {clipped(prefix)}, the "
                "continuing_subword_prefix; copy the model's own file again"
            )


def cut_inside(text: bytes, at: int) -> bool:
    """Whether a cut at byte `at` is inside a character of this UTF-8, or beyond the end of the text."""
    return at > len(text) or (at < len(text) and text[at] & 0xC0 == 0x80)


def require_ids(content: Mapping[str, Any]) -> None:
    """Raise ConfigError for an added token whose id in the file differs from the libraries' id.

    Rust's tokenizers takes the vocabulary's id, or the next one after all others, regardless of the file.
    """
    added, vocabulary = content.get("added_tokens"), content["model"].get("vocab")
    if not isinstance(added, list) or not isinstance(vocabulary, (list, Mapping)):
        return
    tokens = [item for item in added if isinstance(item, Mapping) and is_text(item.get("content")) and item["content"]]
    wanted = {item["content"] for item in tokens}
    if isinstance(vocabulary, Mapping):
        known = {token: vocabulary[token] for token in wanted if token in vocabulary}
    else:
        pieces = ((item[0], place) for place, item in enumerate(vocabulary) if isinstance(item, list) and item)
        known = {token: place for token, place in pieces if is_text(token) and token in wanted}
    size, last = len(vocabulary), -1
    for item in tokens:
        text, id_ = item["content"], item.get("id")
        found = known.setdefault(text, max(last + 1, size))
        if found != id_:
            raise ConfigError(
                f"tokenizer.json: added_tokens: {clipped(text)} has the id {id_}, but its place gives {found}, the id "
                "in Rust's tokenizers: give ids without gaps after the vocabulary's, or copy the file again"
            )
        last = max(last, found)


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def expressions(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """The regular expressions in a part of tokenizer.json, with their JSON paths."""
    inner = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for name, each in inner:
        at = f"{path}[{name}]" if isinstance(name, int) else f"{path}.{name}"
        if name == "Regex" and isinstance(each, str):
            yield at, each
        else:
            yield from expressions(each, at)


def steps(value: Any, inner: str) -> Iterator[Mapping[str, Any]]:
    """The parts of a sequence in order, or the single part."""
    if isinstance(value, Mapping):
        within = value.get(inner)
        if isinstance(within, list):
            for each in within:
                yield from steps(each, inner)
        else:
            yield value


def growth(parts: list[Mapping[str, Any]]) -> float:
    """The most characters that one character can become, step by step from the last to the first."""
    sizes = {OTHER: 1.0}

    def size(text: str) -> float:
        return sum(sizes.get(character, sizes[OTHER]) for character in text)

    for part in reversed(parts):
        if part.get("type") == "ByteLevel":
            # Each byte is a character, and in UTF-8 a character has up to four.
            sizes = {character: 4 * each for character, each in sizes.items()}
            continue
        pattern, content = part.get("pattern"), part.get("content")
        if part.get("type") != "Replace" or not isinstance(pattern, Mapping) or not is_text(content):
            continue
        made = size(str(content))
        literal, expression = pattern.get("String"), pattern.get("Regex")
        if isinstance(literal, str) and literal:
            taken = {character: made / len(literal) for character in literal}
        elif isinstance(expression, str):
            least, reads = read_by(expression)
            known = {*sizes, *map(str, str(content))}
            taken = {
                character: made / max(least, 1) + (sizes.get(character, sizes[OTHER]) if least == 0 else 0)
                for character in known
                if reads(character)
            }
        else:
            continue
        for character, each in taken.items():
            sizes[character] = max(sizes.get(character, sizes[OTHER]), each)
    return max(sizes.values())


def read_by(expression: str) -> tuple[int, Callable[[str], bool]]:
    """The smallest number of characters that an expression matches, and a function that returns whether it can read a
    character.
    """
    try:
        walks = walks_of(expression)
    except (UnreadError, re.error, OverflowError, RecursionError):
        return 0, lambda character: True  # `danger` refuses it.
    tests = walks.tests
    return walks.least, lambda character: character == OTHER or any(test(character) is not False for test in tests)
