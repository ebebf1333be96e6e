"""The device's interface for the generation loop: sequences that advance together, one per row; one row is `rows` 1."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ..stages.search import SearchOptions
from ..stages.speculation_options import Speculation
from .cache_rows import CacheRows
from .shortlist import ScoredToken, Shortlist

if TYPE_CHECKING:
    from .carried_tensor import CarriedTensor
    from .lora_weights import LoraWeights

__all__ = [
    "COUNTER_NAMES",
    "ONE",
    "Burst",
    "Counters",
    "DecoderRow",
    "DraftedRows",
    "PackedRows",
    "RowDecoder",
    "RowPrompts",
]

Counters = dict[str, int]
"""Counts of a device's work since it was opened; the generator takes differences."""

COUNTER_NAMES = (
    "steps",
    "submits",
    "readbacks",
    "readback_bytes",
    "create_buffer",
    "create_bind_group",
    "write_buffer",
)

ONE = (0,)
"""The rows of a decoder of one."""

RowPrompts = Mapping[int, tuple[Sequence[int], int]]
"""By row: ids, and how many positions there are before them."""


@dataclass(frozen=True)
class Burst:
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
    steps: tuple[int, ...] = ()
    """For one row, the number of ids that each drafted step gave; () if each step gave one."""
    crossings: int = 1
    """How often JavaScript entered Python with ids."""

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids of the first row."""
        return self.rows[0]

    @property
    def picks(self) -> int:
        """Decode steps of the burst."""
        return len(self.steps) or max(map(len, self.rows), default=0)


class DecoderRow(Protocol):
    """One sequence of a decoder. Lengths count the tokens that the model was run on, without padding."""

    def reachable(self, length: int) -> int:
        """The last position, at most `length`, from which `prefill` can continue: any position of a KV cache; with
        states that each run overwrites, one that has a snapshot.
        """

    def caches(self) -> CacheRows | None:
        """The KV cache, from which other sequences of the model copy. It includes all work submitted so far, even if it
        is read later. None if the model has states that each run overwrites: they keep nothing of an earlier position.
        """

    def adopt(self, source: CacheRows, length: int) -> None:
        """Copy the first `length` positions of the KV cache from `source`; `prefill` then continues behind them. Later
        positions and the logits become void. Called after `RowDecoder.rest`, while no burst is under way. The copy is
        made on the device."""

    async def prefill(self, ids: Sequence[int], past: int) -> None:
        """Run the model on `ids` at positions `past`, `past + 1`, ...; what lay past `past` is dead. Afterwards the
        logits are those of the last position. Other rows are left alone. Called after `RowDecoder.rest`, while no burst
        is under way. A row that had picked an end of sequence goes on again."""

    async def score(self, tokens: Sequence[int], past: int) -> list[ScoredToken]:
        """Score all of `tokens` behind the first `past + 1`, each by the logits after those before it. The caches hold
        the first `past`; the model is run on all others but the last, as `prefill` runs it. Called as that."""

    def follow(self, tokens: Sequence[int], prompt: int, padding: int = 0) -> None:
        """Take over the sequence for stages that ask for it, and that its first `prompt` tokens were not picked: called
        before the first pick of a sequence that was changed otherwise than by a pick. Picks follow it by themselves.
        `padding` tokens of it were not given to the model."""

    def allow(self, mask: bytes) -> None:
        """The tokens that the next pick may take, where the options are `guided`: u32 words, the lowest bit of the
        first one is token 0."""

    def follow_grammar(self, position: Sequence[int]) -> None:
        """Set the position in the automaton of the options' `grammar`, the states of its stack: the device makes the
        masks from here and follows the picks, until `allow` gives one or anything but a pick changes the sequence. If
        it cannot tell which tokens are allowed, it picks NO_TOKEN. Only with `RowDecoder.follows_grammars`.
        """

    async def logits(self) -> memoryview[float]:
        """The logits the next pick would see: float32 [vocab]."""

    def set_logits(self, values: memoryview[float]) -> None:
        """Replace those logits: float32 [vocab]."""

    def edit_logits(self, edits: Mapping[int, float]) -> None:
        """Replace those of some tokens, rounded to the type of the model's logits."""

    async def carried(self, name: str) -> CarriedTensor:
        """A cache or state of the positions that the model was run on, by its name in the graph. OptionError if there
        is none."""


class RowDecoder(Protocol):
    """Rows on a device: each has a KV cache, logits, a sampler and a token ring, and they are submitted together.

    Rows are numbered from 0. `submit` steps all rows that it is asked for once for each pick.

    Every device has decoders of one row, which are that row themselves, and `device.separate_rows.SeparateRows`, a list
    of these, right for every model and device. Decoders that compute all rows in one step must give the same picks.
    Some can do more: DraftedRows, PackedRows, beams.BeamRows.
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
    """Most picks of a burst that may be queued right behind the first pick without delaying it; 0 for none."""

    @property
    def usual_burst(self) -> int:
        """The burst that an adaptive run-ahead reached when the decoder was last used; at first its initial burst."""

    @usual_burst.setter
    def usual_burst(self, picks: int) -> None: ...

    follows_grammars: bool
    """Whether the device can make the masks of a grammar itself."""

    @property
    def records_after(self) -> int | None:
        """The number of picks after which recording the decode step, `record`, begins to pay: 0 is now. None if it is
        recorded already, or nothing records it."""

    def row(self, number: int) -> DecoderRow:
        """One of its sequences, until the rows are reordered."""

    async def record(self) -> None:
        """Record the decode step, unless `records_after` is None. Caches and sampler state are dead afterwards, and
        `capture`, `max_in_flight`, `max_burst` and `behind_first` may be others. Called while no burst is under way."""

    def set_search(self, options: SearchOptions, row: int = 0) -> None:
        """Choose how a row's tokens are picked from now on. Rows differ in `min_length` alone, which is in tokens of
        the row as the device counts them. A row draws from (seed, length of the row, number of the row); a decoder of
        one row may be any row of several."""

    async def warm_up(self) -> None:
        """Have the kernels that a prompt of any length needs compiled; what the caches hold is dead afterwards."""

    def rotate(self, long: bool) -> None:
        """Rotate by the long factors of a long rope, or by the short ones, as a new decoder does; of a model with one
        kind nothing is asked. If that is a change, all that the rows' caches hold is void. Called after `rest`, while
        no burst is under way."""

    async def rest(self) -> None:
        """Wait for runs that still use the KV caches after their caller was cancelled."""

    def reorder(self, parents: Sequence[int]) -> None:
        """Make each row r what row `parents[r]` was, all at once: its cache, its states, its length and its logits. A
        row that is its own parent costs nothing. Called while no burst is under way."""

    def submit(self, picks: int, sample_first: bool, rows: Sequence[int] = ONE) -> Awaitable[Burst]:
        """Queue `picks` decode steps, each followed by a pick, for the given rows; with `sample_first` the first picks
        from the logits that are there. Rows that are not given have picked an end of sequence: what happens in their
        caches past it does not matter. Work is queued when this returns; ids are awaited in the order of the bursts."""

    async def run_picked(self, rows: Sequence[int] = ONE) -> None:
        """Run the model over the last pick of the given rows, without a pick: the logits are then those after it.
        Called while no burst is under way."""

    async def step(self, tokens: Sequence[int]) -> None:
        """Run one decode step over given tokens, one for each row, without a pick: the logits are then those after
        them. Called while no burst is under way."""

    async def shortlists(self, count: int, rows: Sequence[int] = ONE) -> list[Shortlist]:
        """The best `count` tokens of each given row's logits: stages are not applied."""

    def set_lora(self, lora: LoraWeights | None) -> None:
        """Run the model with these LoRA adapters in later steps, of the rank that the decoder was made with; None
        removes them. Called while no burst is under way.
        """

    def counters(self) -> Counters:
        """Totals by COUNTER_NAMES. A step of all rows at once is one step, of separate rows one for each."""

    async def close(self) -> None:
        """Free what the decoder holds, or keep it for the next one."""


@runtime_checkable
class DraftedRows(Protocol):
    """A RowDecoder of one row that verifies drafts."""

    finds_drafts: bool
    """Whether `submit_drafted` finds drafts by itself; else it is given them, after every pick before was read."""

    async def prepare_drafts(self, options: Speculation) -> str | None:
        """Be ready for `submit_drafted` with these options; why drafts cannot be verified, else None."""

    def submit_drafted(self, steps: int, drafts: Sequence[int] | None) -> Awaitable[Burst]:
        """Queue `steps` decode steps, each over the last pick and the drafts behind it. A step picks at each position
        in turn, as steps of one token would, up to the first pick that is not the draft behind it. The drafts are those
        given, of one step, or None where the decoder finds them; then there must be room for all of them."""


@runtime_checkable
class PackedRows(Protocol):
    """A RowDecoder that runs prompts of several rows together."""

    async def prefill_together(self, prompts: RowPrompts) -> Collection[int]:
        """Run some of these prompts, each with the result of `prefill`; the rows whose prompts were run. Other rows
        keep their caches, and have their logits computed anew from their last token. Called while no burst is under
        way."""
