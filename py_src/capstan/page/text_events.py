"""Makes the events of an answer: its text, and the probability of each token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._js import host_calls
from ..generation.answer import AnswerStream, parts_as_json
from ..generation.generator import Generator
from ..text.answer_reader import AnswerPart
from ..text.stream import StoppingStream
from ..tokenizer import Tokenizer
from .inspection import CONTEXT_TOKENS, texts_after
from .requests import RunRequest

__all__ = ["Choice", "likelihood", "text_event", "watch"]


class Choice:
    """A sequence that continues a prompt, with its ids and its text; the page is notified of these."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: Sequence[str],
        prompt: Sequence[int],
        begun: Sequence[int],
        row: int | None,
        answer: AnswerStream | None = None,
    ) -> None:
        """`begun` are the given first tokens of the sequence; `row` is its index among several sequences, None if it is
        the only one; `answer` reads the answer of a chat.
        """
        self.ids: list[int] = []
        self.text = ""
        self._answer = answer
        self._tokenizer, self._row = tokenizer, row
        self._stream = StoppingStream(tokenizer.decode, stops, prompt)
        for token in begun:
            self._stream.push(token)

    def take(self, token: int, in_sequence: bool, generator: Generator, request: RunRequest) -> None:
        """Take the next token; an end-of-sequence token is not part of the sequence."""
        self.ids.append(token)
        described = likelihood(generator, self._tokenizer, request, self._row or 0) if in_sequence else None
        text = self._stream.push(token) if in_sequence else ""
        parts = None if self._answer is None else self._answer.push(token if in_sequence else None, text)
        self._emit(text, token, described, parts)

    def end(self) -> dict[str, Any]:
        """The whole text and, in a chat, its parts, in the form for replies."""
        rest = self._stream.flush()
        parts = None if self._answer is None else self._answer.end(rest)
        if rest or parts:
            self._emit(rest, -1, None, parts)
        return {"text": self.text} if self._answer is None else self._answer.summary()

    def finish_reason_of(self, reason: str | None) -> str | None:
        """The reason for the end of a sequence that the generator ended for `reason`."""
        return reason if self._answer is None or reason is None else self._answer.finish_reason_of(reason)

    def _emit(
        self, text: str, token: int, log_probability: dict[str, Any] | None, parts: list[AnswerPart] | None
    ) -> None:
        self.text += text
        row = {} if self._row is None else {"row": self._row}
        host_calls.emit(text_event(text, token, log_probability, parts) | row)


def text_event(
    text: str, token: int, log_probability: dict[str, Any] | None, parts: list[AnswerPart] | None = None
) -> dict[str, Any]:
    """The event for a token: its text or, in a chat's answer, the parts that it completes, and their text."""
    described: dict[str, Any] = {} if log_probability is None else {"log_probability": log_probability}
    if parts is not None:
        text = "".join(part.text for part in parts)
        described["parts"] = parts_as_json(parts)
    return {"kind": "text", "text": text, "token_id": token, **described}


def watch(generator: Generator, request: RunRequest) -> None:
    """Have the generator keep the log probabilities that the request wants. Raises OptionError."""
    generator.watch_log_probabilities(request.get("log_probabilities"))


def likelihood(generator: Generator, tokenizer: Tokenizer, request: RunRequest, row: int = 0) -> dict[str, Any] | None:
    """A LogProbability of web/src/wire/protocol.ts for the last token of a row's sequence; None unless the request
    wants it, and for a token that a grammar forced.
    """
    count = request.get("log_probabilities")
    if count is None:
        return None
    found = generator.get_log_probabilities()[row]
    if not found:
        return None
    sequence = generator.get_sequence(row)
    token, text_of = sequence[-1], texts_after(tokenizer, sequence[-1 - CONTEXT_TOKENS : -1])
    described = [
        {"token_id": other, "text": text_of(other), "log_probability": value} for other, value in found.items()
    ]
    [own] = [each for each in described if each["token_id"] == token]
    return own | {"top": described[:count]}
