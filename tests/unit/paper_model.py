"""A device made of paper for the generation loop: a model whose tokens can be told beforehand."""

from __future__ import annotations

import asyncio
import itertools
from array import array
from collections.abc import AsyncGenerator, Awaitable, Coroutine, Mapping, Sequence
from collections.abc import Generator as Steps
from typing import Any, Protocol, TypeVar, cast

from capstan import Generator, GeneratorParams
from capstan.device.cache_rows import RowSource, SavedRows
from capstan.device.carried_tensor import CarriedTensor
from capstan.device.prefix_cache import PrefixCache
from capstan.device.row_interface import ONE, Burst, Counters
from capstan.device.separate_rows import SeparateRows, separate_rows
from capstan.device.shortlist import ScoredToken, Shortlist
from capstan.errors import DeviceLostError, OptionError, OutOfMemoryError
from capstan.host.leaving import Leaving
from capstan.model import Model
from capstan.stages.native_speculation import SPECULATIVE
from capstan.stages.sampling import NO_TOKEN
from capstan.stages.search import SearchOptions
from capstan.stages.speculation_options import Speculation

__all__ = [
    "CONTEXT",
    "EOS",
    "PROMPT",
    "VOCAB",
    "PaperDecoder",
    "PaperHost",
    "PaperModel",
    "begin_now",
    "best",
    "made",
    "run_of",
    "take",
]

T = TypeVar("T")
VOCAB = 100
CONTEXT = 64
EOS = 99


def following(sequence: Sequence[int]) -> int:
    """The paper model: the next token depends on every token before it and on their number."""
    return (7 * sum(sequence) + 3 * len(sequence) + 1) % 90


def run_of(prompt: Sequence[int], count: int) -> list[int]:
    sequence = list(prompt)
    for _ in range(count):
        sequence.append(following(sequence))
    return sequence[len(prompt) :]


class PaperCaches:
    """CacheRows of paper: a byte a position."""

    def __init__(self, decoder: PaperDecoder | None, copy: Sequence[int] = (), room: Room | None = None) -> None:
        self.decoder, self.copy, self.room = decoder, list(copy), room

    @property
    def tokens(self) -> list[int]:
        return self.copy if self.decoder is None else self.decoder.cache

    def size(self, length: int) -> int:
        return length

    def continues(self, target: PaperCaches, length: int) -> bool:
        return self.holds(length)

    def holds(self, length: int) -> bool:
        return True

    async def kept(self, length: int) -> PaperCaches:
        assert length <= len(self.tokens), f"{length} positions of {len(self.tokens)}"
        assert self.decoder is not None
        assert not self.decoder.closed, "the caches of a decoder that was given back"
        await asyncio.sleep(0)
        room = self.decoder.room
        if room.used + length > room.positions:
            raise OutOfMemoryError(f"no room for {length} positions")
        room.used += length
        return PaperCaches(None, self.tokens[:length], room)

    def copy_to(self, target: PaperCaches, length: int) -> None:
        assert length <= len(self.tokens), f"{length} positions of {len(self.tokens)}"
        assert self.decoder is not None or self.room is not None, "a copy that was freed"
        assert target.decoder is not None
        assert target.decoder.unread == 0, "a copy while bursts are under way"
        target.decoder.cache, target.decoder.logits_of = self.tokens[:length], None
        target.decoder.adopted.append(length)

    @property
    def base(self) -> int:
        return 0

    async def read(self, length: int) -> AsyncGenerator[bytes | bytearray]:
        yield bytes(self.tokens[:length])

    def takes(self, base: int, length: int) -> bool:
        return base == 0

    async def load(self, rows: SavedRows, length: int) -> None:
        assert self.decoder is not None
        [cache] = [each async for each in rows.each()]
        self.decoder.cache, self.decoder.logits_of = list(cache[:length]), None

    def free(self) -> None:
        assert self.room is not None, "freed twice"
        self.room.used -= len(self.copy)
        self.room = None


class Room:
    """Memory for copies, in positions."""

    def __init__(self, positions: int = 1 << 30) -> None:
        self.positions, self.used = positions, 0


class PaperDecoder:
    """A decoder of one row whose KV cache is a list of tokens; it fails a test that uses what is dead."""

    rows = 1

    def __init__(
        self,
        capacity: int,
        *,
        in_flight: int = 2,
        largest: int = 64,
        eos_at: int | None = None,
        usual: int = 1,
        after_first: int = 0,
        follows: bool = False,
        room: Room | None = None,
        right: int | None = None,
        eager: int | None = None,
        strays: int = 0,
    ) -> None:
        self.capacity = capacity
        self.strays = strays
        """After each multiple of this number of tokens it picks another one than the paper model; 0 for never."""
        self.drafter: PaperDecoder | None = None
        """The decoder of the draft model."""
        self.capture = "tape"
        self.capture_note: str | None = None
        self.tape_passes: dict[str, str] = {}
        self.max_in_flight = in_flight
        self.max_burst = largest
        self.after_first = after_first
        self.usual_burst = usual
        self.barren_at: int | None = None
        """The position after which no token can be picked."""
        self.eos_at = eos_at
        """The position at which the model picks EOS."""
        self.cache: list[int] = []
        self.logits_of: list[int] | None = None
        self.forced: int | None = None
        self.prefills: list[tuple[list[int], int]] = []
        self.stepped: list[int] = []
        self.submitted: list[tuple[int, bool]] = []
        self.unread = 0
        self.steps = 0
        self.closed = 0
        self.fault: Exception | None = None
        self.gate: asyncio.Event | None = None
        """Bursts are readable, and prefills done, once it is set."""
        self.rotated: list[tuple[bool, int, int]] = []
        """Each choice of rotary factors (long or not), with the number of prompts and picks before it."""
        self.searches: list[SearchOptions] = []
        self.warmed = 0
        self.copied: list[PaperDecoder] = []
        """The decoders whose rows it took over."""
        self.adopted: list[int] = []
        """Positions that it took over."""
        self.room = room or Room()
        self.pending: int | None = None
        self.done = False
        self.masks: list[bytes] = []
        self.masked = False
        """Whether the next pick is under one."""
        self.follows_grammars = follows
        self.positions: list[tuple[int, ...]] = []
        """The automaton states that the caller set, by call."""
        self.most_drafts = 0
        self.right = itertools.count() if right is None else itertools.repeat(right)
        """The number of right drafts of each step, reduced modulo `most_drafts` + 1."""
        self.drafted = 0
        self.records_after = eager
        """The picks before its step is recorded; until then it takes one burst of one pick."""
        self.recorded = (in_flight, largest, after_first)
        self.recording: asyncio.Future[None] | None = None
        if eager is not None:
            self.capture, self.max_in_flight, self.max_burst, self.after_first = "off", 1, 1, 0
        """Steps with drafts."""

    async def record(self) -> None:
        if self.records_after is None:
            return
        assert not self.unread, "bursts are under way"
        self.recording = asyncio.ensure_future(self._record())
        await asyncio.shield(self.recording)

    async def _record(self) -> None:
        self.cache, self.logits_of = [], None
        if self.gate is not None:
            await self.gate.wait()
        if self.fault is not None:
            raise self.fault
        self.records_after, self.capture = None, "tape"
        self.max_in_flight, self.max_burst, self.after_first = self.recorded

    async def warm_up(self) -> None:
        assert self.unread == 0, "bursts are under way"
        self.warmed += 1
        self.cache, self.logits_of = [], None

    counts_device = False

    def row(self, number: int) -> PaperDecoder:
        return self

    def set_search(self, options: SearchOptions, row: int = 0) -> None:
        self.searches.append(options)

    def rotate(self, long: bool) -> None:
        self.rotated.append((long, len(self.prefills), sum(picks for picks, _ in self.submitted)))

    def reachable(self, length: int) -> int:
        return length

    def caches(self) -> PaperCaches:
        return PaperCaches(self)

    async def rest(self) -> None:
        await asyncio.sleep(0)
        if self.recording is not None:
            await asyncio.wait([self.recording])

    def adopt(self, source: RowSource, length: int) -> None:
        source.copy_to(self.caches(), length)

    def set_lora(self, lora: object) -> None:
        raise AssertionError("nobody has adapters here")

    async def prefill(self, ids: Sequence[int], past: int) -> None:
        assert ids, "a prefill of nothing"
        assert past <= len(self.cache), f"a prefill at {past} over {len(self.cache)} cached positions"
        assert past + len(ids) <= self.capacity
        assert self.unread == 0, "a prefill while bursts are under way"
        if self.recording is not None:
            await asyncio.wait([self.recording])
        self.prefills.append((list(ids), past))
        if self.gate is not None:
            await self.gate.wait()
        self.cache = [*self.cache[:past], *ids]
        self.logits_of = list(self.cache)
        self.forced = None
        self.pending = None
        self.done = False

    async def score(self, tokens: Sequence[int], past: int) -> list[ScoredToken]:
        scored = []
        for place in range(past, len(tokens) - 1):
            await self.prefill(tokens[place : place + 1], place)
            scored.append(ScoredToken.of(await self.logits(), tokens[place + 1]))
        return scored

    def follow(self, tokens: Sequence[int], prompt: int, padding: int = 0) -> None:
        """Its picks do not depend on the sequence."""

    def submit(self, picks: int, sample_first: bool, rows: Sequence[int] = ONE) -> Awaitable[Burst]:
        assert 1 <= picks <= self.max_burst
        assert self.unread < self.max_in_flight, "more bursts than the device takes"
        self.submitted.append((picks, sample_first))
        self.unread += 1
        if self.records_after is not None:
            self.records_after = max(0, self.records_after - picks)
        ids = []
        for i in range(picks):
            if i or not sample_first:
                self.steps += 1
                if not self.done:
                    assert self.pending is not None
                    self.cache.append(self.pending)
                    assert len(self.cache) <= self.capacity, "a step past the cache's end"
            ids.append(self.pick())
        return PaperBurst(self, ids, self.fault)

    finds_drafts = True

    async def prepare_drafts(self, options: Speculation, drafter: object = None) -> str | None:
        assert drafter is None or isinstance(drafter, PaperDecoder)
        self.drafter, self.most_drafts = drafter, options.max_draft_tokens
        return None

    def submit_drafted(self, steps: int, drafts: Sequence[int] | None) -> Awaitable[Burst]:
        """Drafts of which by turns none, one, two... are what is picked."""
        assert drafts is None
        assert 1 <= steps * (1 + self.most_drafts) <= self.max_burst
        assert self.unread < self.max_in_flight, "more bursts than the device takes"
        self.unread += 1
        self.steps += steps
        ids: list[int] = []
        counts = []
        for _ in range(steps):
            start = len(ids)
            assert self.done or len(self.cache) + 1 + self.most_drafts <= self.capacity, "drafts past the cache's end"
            drafts = None if self.drafter is None else self.drafter.drafts(self)
            most = 1 + (next(self.right) % (1 + self.most_drafts) if drafts is None else self.most_drafts)
            for place in range(most):
                if not self.done:
                    assert self.pending is not None
                    self.cache.append(self.pending)
                ids.append(self.pick())
                if drafts is not None and drafts[place : place + 1] != ids[-1:]:
                    break
            counts.append(len(ids) - start)
        self.drafted += steps
        return PaperBurst(self, ids, self.fault, tuple(counts))

    def drafts(self, other: PaperDecoder) -> list[int]:
        """The picks of this decoder of a draft model after the sequence of another one, which it has followed."""
        held = len(other.cache)
        if not other.done:
            assert self.cache[:held] == other.cache, "the draft model ran on other tokens"
            assert held + 1 + other.most_drafts <= self.capacity, "drafts past the draft model's cache"
            self.cache, self.pending = self.cache[:held], other.pending
        found = []
        for _ in range(1 + other.most_drafts):
            self.steps += 1
            assert self.pending is not None
            self.cache.append(self.pending)
            found.append(self.pick())
        return found[:-1]

    def pick(self) -> int:
        if self.done:
            return 0
        token = following(self.cache) if self.forced is None else self.forced
        if self.strays and len(self.cache) % self.strays == 0:
            token += 1
        self.forced = None
        if len(self.cache) == self.eos_at:
            token = EOS
        if len(self.cache) == self.barren_at and not self.masked:
            token = NO_TOKEN
        self.done = token in (EOS, NO_TOKEN)
        self.pending = token
        return token

    async def run_picked(self, rows: Sequence[int] = ONE) -> None:
        assert self.unread == 0, "a run while bursts are under way"
        assert self.pending is not None
        self.steps += 1
        self.cache.append(self.pending)
        self.logits_of = list(self.cache)

    def allow(self, mask: bytes) -> None:
        assert self.unread == 0, "a mask while a pick is under way"
        self.masked = True
        self.masks.append(mask)

    def follow_grammar(self, position: Sequence[int]) -> None:
        assert self.unread == 0, "a grammar's position while a pick is under way"
        self.masked = False
        self.positions.append(tuple(position))

    def edit_logits(self, edits: Mapping[int, float]) -> None:
        self.forced = max(edits, key=edits.__getitem__)

    async def step(self, tokens: Sequence[int]) -> None:
        assert self.unread == 0, "a step while bursts are under way"
        self.steps += 1
        self.stepped += tokens
        self.cache += tokens
        self.forced, self.done = None, False

    def reorder(self, parents: Sequence[int]) -> None:
        raise AssertionError("there is one row")

    def copy_from(self, other: PaperDecoder) -> None:
        assert self.unread == other.unread == 0, "a copy while bursts are under way"
        self.copied.append(other)
        self.cache, self.logits_of = list(other.cache), other.logits_of
        self.forced, self.pending, self.done = other.forced, other.pending, other.done

    async def carried(self, name: str) -> CarriedTensor:
        raise OptionError(f"a paper model has no {name}")

    async def logits(self) -> memoryview[float]:
        scores = array("f", [0.0] * VOCAB)
        scores[following(self.cache) if self.forced is None else self.forced] = 1.0
        return memoryview(scores)

    async def shortlists(self, count: int, rows: Sequence[int] = ONE) -> list[Shortlist]:
        return [Shortlist.of(await self.logits(), count)]

    def set_logits(self, values: memoryview[float]) -> None:
        self.forced = max(range(VOCAB), key=values.__getitem__)

    def counters(self) -> Counters:
        submits = len(self.submitted)
        picks = sum(picks for picks, _ in self.submitted)
        # Prefills make buffers and submits, which are no part of decode steps.
        made = len(self.prefills)
        return {
            "steps": self.steps,
            "submits": submits + 5 * made,
            "readbacks": submits,
            "readback_bytes": 4 * picks,
            "create_buffer": 3 * made,
        }

    async def close(self) -> None:
        assert self.unread == 0, "closed while bursts are under way"
        self.closed += 1


class PaperBurst:
    """The result of `submit`: unlike a coroutine it may be dropped unread."""

    def __init__(
        self, decoder: PaperDecoder, ids: Sequence[int], fault: Exception | None, steps: tuple[int, ...] = ()
    ) -> None:
        self.decoder, self.ids, self.fault, self.steps = decoder, ids, fault, steps

    def __await__(self) -> Steps[Any, Any, Burst]:
        self.decoder.unread -= 1
        if self.decoder.gate is not None:
            yield from self.decoder.gate.wait().__await__()
        if self.fault is not None:
            raise self.fault
        return Burst((tuple(self.ids),), 0.0, 1.0, 1.0, 0.1, 1.0, self.steps)


class Waits(Protocol):
    def wait(self, awaitable: Awaitable[T]) -> T: ...


begun: set[asyncio.Task[None]] = set()
"""Tasks that run: the event loop refers to its tasks weakly."""


def begin_now(host: Waits, work: Coroutine[Any, Any, None]) -> None:
    """Begin with it in the running event loop; where there is none it is done at once."""
    try:
        task = asyncio.get_running_loop().create_task(work)
    except RuntimeError:
        host.wait(work)
    else:
        begun.add(task)
        task.add_done_callback(begun.discard)


class PaperHost:
    """A clock that ticks a millisecond at each look."""

    def __init__(self, *, can_wait: bool = True) -> None:
        self.waits = can_wait
        self.time = 0.0

    def now(self) -> float:
        self.time += 1.0
        return self.time

    def can_wait(self) -> bool:
        return self.waits

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        begin_now(self, work)

    def wait(self, awaitable: Awaitable[T]) -> T:
        async def result() -> T:
            return await awaitable

        return asyncio.run(result())


class PaperConfig:
    vocab_size = VOCAB
    vision: None = None
    context_length = CONTEXT


class PaperModel:
    """As much of capstan.Model as a Generator uses; it passes for one."""

    __class__ = Model  # type: ignore[assignment]  # what `isinstance` asks, too

    def __init__(self, host: PaperHost | None = None, **decoder: Any) -> None:
        self.host = host or PaperHost()
        self.leaving = Leaving()
        self.config = PaperConfig()
        self.prefixes = PrefixCache()
        self.search = SearchOptions(eos_token_ids=(EOS,), context_length=CONTEXT)
        self.options = decoder
        self.copies = Room()
        self.decoders: list[PaperDecoder] = []
        self.gate: asyncio.Event | None = None
        """Decoders are made once it is set."""
        self.recoveries = 0
        self.original_length = 0
        self.speech_encoder = None
        self.draft_model: PaperModel | None = None
        self.is_head = False
        self.speculative = dict(SPECULATIVE)

    @property
    def has_draft_model(self) -> bool:
        return self.draft_model is not None and not self.draft_model.is_head

    async def decoder(self, capacity: int, given: object = None) -> PaperDecoder:
        if self.gate is not None:
            await self.gate.wait()
        options = dict(self.options)
        ends, room = options.pop("ends", {}), options.pop("room", None)
        if room is not None and len(self.decoders) - sum(decoder.closed for decoder in self.decoders) >= room:
            raise OutOfMemoryError("no room for one more")
        self.decoders.append(
            PaperDecoder(capacity, room=self.copies, **{"eos_at": ends.get(len(self.decoders)), **options})
        )
        return self.decoders[-1]

    def healthy(self) -> bool:
        return True

    async def recover(self, opening: int, lost: Exception) -> None:
        await asyncio.sleep(0)
        if opening == self.recoveries:
            self.recoveries += 1
            self.prefixes.lost()
            for decoder in self.decoders:
                decoder.fault = DeviceLostError("the device of before")

    async def row_decoder(
        self, rows: int, max_length: int, pools: Any = None, lora: Any = None, unrecorded: bool = False
    ) -> PaperDecoder | SeparateRows[PaperDecoder]:
        made = await separate_rows(self.decoder, rows, max_length, lora)
        if not unrecorded and rows == 1:
            await made.record()
        return made


def made(
    *,
    run_ahead: int | None = None,
    host: PaperHost | None = None,
    decoder: dict[str, Any] | None = None,
    tokenizer: Any = None,
    speculation: Speculation | None = None,
    draft_model: PaperModel | None = None,
    recoveries: int = 3,
    **search: Any,
) -> tuple[Generator, PaperModel]:
    paper = PaperModel(host, **(decoder or {}))
    paper.draft_model = draft_model
    model = cast(Model, paper)
    params = GeneratorParams(model, run_ahead=run_ahead, tokenizer=tokenizer, recoveries=recoveries)
    params.set_search_options(**search)
    params.set_speculation(speculation)
    return Generator(model, params), paper


async def take(generator: Generator, count: int) -> list[int]:
    return [await generator.generate_next_token_async() for _ in range(count)]


def best(logits: memoryview[float]) -> int:
    return list(logits).index(1.0)


PROMPT = [5, 6, 7]
