"""Defines the interface through which a generator's loop gets its next tokens. Each kind of generation implements
it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Protocol

from ..device.row_interface import Burst, RowDecoder
from .run_ahead import RunAhead

__all__ = ["Policy"]


class Policy(Protocol):
    """The part of a RowLoop that depends on the kind of generation. PlainPolicy is the base of all policies."""

    takes_unrecorded: bool = True
    """Whether the decode step may be recorded after the first tokens."""
    explains_barren: bool = False
    """Whether a row without a possible pick is left to the policy, which finds the reason, instead of an error."""

    async def prepare(self, decoder: RowDecoder, new: bool) -> None:
        """Prepare the loop's decoder, which may be `new`, before a prompt runs."""

    def run_ahead(self, decoder: RowDecoder) -> RunAhead:
        """The RunAhead with which the loop continues on this decoder."""

    def queued(self, picks: int, numbers: Sequence[int]) -> Awaitable[Burst]:
        """Queue `picks` picks for these rows."""

    def received(self, burst: Burst) -> bool:
        """Learn from a burst that was read; returns whether the rows have its ids already."""
        return False

    async def settle(self) -> None:
        """Compute the logits at the end of the sequences and discard tokens computed ahead."""

    @property
    def done(self) -> bool:
        """Whether the search is over although rows could continue."""
        return False

    def take(self) -> list[int]:
        """The next token of every row; padding for rows that have ended."""

    def appending(self, number: int, count: int) -> None:
        """Called before `count` tokens are appended to a row."""

    def rewound(self, length: int) -> None:
        """Called after the sequences were cut to this length."""

    def discarded(self) -> None:
        """Forget the tokens that were computed ahead of the reader."""

    async def close(self) -> None:
        """Free the policy's resources."""
