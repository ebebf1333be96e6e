"""One sequence of a generator: its tokens, those that the model has seen, and the picks that were not read."""

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
    """A row of a batch, or the only one. `tokens` are those that the model is run on; the shown sequence may also have
    padding: after a prompt that is shorter than others, and after the end of the row.
    """

    tokens: list[int] = field(default_factory=list)
    contents: tuple[Content, ...] = ()
    """The ranges of `tokens` that stand for other content, such as a picture."""
    valid: int = 0
    """Tokens at the start whose KV cache entries are known to be right."""
    ready: deque[int] = field(default_factory=deque)
    """Tokens that were picked and not read."""
    forced: int = 0
    """How many of the last of them a grammar forced, so that no model step picked them."""
    ahead: int = 0
    """Picks that are under way."""
    changes: int = 0
    """How often the picks that were not read became void: ids of bursts from before a change are ignored."""
    ended: bool = False
    """An id that ends sequences was picked, which is the last one at hand, or a stop string; no more is submitted."""
    barren: bool = False
    """Whether no token could be picked after those at hand."""
    padding: tuple[int, ...] = ()
    """Padding of the prompt."""
    prompt: int = 0
    """Tokens before it."""
    appended: list[tuple[int, int]] = field(default_factory=list)
    """The ranges of `tokens` that were appended; the other tokens were picked."""
    runs: list[tuple[int, int]] = field(default_factory=list)
    """Which of `tokens` were run as prompts, from where to where; a step was run for each of the others."""
    end: int | None = None
    """The id that ended it, once it was read."""
    text: Callable[[Sequence[int]], StoppingStream] | None = None
    """Makes the stream that looks for stop strings after some tokens; None without any."""
    stream: StoppingStream | None = None
    """The text of the tokens picked since the last append."""
    tail: list[int] = field(default_factory=list)
    """The tokens after the last one while other rows continue: an end-of-sequence id, then padding."""

    @property
    def sequence(self) -> list[int]:
        """All ids, prompt and generated, with the padding."""
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
        """Whether its end-of-sequence id was read."""
        return self.ended and not self.ready

    def room(self, limit: int) -> int:
        """The tokens that can still be picked up to a length of `limit`, besides those at hand and under way."""
        return limit - len(self) - len(self.ready) - self.ahead

    def copy(self) -> Row:
        """The same sequence, to be continued by itself."""
        return replace(
            self, tokens=list(self.tokens), ready=deque(self.ready), tail=list(self.tail), appended=list(self.appended)
        )

    def append(self, ids: Sequence[int], padding: Sequence[int] = ()) -> None:
        """Add tokens, whose last ones may be the padding of the prompt, which is added once."""
        self.appended.append((len(self.tokens), len(self.tokens) + len(ids)))
        self.tokens += ids
        self.tell()
        if padding:
            self.prompt, self.padding = len(self.tokens), tuple(padding)

    def cut(self, length: int) -> None:
        """Keep the first `length` tokens; none, or any number of a row without padding."""
        del self.tokens[length:]
        self.contents = tuple(each for each in self.contents if each.end <= length)
        self._forget_runs(length)
        self.appended = [(start, min(end, length)) for start, end in self.appended if start < length]
        self.tell()
        # The last kept token is run again: the logits after it are no longer there.
        self.unsettle(max(0, length - 1))
        if not length:
            self.prompt, self.padding, self.tail = 0, (), []

    def tell(self) -> None:
        """Begin its text again, with the tokens picked since the last append."""
        if self.text is not None:
            start = self.appended[-1][1] if self.appended else 0
            self.stream = self.text(self.tokens[:start])
            for token in self.tokens[start:]:
                self.stream.push(token)

    def ran(self, end: int, again: bool) -> None:
        """The model was run on the tokens from `valid` to `end` at once, perhaps as it had been before."""
        if not again or not any(begin <= self.valid and end <= stop for begin, stop in self.runs):
            self._forget_runs(self.valid)
            self.runs.append((self.valid, end))
        self.valid = end

    def next_run(self) -> int:
        """The end of the token run that starts at `valid` and must reproduce the same cache: prompts in the same runs,
        and one step for each picked token.
        """
        start = self.valid
        found = next((end for begin, end in self.runs if begin <= start < end), None)
        if found is not None:
            return found
        # A picked token runs together with the tokens that were appended after it.
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
        """Cache entries from `length` on have to be computed again."""
        self.valid = min(self.valid, length)

    def lost_logits(self) -> None:
        """The last token has to be run again, for the logits after it."""
        self.unsettle(max(0, len(self.tokens) - 1))

    def discard_ahead(self) -> None:
        """Discard the picks that were not read, and those under way."""
        self.ready.clear()
        self.ahead = self.forced = 0
        self.changes += 1
        self.barren = False
        self.ended = bool(self.tail) or self.stopped

    def receive(self, ids: Sequence[int], ends: Set[int]) -> None:
        """Take in picked ids, up to the first of `ends`."""
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
        """Raise LogitsError if the next token could not be picked; `which` row it is of several."""
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
            # The logits this token was picked from came from the token before it.
            self.valid = len(self.tokens)
        if self.ended and not ready:
            self.end = token
            # Steps past the end repeated the last token's step, with workgroups for a longer sequence if their counts
            # come from a table: its cache entry is computed again if the sequence goes on.
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
