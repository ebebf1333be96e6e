"""Converts the tools of a prompt to the structure that chat templates of the native package expect.

This is the structure of Phi-4's tools, `{"name", "description", "parameters": {NAME: {"type", "description"}}}`, unless
the template seems to know OpenAI's. A message may also have tools, as JSON in a text: the examples of the native
package set `tools` of the system message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..errors import OptionError
from ..model_files.bounded_json import NotJsonError, read_json
from ..text.messages import Message, read_messages, read_tools

__all__ = ["double_quoted", "messages_with_tools", "tools_for"]

KNOWS_FUNCTIONS = re.compile(r"\btools?\s*\|\s*tojson|\btool\.function")
"""Templates that take tools in OpenAI's form."""
QUOTES = re.compile(r"(?<=[{: ,])'|'(?=[}: ,])")
"""Matches the single quotes that the native package treats as those of keys and values."""


class ToolList(list[Any]):
    """Tools of a message. A template may concatenate them with texts, as Phi-4's does: `'<|tool|>' +
    message['tools']`.
    """

    def __add__(self, other: Any) -> Any:
        return f"{self}{other}" if isinstance(other, str) else super().__add__(other)

    def __radd__(self, other: str) -> str:
        return f"{other}{self}"


def tools_for(template: str, tools: str | None) -> list[Message] | None:
    """Convert the argument `tools`, which is JSON, for that template. Raises OptionError unless it is an array of
    objects.
    """
    if not tools:
        return None
    given = read_tools("tools", tools)
    return given if KNOWS_FUNCTIONS.search(template) else [normalised(tool) for tool in given]


def messages_with_tools(template: str, messages: str) -> tuple[list[Message], bool]:
    """Convert the messages, which are JSON, with their tools as that template expects them. Also returns whether any
    tools are text. A text that is not JSON stays unchanged; the native package raises an error.

    Raises OptionError unless messages are an array of objects, and their tools arrays.
    """
    found, some = [], False
    for place, message in enumerate(read_messages("messages", messages)):
        text = message.get("tools")
        if isinstance(text, str):
            some = True
            message = {**message, "tools": tools_of(template, text, f"messages[{place}].tools")}
        found.append(message)
    return found, some


def tools_of(template: str, text: str, where: str) -> ToolList | str:
    try:
        tools = read_json(text) if text else []
    except NotJsonError:
        return text
    if not isinstance(tools, list):
        raise OptionError(f"{where}: expected a JSON array of tools, got {type(tools).__name__}; put it into an array")
    return ToolList(tools if KNOWS_FUNCTIONS.search(template) else map(normalised, tools))


def double_quoted(prompt: str) -> str:
    """Replace the single quotes around keys and values in a prompt by double quotes. A template prints single quotes
    for tools in a message.

    As in the native package, the whole prompt is changed, including other text that looks like a key or a value.
    """
    return QUOTES.sub('"', prompt)


def normalised(tool: Any) -> Any:
    """Convert a tool to Phi-4's structure. A tool that is neither "function" nor "tool" already has this structure."""
    if not isinstance(tool, Mapping):
        return tool
    function = tool.get("function") if tool.get("type") == "function" else tool
    if tool.get("type") not in ("function", "tool") or not isinstance(function, Mapping):
        return tool
    fields: dict[str, Any] = {"name": "", "description": "", "parameters": {}}
    made = {name: function.get(name, default) for name, default in fields.items()}
    return made | {"parameters": flat(made["parameters"])}


def flat(parameters: Any) -> Any:
    """Convert OpenAI's schema of parameters to Phi-4's structure: type and description by name."""
    properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
    if not isinstance(properties, Mapping):
        return parameters
    return {name: entry_of(schema) if isinstance(schema, Mapping) else {} for name, schema in properties.items()}


def entry_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: schema[name] for name in ("type", "description") if name in schema}
    kind = found.get("type")
    if isinstance(kind, list):
        kind = next((each for each in kind if isinstance(each, str) and each != "null"), "null")
    if isinstance(kind, str):
        found["type"] = "str" if kind == "string" else kind
    return found
