"""A matcher that keeps step with a sequence: it knows which of its tokens are output, and what may come next."""

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
    """The grammar of one sequence.

    Tokens that are appended from outside are no output: the grammar keeps its state across them, and restarts after an
    end of sequence. Rewinding restores its state at that length.
    """

    def __init__(self, guidance: Guidance) -> None:
        self.guidance = guidance
        self._matcher: Matcher | None = None
        self._encoder: Encoder | None = None
        self._given: list[tuple[int, int]] = []
        """Positions from and to which tokens were appended from outside."""
        self._begun: list[int] = []
        """Positions where the grammar began anew."""
        self._accepted: list[int] = []
        """The output that the matcher has seen."""
        self._seen: int | None = 0
        """Tokens of the sequence that are accounted for; None if it was changed from outside."""

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
        """Tokens came from outside; `ended` says whether an end of sequence was generated before them."""
        self._given.append((start, end))
        if ended:
            self._begun.append(start)
        self._seen = None

    def rewound(self, length: int) -> None:
        """The sequence was cut."""
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
        """Tokens, `room` at most, of the text that must follow the sequence; [] where there is a choice, or where
        tokens are not to be forced. The last one is left to the model, since what follows may be one token with it."""
        if not self.guidance.enable_ff_tokens:
            return []
        self._keep_step(sequence)
        matcher = self._open()
        assert self._encoder is not None
        # Characters of which some bytes are still missing are no characters.
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
