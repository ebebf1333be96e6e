"""Reads made-up answers, whole and in parts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from capstan.text.answer_formats import FORMATS, AnswerFormat
from capstan.text.answer_reader import AnswerReader

CASES = json.loads((Path(__file__).with_name("cases.json")).read_text())
TOOLS, ARGUMENTS = CASES["tools"], CASES["arguments"]
BY_NAME = {form.name: form for form in FORMATS}


def read(form: AnswerFormat, text: str, cuts: Sequence[int] = (), tools: Any = TOOLS, **options: Any) -> dict[str, Any]:
    reader = AnswerReader(form, tools, **options)
    parts = []
    for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        parts += reader.push(text[begin:end])
    parts += reader.end()
    told = {kind: "".join(p.text for p in parts if p.kind == kind) for kind in ("reasoning", "answer")}
    calls = [[part.call.name, part.call.arguments] for part in parts if part.call is not None]
    return {**told, "calls": calls, "text": "".join(part.text for part in parts)}


def read_anyhow(form: AnswerFormat, text: str, **options: Any) -> dict[str, Any]:
    """The parts of an answer, the same wherever the text is cut."""
    found = read(form, text, **options)
    for place in range(len(text) + 1):
        assert read(form, text, [place], **options) == found, place
    assert read(form, text, range(len(text)), **options) == found
    return found


class WordTokenizer:
    """A tokenizer of whole words, whose marks are special tokens."""

    def __init__(self, form: AnswerFormat, words: Sequence[str]) -> None:
        self.answer_format, self.words = form, list(words)
        marks = {mark for mark in (*form.marks, "<unk>") if mark in words}
        self.special_ids = {mark: self.words.index(mark) for mark in marks}

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.words[each] for each in ids if self.words[each] not in self.special_ids)
