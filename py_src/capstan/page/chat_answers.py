"""The parts of an answer that the model's format decides: prompt, grammar of a call, reader of the answer."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import OptionError
from ..generation.answer import AnswerStream, forced_call
from ..text.chat_prompts import template_options
from ..tokenizer import Tokenizer
from .requests import ChatRequest

__all__ = ["answer_stream", "rendered", "with_call"]


def rendered(tokenizer: Tokenizer, request: ChatRequest) -> str:
    """The prompt of a conversation."""
    return tokenizer.apply_chat_template(request["messages"], **template_options(request))


def with_call(tokenizer: Tokenizer, request: ChatRequest) -> ChatRequest:
    """The request with the grammar of the call that has to be made."""
    if (names := request.get("called")) is None:
        return request
    if request.get("guidance") is not None:
        raise OptionError("a tool has to be called, and the answer has to fit a grammar: give one of the two")
    data = forced_call(tokenizer, rendered(tokenizer, request), request.get("tools") or [], names)
    return {**request, "guidance": {"type": "lark_grammar", "data": data}}


def answer_stream(
    tokenizer: Tokenizer, request: ChatRequest, prompt: str, ids: Sequence[int], stops: Sequence[str]
) -> AnswerStream:
    """The reader of the answer behind a rendered prompt, which has these ids."""
    forced, guidance = request.get("called") is not None, request.get("guidance")
    return AnswerStream(
        tokenizer,
        prompt,
        request.get("tools"),
        before=ids,
        stops=stops,
        forced=forced,
        in_json=guidance is not None and guidance["type"] == "json_schema",
        most_calls=request.get("most_calls"),
    )
