"""Reads the messages and the tools of a conversation, before a chat template gets them unchanged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import OptionError
from ..model_files.bounded_json import NotJsonError, clipped, read_json

__all__ = ["Message", "read_messages", "read_tools"]

Message = Mapping[str, Any]
Check = tuple[str, Callable[[Any], bool]]


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _is_list_of_objects(value: Any) -> bool:
    return _is_list(value) and all(isinstance(each, Mapping) for each in value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


FIELDS: dict[str, Check] = {
    "role": ("a text that is not empty", lambda value: isinstance(value, str) and value != ""),
    "content": ("a text or a list of objects", lambda value: _is_text(value) or _is_list_of_objects(value)),
    "tool_calls": ("a list of objects", _is_list_of_objects),
    "tool_call_id": ("a text", _is_text),
    "name": ("a text", _is_text),
}
"""The fields of a message, what each must be, and whether a value is that. None is as if it were left out. Templates
know other fields, too."""


def read_messages(name: str, value: str | Sequence[Message]) -> list[Message]:
    """Messages, or their JSON, as a list. `name` is what errors call it. Raises OptionError for a value that is no list
    of objects, for a message without a role or without content, and for a field of a wrong type."""
    messages = _objects(name, value, '{"role": "user", "content": "..."}')
    for place, message in enumerate(messages):
        _require_fields(f"{name}[{place}]", message)
    return messages


def read_tools(name: str, value: str | Sequence[Message]) -> list[Message]:
    """Tools, or their JSON, as a list. Raises OptionError for what is no list of objects."""
    return _objects(name, value, '{"type": "function", "function": {"name": "..."}}')


def _objects(name: str, value: str | Sequence[Message], example: str) -> list[Message]:
    items: Any = value
    if isinstance(value, str):
        try:
            items = read_json(value)
        except NotJsonError as error:
            raise OptionError(f"{name}: {error}") from error
    if not _is_list_of_objects(items):
        raise OptionError(f"{name}: expected a list of objects such as {example}")
    return list(items)


def _require_fields(name: str, message: Message) -> None:
    given = {field: value for field, value in message.items() if value is not None}
    for field, (wanted, holds) in FIELDS.items():
        if field in given and not holds(given[field]):
            raise OptionError(f"{name}.{field} is {clipped(given[field])}; it must be {wanted}")
    if "role" not in given:
        raise OptionError(f"{name}.role: missing; give 'system', 'user', 'assistant' or one that the template knows")
    # An assistant's message may be calls of tools, or thoughts, alone.
    if "content" not in given and not (given["role"] == "assistant" and len(given) > 1):
        raise OptionError(f"{name}.content: missing; give a text, or tool_calls in a message of the assistant")
