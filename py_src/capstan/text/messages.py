"""Checks the messages and the tools of a conversation, which a chat template then gets unchanged."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote_to_bytes

from ..errors import OptionError
from ..model_files.bounded_json import NotJsonError, clipped, read_json

__all__ = ["Message", "read_messages", "read_tools", "without_pictures"]

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
"""The fields of a message, their types in words, and their tests. None counts as left out. Templates may know other
fields, too.
"""


def read_messages(name: str, value: str | Sequence[Message]) -> list[Message]:
    """Messages, or their JSON, as a list; errors call it `name`. Raises OptionError for a value that is not a list of
    objects, for a message without a role or without content, and for a field of a wrong type.
    """
    messages = _objects(name, value, '{"role": "user", "content": "..."}')
    for place, message in enumerate(messages):
        _require_fields(f"{name}[{place}]", message)
    return messages


def read_tools(name: str, value: str | Sequence[Message]) -> list[Message]:
    """Tools, or their JSON, as a list. Raises OptionError for a value that is not a list of objects."""
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
    # An assistant's message may consist only of calls of tools, or of thoughts.
    if "content" not in given and not (given["role"] == "assistant" and len(given) > 1):
        raise OptionError(f"{name}.content: missing; give a text, or tool_calls in a message of the assistant")


UNHEARD = ("audio", "audio_url", "input_audio", "video", "video_url")
"""Types of content parts that no model takes in a chat."""


def without_pictures(messages: Sequence[Message]) -> tuple[list[Message], list[Any]]:
    """Messages in the form for chat templates, with `{"type": "image"}` for each picture, and the pictures in order:
    the field `image` of such a part, or the content of a `data:` address in OpenAI's `image_url`. Raises OptionError
    for other addresses, and for sounds and videos.
    """
    pictures: list[Any] = []
    shown = [
        {
            **message,
            "content": [bare(part, f"messages[{place}].content[{at}]", pictures) for at, part in enumerate(parts)],
        }
        if isinstance(parts := message.get("content"), list)
        else message
        for place, message in enumerate(messages)
    ]
    return shown, pictures


def bare(part: Any, where: str, pictures: list[Any]) -> Any:
    """A part of a message without its picture, which is added to `pictures`."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in UNHEARD:
        raise OptionError(
            f"{where}.type is {kind!r}: chats take no sounds and videos; capstan.Transcriber turns speech into text"
        )
    if kind not in ("image", "image_url"):
        return part
    others = [name for name in part if name not in ("type", kind)]
    if part.get(kind) is None or others:
        raise OptionError(f"{where} has {', '.join(part)}; a picture's part has only type and {kind}")
    pictures.append(part[kind] if kind == "image" else data_of(part[kind], f"{where}.image_url"))
    return {"type": "image"}


def data_of(given: Any, where: str) -> bytes:
    """The content of a `data:` address."""
    fields = given if isinstance(given, Mapping) else {"url": given}
    url, detail = fields.get("url"), fields.get("detail")
    if detail not in (None, "auto"):
        raise OptionError(f"{where}.detail is {clipped(detail)}; a model reads pictures in its own size: leave it out")
    if not isinstance(url, str) or not url.startswith("data:"):
        raise OptionError(f"{where}.url is {clipped(url)}; it must begin with 'data:', since nothing is fetched here")
    about, _, data = url[5:].partition(",")
    try:
        return b64decode(unquote_to_bytes(data), validate=True) if about.endswith(";base64") else unquote_to_bytes(data)
    except ValueError as error:
        raise OptionError(f"{where}.url is not base64 ({error}); encode the file again") from error
