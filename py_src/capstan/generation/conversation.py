"""Runs a conversation: one generator keeps the caches of earlier turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..device.prefix_cache import Content
from ..text.stream import StoppingStream, alike
from .chat_prompt import ChatPrompt, ChatPrompts
from .generator import Generator

__all__ = ["Conversation", "shared"]


class Conversation:
    """Answers lists of messages with one generator, which runs the model only on new tokens of each list. Call `ask`,
    then `answer`; if `answer` is cancelled, the text shown until then is the answer.
    """

    def __init__(self, prompts: ChatPrompts, generator: Generator, stops: Sequence[str] = ()) -> None:
        """`prompts` makes prompts for the generator's model; `stops` are the generator's stop strings."""
        self.generator = generator
        self._prompts = prompts
        self.stops = tuple(stops)
        self._asked = ChatPrompt("", [])

    @property
    def prompt(self) -> str:
        """The last rendered prompt."""
        return self._asked.text

    @property
    def sequence(self) -> ChatPrompt:
        """The present sequence as a prompt: its ids, and the places of its pictures."""
        return ChatPrompt("", self.generator.get_sequence(), (), self._asked.contents)

    def ask(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> int:
        """Render the messages and make their tokens the sequence; returns the number of tokens that the last sequence
        and this one share. `options` are those of Tokenizer.apply_chat_template: the tools that the model may call,
        thinking, variables of the template.

        Raises ConfigError if the template cannot be rendered, PromptError if max_length is too small, OptionError for
        variables that the template does not have; for pictures the errors of ChatPrompts.of.
        """
        return self.take(self._prompts.of(messages, **options))

    def take(self, asked: ChatPrompt) -> int:
        """The second half of `ask`: make a prompt's tokens the sequence. Raises PromptError if max_length is too
        small.
        """
        kept = shared(self.sequence, asked)
        before, self._asked = self._asked, asked
        self.generator.rewind_to(kept)
        if asked.pictures != before.pictures:
            self.generator.see(asked.pictures)
        if asked.ids[kept:] or not kept:
            self.generator.append_tokens(asked.ids[kept:])
        return kept

    def resume(self, contents: Sequence[Content]) -> None:
        """Continue with the generator's present sequence, in which pictures stand at `contents`."""
        self._asked = ChatPrompt("", [], (), tuple(contents))

    async def answer(self, limit: int | None, show: Callable[[int, str], None], begun: Sequence[int] = ()) -> str:
        """Generate at most `limit` tokens. Returns the reason for the end: the generator's finish_reason, or
        'length' at the limit.

        `begun` are the first tokens of the answer, which are given and count towards `limit`. `show(token, text)` is
        called for each further token with the text that it completes, and at the end with -1 for text that was held
        back.
        """
        stream = StoppingStream(self._prompts.tokenizer.decode, self.stops, self.generator.get_sequence())
        if begun:
            self.generator.append_tokens(begun)
        for token in begun:
            stream.push(token)
        count = len(begun)
        try:
            while not self.generator.is_done():
                if limit is not None and count >= limit:
                    return "length"
                length = self.generator.token_count()
                token = await self.generator.generate_next_token_async()
                count += 1
                # An end-of-sequence or stop token is not part of the sequence.
                show(token, stream.push(token) if self.generator.token_count() > length else "")
            return str(self.generator.finish_reason)
        finally:
            if rest := stream.flush():
                show(-1, rest)


def shared(one: ChatPrompt, other: ChatPrompt) -> int:
    """The number of first tokens that two prompts share, up to the first picture that differs or is incomplete."""
    length = alike(one.ids, other.ids)
    differing = {*one.contents} ^ {*other.contents}
    cut = [each.start for each in other.contents if each.end > length]
    return min([length, *(each.start for each in differing), *cut])
