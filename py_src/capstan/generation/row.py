"""Represents one sequence of a generator: its tokens, the part that the model has seen, and the picks that were not
read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field, replace

from ..device.prefix_cache import Content
from ..errors import LogitsError
from ..stages.sampling import NO_TOKEN
from ..text.stream import StoppingStream

__all__ = ["Row"]


@dataclass
class Row:
    """A row of a batch, or the only row. `tokens` are those on which the model runs; the sequence that callers see may
    also have padding: after a prompt that is shorter than others, and after the end of the row.
    """

    tokens: list[int] = field(default_factory=list)
    contents: tuple[Content, ...] = ()
    """The ranges of `tokens` that stand for other content, such as a picture."""
    valid: int = 0
    """The number of first tokens whose KV cache entries are known to be right."""
    ready: deque[int] = field(default_factory=deque)
    """Tokens that were picked and not read."""
    forced: int = 0
    """The number of last tokens in `picked` that a grammar forced, without a model step."""
    ahead: int = 0
    """The number of picks under way."""
    changes: int = 0
    """The number of times that unread picks became invalid: ids of bursts from before a change are ignored."""
    ended: bool = False
    """Whether an id that ends sequences was picked (the last unread pick), or a stop string was completed; nothing more
    is submitted.
    """
    barren: bool = False
    """Whether no token could be picked after the unread picks."""
    padding: tuple[int, ...] = ()
    """Padding of the prompt."""
    prompt: int = 0
    """The number of tokens before the padding."""
    appended: list[tuple[int, int]] = field(default_factory=list)
    """The ranges of `tokens` that were appended; the other tokens were picked."""
    runs: list[tuple[int, int]] = field(default_factory=list)
    """The ranges of `tokens` that ran as prompts; each other token ran as a step."""
    end: int | None = None
    """The id that ended the row, once it was read."""
    text: Callable[[Sequence[int]], StoppingStream] | None = None
    """Makes the stream that looks for stop strings after some tokens; None without stop strings."""
    stream: StoppingStream | None = None
    """The text of the tokens picked since the last append."""
    tail: list[int] = field(default_factory=list)
    """The tokens after the row's last one while other rows continue: an end-of-sequence id, then padding."""

    @property
    def sequence(self) -> list[int]:
        """All ids, prompt and generated, including padding."""
        return [*self.tokens[: self.prompt], *self.padding, *self.tokens[self.prompt :], *self.tail]

    def __len__(self) -> int:
        """The length of the sequence in tokens."""
        return len(self.tokens) + len(self.padding) + len(self.tail)

    @property
    def unpicked(self) -> int:
        """The length of the sequence up to the last token that was appended; the tokens after it were picked."""
        return self.appended[-1][1] + len(self.padding) if self.appended else 0

    @property
    def stopped(self) -> bool:
        """Whether a stop string was generated."""
        return self.stream is not None and self.stream.stopped is not None

    @property
    def over(self) -> bool:
        """Whether the row's end-of-sequence id was read."""
        return self.ended and not self.ready

    def room(self, limit: int) -> int:
        """The number of tokens that can still be picked up to a length of `limit`, besides unread picks and picks under
        way.
        """
        return limit - len(self) - len(self.ready) - self.ahead

    def copy(self) -> Row:
        """A copy of the sequence, which continues independently."""
        return replace(
            self, tokens=list(self.tokens), ready=deque(self.ready), tail=list(self.tail), appended=list(self.appended)
        )

    def append(self, ids: Sequence[int], padding: Sequence[int] = ()) -> None:
        """Add tokens and, if the prompt has padding, its padding."""
        self.appended.append((len(self.tokens), len(self.tokens) + len(ids)))
        self.tokens += ids
        self.begin_text()
        if padding:
            self.prompt, self.padding = len(self.tokens), tuple(padding)

    def cut(self, length: int) -> None:
        """Keep the first `length` tokens; a row with padding can only be cut to 0."""
        del self.tokens[length:]
        self.contents = tuple(each for each in self.contents if each.end <= length)
        self._forget_runs(length)
        self.appended = [(start, min(end, length)) for start, end in self.appended if start < length]
        self.begin_text()
        # The last kept token runs again, since the logits after it are gone.
        self.unsettle(max(0, length - 1))
        if not length:
            self.prompt, self.padding, self.tail = 0, (), []

    def begin_text(self) -> None:
        """Decode the text again, from the tokens picked since the last append."""
        if self.text is not None:
            start = self.appended[-1][1] if self.appended else 0
            self.stream = self.text(self.tokens[:start])
            for token in self.tokens[start:]:
                self.stream.push(token)

    def ran(self, end: int, again: bool) -> None:
        """Note that the model ran on the tokens from `valid` to `end` at once, possibly for a second time."""
        if not again or not any(begin <= self.valid and end <= stop for begin, stop in self.runs):
            self._forget_runs(self.valid)
            self.runs.append((self.valid, end))
        self.valid = end

    def next_run(self) -> int:
        """The end of the run that starts at `valid`. Runs must reproduce the same cache: prompts run in the same pieces
        as before, and each picked token in a separate step.
        """
        start = self.valid
        found = next((end for begin, end in self.runs if begin <= start < end), None)
        if found is not None:
            return found
        # A picked token ran together with the tokens that were appended after it.
        fresh = [(begin, end) for begin, end in self.appended if begin - 1 <= start < end]
        later = [begin for begin, _ in self.runs if begin > start]
        return min(fresh[-1][1] if fresh else start + 1, *later, len(self.tokens))

    def is_appended(self, start: int, count: int) -> bool:
        """Whether the `count` tokens from `start` belong to a prompt run, past or future."""
        ranges = [*self.runs, *self.appended]
        return count > 1 or any(begin <= start < end for begin, end in ranges)

    def _forget_runs(self, length: int) -> None:
        self.runs = [(begin, min(end, length)) for begin, end in self.runs if begin < length]

    def unsettle(self, length: int) -> None:
        """Note that cache entries from `length` on have to be computed again."""
        self.valid = min(self.valid, length)

    def lost_logits(self) -> None:
        """Note that the last token has to run again, for the logits after it."""
        self.unsettle(max(0, len(self.tokens) - 1))

    def discard_ahead(self) -> None:
        """Discard the unread picks, and the picks under way."""
        self.ready.clear()
        self.ahead = self.forced = 0
        self.changes += 1
        self.barren = False
        self.ended = bool(self.tail) or self.stopped

    def receive(self, ids: Sequence[int], ends: Set[int]) -> None:
        """Add picked ids, up to the first of `ends`."""
        if not (self.ended or self.barren) and NO_TOKEN not in ids and ends.isdisjoint(ids):
            self.ready.extend(ids)
            return
        for token in ids:
            if self.ended or self.barren:
                return
            if token == NO_TOKEN:
                self.barren = True
                return
            self.ready.append(token)
            self.ended = token in ends

    def require_logits(self, which: str = "") -> None:
        """Raise LogitsError if the next token could not be picked; `which` names the row if there are several."""
        if self.barren and not self.ready:
            raise LogitsError(
                f"the logits {which}after {len(self.tokens)} tokens are all NaN or -inf, or the search options "
                "exclude every token: take the model in float32, whose range is larger, or loosen the options; "
                "`await model.find_not_finite(ids)` names the node where it begins"
            )

    def take(self, pad: int) -> int:
        """Return the next token; padding after the end."""
        ready = self.ready
        if self.ended and not ready:
            return pad
        token = ready.popleft()
        if self.forced > len(ready):
            # The model has not seen the token before it.
            self.forced -= 1
        else:
            # The logits that gave this token came from the token before it.
            self.valid = len(self.tokens)
        if self.ended and not ready:
            self.end = token
            # Steps past the end repeated the last token's step, with workgroups for a longer sequence if their counts
            # come from a table. So its cache entry is computed again if the sequence continues.
            self.unsettle(max(0, self.valid - 1))
        else:
            self.tokens.append(token)
            if self.stream is not None:
                self.stream.push(token)
                if self.stopped:
                    # Picks ahead are discarded; nothing more is submitted for this row.
                    ready.clear()
                    self.ended = True
        return token
