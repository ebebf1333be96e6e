"""Moves a grammar matcher along a sequence, to tell which tokens may come next and which are forced.

ConstrainedLoop calls one Constraint for each row. The token ids of the sequence go in; the mask of allowed tokens,
forced tokens or a position in the automaton come out. The matcher sees the output only: picked and forced tokens, not
the prompt or other appended tokens.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import NoReturn, Protocol

from ..errors import GuidanceError
from .automaton import Automaton, Position
from .guidance import Guidance
from .matcher import Grammars, Matcher
from .vocabulary import TokenBytes

__all__ = ["Constraint", "Encoder"]


class Encoder(Protocol):
    """Turns text into tokens; capstan.tokenizer.TokenizerBackend implements it."""

    def encode(self, text: str, add_special_tokens: bool) -> list[int]: ...


class Constraint:
    """The grammar matcher of one sequence, kept in step with it.

    Appended tokens are no output: the grammar keeps its state across them, but restarts if an end of sequence came
    before them. A rewind restores the state at the new length.
    """

    def __init__(self, guidance: Guidance) -> None:
        self.guidance = guidance
        self._matcher: Matcher | None = None
        self._encoder: Encoder | None = None
        self._given: list[tuple[int, int]] = []
        """(start, end) of each range of appended tokens."""
        self._begun: list[int] = []
        """Positions where the grammar began anew."""
        self._accepted: list[int] = []
        """The output that the matcher has seen."""
        self._seen: int | None = 0
        """Tokens of the sequence that the matcher has followed; None after `appended` or `rewound`."""

    def position(self, sequence: Sequence[int], automaton: Automaton, tokens: TokenBytes) -> Position:
        """The position of the sequence in an automaton of the grammar. Raises GuidanceError if it does not fit."""
        found = automaton.start
        for number, token in enumerate(self._output(sequence)):
            following = automaton.after(found, tokens[token])
            if following is None:
                self._refuse(token, number)
            found = following
        return found

    async def prepare(self, grammars: Callable[[], Awaitable[Grammars]], encoder: Callable[[], Encoder]) -> None:
        """Compile the grammar, once. Raises GuidanceError."""
        if self._matcher is None:
            self._matcher = await (await grammars()).compile(self.guidance.text)
            if self.guidance.enable_ff_tokens:
                self._encoder = encoder()

    def appended(self, start: int, end: int, ended: bool) -> None:
        """Note that tokens `start` to `end` were appended; `ended` tells whether an end of sequence came first."""
        self._given.append((start, end))
        if ended:
            self._begun.append(start)
        self._seen = None

    def rewound(self, length: int) -> None:
        """Note that the sequence was cut to `length`."""
        self._given = [(start, min(end, length)) for start, end in self._given if start < length]
        self._begun = [start for start in self._begun if start < length]
        self._seen = None

    async def allowed(self, sequence: Sequence[int]) -> bytes:
        """The tokens that may follow the sequence, as Matcher.mask gives them. Raises GuidanceError if no token is
        allowed.
        """
        self._keep_step(sequence)
        mask = await self._open().mask()
        if not any(mask):
            raise GuidanceError(
                f"{self.guidance.kind}: no token of the vocabulary continues {len(self._accepted)} output tokens; the "
                "tokenizer lacks a character that the grammar asks for: change the grammar"
            )
        return mask

    async def forced(self, sequence: Sequence[int], room: int) -> list[int]:
        """The forced tokens: at most `room` tokens of the text that must follow the sequence; [] if there is a choice,
        or without `enable_ff_tokens`. The model picks the last token of that text: it may merge with the text after it.
        """
        if not self.guidance.enable_ff_tokens:
            return []
        self._keep_step(sequence)
        matcher = self._open()
        assert self._encoder is not None
        # The text is cut at an incomplete character, some of whose bytes are not forced.
        text = re.split("[\ud800-\udfff\ufffd]", matcher.ahead())[0]
        tokens = self._encoder.encode(text, False) if text else []
        found: list[int] = []
        for token in tokens[:-1][:room]:
            if not matcher.accept(token):
                break
            found.append(token)
        if found:
            matcher.roll_back(len(found))
        return found

    def close(self) -> None:
        """Free the matcher."""
        if self._matcher is not None:
            self._matcher.close()
            self._matcher = None

    def _keep_step(self, sequence: Sequence[int]) -> None:
        if self._seen is None:
            output = self._output(sequence)
            kept = 0
            while kept < min(len(output), len(self._accepted)) and output[kept] == self._accepted[kept]:
                kept += 1
            if kept < len(self._accepted):
                self._open().roll_back(len(self._accepted) - kept)
                del self._accepted[kept:]
            new = output[kept:]
        else:
            new = list(sequence[self._seen :])
        for token in new:
            if not self._open().accept(token):
                self._refuse(token, len(self._accepted))
            self._accepted.append(token)
        self._seen = len(sequence)

    def _refuse(self, token: int, behind: int) -> NoReturn:
        raise GuidanceError(
            f"{self.guidance.kind}: token {token} does not fit the grammar after {behind} output tokens; rewind_to the "
            "position before it"
        )

    def _output(self, sequence: Sequence[int]) -> list[int]:
        begin = self._begun[-1] if self._begun else 0
        output: list[int] = []
        for start, end in [*self._given, (len(sequence), len(sequence))]:
            output += sequence[begin:start]
            begin = max(begin, end)
        return output

    def _open(self) -> Matcher:
        assert self._matcher is not None, "prepare compiles the grammar"
        return self._matcher
