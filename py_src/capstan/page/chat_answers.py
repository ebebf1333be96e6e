"""Makes the parts of an answer that depend on the model's format: the prompt, the grammar of a call, and the reader of
the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import OptionError
from ..generation.answer import AnswerStream, forced_call
from ..text.chat_prompts import template_options
from ..text.messages import without_pictures
from ..tokenizer import Tokenizer
from .requests import ChatRequest, Message

__all__ = ["answer_stream", "rendered", "with_call", "with_pictures"]


def with_pictures(messages: Sequence[Message], attached: Any) -> list[Message]:
    """Messages with the request's pictures (contents of files, or pixels) in place of their numbers."""
    return [
        {
            **message,
            "content": [put_in(part, f"messages[{place}].content[{at}]", attached) for at, part in enumerate(parts)],
        }
        if isinstance(parts := message.get("content"), list)
        else message
        for place, message in enumerate(messages)
    ]


def put_in(part: Any, where: str, attached: Any) -> Any:
    """A part of a message with its picture."""
    if not isinstance(part, dict) or part.get("type") != "image" or "picture" not in part:
        return part
    number, count = part["picture"], 0 if attached is None else len(attached)
    if type(number) is not int or not 0 <= number < count:
        raise OptionError(f"{where}.picture is {number!r}; {count} pictures came with the request")
    given = attached[number]
    data = given.bytes.to_bytes()
    if given.width:
        from ..picture.picture_file import Rgba  # noqa: PLC0415  (Pillow: pages that see)

        data = Rgba(given.width, given.height, data)
    return {"type": "image", "image": data}


def rendered(tokenizer: Tokenizer, request: ChatRequest) -> str:
    """The prompt of a conversation, without placeholders of pictures."""
    return tokenizer.apply_chat_template(without_pictures(request["messages"])[0], **template_options(request))


def with_call(tokenizer: Tokenizer, request: ChatRequest) -> ChatRequest:
    """The request with the grammar of the required call."""
    if (names := request.get("called")) is None:
        return request
    if request.get("guidance") is not None:
        raise OptionError("the request requires both a call of a tool and a grammar: give one of the two")
    optional = request.get("call_optional") is True
    prompt = rendered(tokenizer, request)
    data = forced_call(tokenizer, prompt, request.get("tools") or [], names, optional=optional)
    return {**request, "guidance": {"type": "lark_grammar", "data": data}}


def answer_stream(
    tokenizer: Tokenizer, request: ChatRequest, prompt: str, ids: Sequence[int], stops: Sequence[str]
) -> AnswerStream:
    """The reader of the answer after a rendered prompt with these ids."""
    called, guidance = request.get("called") is not None, request.get("guidance")
    held = called and request.get("call_optional") is True
    return AnswerStream(
        tokenizer,
        prompt,
        request.get("tools"),
        before=ids,
        stops=stops,
        forced=called and not held,
        held=held,
        in_json=guidance is not None and guidance["type"] == "json_schema",
        most_calls=request.get("most_calls"),
    )
