"""The interface by which a generator's loop gets its next tokens. Each kind of generation implements it."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Protocol

from ..device.row_interface import Burst, RowDecoder
from .run_ahead import RunAhead

__all__ = ["Policy"]


class Policy(Protocol):
    """The part of a RowLoop that depends on the kind of generation. PlainPolicy is the base of all."""

    takes_unrecorded: bool = True
    """Whether the decode step may be recorded after the first tokens."""
    explains_barren: bool = False
    """Whether a row in which no token could be picked is no error: the policy finds the reason."""

    async def prepare(self, decoder: RowDecoder, new: bool) -> None:
        """Prepare the loop's decoder, which may be `new`, before a prompt is run."""

    def run_ahead(self, decoder: RowDecoder) -> RunAhead:
        """The picks of each burst of a decoder, with which the loop goes on."""

    def queued(self, picks: int, numbers: Sequence[int]) -> Awaitable[Burst]:
        """Queue `picks` picks for these rows."""

    def received(self, burst: Burst) -> bool:
        """Learn from a burst that was read; whether the rows have its ids already."""
        return False

    async def settle(self) -> None:
        """Compute the logits at the end of the sequences and discard tokens computed ahead."""

    @property
    def done(self) -> bool:
        """Whether nothing more is to be found, although rows go on."""
        return False

    def take(self) -> list[int]:
        """The next token of every row; padding of those that are over."""

    def appending(self, number: int, count: int) -> None:
        """So many tokens are about to be appended to a row."""

    def rewound(self, length: int) -> None:
        """The sequences were cut to this length."""

    def discarded(self) -> None:
        """Forget the tokens that were computed ahead of the reader."""

    def close(self) -> None:
        """Free what it holds."""
