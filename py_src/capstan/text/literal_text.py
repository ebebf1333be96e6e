"""Encodes control tokens in the texts of messages and tools as text, so that they have no effect.

Two marks, characters that no message has, are put into each of them before the chat template is rendered. The prompt
knows their places, and the tokenizer encodes the text around them without control tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from ..errors import PromptError

__all__ = ["ANCHOR", "ControlTokens", "LiteralEncoder", "Prompt", "changed", "without_control_tokens"]

TRUSTED = ("system", "developer")
"""The roles of messages that the application writes; their control tokens keep their effect."""
MARKS = [chr(0x30000 + 2 * number) + chr(0x30001 + 2 * number) for number in range(1000)]
"""Pairs of rare characters, which also a template that prints a value of Python shows as they are: the first one stands
after the first character of a token, the other one after its end.
"""
MARKLIKE = re.compile(r"[<\[｜|].*[>\]｜|]", re.DOTALL)
Messages = Sequence[Mapping[str, Any]]
ANCHOR = "\U000f1000anchor\U000f1001"
"""A token before a text, so that the tokenizer does not treat the text as the first one."""


class Prompt(str):
    """A prompt's text. `places` has the start and the end of each control token that a message's text contains."""

    __slots__ = ("places",)
    places: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, marked: str, mark: str) -> Prompt:
        """The prompt of a text with a pair of marks in each such token."""
        first, second = mark[0], mark[1]
        pieces: list[str] = []
        places: list[tuple[int, int]] = []
        size = 0
        token = re.compile(f"(.){first}([^{mark}]*){second}", re.DOTALL)
        end = 0
        for match in token.finditer(marked):
            before = without(marked[end : match.start()], mark)
            pieces += [before, match[1], match[2]]
            size += len(before)
            places.append((size, size := size + 1 + len(match[2])))
            end = match.end()
        # A template may have cut a token, whose other mark is left.
        prompt = cls("".join([*pieces, without(marked[end:], mark)]))
        prompt.places = tuple(places)
        return prompt


def changed(text: str, change: Callable[[str], str]) -> str:
    """A text after a change, which does not see the control tokens in a Prompt's messages."""
    if not isinstance(text, Prompt):
        return change(text)
    mark = unused(text)
    marked, end = "", 0
    for start, stop in text.places:
        marked += f"{text[end : start + 1]}{mark[0]}{text[start + 1 : stop]}{mark[1]}"
        end = stop
    return Prompt.of(change(marked + text[end:]), mark)


class ControlTokens:
    """The control tokens of a vocabulary: its special tokens, and others that the chat template writes as marks."""

    def __init__(
        self, added: Iterable[Mapping[str, Any]], template: str, own: Collection[str], unknown: str | None
    ) -> None:
        """`own` are marks of answers, such as those around reasoning, which messages of the model keep. `unknown` is
        the token of characters outside the vocabulary.
        """
        self.items = [
            each
            for each in added
            if each.get("special") or (each["content"] in template and MARKLIKE.fullmatch(each["content"]))
        ]
        texts = sorted((each["content"] for each in self.items if each["content"]), key=len, reverse=True)
        self.ids = {each["id"]: each["content"] for each in self.items if each["content"] != unknown}
        self._all, self._others = pattern(texts), pattern([text for text in texts if text not in own])

    def find(self, text: str) -> list[tuple[int, int]]:
        """The places of control tokens in a text."""
        return [match.span() for match in self._all.finditer(text)] if self._all else []

    def marked(self, messages: Messages, tools: Messages | None) -> tuple[Messages, Messages | None, str | None]:
        """The messages and tools with the mark in each control token of their texts, and the mark; None if there is
        none. A tool may be another server's: all its texts are marked, also names of parameters.
        """
        found = [(message, self._pattern(message.get("role"))) for message in messages]
        in_tools = tools is not None and self._all is not None and contains(tools, self._all)
        if not in_tools and not any(tokens and contains(message, tokens) for message, tokens in found):
            return messages, tools, None
        mark = unused(json.dumps([messages, tools], ensure_ascii=False, default=str))

        def inside(match: re.Match[str]) -> str:
            return f"{match[0][0]}{mark[0]}{match[0][1:]}{mark[1]}"

        marked = [mapped(each, partial(tokens.sub, inside)) if tokens else each for each, tokens in found]
        return marked, mapped(tools, partial(self._all.sub, inside), ()) if in_tools and self._all else tools, mark

    def _pattern(self, role: object) -> re.Pattern[str] | None:
        if role in TRUSTED:
            return None
        return self._others if role == "assistant" else self._all


class LiteralEncoder:
    """Encodes prompts that have control tokens in the texts of messages."""

    def __init__(
        self, control: ControlTokens, encode: Callable[[str], list[int]], plain: Callable[[str], list[int]]
    ) -> None:
        """`encode` reads control tokens; `plain` reads none but ANCHOR."""
        self._control, self._encode, self._plain = control, encode, plain

    def encode(self, prompt: Prompt) -> list[int]:
        """The ids of a prompt. Raises PromptError for a token that the vocabulary has in no other form."""
        ids: list[int] = []
        end = 0
        effective = self._effective(prompt)
        for start, stop, before, after in self._parts(prompt, effective):
            ids += self._encode(prompt[end:start]) if start > end else []
            text = prompt[start:stop]
            text = text.lstrip() if before.get("rstrip") else text
            ids += self._literal(text.rstrip() if after.get("lstrip") else text)
            end = stop
        return ids + (self._encode(prompt[end:]) if end < len(prompt) else [])

    def _effective(self, prompt: Prompt) -> list[tuple[int, int]]:
        """The places of the tokens that the chat template wrote."""
        found: list[tuple[int, int]] = []
        end = 0
        for start, stop in (*prompt.places, (len(prompt), len(prompt))):
            found += [(end + first, end + last) for first, last in self._control.find(prompt[end:start])]
            end = stop
        return found

    def _parts(
        self, prompt: Prompt, effective: Sequence[tuple[int, int]]
    ) -> Iterable[tuple[int, int, Mapping[str, Any], Mapping[str, Any]]]:
        """The texts between two effective tokens that have a literal one, and the tokens around each."""
        items = {each["content"]: each for each in self._control.items}
        bounds = [(0, 0), *effective, (len(prompt), len(prompt))]
        for (first, start), (stop, last) in pairwise(bounds):
            if any(start <= place < stop for place, _ in prompt.places):
                yield start, stop, items.get(prompt[first:start], {}), items.get(prompt[stop:last], {})

    def _literal(self, text: str) -> list[int]:
        ids = self._plain(text)
        for token in ids:
            if token in self._control.ids:
                raise PromptError(
                    f"a message has the text {self._control.ids[token]!r}, which this vocabulary has only as a control "
                    "token; leave it out"
                )
        return ids


def unused(text: str) -> str:
    """A pair of marks that does not occur in a text. Raises PromptError if all pairs occur."""
    for mark in MARKS:
        if mark[0] not in text and mark[1] not in text:
            return mark
    raise PromptError(f"the messages have all {len(MARKS)} pairs of characters from U+30000 on; leave some out")


def without(text: str, mark: str) -> str:
    return text.replace(mark[0], "").replace(mark[1], "")


def pattern(texts: Sequence[str]) -> re.Pattern[str] | None:
    return re.compile("|".join(map(re.escape, texts))) if texts else None


def contains(value: Any, tokens: re.Pattern[str]) -> bool:
    if isinstance(value, str):
        return tokens.search(value) is not None
    if isinstance(value, Mapping):
        return any(contains(key, tokens) or contains(each, tokens) for key, each in value.items())
    return isinstance(value, list | tuple) and any(contains(each, tokens) for each in value)


def mapped(value: Any, change: Callable[[str], str], kept: Collection[str] = ("role", "type")) -> Any:
    """A value of JSON with its texts and names changed, but for the texts of that name: the roles of messages and the
    types of parts.
    """
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {
            change(key) if isinstance(key, str) else key: each
            if key in kept and isinstance(each, str)
            else mapped(each, change, kept)
            for key, each in value.items()
        }
    return [mapped(each, change, kept) for each in value] if isinstance(value, list | tuple) else value


def without_control_tokens(content: Mapping[str, Any], control: ControlTokens) -> str:
    """A tokenizer.json that reads no control token but ANCHOR."""
    gone = {each["content"] for each in control.items}
    added = [each for each in content.get("added_tokens") or () if each["content"] not in gone]
    vocabulary = content["model"].get("vocab") or {}
    size = max([len(vocabulary), *(each["id"] + 1 for each in content.get("added_tokens") or ())])
    anchor = {"id": size, "content": ANCHOR, "special": True, "normalized": False}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
    return json.dumps({**content, "added_tokens": [*added, {**anchor, **flags}], "post_processor": None})
