"""Defines the notations in which models write calls of tools, with their readers, writers and grammars.

A form has pieces (marks and texts) around a function's name and its arguments. Grammars, and calls in a conversation's
history, are made from the pieces; reading also follows them, and accepts further variants that models write.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .call_values import GEMMA, PYTHON, Cursor, NoCallError, plain_value

__all__ = [
    "Call",
    "CallForm",
    "Functions",
    "Parameters",
    "Read",
    "deepseek",
    "function_block",
    "gemma",
    "gemma_text",
    "json_in",
    "json_text",
    "mistral",
    "plain_text",
    "python_calls",
    "python_text",
    "tool_call_block",
    "whole_answer",
]

Functions = Mapping[str, Any]
"""The schemas of the parameters of the functions that may be called, by their names."""
MARKDOWN = ("```json", "```")


@dataclass(frozen=True)
class Call:
    """A call by the model."""

    name: str
    arguments: Any
    id: str = ""
    """The id that answers to this call carry."""


Read = Callable[[Cursor, Functions], list[Call]]
"""Reads the calls after an opening mark. Raises MoreError, NoCallError."""


@dataclass(frozen=True)
class Parameters:
    """Arguments that are written one by one instead of as JSON; NAME stands for a parameter's name."""

    before: str
    after: str
    between: str
    quote: str | None
    """The mark around strings; "" for plain strings, None for JSON strings."""
    written: Callable[[Any], str]
    """A value as text, in a conversation's history."""
    words: tuple[str, str] = ("true", "false")


@dataclass(frozen=True)
class CallForm:
    """A form of calls. In its pieces NAME stands for the function's name."""

    opening: Mapping[str, Read]
    """The reader of the calls after each mark that begins them; the mark "" means that they are the whole answer."""
    before: tuple[str, ...]
    """The pieces from the beginning to the arguments."""
    after: tuple[str, ...] = ()
    """The pieces after the arguments."""
    parameters: Parameters | None = None
    """None if the arguments are JSON."""

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        """A call in the model's form."""
        if self.parameters is None:
            inner = json_text(arguments, spaced=True)
        else:
            each = self.parameters
            inner = each.between.join(
                each.before.replace("NAME", key) + each.written(value) + each.after for key, value in arguments.items()
            )
        return "".join(self.before).replace("NAME", name) + inner + "".join(self.after)


def json_text(value: Any, spaced: bool = False) -> str:
    """JSON, in the form of chat templates if `spaced`; half a pair of surrogates stays escaped."""
    separators = None if spaced else (",", ":")
    text = json.dumps(value, ensure_ascii=False, separators=separators)
    half = any("\ud800" <= each <= "\udfff" for each in text)
    return json.dumps(value, separators=separators) if half else text


def object_call(value: Any) -> Call:
    """A call of {"name", "arguments"}. Some models write `parameters` for `arguments`, some put both in `function`."""
    if isinstance(value, Mapping) and isinstance(value.get("function"), Mapping):
        value = value["function"]
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise NoCallError
    arguments: Any = next((value[name] for name in ("arguments", "parameters") if name in value), {})
    return Call(value["name"], Cursor(arguments, 0, True).value() if isinstance(arguments, str) else arguments)


def list_of_calls(value: Any) -> list[Call]:
    return [object_call(each) for each in (value if isinstance(value, list) else [value])]


def json_in(*closing: str, optional: bool = False) -> Read:
    """The reader of a call as JSON, or of a list of calls, before a closing mark."""

    def read(cursor: Cursor, functions: Functions) -> list[Call]:
        cursor.space()
        if not (cursor.looks("{") or cursor.looks("[")):
            raise NoCallError
        calls = list_of_calls(cursor.value())
        if optional:
            before = cursor.at
            cursor.space()
            if not cursor.take(*closing):
                cursor.at = before
        elif closing:
            cursor.close(*closing)
        return calls

    return read


def tool_call_block(cursor: Cursor, functions: Functions) -> list[Call]:
    """The body of <tool_call>: Hermes' JSON, Qwen's <function=...>, or GLM's name with <arg_key> and <arg_value>."""
    cursor.space()
    if cursor.looks("{") or cursor.looks("["):
        # Granite 3.1 does not close the list.
        return json_in("</tool_call>", optional=cursor.looks("["))(cursor, functions)
    if cursor.take("<function="):
        return function_block(cursor, functions, "</tool_call>")
    name, found = cursor.name(), {}
    cursor.space()
    while cursor.take("<arg_key>"):
        key = cursor.until("</arg_key>").strip()
        cursor.space()
        cursor.expect("<arg_value>")
        found[key] = typed(cursor.until("</arg_value>"), functions.get(name), key)
        cursor.space()
    cursor.close("</tool_call>")
    return [Call(name, found)]


def function_block(cursor: Cursor, functions: Functions, *closing: str) -> list[Call]:
    """Qwen's XML after <function=."""
    name, found = cursor.until(">").strip(), {}
    if "\n" in name or "<" in name:
        raise NoCallError
    cursor.space()
    while cursor.take("<parameter="):
        key = cursor.until(">").strip()
        text = cursor.until("</parameter>")
        found[key] = typed(text.removeprefix("\n").removesuffix("\n"), functions.get(name), key)
        cursor.space()
    cursor.close("</function>")
    if closing:
        cursor.close(*closing)
    return [Call(name, found)]


def typed(text: str, schema: Any, key: str) -> Any:
    """The value of a parameter's plain text, by its schema."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    return plain_value(text, properties.get(key) if isinstance(properties, Mapping) else None, schema)


def mistral(cursor: Cursor, functions: Functions) -> list[Call]:
    """A list of calls, or NAME[ARGS]{...}, with or without [CALL_ID] and [ARGS]."""
    cursor.space()
    if cursor.looks("["):
        return list_of_calls(cursor.value())
    name = cursor.name()
    if cursor.take("[CALL_ID]"):
        cursor.name()
    cursor.take("[ARGS]")
    cursor.space()
    return [Call(name, cursor.value())]


def deepseek(cursor: Cursor, functions: Functions) -> list[Call]:
    """Calls between DeepSeek's marks: `function`, the name and a block of Markdown, or the name and JSON."""
    calls = []
    cursor.space()
    while cursor.take("<｜tool▁call▁begin｜>"):
        name = cursor.until("<｜tool▁sep｜>").strip()
        if name == "function":
            name = cursor.until("\n").strip()
        cursor.space()
        fenced = cursor.take(MARKDOWN[0])
        arguments = cursor.value()
        cursor.space()
        if fenced:
            cursor.close(MARKDOWN[1])
        cursor.close("<｜tool▁call▁end｜>")
        calls.append(Call(name, arguments))
        cursor.space()
    if not calls:
        raise NoCallError
    cursor.close("<｜tool▁calls▁end｜>")
    return calls


def python_calls(cursor: Cursor, functions: Functions) -> list[Call]:
    """LFM2's list of calls in Python's notation, or in JSON."""
    cursor.space()
    cursor.expect("[")
    cursor.space()
    if cursor.looks("{"):
        cursor.at = cursor.text.rindex("[", 0, cursor.at + 1)
        return json_in("<|tool_call_end|>")(cursor, functions)
    calls = []
    while True:
        name = cursor.name()
        arguments: dict[str, Any] = {}
        cursor.space()
        cursor.expect("(")
        cursor.space()
        while not cursor.take(")"):
            key = cursor.name()
            cursor.space()
            cursor.expect("=")
            arguments[key] = cursor.value(PYTHON)
            cursor.space()
            if not cursor.looks(")"):
                cursor.expect(",")
                cursor.space()
        calls.append(Call(name, arguments))
        cursor.space()
        if cursor.expect(",", "]") == "]":
            cursor.close("<|tool_call_end|>")
            return calls
        cursor.space()


def gemma(cursor: Cursor, functions: Functions) -> list[Call]:
    cursor.expect("call:")
    name = cursor.name()
    if not cursor.looks("{"):
        raise NoCallError
    arguments = cursor.value(GEMMA)
    cursor.close("<tool_call|>")
    return [Call(name, arguments)]


def whole_answer(cursor: Cursor, functions: Functions) -> list[Call]:
    """Calls that are the whole answer, separated by semicolons."""
    calls = []
    while True:
        cursor.space()
        if not cursor.looks("{"):
            raise NoCallError
        calls.append(object_call(cursor.value()))
        before = cursor.at
        cursor.space()
        if cursor.final and cursor.at_end:
            return calls
        if not cursor.take(";"):
            cursor.at = before
            return calls


def gemma_text(value: Any) -> str:
    """A value in Gemma's notation."""
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}:{gemma_text(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ",".join(map(gemma_text, value)) + "]"
    return json_text(value)


def python_text(value: Any) -> str:
    """A value in Python's notation, with strings as in JSON."""
    if value is None or isinstance(value, bool):
        return str(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json_text(name)}: {python_text(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(python_text, value))}]"
    return json_text(value)


def plain_text(value: Any) -> str:
    return value if isinstance(value, str) else json_text(value, spaced=True)
