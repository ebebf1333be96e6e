"""Turns token ids, one at a time, into text that can be shown: whole characters, without a possible start of a stop
string.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["StoppingStream", "TextStream", "alike"]

REPLACEMENT = "\ufffd"
HELD_TOKENS = 4
"""A character has at most 4 bytes, so at most 4 tokens; a character that is incomplete after these is not UTF-8."""
WINDOW_TOKENS = 64
"""The most tokens that are decoded again for one more; reached only in text that is not UTF-8."""


class TextStream:
    """Turns ids into text deltas; the deltas joined are the text of all ids.

    `decode` gives the text of a list of ids. Decoding token by token would be wrong: a character may span tokens, and
    SentencePiece-like decoders drop the space before the first token. So a window of the last ids is decoded with and
    without the new one, and the difference is the delta. Replacement characters at its end may be an incomplete
    character and are held back; `flush` releases them.

    `before` are the ids before the first one, whose text is not returned: the deltas are the text added to it. This
    keeps an answer's first space, which a decoder drops at the beginning of a text.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], before: Sequence[int] = ()) -> None:
        self._decode = decode
        self._window = context_of(decode, before)
        self._before = decode(self._window) if self._window else ""
        """The preceding text, until the first delta; the next ids may complete its last character."""
        self._shown = len(self._window)
        """The number of the window's ids with complete text, after which the next window may start."""
        self._sent = len(self._before)
        """The number of characters of the window's text that were returned."""

    def push(self, token_id: int) -> str:
        """The complete characters of the text up to this id; empty for special tokens."""
        self._window.append(token_id)
        text = self._decode(self._window)
        if self._before:
            self._sent = alike(self._before, text)
        delta = self._completed(text)
        if delta:
            self._before = ""
        return delta

    def _completed(self, text: str) -> str:
        held = len(self._window) - self._shown
        if not text.endswith(REPLACEMENT) or held > WINDOW_TOKENS:
            delta = text[self._sent :]
            self._slide(text)
            return delta
        incomplete = len(text) - len(text.rstrip(REPLACEMENT))
        if held > HELD_TOKENS:
            incomplete = min(incomplete, HELD_TOKENS - 1)
        whole = max(self._sent, len(text) - incomplete)
        delta, self._sent = text[self._sent : whole], whole
        if held > WINDOW_TOKENS // 2:
            self._cut(text[whole:])
        return delta

    def flush(self) -> str:
        """The text that was held back, incomplete characters as U+FFFD; the stream then starts again."""
        delta = self._decode(self._window)[self._sent :] if self._window else ""
        self._window, self._shown, self._sent, self._before = [], 0, 0, ""
        return delta

    def _cut(self, rest: str) -> None:
        """Keep only the last ids, if many ids each end within a character and the last ids' text also ends in
        `rest`.
        """
        last = self._window[-2 * HELD_TOKENS :]
        text = self._decode(last)
        if text.endswith(rest):
            self._window, self._shown, self._sent = last, 0, len(text) - len(rest)

    def _slide(self, text: str) -> None:
        """Keep the ids of the last delta as context for the next one, and earlier ids if they have no text."""
        context = self._window[self._shown :]
        kept = self._decode(context) if self._shown else text
        if kept or len(self._window) > WINDOW_TOKENS:
            self._window, text = context, kept
        self._shown, self._sent = len(self._window), len(text)
        self._before = self._before and text


def alike(one: Sequence[Any], other: Sequence[Any]) -> int:
    """The length of the common start of two sequences."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def context_of(decode: Callable[[Sequence[int]], str], before: Sequence[int]) -> list[int]:
    """The last ids that have text together: at least as many ids as a character may have, if there are enough."""
    count = HELD_TOKENS
    while count < min(len(before), WINDOW_TOKENS) and not decode(before[-count:]):
        count *= 2
    return list(before[-count:])


class StoppingStream:
    """A TextStream whose text ends before the first stop string. A possible start of a stop string is held back."""

    def __init__(
        self, decode: Callable[[Sequence[int]], str], stops: Sequence[str] = (), before: Sequence[int] = ()
    ) -> None:
        self.text = ""
        """The text that was returned."""
        self.stopped: str | None = None
        """The stop string that was met."""
        self._stops = tuple(stops)
        self._stream = TextStream(decode, before)
        self._held = ""

    def push(self, token_id: int) -> str:
        """The text that can be shown now; nothing after a stop string."""
        return self._pass(self._stream.push(token_id))

    def flush(self) -> str:
        """The text that was held back, at the end of the stream."""
        delta = self._pass(self._stream.flush())
        rest, self._held = self._held, ""
        self.text += rest
        return delta + rest

    def _pass(self, delta: str) -> str:
        if self.stopped is not None:
            return ""
        text = self._held + delta
        found = min(((text.find(stop), stop) for stop in self._stops if stop in text), default=None)
        if found is not None:
            place, self.stopped = found
            shown, self._held = text[:place], ""
        else:
            keep = max((overlap(text, stop) for stop in self._stops), default=0)
            shown, self._held = text[: len(text) - keep], text[len(text) - keep :]
        self.text += shown
        return shown


def overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[-size:]):
            return size
    return 0
