"""Converts earlier calls of a conversation to the notation that its chat template expects.

Templates differ: some take arguments as objects and some as JSON text, some have no place for calls, and Mistral's
require ids of nine letters and digits. Calls arrive in OpenAI's form; each template is tried once with an invented
call.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

from ..fallback import fall_back
from .answer_formats import AnswerFormat
from .call_forms import json_text
from .call_values import Cursor, NoCallError

__all__ = ["history_for"]

Message = Mapping[str, Any]
Render = Callable[[Sequence[Message]], str]
"""Renders a conversation with the template. Raises the template's errors."""
Way = Literal["object", "text", "content"]

NAME, KEY, ID = "probe_function", "probe_key", "probe1234"
MOST_KNOWN = 16
known: dict[str, tuple[Way, Sequence[Message]]] = {}
EMPTY: Message = {"content": ""}
SHORT_ID = re.compile(r"[A-Za-z0-9]{9}")


def history_for(messages: Sequence[Message], template: str, form: AnswerFormat, render: Render) -> Sequence[Message]:
    """The messages in the template's form; unchanged if there is no call among them."""
    if not any(message.get("tool_calls") for message in messages):
        return messages
    way, without_text = way_of(template, render)
    short = re.search(r"length\s*!=\s*9", template) is not None
    thinking = "reasoning_content" not in template and re.search(r"\.thinking\b|\['thinking'\]", template)
    found = []
    for message in messages:
        message = dict(message)
        calls = message.get("tool_calls")
        if isinstance(calls, Sequence) and not isinstance(calls, str) and calls:
            in_text = way == "content" or (bool(message.get("content")) and EMPTY not in without_text)
            message["tool_calls"] = [call_for(call, "content" if in_text else way, short) for call in calls]
            if in_text:
                written(message, form)
            elif not message.get("content") and content_of(message) not in without_text:
                message |= without_text[0]
            if thinking and message.get("reasoning_content") and not message.get("content"):
                message["thinking"] = message["reasoning_content"]
        if short and isinstance(message.get("tool_call_id"), str):
            message["tool_call_id"] = short_id(message["tool_call_id"])
        found.append(message)
    return found


def call_for(call: Any, way: Way, short: bool) -> Any:
    """A call with its arguments in the template's form."""
    if not isinstance(call, Mapping):
        return call
    outer, inner = dict(call), call.get("function", call)
    if not isinstance(inner, Mapping):
        return call
    function = {**inner, "arguments": arguments_as(inner.get("arguments"), way)}
    if short and isinstance(outer.get("id"), str):
        outer["id"] = short_id(outer["id"])
    return {**outer, "function": function} if "function" in call else {**outer, **function}


def arguments_as(arguments: Any, way: Way) -> Any:
    found = {} if arguments is None else arguments
    if isinstance(found, str):
        cursor = Cursor(found, 0, True)
        with suppress(NoCallError):
            value = cursor.value()
            cursor.space()
            found = value if cursor.at_end and isinstance(value, Mapping) else found
    return json_text(found, spaced=True) if way == "text" and isinstance(found, Mapping) else found


def short_id(identifier: str) -> str:
    """The id itself if it has nine letters and digits, else an id derived from it."""
    return identifier if SHORT_ID.fullmatch(identifier) else hashlib.sha256(identifier.encode()).hexdigest()[:9]


def written(message: dict[str, Any], form: AnswerFormat) -> None:
    """Put the calls of a message into its text, in the model's form."""
    if form.calls is None:
        reason = "the chat template has no place for it, and its family is not known"
        fall_back("a call in the history", reason, "the model does not see it")
        return
    for call in message.pop("tool_calls"):
        function = call.get("function", call) if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping):
            continue
        if isinstance(function.get("name"), str) and isinstance(function.get("arguments"), Mapping):
            message["content"] = (message.get("content") or "") + form.calls.write(
                function["name"], function["arguments"]
            )


def content_of(message: Message) -> Message:
    return {name: value for name, value in message.items() if name == "content"}


def way_of(template: str, render: Render) -> tuple[Way, Sequence[Message]]:
    """The template's form of arguments, and the contents with which it writes calls if there is no text; determined
    once for each template.
    """
    if template not in known:
        if len(known) >= MOST_KNOWN:
            known.clear()
        known[template] = tried(render)
    return known[template]


def tried(render: Render) -> tuple[Way, Sequence[Message]]:
    there = False
    ways: tuple[tuple[Way, Any], ...] = (("object", {KEY: "a"}), ("text", json_text({KEY: "a"})))
    for way, arguments in ways:
        call = {"id": ID, "type": "function", "function": {"name": NAME, "arguments": arguments}}
        without_text: list[Message] = []
        for content in (EMPTY, {}, {"content": None}):
            answer = {"role": "assistant", **content, "tool_calls": [call]}
            try:
                text = render([{"role": "user", "content": "a"}, answer])
            except Exception:
                continue
            there = there or NAME in text
            if NAME in text and KEY in text and f"'{KEY}'" not in text and f'\\"{KEY}' not in text:
                without_text.append(content)
        if without_text:
            return way, without_text
    return "object" if there else "content", [EMPTY, {}, {"content": None}]
