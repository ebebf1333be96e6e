"""Decodes on devices whose logits come to the host. Each token takes one run of the model and one pick by the reference
sampler.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from ..errors import BufferMismatchError, ClosedError
from ..fallback import fall_back
from ..memory import SNAPSHOTS, DeviceBuffer, DeviceSpan, Loan, Pools
from ..stages.sampling import finite_logits, sample
from ..stages.search import SearchOptions
from ..stages.speculation_options import Speculation
from .cache_rows import RowSource, SavedRows
from .carried_tensor import CarriedTensor
from .element_types import byte_count
from .hidden_rows import HiddenRows
from .model_origin import ModelOrigin
from .row_interface import ONE, Burst, Counters, RowDecoder
from .separate_rows import SeparateRows, separate_rows
from .shortlist import ScoredToken, Shortlist
from .snapshots import Snapshots

if TYPE_CHECKING:
    from ..graph import CachePair, GraphDescription
    from .cache_rows import PictureSpan
    from .device_interface import BoundSpan
    from .lora_weights import LoraWeights
    from .picture_encoder import PictureEncoder
    from .speech_encoder import SpeechEncoder

__all__ = ["HostSampledDecoder", "HostSampledModel", "Runner", "undraftable"]

PREFILL_CHUNK = 512

SCORED_CHUNK = 64
"""Tokens of a run that gives the logits of all its positions: 33 MB of them for a vocabulary of 128,256."""

MOST_BEHIND = 4
"""The most tokens that a run over drafts repeats because the states lack them; more are run before it."""


class Runner(Protocol):
    """A model over one KV cache and, if the model has them, states that each run overwrites."""

    about: GraphDescription
    """The model's graph."""
    stateful: bool
    """Whether there are such states."""

    @property
    def reads(self) -> Counters:
        """The number of reads of rows on disk, and their bytes; empty for a model without tables on disk."""

    def run(self, ids: Sequence[int], past: int) -> Awaitable[array[float]]:
        """Run `ids` after `past` positions; the last position's logits, float32 [vocab]."""

    undraftable: str | None
    """The reason why `run_each` cannot be used; None if it can be used."""

    def run_each(self, ids: Sequence[int], past: int) -> Awaitable[list[array[float]]]:
        """Like `run`, but returns the logits of every position."""

    def give_hidden(self, rows: bytes | memoryview) -> None:
        """Have the next run read these hidden states, one for each token, in a multi-token-prediction head."""

    def hidden_states(self) -> bytes:
        """The hidden states of all tokens of the last run, if the graph's description names them."""

    def keep_states(self, slot: int) -> None:
        """Keep the states as snapshot number `slot`."""

    def bring_states(self, slot: int) -> None:
        """Restore the states from a snapshot; snapshots.EMPTY gives their values before the first token."""

    async def carried(self, name: str, valid: int) -> CarriedTensor:
        """Read the first `valid` positions of a cache, or a state, by its name in the graph. OptionError if there is
        none.
        """

    def copy_from(self, other: Any) -> None:
        """Take over another runner's cache and states."""

    def cache_bytes(self, length: int) -> int:
        """The bytes of `length` positions of the cache."""

    def kept(self, length: int) -> Runner:
        """Another runner, whose cache has only the first `length` positions of this one's."""

    def adopt(self, other: Any, length: int) -> None:
        """Copy the first `length` positions of another runner's cache, which may have another size."""

    def write(self, pair: CachePair, data: bytes | memoryview, length: int) -> None:
        """Make the first `length` positions of a cache these bytes, [heads, length, head size]."""

    def set_lora(self, lora: LoraWeights | None) -> None:
        """Run the model with these LoRA adapters; None removes them."""

    def rotate(self, long: bool) -> None:
        """Rotate by the long factors of a long rope, or by the short ones."""

    def hear(self, heard: Mapping[str, BoundSpan]) -> None:
        """Read these outputs of an encoder in later runs."""

    def see(self, features: BoundSpan | None, places: Sequence[int], pictures: Sequence[PictureSpan] = ()) -> None:
        """Place these features in later runs; see SeeingRow."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class HostCaches:
    """See cache_rows.CacheRows for what each method promises."""

    runner: Runner

    def size(self, length: int) -> int:
        return self.runner.cache_bytes(length)

    def continues(self, target: HostCaches, length: int) -> bool:
        return True

    def holds(self, length: int) -> bool:
        return True

    async def kept(self, length: int) -> HostCaches:
        return HostCaches(self.runner.kept(length))

    def copy_to(self, target: HostCaches, length: int) -> None:
        target.runner.adopt(self.runner, length)

    def free(self) -> None:
        self.runner.close()

    @property
    def base(self) -> int:
        return 0

    async def read(self, length: int) -> AsyncGenerator[bytes | bytearray]:
        for pair in self.runner.about.cache:
            yield (await self.runner.carried(pair.past, length)).data

    def takes(self, base: int, length: int) -> bool:
        return base == 0

    async def load(self, rows: SavedRows, length: int) -> None:
        caches = rows.each()
        for pair in self.runner.about.cache:
            self.runner.write(pair, await anext(caches), length)


def undraftable(keeps_all: bool) -> str | None:
    """The reason why a model's drafts cannot be verified."""
    return None if keeps_all else "the graph gives the logits of the last position only"


class HostSampledDecoder:
    """A decoder of one row, documented as row_interface.RowDecoder, DecoderRow and DraftedRows; without run-ahead a
    burst is one token."""

    rows = 1
    capture = "off"
    counts_device = False
    follows_grammars = False
    max_in_flight = 1
    max_burst = 1
    finds_drafts = False
    records_after = None

    def __init__(self, runner: Runner, capacity: int, note: str | None, now: Callable[[], float]):
        self.capacity = capacity
        self.capture_note = note
        self.tape_passes: dict[str, str] = {}
        self.after_first = 0
        self.usual_burst = 1
        self._runner: Runner | None = runner
        self._snapshots = Snapshots(SNAPSHOTS, runner.keep_states, runner.bring_states) if runner.stateful else None
        self._hidden: HiddenRows | None = None
        """The hidden states of the last positions, if a multi-token-prediction head reads them."""
        self._now = now
        self._options = SearchOptions()
        self._row = 0
        self._logits: array[float] = array("f")
        self._length = 0
        self._behind: list[int] = []
        """The last tokens before `_length` that the states lack, after refused drafts; the next run begins with them.
        """
        self._tokens: list[int] = []
        """The sequence with all picks, for stages that need it."""
        self._prompt = 0
        """Its first tokens, which were not picked."""
        self._allowed = b""
        self._pending = 0
        self._counters: Counters = {"steps": 0, "readbacks": 0, "readback_bytes": 0}

    def row(self, number: int) -> HostSampledDecoder:
        return self

    def set_search(self, options: SearchOptions, row: int = 0) -> None:
        self._options, self._row = options, row

    async def record(self) -> None:
        """Does nothing: nothing is recorded on the host."""

    async def warm_up(self) -> None:
        """Does nothing: nothing is compiled on the CPU."""

    def rotate(self, long: bool) -> None:
        self._open().rotate(long)

    def hear(self, heard: Mapping[str, BoundSpan]) -> None:
        self._open().hear(heard)

    def see(self, features: BoundSpan | None, places: Sequence[int], pictures: Sequence[PictureSpan] = ()) -> None:
        self._open().see(features, places, pictures)

    def reachable(self, length: int) -> int:
        return length if self._snapshots is None else self._snapshots.nearest(length)

    def caches(self) -> HostCaches | None:
        return None if self._snapshots is not None else HostCaches(self._open())

    async def rest(self) -> None:
        """Does nothing: runs on the CPU have ended when a call returns."""

    def adopt(self, source: RowSource, length: int) -> None:
        source.copy_to(HostCaches(self._open()), length)
        if self._hidden is not None:
            self._hidden.forget(length)

    def keep_hidden(self) -> HiddenRows:
        hidden = self._open().about.hidden
        assert hidden is not None, "called only with a head, and for it"
        self._hidden = HiddenRows(byte_count(hidden.dtype, [size for size in hidden.dims if isinstance(size, int)]))
        return self._hidden

    def give_hidden(self, rows: bytes | memoryview) -> None:
        self._open().give_hidden(rows)

    async def prefill(self, ids: Sequence[int], past: int) -> None:
        snapshots, self._behind = self._snapshots, []
        if snapshots is not None:
            snapshots.go_to(past)
        for start in range(0, len(ids), PREFILL_CHUNK):
            if snapshots is not None and start + PREFILL_CHUNK >= len(ids):
                snapshots.before_last_run()
            await self._run(ids[start : start + PREFILL_CHUNK], past + start)
        self._length = past + len(ids)

    async def score(self, tokens: Sequence[int], past: int) -> list[ScoredToken]:
        runner, snapshots, ids = self._open(), self._snapshots, tokens[past:-1]
        self._behind = []
        if snapshots is not None:
            snapshots.go_to(past)
            snapshots.before_last_run()
        if runner.undraftable is not None and len(ids) > 1:
            fall_back("scores of several tokens in one run", runner.undraftable, "each token is a run")
        count = SCORED_CHUNK if runner.undraftable is None else 1
        scored: list[ScoredToken] = []
        for start in range(past, past + len(ids), count):
            part = ids[start - past : start - past + count]
            if len(part) == 1:
                await self._run(part, start)
                rows = [self._logits]
            else:
                rows = await self._ran(part, start, every=True)
            wanted = tokens[start + 1 : start + 1 + len(part)]
            scored += [ScoredToken.of(finite_logits(row), token) for row, token in zip(rows, wanted, strict=True)]
        self._length = past + len(ids)
        return scored

    def follow(self, tokens: Sequence[int], prompt: int, padding: int = 0) -> None:
        self._tokens = list(tokens)
        self._prompt = prompt

    def reorder(self, parents: Sequence[int]) -> None:
        """Does nothing: there is one row."""

    async def submit(self, picks: int, sample_first: bool, rows: Sequence[int] = ONE) -> Burst:
        if picks != 1:
            raise ValueError(f"a burst of {picks} picks was requested; on the CPU it has 1 at most")
        submitted = self._now()
        if not sample_first:
            await self.run_picked()
        readable = self._now()
        self._pick()
        entered = self._now()
        return Burst(((self._pending,),), submitted, readable, readable, entered - readable, entered)

    async def prepare_drafts(self, options: Speculation, drafter: RowDecoder | None = None) -> str | None:
        return self._open().undraftable

    async def submit_drafted(self, steps: int, drafts: Sequence[int] | None) -> Burst:
        if steps != 1 or drafts is None:
            raise ValueError(
                f"{steps} drafted steps were requested with drafts {drafts}; the CPU takes 1 step with drafts"
            )
        submitted, length, run = self._now(), self._length, [self._pending, *drafts]
        if len(self._behind) > MOST_BEHIND:
            await self.catch_up()
        snapshots, behind = self._snapshots, self._behind
        if snapshots is not None:
            snapshots.before_burst()
            snapshots.before_drafts()
        rows = await self._ran(run, length, every=True)
        readable = self._now()
        self._counters["steps"] += 1
        ids: list[int] = []
        for place, self._logits in enumerate(rows):
            self._length = length + place + 1
            ids.append(self._pick())
            if ids[place : place + 1] != list(drafts[place : place + 1]):
                break
        if snapshots is not None and len(ids) < len(run):
            # The states are those after all drafts, also the refused ones.
            snapshots.refuse_drafts()
            self._behind = [*behind, *run[: len(ids)]]
        entered = self._now()
        return Burst((tuple(ids),), submitted, readable, readable, entered - readable, entered, (len(ids),))

    async def run_picked(self, rows: Sequence[int] = ONE) -> None:
        await self.step([self._pending])

    def allow(self, mask: bytes) -> None:
        self._allowed = mask

    def follow_grammar(self, position: Sequence[int]) -> None:
        raise NotImplementedError("masks come from the host")

    async def step(self, tokens: Sequence[int]) -> None:
        if self._snapshots is not None:
            self._snapshots.before_burst()
        await self._run(tokens, self._length)
        self._length += 1
        self._counters["steps"] += 1

    def copy_from(self, other: HostSampledDecoder) -> None:
        self._open().copy_from(other._open())
        self._logits = array("f", other._logits)
        self._length, self._pending, self._behind = other._length, other._pending, list(other._behind)
        if self._snapshots is not None and other._snapshots is not None:
            # Snapshots stay with the other decoder: a rewind runs the tokens from the start.
            self._snapshots.taken, self._snapshots.live = {}, other._snapshots.live

    def set_lora(self, lora: LoraWeights | None) -> None:
        self._open().set_lora(lora)

    async def catch_up(self) -> None:
        """Run the model on the tokens that the states lack."""
        if self._behind:
            behind, self._behind = self._behind, []
            await self._ran(behind, self._length - len(behind), every=False)

    async def logits(self) -> memoryview[float]:
        return memoryview(array("f", self._logits))

    async def shortlists(self, count: int, rows: Sequence[int] = ONE) -> list[Shortlist]:
        return [Shortlist.of(finite_logits(self._logits), count)]

    def set_logits(self, values: memoryview[float]) -> None:
        self._logits = array("f", values)

    def edit_logits(self, edits: Mapping[int, float]) -> None:
        self._logits = array("f", self._logits)  # whose peaks are not known
        for token, logit in edits.items():
            self._logits[token] = logit

    async def carried(self, name: str) -> CarriedTensor:
        await self.catch_up()
        return await self._open().carried(name, self._length)

    def counters(self) -> Counters:
        return {**self._counters, **({} if self._runner is None else self._runner.reads)}

    async def close(self) -> None:
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    async def _run(self, ids: Sequence[int], past: int) -> None:
        [self._logits] = await self._ran(ids, past, every=False)

    async def _ran(self, ids: Sequence[int], past: int, *, every: bool) -> list[array[float]]:
        """Run the tokens that the states lack, then `ids`; the logits of every position of `ids`, or of the last
        one.
        """
        runner, snapshots, count = self._open(), self._snapshots, len(ids)
        ids, past, self._behind = [*self._behind, *ids], past - len(self._behind), []
        if snapshots is not None:
            snapshots.live = None
        rows = await runner.run_each(ids, past) if every else [await runner.run(ids, past)]
        if snapshots is not None:
            snapshots.live = past + len(ids)
        if self._hidden is not None:
            self._hidden.ran(past, runner.hidden_states())
        self._counters["readbacks"] += 1
        self._counters["readback_bytes"] += sum(4 * len(row) for row in rows)
        return rows[-count:]

    def _pick(self) -> int:
        """The next token, picked from the present logits."""
        self._pending = sample(
            self._logits,
            self._options,
            self._length,
            self._row,
            tokens=self._tokens,
            prompt=self._prompt,
            allowed=self._allowed,
        )
        self._tokens.append(self._pending)
        return self._pending

    def _open(self) -> Runner:
        if self._runner is None:
            raise ClosedError("this generator was closed; make a new one")
        return self._runner


class HostSampledModel(ABC):
    """The base of models on devices whose logits come to the host: they take no pools, and run rows one after
    another.
    """

    device: str
    encoder: SpeechEncoder | PictureEncoder | None = None
    origin: ModelOrigin

    async def decoder(self, capacity: int, given: Loan | None = None) -> HostSampledDecoder:
        assert given is None, "this device borrows no buffers"
        return self._decoder(capacity)

    @abstractmethod
    def _decoder(self, capacity: int) -> HostSampledDecoder:
        """A runner over a new cache of `capacity` positions."""

    async def row_decoder(
        self,
        rows: int,
        capacity: int,
        pools: Pools | None = None,
        lora: LoraWeights | None = None,
        unrecorded: bool = False,
    ) -> HostSampledDecoder | SeparateRows[HostSampledDecoder]:
        if pools is not None:
            self._refuse("pools")
        return await separate_rows(self.decoder, rows, capacity, lora)

    async def replace_scratch(
        self, decoder: RowDecoder, scratch: Mapping[str, DeviceBuffer | DeviceSpan] | None
    ) -> None:
        if scratch is not None:
            self._refuse("buffers for scratch")

    def _refuse(self, what: str) -> NoReturn:
        raise BufferMismatchError(
            f"{what} were given and the {self.device} device takes none: onnxruntime keeps tensors and scratch in its "
            "own heap; leave them out, or use device='webgpu'"
        )

    async def switched(self, decoder: RowDecoder, lora: LoraWeights) -> RowDecoder:
        if isinstance(decoder, HostSampledDecoder):
            await decoder.catch_up()
        decoder.set_lora(lora)
        return decoder
