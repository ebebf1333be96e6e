"""Defines beam searches on a device: their options, and the results of their steps."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from .row_interface import Burst

__all__ = ["BeamBurst", "BeamOptions", "BeamRows", "Continuation", "Round"]


@dataclass(frozen=True)
class BeamOptions:
    """The options of a beam search for a device."""

    beams: int
    """Beams of a prompt; the rows of a decoder are those of the first prompt, then those of the second, ..."""
    looked: int
    """The number of continuations of each beam that compete."""
    ends: frozenset[int]
    """End-of-sequence ids."""


class Continuation(NamedTuple):
    """A beam of the next step, with its score: a float32."""

    parent: int
    """The beam that it continues, from 0."""
    token: int
    score: float


@dataclass(frozen=True)
class Round:
    """The result of one step for one prompt."""

    chosen: tuple[Continuation, ...]
    """One for each beam, best first."""
    ends: tuple[tuple[int, float], ...]
    """Beam and score of each end of sequence among the best `beams` continuations; best first."""
    best: float
    """The score of the best continuation."""


@dataclass(frozen=True)
class BeamBurst(Burst):
    """A burst of a beam search; its ids are the chosen tokens."""

    rounds: tuple[tuple[Round | None, ...], ...] = ()
    """By step, then by prompt; None if a beam had no number among its logits."""


@runtime_checkable
class BeamRows(Protocol):
    """A RowDecoder that searches beams by itself."""

    async def prepare_beams(self, options: BeamOptions) -> str | None:
        """Prepare searches with these options; returns the reason if they are impossible. The caches lose their
        contents. Called while no burst is under way.
        """

    def begin_beams(self, scores: Sequence[float], sources: Sequence[int]) -> None:
        """Begin a search with a score for each row, from the present logits. Row r takes over the positions of row
        `sources[r]`. Called while no burst is under way.
        """

    def submit_beams(self, picks: int, choose_first: bool) -> Awaitable[BeamBurst]:
        """Queue `picks` steps of all rows, each followed by a choice of the next tokens; with `choose_first` the first
        choice is from the present logits. Afterwards a row's caches hold its own sequence only up to where the search
        began, and the rest is valid for this search only.
        """
