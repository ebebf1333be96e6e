"""The device's interface for the generation loop: a loaded model, and one decoder for each sequence."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ..generation.speculation import Speculation
from ..memory import DeviceBuffer, DeviceSpan, Loan, Pools
from ..stages.search import SearchOptions
from .cache_rows import CacheRows
from .row_decoder import RowDecoder
from .shortlist import Shortlist

if TYPE_CHECKING:
    from .carried_tensor import CarriedTensor
    from .lora import LoraGraph, LoraWeights
    from .model_memory import ModelMemory

__all__ = ["Burst", "Counters", "Decoder", "DeviceModel", "Progress", "TapeOptions"]

Progress = Callable[[str, int, int], None]
"""Called with (what is loaded, bytes done, bytes in all)."""

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


@dataclass(frozen=True)
class TapeOptions:
    """How a model is to run on WebGPU."""

    capture: str = "tape"
    """'tape', 'ort' or 'off'."""
    passes: tuple[str, ...] | None = None
    """Names out of capstan.tape.PASSES: the passes over the recorded step. None chooses for the GPU adapter."""
    prefill_ms: float | None = None
    """Most milliseconds of a prefill run; None is the default."""
    configured: str | None = None
    """The option of the model's configuration that `capture` comes from, with its path; None if it comes from the
    caller or is the default."""


@dataclass(frozen=True)
class Burst:
    """The token ids one submit picked, in order, with the device's own time stamps in milliseconds."""

    ids: tuple[int, ...]
    submitted: float
    done: float
    """When the device had computed them."""
    readable: float
    host: float
    """Time the host spent encoding and submitting the burst."""
    entered: float
    """When Python was given the ids."""
    steps: tuple[int, ...] = ()
    """How many of the ids each drafted step gave; () if each step gave one."""

    @property
    def picks(self) -> int:
        """Decode steps of the burst."""
        return len(self.steps) or len(self.ids)


class Decoder(Protocol):
    """One sequence on a device: its KV cache, mask, logits, sampler and token ring."""

    capacity: int
    """Positions the KV cache holds."""
    capture: str
    """How decode steps run: 'tape', 'ort' or 'off'."""
    capture_note: str | None
    """The reason why it is not the requested capture."""

    @property
    def tape_passes(self) -> dict[str, str]:
        """The result of each pass over the tape, or the reason why it changed nothing; empty without a tape."""

    max_in_flight: int
    """Bursts that may be submitted before the first is awaited."""
    max_burst: int
    """Most picks in one burst."""
    behind_first: int
    """Most picks of a burst that is queued right behind the first pick without its coming later; 0 for none."""
    usual_burst: int
    """The burst that an adaptive run-ahead reached when the decoder was last used; at first its initial burst."""

    follows_grammars: bool
    """Whether the device can make the masks of a grammar itself."""
    counts_device: bool
    """Whether its counters but 'steps' are those of the whole device, whichever decoder was at work."""

    def set_search(self, options: SearchOptions, row: int = 0) -> None:
        """Choose how tokens are picked from now on; draws are those of row `row`."""

    async def warm_up(self) -> None:
        """Have the kernels that a prompt of any length needs compiled; what the cache holds is dead afterwards."""

    def reachable(self, length: int) -> int:
        """The last position, at most `length`, from which `prefill` can continue: any position of a KV cache; with
        states that each run overwrites, one that has a snapshot.
        """

    def caches(self) -> CacheRows | None:
        """The KV cache, from which other sequences of the model copy. It includes all work submitted so far, even if it
        is read later. None if the model has states that each run overwrites: they keep nothing of an earlier position.
        """

    async def rest(self) -> None:
        """Wait for runs that still use the KV cache after their caller was cancelled."""

    def adopt(self, source: CacheRows, length: int) -> None:
        """Copy the first `length` positions of the KV cache from `source`; `prefill` then continues behind them. Later
        positions and the logits become void. Called after `rest`, while no burst is under way. The copy is made on the
        device."""

    async def prefill(self, ids: Sequence[int], past: int) -> None:
        """Run the model on `ids` at positions `past`, `past + 1`, ...; what lay past `past` is dead. Afterwards the
        logits are those of the last position."""

    async def step(self, token: int) -> None:
        """Run one decode step over a given token, without a pick: the logits are then those after it."""

    def copy_from(self, other: Any) -> None:
        """Become what another decoder of the same model and capacity is: its cache, states, length and logits. Called
        while no burst of either is under way. The copy is made on the device."""

    async def run_picked(self) -> None:
        """Run the model over the last pick, without a pick: the logits are then those after it."""

    async def give_scratch(self, spans: Sequence[DeviceSpan] | None) -> None:
        """Have the kernels of tapes work in these parts of buffers, largest first, or in scratch of their own; what was
        submitted keeps its own. On failure they work where they did; raises OutOfMemoryError."""

    def allow(self, mask: bytes) -> None:
        """The tokens that the next pick may take, where the options are `guided`: u32 words, the lowest bit of the
        first one is token 0."""

    def follow_grammar(self, position: Sequence[int]) -> None:
        """Set the row's position in the automaton of the options' `grammar`, the states of its stack: the device makes
        the masks from here and follows the picks, until `allow` gives one or anything but a pick changes the sequence.
        If it cannot tell which tokens are allowed, it picks NO_TOKEN. Only with `follows_grammars`.
        """

    def follow(self, tokens: Sequence[int], prompt: int, padding: int = 0) -> None:
        """Take over the sequence for stages that ask for it, and that its first `prompt` tokens were not picked: called
        before the first pick of a sequence that was changed otherwise than by a pick. Picks follow it by themselves.
        `padding` tokens of it were not given to the model."""

    def submit(self, picks: int, sample_first: bool) -> Awaitable[Burst]:
        """Queue `picks` decode steps, each followed by a pick; with `sample_first` the first picks from the logits that
        are there. Work is queued when this returns; the ids are awaited."""

    finds_drafts: bool
    """Whether `submit_drafted` finds drafts by itself; else it is given them, after every pick before was read."""

    async def prepare_drafts(self, options: Speculation) -> str | None:
        """Be ready for `submit_drafted` with these options; why drafts cannot be verified, else None."""

    def submit_drafted(self, steps: int, drafts: Sequence[int] | None) -> Awaitable[Burst]:
        """Queue `steps` decode steps, each over the last pick and the drafts behind it. A step picks at each position
        in turn, as steps of one token would, up to the first pick that is not the draft behind it. The drafts are those
        given, of one step, or None where the decoder finds them; then there must be room for all of them."""

    def set_lora(self, lora: LoraWeights | None) -> None:
        """Run the model with these LoRA adapters in later steps, of the rank that the decoder was made with; None
        removes them. Called while no burst is under way.
        """

    async def logits(self) -> memoryview[float]:
        """The logits the next pick would see: float32 [vocab]."""

    async def shortlist(self, count: int) -> Shortlist:
        """The best `count` tokens of those logits: stages are not applied."""

    def set_logits(self, values: memoryview[float]) -> None:
        """Replace those logits: float32 [vocab]."""

    def edit_logits(self, edits: Mapping[int, float]) -> None:
        """Replace those of some tokens, rounded to the type of the model's logits."""

    async def carried(self, name: str) -> CarriedTensor:
        """A cache or state of the positions that the model was run on, by its name in the graph. OptionError if there
        is none."""

    def counters(self) -> Counters:
        """Totals by the names in COUNTER_NAMES."""

    async def close(self) -> None:
        """Free what the decoder holds."""


class DeviceModel(Protocol):
    """A model's weights and sessions on a device."""

    device: str
    """'webgpu', 'wasm' or 'reference'."""
    adapter: str
    """The GPU adapter's name, as the device reports it."""

    memory: ModelMemory
    """The memory that it needs."""
    lora: LoraGraph
    """The model's inputs for LoRA adapters."""

    async def decoder(self, capacity: int, given: Loan | None = None) -> Decoder:
        """A decoder whose KV cache holds `capacity` positions; one given back before is reused, unless it is to be over
        buffers that are given, by the names of its tensors.

        Raises OutOfMemoryError over the device's limits.
        """

    async def row_decoder(
        self, rows: int, capacity: int, pools: Pools | None = None, lora: LoraWeights | None = None
    ) -> RowDecoder:
        """A decoder of so many rows, each with a KV cache of `capacity` positions, that runs the model with these
        adapters, over the user's buffers in `pools`. Raises what `decoder` raises, and BufferMismatchError for buffers
        that cannot be used."""

    async def replace_scratch(
        self, decoder: RowDecoder, scratch: Mapping[str, DeviceBuffer | DeviceSpan] | None
    ) -> None:
        """Have the tapes of a decoder of this model work in other scratch; None is their own. Raises
        BufferMismatchError, OutOfMemoryError; they work where they did then."""

    async def switched(self, decoder: RowDecoder, lora: LoraWeights) -> RowDecoder:
        """The decoder that continues from a decoder's state (caches, states, lengths, logits) with other LoRA adapters:
        the same decoder, or another of the same rows and capacity; then the given one is closed. Called while no burst
        is under way. Raises what `row_decoder` raises; the decoder is as it was then.
        """

    async def trim(self) -> None:
        """Free what decoders that were given back hold for the next one."""

    def healthy(self) -> bool:
        """Whether the device still works."""

    async def close(self) -> None:
        """Free the weights and sessions; decoders that are still open fail from now on."""
