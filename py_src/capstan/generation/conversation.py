"""A conversation over one generator: what was computed for its earlier turns is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..text.stream import StoppingStream
from .generator import Generator

__all__ = ["ChatTokenizer", "Conversation", "History"]


class ChatTokenizer(Protocol):
    """The part of a Tokenizer that a conversation uses."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        thinking: bool | None = None,
    ) -> str: ...


@dataclass(frozen=True)
class History:
    """The state of a conversation, from which another generator continues it."""

    text: str
    marks: tuple[tuple[int, int], ...]
    """Places in the text, where prompts and answers end: characters and tokens before them."""
    ids: tuple[int, ...]
    """The sequence: those of its answers, as they were picked."""


class Conversation:
    """Answers lists of messages with one generator, which runs the model only on what is new in each list.

    `ask`, then `answer`, which may be cancelled: what it has shown until then is the answer.
    """

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        generator: Generator,
        stops: Sequence[str] = (),
        earlier: History | None = None,
    ) -> None:
        """`earlier` is the state of the conversation before its device was lost: its ids are run again if its text is
        continued.
        """
        self.generator = generator
        self._tokenizer = tokenizer
        self.stops = tuple(stops)
        """The generator's stop strings."""
        self._text = earlier.text if earlier else ""
        """The text of the generator's sequence."""
        self._marks = [*earlier.marks] if earlier else [(0, 0)]
        """Places in it, where prompts and answers end: characters and tokens before them."""
        self._given = earlier.ids if earlier else ()
        """The sequence of `earlier`, as long as nothing was run here."""

    def history(self) -> History:
        return History(self._text, tuple(self._marks), self._given or tuple(self.generator.get_sequence()))

    def ask(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        thinking: bool | None = None,
    ) -> int:
        """Make the rendered messages the sequence, with the tools that the model may call; how many tokens of the last
        one were kept. `thinking` as in Tokenizer.apply_chat_template.

        Raises ConfigError where the template cannot be rendered, PromptError where max_length is too small,
        OptionError for `thinking` that the template does not know.
        """
        text = self._tokenizer.apply_chat_template(messages, tools, thinking=thinking)
        # The ids of an answer stay, also where its text would be split into other ones.
        at, place = next(
            (place, mark)
            for place, mark in reversed([*enumerate(self._marks)])
            if text.startswith(self._text[: mark[0]])
        )
        characters, tokens = place
        present = self._given or self.generator.get_sequence()
        ids = self._tokenizer.encode(text[characters:])
        same = shared(present[tokens:], ids)
        kept = tokens + same
        del self._marks[at + 1 :]
        new = ids[same:]
        if self._given:
            new, kept = [*present[:kept], *new], 0
        else:
            self.generator.rewind_to(kept)
        if new or not kept:
            self.generator.append_tokens(new)
        self._given = ()
        self._text = text
        self._mark()
        return kept

    @property
    def text(self) -> str:
        """The text of the sequence."""
        return self._text

    def _mark(self) -> None:
        self._marks.append((len(self._text), self.generator.token_count()))

    async def answer(self, limit: int | None, show: Callable[[int, str], None], begun: Sequence[int] = ()) -> str:
        """Generate at most `limit` tokens; why it ended: the generator's finish_reason, or 'max_new_tokens'.

        `begun` are the first tokens of the answer, which are given and count. `show(token, text)` is called for each
        further token with the text that it completes, and with -1 for what was held back at the end.
        """
        stream = StoppingStream(self._tokenizer.decode, self.stops)
        if begun:
            self.generator.append_tokens(begun)
        for token in begun:
            self._text += stream.push(token)
        count = len(begun)
        try:
            while not self.generator.is_done():
                if limit is not None and count >= limit:
                    return "max_new_tokens"
                length = self.generator.token_count()
                token = await self.generator.generate_next_token_async()
                count += 1
                # An end-of-sequence or stop token is no part of the sequence.
                text = stream.push(token) if self.generator.token_count() > length else ""
                self._text += text
                show(token, text)
            return str(self.generator.finish_reason)
        finally:
            rest = stream.flush()
            self._text += rest
            if stream.stopped is None:
                # Behind a stop string the sequence has tokens that its text lacks: the next prompt goes on before them.
                self._mark()
            if rest:
                show(-1, rest)


def shared(present: Sequence[int], wanted: Sequence[int]) -> int:
    """How many tokens two sequences begin with alike."""
    pairs = enumerate(zip(present, wanted, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(present), len(wanted)))
