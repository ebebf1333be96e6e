"""Defines the device's interface for the generation loop: sequences that advance together, one sequence in each row. A
single sequence has `rows` 1.
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ..stages.search import SearchOptions
from ..stages.speculation_options import Speculation
from .cache_rows import CacheRows, RowSource
from .shortlist import ScoredToken, Shortlist

if TYPE_CHECKING:
    from .cache_rows import PictureSpan
    from .carried_tensor import CarriedTensor
    from .device_interface import BoundSpan
    from .hidden_rows import HiddenRows
    from .lora_weights import LoraWeights

__all__ = [
    "COUNTER_NAMES",
    "DISK_COUNTS",
    "ONE",
    "Burst",
    "Counters",
    "DecoderRow",
    "DraftedRows",
    "HearingRow",
    "HiddenRow",
    "PackedRows",
    "RowDecoder",
    "RowPrompts",
    "SeeingRow",
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

DISK_COUNTS = ("table_reads", "table_bytes")
"""Further counts of a decoder with tables on disk: the reads of rows, and their bytes."""

ONE = (0,)
"""The rows of a decoder of one row."""

RowPrompts = Mapping[int, tuple[Sequence[int], int]]
"""By row: prompt ids, and the number of positions before them."""


@dataclass(frozen=True)
class Burst:
    """The token ids that one submit picked for each row, with the device's own time stamps in milliseconds."""

    rows: tuple[tuple[int, ...], ...]
    """Ids by row, in order, the same number for each requested row; () for the others."""
    submitted: float
    done: float
    """The time when the device had computed the ids."""
    readable: float
    host: float
    """Time the host spent encoding and submitting the burst."""
    entered: float
    """The time when Python received the ids."""
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
    """One sequence of a decoder. Lengths count the tokens that the model ran on, without padding."""

    def reachable(self, length: int) -> int:
        """The last position, at most `length`, from which `prefill` can continue: any position of a KV cache; with
        states that each run overwrites, one that has a snapshot.
        """

    def caches(self) -> CacheRows | None:
        """The KV cache, from which other sequences of the model copy. A copy includes all work submitted so far. None
        if the model has states that each run overwrites: they keep nothing of an earlier position.
        """

    def adopt(self, source: RowSource, length: int) -> None:
        """Copy the first `length` positions of the KV cache from `source`; `prefill` then continues after them. Later
        positions and the logits become invalid. Called after `RowDecoder.rest`, while no burst is under way. The copy
        is made on the device.
        """

    async def prefill(self, ids: Sequence[int], past: int) -> None:
        """Run the model on `ids` at positions `past`, `past + 1`, ...; later positions are overwritten. Afterwards the
        logits are those of the last position. Other rows do not change. Called after `RowDecoder.rest`, while no burst
        is under way. A row that had picked an end of sequence continues.
        """

    async def score(self, tokens: Sequence[int], past: int) -> list[ScoredToken]:
        """Score all of `tokens` after the first `past + 1`, each by the logits after the tokens before it. The caches
        hold the first `past`; the model runs on all others but the last, like `prefill`, and under the same
        conditions.
        """

    def follow(self, tokens: Sequence[int], prompt: int, padding: int = 0) -> None:
        """Give the sequence to stages that need it; its first `prompt` tokens were not picked. Called before the first
        pick after any change to the sequence other than a pick; picks extend it by themselves. The model did not run on
        `padding` of its tokens.
        """

    def allow(self, mask: bytes) -> None:
        """Set the tokens that the next pick may take, if the options are `guided`: u32 words; the lowest bit of the
        first word is token 0.
        """

    def follow_grammar(self, position: Sequence[int]) -> None:
        """Set the position in the automaton of the options' `grammar`: the states on its stack. From there the device
        makes the masks and follows the picks, until `allow` sets a mask or the sequence is changed by anything other
        than a pick. If the device cannot determine the allowed tokens, it picks NO_TOKEN. Only with
        `RowDecoder.follows_grammars`.
        """

    async def logits(self) -> memoryview[float]:
        """The logits of the next pick: float32 [vocab]."""

    def set_logits(self, values: memoryview[float]) -> None:
        """Replace the logits of the next pick: float32 [vocab]."""

    def edit_logits(self, edits: Mapping[int, float]) -> None:
        """Replace the logits of some tokens; `edits` maps tokens to logits, and values are rounded to the type of the
        model's logits.
        """

    async def carried(self, name: str) -> CarriedTensor:
        """A cache or state of the positions that the model ran on, by its name in the graph. Raises OptionError if
        there is none.
        """


@runtime_checkable
class HearingRow(Protocol):
    """A DecoderRow of a model with an encoder."""

    def hear(self, heard: Mapping[str, BoundSpan]) -> None:
        """Have later runs read these outputs of the encoder, by the names of the graph's inputs. The caches become
        invalid. Called under the conditions of `DecoderRow.prefill`.
        """


@runtime_checkable
class SeeingRow(Protocol):
    """A DecoderRow of a model with a vision graph."""

    def see(self, features: BoundSpan | None, places: Sequence[int], pictures: Sequence[PictureSpan] = ()) -> None:
        """Have later runs place rows of features [rows, hidden]: `places` has for each position, beginning with the
        first, a row of the features, or -1 for none. `pictures` are the pictures whose features have rows and columns.
        The caches become invalid at the first changed position and all later ones. Called under the conditions of
        `DecoderRow.prefill`.
        """


@runtime_checkable
class HiddenRow(Protocol):
    """A DecoderRow of a model with a multi-token-prediction head, or of the head."""

    def keep_hidden(self) -> HiddenRows:
        """Keep the hidden states of later runs; the result has those of the last positions."""

    def give_hidden(self, rows: bytes) -> None:
        """Have the next run of the head read these hidden states, one for each token."""


@runtime_checkable
class HeadedRow(Protocol):
    """A RowDecoder of one row, of a model whose multi-token-prediction head `submit_drafted` runs."""

    async def follow_with_head(self, head: RowDecoder, tokens: Sequence[int]) -> None:
        """Have the head's decoder follow the sequence, of at least two tokens, of which this decoder has run all but
        the last one. Called while no burst is under way.
        """


class RowDecoder(Protocol):
    """Rows on a device: each has a KV cache, logits, a sampler and a token ring, and they are submitted together.

    Rows are numbered from 0. `submit` steps all requested rows once for each pick. A decoder of one row is also its own
    row. Every device has such decoders, and `device.separate_rows.SeparateRows`, a list of them, which works for every
    model. Decoders that compute all rows in one step must give the same picks. Some decoders can do more: DraftedRows,
    PackedRows, beam_interface.BeamRows.
    """

    rows: int
    capacity: int
    """The number of positions in the KV cache of a row."""
    capture: str
    """How decode steps run: 'tape', 'ort' or 'off'."""

    @property
    def capture_note(self) -> str | None:
        """The reason why `capture` differs from the requested value; None if it does not."""

    @property
    def tape_passes(self) -> dict[str, str]:
        """The result of each pass over the tape, or the reason why it changed nothing; empty without a tape."""

    max_in_flight: int
    """Bursts that may be submitted before the first is awaited."""
    max_burst: int
    """Most picks of a row in one burst."""
    after_first: int
    """Most picks of a burst that may be queued right after the first pick without delaying it; 0 for none."""

    @property
    def usual_burst(self) -> int:
        """The burst size that an adaptive run-ahead had reached when the decoder was last used; at first the initial
        size.
        """

    @usual_burst.setter
    def usual_burst(self, picks: int) -> None: ...

    follows_grammars: bool
    """Whether the device can make the masks of a grammar itself."""

    @property
    def records_after(self) -> int | None:
        """The number of picks after which it pays to `record` the decode step; 0 means now. None if the step is
        recorded already or cannot be recorded.
        """

    def row(self, number: int) -> DecoderRow:
        """The sequence of a row; valid until the rows are reordered."""

    async def record(self) -> None:
        """Record the decode step, unless `records_after` is None. Caches and sampler state are lost, and `capture`,
        `max_in_flight`, `max_burst` and `after_first` may change. Called while no burst is under way.
        """

    def set_search(self, options: SearchOptions, row: int = 0) -> None:
        """Choose how a row's tokens are picked from now on. Options of different rows may differ only in `min_length`,
        which counts the row's tokens by the device's count. A row draws from (seed, length of the row, number of the
        row); a decoder of one row may be any row of several.
        """

    async def warm_up(self) -> None:
        """Have the kernels for prompts of any length compiled; this overwrites the caches."""

    def rotate(self, long: bool) -> None:
        """Rotate by the long factors of a long rope, or by the short ones; a new decoder uses the short ones. A change
        makes the rows' caches invalid. Without effect for a model with one kind. Called after `rest`, while no burst is
        under way.
        """

    async def rest(self) -> None:
        """Wait for runs that still use the KV caches after their caller was cancelled."""

    def reorder(self, parents: Sequence[int]) -> None:
        """Replace each row r by a copy of row `parents[r]`, all at once: its cache, its states, its length and its
        logits. A row whose parent is the row itself costs nothing. Called while no burst is under way.
        """

    def submit(self, picks: int, sample_first: bool, rows: Sequence[int] = ONE) -> Awaitable[Burst]:
        """Queue `picks` decode steps, each followed by a pick, for the given rows; with `sample_first` the first picks
        from the present logits. All other rows must have picked an end of sequence: their later cache positions do not
        matter. The work is queued when this returns; callers await the ids in the order of the bursts.
        """

    async def run_picked(self, rows: Sequence[int] = ONE) -> None:
        """Run the model over the last pick of the given rows, without a new pick; afterwards the logits are those after
        that pick. Called while no burst is under way.
        """

    async def step(self, tokens: Sequence[int]) -> None:
        """Run one decode step over `tokens`, one for each row, without a pick; afterwards the logits are those after
        these tokens. Called while no burst is under way.
        """

    async def shortlists(self, count: int, rows: Sequence[int] = ONE) -> list[Shortlist]:
        """The best `count` tokens of each given row's logits, before the sampler's stages change them."""

    def set_lora(self, lora: LoraWeights | None) -> None:
        """Run the model with these LoRA adapters in later steps; None removes them. The decoder must have been made for
        their rank. Called while no burst is under way.
        """

    def counters(self) -> Counters:
        """The total of each of COUNTER_NAMES, and of DISK_COUNTS with tables on disk. A step of all rows at once counts
        once; separate rows count one step each.
        """

    async def close(self) -> None:
        """Free the decoder's resources, or keep them for the next decoder."""


@runtime_checkable
class DraftedRows(Protocol):
    """A RowDecoder of one row that verifies drafts."""

    finds_drafts: bool
    """Whether `submit_drafted` finds drafts by itself; otherwise its caller gives them after reading all earlier picks.
    """

    async def prepare_drafts(self, options: Speculation, drafter: RowDecoder | None = None) -> str | None:
        """Prepare `submit_drafted` with these options; returns the reason if drafts cannot be verified. The drafts are
        found in the sequence or, with a `drafter`, picked by that decoder of the draft model. A device that finds
        drafts by itself then steps the drafter in `submit_drafted`; until then the drafter must have run on all tokens
        of the sequence but the last.
        """

    def submit_drafted(self, steps: int, drafts: Sequence[int] | None) -> Awaitable[Burst]:
        """Queue `steps` decode steps, each over the last pick and the drafts after it. A step picks at each position in
        turn, like steps of one token, up to the first pick that differs from the next draft. `drafts` are the drafts of
        one step, or None if the decoder finds drafts by itself; in that case the caches must have room for all of them.
        """


@runtime_checkable
class PackedRows(Protocol):
    """A RowDecoder that runs prompts of several rows together."""

    async def prefill_together(self, prompts: RowPrompts) -> Collection[int]:
        """Run some of these prompts, each with the result of `prefill`; returns the rows whose prompts ran. Other rows
        keep their caches, and have their logits computed again from their last token. Called while no burst is under
        way."""
