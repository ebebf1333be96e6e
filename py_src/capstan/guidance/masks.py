"""Finds the tokens that may come next, on the CPU.

The host follows the bytes of all tokens in a table of numbered positions and classes of bytes. The table is filled on
demand: for a missing entry the host requests the number of the next position.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection
from typing import Protocol

from .automaton import Automaton, Position
from .grammar import NodeError

__all__ = ["Masks", "TokenWalk", "TokenWalks"]

MOST_POSITIONS = 10_000
"""The most positions of a table; after these it starts empty again."""

NOWHERE = -1


class TokenWalk(Protocol):
    """Follows all tokens of a vocabulary in one automaton."""

    def mask(self, start: int) -> bytes:
        """The mask of the tokens that fit after a position (a number from 1 on), as u32 words; the lowest bit of the
        first word is token 0. A token without bytes does not fit.
        """

    def close(self) -> None:
        """Free the table."""


class TokenWalks(Protocol):
    """The tokens of one model on the host."""

    def walk(self, classes: bytes, step: Callable[[int, int], int]) -> TokenWalk:
        """Make a walk: `classes` has the class of each byte; `step` returns the position after a position and a class,
        or NOWHERE if the byte does not fit.
        """


class Masks:
    """The masks of one automaton; `ends` are the tokens that end an output."""

    def __init__(self, automaton: Automaton, walks: Callable[[], TokenWalks], ends: Collection[int]) -> None:
        self._automaton = automaton
        self._walks = walks
        self._ends = ends
        self._walk: TokenWalk | None = None
        self._numbers: dict[Position, int] = {}
        self._positions: list[Position] = []
        self._error: NodeError | None = None

    def mask(self, position: Position) -> bytes:
        """The mask of TokenWalk.mask, with the tokens that end an output if the output may end. Raises NodeError."""
        if self._walk is None or len(self._positions) > MOST_POSITIONS:
            self.close()
            self._walk = self._walks().walk(self._automaton.classes, self._step)
        self._error = None
        words = array("I", self._walk.mask(self._number(position)))
        if self._error is not None:
            raise self._error
        if self._automaton.may_end(position):
            for token in self._ends:
                words[token >> 5] |= 1 << (token & 31)
        return words.tobytes()

    def close(self) -> None:
        if self._walk is not None:
            self._walk.close()
        self._walk = None
        self._numbers, self._positions = {}, []

    def _number(self, position: Position) -> int:
        number = self._numbers.get(position)
        if number is None:
            self._positions.append(position)
            number = self._numbers[position] = len(self._positions)
        return number

    def _step(self, number: int, symbol: int) -> int:
        try:
            position = self._automaton.step(self._positions[number - 1], symbol)
        except NodeError as error:  # The error is raised after the walk, which may run in JavaScript.
            self._error = error
            return NOWHERE
        return self._number(position) if position else NOWHERE
