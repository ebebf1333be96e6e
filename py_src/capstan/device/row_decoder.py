"""The device's interface for several sequences that advance together, one per row."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..memory import Loan
from ..stages.search import SearchOptions
from .cache_rows import CacheRows
from .shortlist import Shortlist

__all__ = ["RowBurst", "RowDecoder"]


@dataclass(frozen=True)
class RowBurst:
    """The token ids that one submit picked for each row, with the device's own time stamps in milliseconds."""

    rows: tuple[tuple[int, ...], ...]
    """Ids by row, in order, as many for each row that was asked for; () for the others."""
    submitted: float
    done: float
    """When the device had computed them."""
    readable: float
    host: float
    """Time the host spent encoding and submitting the burst."""
    entered: float
    """When Python was given the ids."""
    crossings: int = 1
    """How often JavaScript entered Python with ids."""
    steps: tuple[int, ...] = ()
    """For one row, the number of ids that each drafted step gave; () if each step gave one."""

    @property
    def picks(self) -> int:
        """Decode steps of the burst."""
        return len(self.steps) or max(map(len, self.rows), default=0)


class RowDecoder(Protocol):
    """Rows on a device: each has a KV cache, logits and a sampler of its own, and they are submitted together.

    Rows are numbered from 0. Lengths count the tokens that the model was run on: padding of a prompt is never given to
    the device, so that rows have lengths of their own. `submit` steps all rows that it is asked for once for each pick;
    how, in one step over all rows or one after another, is the implementation's.

    `device.separate_rows.SeparateRows` is the definition: a base.Decoder for each row, right for every model and
    device. An implementation that computes all rows in one step must give the same picks.
    """

    rows: int
    capacity: int
    """Positions the KV cache of a row holds."""
    capture: str
    """How decode steps run: 'tape', 'ort' or 'off'."""

    @property
    def capture_note(self) -> str | None:
        """The reason why it is not the requested capture."""

    @property
    def tape_passes(self) -> dict[str, str]:
        """The result of each pass over the tape, or the reason why it changed nothing; empty without a tape."""

    max_in_flight: int
    """Bursts that may be submitted before the first is awaited."""
    max_burst: int
    """Most picks of a row in one burst."""
    behind_first: int
    """Most picks of a burst that is queued right behind the first pick without its coming later; 0 for none."""

    @property
    def usual_burst(self) -> int:
        """The burst that an adaptive run-ahead reached when the decoder was last used; at first its initial burst."""

    @usual_burst.setter
    def usual_burst(self, picks: int) -> None: ...

    follows_grammars: bool
    """As of Decoder."""

    def set_search(self, row: int, options: SearchOptions) -> None:
        """Choose how a row's tokens are picked from now on. Rows differ in `min_length` alone, which is in tokens of
        the row as the device counts them. A row draws from (seed, length of the row, number of the row)."""

    async def warm_up(self) -> None:
        """Have the kernels that a prompt of any length needs compiled; what the caches hold is dead afterwards."""

    def reachable(self, row: int, length: int) -> int:
        """As Decoder.reachable, for a row."""

    def caches(self, row: int) -> CacheRows | None:
        """As Decoder.caches, of a row."""

    async def rest(self, row: int) -> None:
        """As Decoder.rest, for a row."""

    def adopt(self, row: int, source: CacheRows, length: int) -> None:
        """As Decoder.adopt, for a row."""

    async def prefill(self, row: int, ids: Sequence[int], past: int) -> None:
        """As Decoder.prefill, for one row; the others are left alone. Called while no burst is under way. A row that
        had picked an end of sequence goes on again.
        """

    def copy(self, source: int, target: int) -> None:
        """Make row `target` what row `source` is: its cache, its states, its length and its logits. For rows of one
        prompt, after its prefill. Called while no burst is under way."""

    def reorder(self, parents: Sequence[int]) -> None:
        """Make each row r what row `parents[r]` was, as `copy` does, all at once. A row that is its own parent costs
        nothing. Called while no burst is under way."""

    def follow(self, row: int, tokens: Sequence[int], prompt: int, padding: int = 0) -> None:
        """As Decoder.follow, for a row."""

    def submit(self, picks: int, sample_first: bool, rows: Sequence[int]) -> Awaitable[RowBurst]:
        """Queue `picks` decode steps, each followed by a pick, for the given rows; with `sample_first` the first picks
        from the logits that are there. Rows that are not given have picked an end of sequence: what happens in their
        caches past it does not matter. Work is queued when this returns; ids are awaited in the order of the bursts."""

    async def run_picked(self, rows: Sequence[int]) -> None:
        """As Decoder.run_picked, for the given rows. Called while no burst is under way."""

    async def give_scratch(self, scratch: Loan | None) -> None:
        """As Decoder.give_scratch, for all rows; the buffers given before are let go. Submitted work keeps those."""

    def allow(self, row: int, mask: bytes) -> None:
        """As Decoder.allow, for a row."""

    def follow_grammar(self, row: int, position: Sequence[int]) -> None:
        """As Decoder.follow_grammar, for a row."""

    async def step(self, tokens: Sequence[int]) -> None:
        """Run one decode step over given tokens, one for each row, without a pick: the logits are then those after
        them. For searches that choose on the host. Called while no burst is under way."""

    async def logits(self, row: int) -> memoryview[float]:
        """The logits the row's next pick would see: float32 [vocab]."""

    async def shortlists(self, count: int, rows: Sequence[int]) -> list[Shortlist]:
        """The best `count` tokens of each given row's logits: stages are not applied. For searches that choose on the
        host.
        """

    def set_logits(self, row: int, values: memoryview[float]) -> None:
        """Replace those logits: float32 [vocab]."""

    def edit_logits(self, row: int, edits: Mapping[int, float]) -> None:
        """As Decoder.edit_logits, for a row."""

    def counters(self) -> dict[str, int]:
        """Totals by the names in base.COUNTER_NAMES. A step of all rows at once is one step, of separate rows one for
        each."""

    async def close(self) -> None:
        """Free what the decoder holds, or keep it for the next one."""
