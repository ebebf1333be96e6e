"""Makes the events of an answer: its text, and the probability of each token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._js import host
from ..generation.generator import Generator
from ..text.stream import StoppingStream
from ..tokenizer import Tokenizer
from .inspection import CONTEXT_TOKENS, texts_behind
from .requests import RunRequest

__all__ = ["likelihood", "text_event", "text_events", "watch"]


def text_events(
    stream: StoppingStream, keep: Callable[[str], None]
) -> Callable[[int, bool, dict[str, Any] | None], None]:
    """A function that turns each id of the sequence (-1 at the end) into text, keeps it and tells the page."""

    def show(token: int, in_sequence: bool, log_probability: dict[str, Any] | None) -> None:
        delta = stream.push(token) if in_sequence else ""
        if token < 0:
            delta = stream.flush()
        keep(delta)
        if token >= 0 or delta:
            host.emit(text_event(delta, token, log_probability))

    return show


def text_event(text: str, token: int, log_probability: dict[str, Any] | None) -> dict[str, Any]:
    told = {} if log_probability is None else {"log_probability": log_probability}
    return {"kind": "text", "text": text, "token_id": token, **told}


def watch(generator: Generator, request: RunRequest) -> None:
    """Have the generator tell the log probabilities of the request. Raises OptionError."""
    generator.watch_log_probabilities(request.get("log_probabilities"))


def likelihood(generator: Generator, tokenizer: Tokenizer, request: RunRequest) -> dict[str, Any] | None:
    """A LogProbability of web/src/protocol.ts for the last token of the sequence; None unless the request asks for it,
    and for a token that a grammar forced."""
    count = request.get("log_probabilities")
    if count is None:
        return None
    [found] = generator.get_log_probabilities()
    if not found:
        return None
    sequence = generator.get_sequence()
    token, text_of = sequence[-1], texts_behind(tokenizer, sequence[-1 - CONTEXT_TOKENS : -1])
    told = [{"token_id": other, "text": text_of(other), "log_probability": value} for other, value in found.items()]
    [own] = [each for each in told if each["token_id"] == token]
    return own | {"top": told[:count]}
