"""Reads an answer as its tokens arrive: its text, its reasoning, and its calls of tools."""

from __future__ import annotations

import random
import string
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from ..errors import GuidanceError, OptionError
from ..guidance import Guidance
from ..text.answer_formats import AnswerFormat
from ..text.answer_reader import AnswerPart, AnswerReader, functions_of
from ..text.call_forms import Call, json_text
from ..text.call_grammar import call_grammar
from ..text.stream import StoppingStream

__all__ = ["AnswerStream", "AnswerTokenizer", "begins_reasoning", "forced_call", "parts_as_json"]


class AnswerTokenizer(Protocol):
    """The part of a Tokenizer that answers use."""

    @property
    def answer_format(self) -> AnswerFormat: ...

    @property
    def special_ids(self) -> Mapping[str, int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


class AnswerStream:
    """Turns the tokens of an answer into its parts, including marks that are special tokens."""

    def __init__(
        self,
        tokenizer: AnswerTokenizer,
        prompt: str,
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        before: Sequence[int] = (),
        stops: Sequence[str] = (),
        forced: bool = False,
        held: bool = False,
        in_json: bool = False,
        most_calls: int | None = None,
    ) -> None:
        """`prompt` is the rendered prompt, `before` has its ids; AnswerReader documents `forced` and `held`. With
        `in_json` the whole answer fits a schema and has no reasoning, not even after an opened `<think>`.
        """
        form = tokenizer.answer_format
        begun = begins_reasoning(prompt, form) and not in_json
        self._reader = AnswerReader(form, tools, begun=begun, forced=forced, held=held, most=most_calls)
        self._tokenizer = tokenizer
        marks = form.marks if tools else form.thinking_marks
        self._kept = {id_: text for text, id_ in tokenizer.special_ids.items() if text in marks}
        self._before, self._stops = before, stops
        self._own = StoppingStream(self._decode, stops, before) if self._kept else None
        """Decodes text with special tokens; None if the text without them has all marks."""
        self.parts: list[AnswerPart] = []
        """The parts that were returned."""

    def begin(self, tokens: Sequence[int]) -> None:
        """Take the first tokens, which are given and not returned."""
        stream = self._own or StoppingStream(self._tokenizer.decode, self._stops, self._before)
        for token in tokens:
            self._reader.push(stream.push(token))

    def push(self, token: int | None, text: str) -> list[AnswerPart]:
        """The parts that a token completes; None for a token outside the sequence. `text` is its contribution to the
        text without special tokens.
        """
        if self._own is not None:
            text = "" if token is None else self._own.push(token)
        return self._recorded(self._reader.push(text))

    def end(self, text: str = "") -> list[AnswerPart]:
        """The parts that were held back; `text` as in push."""
        text = text if self._own is None else self._own.flush()
        return self._recorded([*self._reader.push(text), *self._reader.end()])

    def summary(self) -> dict[str, Any]:
        """The whole answer, in the form for replies; `finish_reason_of` has the reason for its end."""
        calls = [call_as_json(part.call) for part in self.parts if part.call is not None]
        return {
            "text": "".join(part.text for part in self.parts),
            **{
                kind: "".join(part.text for part in self.parts if part.kind == kind) for kind in ("reasoning", "answer")
            },
            "tool_calls": calls,
        }

    def finish_reason_of(self, reason: str) -> str:
        """'tool_calls' if the answer ended with a call, else the generator's reason."""
        return "tool_calls" if reason == "stop" and any(part.call is not None for part in self.parts) else reason

    def _recorded(self, parts: list[AnswerPart]) -> list[AnswerPart]:
        parts = [part if part.call is None or part.call.id else with_id(part) for part in parts]
        self.parts += parts
        return parts

    def _decode(self, ids: Sequence[int]) -> str:
        """The text of ids with the marks among them."""
        text = ""
        run: list[int] = []
        for each in ids:
            if each in self._kept:
                text += self._tokenizer.decode(run) + self._kept[each]
                run = []
            else:
                run.append(each)
        return text + (self._tokenizer.decode(run) if run else "")


def parts_as_json(parts: Sequence[AnswerPart]) -> list[dict[str, Any]]:
    """The parts in the form for events; only the text has marks."""
    return [
        {"kind": part.kind, "text": part.text} | ({} if part.call is None else {"call": call_as_json(part.call)})
        for part in parts
        if part.kind != "mark"
    ]


def call_as_json(call: Call) -> dict[str, Any]:
    """A call in OpenAI's form."""
    function = {"name": call.name, "arguments": json_text(call.arguments)}
    return {"id": call.id, "type": "function", "function": function}


def with_id(part: AnswerPart) -> AnswerPart:
    """Give a call an id of nine letters and digits, as Mistral's templates need it."""
    assert part.call is not None
    identifier = "".join(random.SystemRandom().choices(string.ascii_letters + string.digits, k=9))
    return replace(part, call=replace(part.call, id=identifier))


def begins_reasoning(prompt: str, form: AnswerFormat) -> bool:
    """Whether a rendered prompt ends within the model's reasoning."""
    return prompt.rstrip().endswith(form.thinking[0])


def forced_call(
    tokenizer: AnswerTokenizer,
    prompt: str,
    tools: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    *,
    optional: bool = False,
) -> str:
    """The Lark grammar of a call of one of the named tools after a rendered prompt, with `optional` of a text that
    such a call may end. Raises OptionError for a name that no tool has, GuidanceError for parameters that no grammar
    can express.
    """
    functions = functions_of(tools)
    for name in names:
        if name not in functions:
            raise OptionError(f"{name!r} must be called but is not one of the tools: {', '.join(functions) or 'none'}")
    if not names:
        raise OptionError("a function must be called, but there are no tools: pass tools")
    for name in names:
        if (schema := functions[name]) is not None:
            try:
                Guidance("json_schema", json_text(schema))
            except GuidanceError as error:
                raise GuidanceError(f"tools: the parameters of {name}: {error}") from error
    form = tokenizer.answer_format
    chosen = {name: functions[name] for name in names}
    return call_grammar(form, chosen, tokenizer.special_ids, begun=begins_reasoning(prompt, form), optional=optional)
