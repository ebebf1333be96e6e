"""Follows a sequence in an automaton, and determines the allowed and the forced next tokens.

GrammarPolicy calls one Constraint for each row. The token ids of the sequence go in; the position in the automaton or
forced tokens come out. The automaton reads only the output: picked and forced tokens, not the prompt or other appended
tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..errors import GuidanceError
from .automaton import Automaton, Position
from .grammar import NodeError
from .guidance_request import Guidance
from .masks import Masks
from .vocabulary import TokenBytes

__all__ = ["Constraint", "Encoder"]

MOST_FORCED = 10_000
"""The most bytes of a text that must come next."""


class Encoder(Protocol):
    """Turns text into tokens; capstan.tokenizer.TokenizerBackend implements it."""

    def encode(self, text: str, add_special_tokens: bool) -> list[int]: ...


class Constraint:
    """The position of one sequence.

    Appended tokens are not output: the grammar keeps its state across them, but restarts if an end of sequence came
    before them. A rewind restores the state at the new length.
    """

    def __init__(self, guidance: Guidance, automaton: Automaton, tokens: TokenBytes) -> None:
        self._guidance = guidance
        self._automaton = automaton
        self._tokens = tokens
        self._given: list[tuple[int, int]] = []
        """(start, end) of each range of appended tokens."""
        self._begun: list[int] = []
        """Positions where the grammar began again."""
        self._accepted: list[int] = []
        """The output so far."""
        self._positions: list[Position] = [automaton.start]
        """Positions in the automaton: at the start, then after each token of the output."""
        self._seen: int | None = 0
        """The number of tokens of the sequence that were read; None after `appended` or `rewound`."""

    def appended(self, start: int, end: int, ended: bool) -> None:
        """Note that tokens `start` to `end` were appended; `ended` is whether an end of sequence came first."""
        self._given.append((start, end))
        if ended:
            self._begun.append(start)
        self._seen = None

    def rewound(self, length: int) -> None:
        """Note that the sequence was cut to `length`."""
        self._given = [(start, min(end, length)) for start, end in self._given if start < length]
        self._begun = [start for start in self._begun if start < length]
        self._seen = None

    def position(self, sequence: Sequence[int]) -> Position:
        """The position of the sequence. Raises GuidanceError if the sequence does not fit."""
        if self._seen is None:
            output = self._output(sequence)
            kept = 0
            while kept < min(len(output), len(self._accepted)) and output[kept] == self._accepted[kept]:
                kept += 1
            del self._accepted[kept:], self._positions[kept + 1 :]
            new = output[kept:]
        else:
            new = list(sequence[self._seen :])
        for token in new:
            following = self._after(self._positions[-1], token)
            if not following:
                raise GuidanceError(
                    f"{self._guidance.kind}: token {token} does not fit the grammar after {len(self._accepted)} output "
                    "tokens; rewind_to the position before it"
                )
            self._accepted.append(token)
            self._positions.append(following)
        self._seen = len(sequence)
        return self._positions[-1]

    def allowed(self, sequence: Sequence[int], masks: Masks) -> bytes:
        """The mask of the tokens that may follow the sequence; see Masks. Raises GuidanceError if no token is
        allowed.
        """
        position = self.position(sequence)
        try:
            mask = masks.mask(position)
        except NodeError as error:
            raise self._guidance.refusal(error) from error
        if not any(mask):
            raise GuidanceError(
                f"{self._guidance.kind}: no token of the vocabulary continues {len(self._accepted)} output tokens; the "
                "tokenizer lacks a character that the grammar needs; change the grammar"
            )
        return mask

    def forced(self, sequence: Sequence[int], room: int, encoder: Encoder) -> list[int]:
        """The forced tokens: at most `room` tokens of the text that must follow the sequence; [] if there is a choice.
        The model picks the last token of that text: it may merge with the text after it.
        """
        position = self.position(sequence)
        text = self._automaton.forced(position, MOST_FORCED)
        tokens = encoder.encode(text, False) if text else []
        found: list[int] = []
        for token in tokens[:-1][:room]:
            position = self._after(position, token)
            if not position:
                break
            found.append(token)
        return found

    def _after(self, position: Position, token: int) -> Position:
        try:
            return self._automaton.after(position, self._tokens[token])
        except NodeError as error:
            raise self._guidance.refusal(error) from error

    def _output(self, sequence: Sequence[int]) -> list[int]:
        begin = self._begun[-1] if self._begun else 0
        output: list[int] = []
        for start, end in [*self._given, (len(sequence), len(sequence))]:
            output += sequence[begin:start]
            begin = max(begin, end)
        return output
