"""Rows that are a decoder each, run one after another: right for every model and device."""

from __future__ import annotations

from asyncio import gather
from collections.abc import Awaitable, Generator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import CapstanError, OutOfMemoryError
from ..generation.speculation import Speculation
from ..memory import Loan
from ..stages.search import SearchOptions
from .base import Burst, Counters, Decoder
from .cache_rows import CacheRows
from .row_decoder import RowBurst
from .shortlist import Shortlist

if TYPE_CHECKING:
    from .lora import LoraWeights

__all__ = ["SeparateRows", "separate_rows"]


class DecoderSource(Protocol):
    """Makes decoders; base.DeviceModel implements it."""

    async def decoder(self, capacity: int, given: Loan | None = None) -> Decoder: ...


async def separate_rows(
    model: DecoderSource, rows: int, capacity: int, lora: LoraWeights | None = None, given: Sequence[Loan | None] = ()
) -> SeparateRows:
    """A decoder of the model for each row, with LoRA adapters, over the buffers in `given`. Raises the errors of the
    model's decoder; OutOfMemoryError has the number of rows that fit. On failure the given buffers are released."""
    made: list[Decoder] = []
    try:
        while len(made) < rows:
            made.append(await model.decoder(capacity, given[len(made)] if given else None))
    except BaseException as error:
        for decoder in made:
            await decoder.close()
        # The decoder of the row that failed lets go of its buffers itself: it may still be at work.
        for loan in filter(None, given[len(made) + 1 :]):
            loan.end()
        if isinstance(error, OutOfMemoryError) and made:
            raise OutOfMemoryError(
                f"{rows} rows of {capacity} positions were asked for and there is memory for {len(made)} ({error}); "
                "lower batch_size, num_beams, num_return_sequences or max_length"
            ) from error
        raise
    found = SeparateRows(made)
    if lora is not None:
        found.set_lora(lora)
    return found


class SeparateRows:
    """See row_decoder.RowDecoder for what each method promises."""

    def __init__(self, decoders: Sequence[Decoder]) -> None:
        self.decoders = list(decoders)
        """By row."""
        self._options: list[SearchOptions | None] = [None] * len(self.decoders)
        self.scratch: Loan | None = None
        """Buffers given for the scratch of their tapes."""
        self._unread: list[Awaitable[Burst]] = []
        """Bursts of some rows, where the wait for another row's failed."""
        first = self.decoders[0]
        self.rows = len(self.decoders)
        self.capacity = first.capacity
        self.capture = first.capture
        self.max_in_flight = first.max_in_flight
        self.max_burst = first.max_burst
        self.behind_first = first.behind_first
        self.follows_grammars = first.follows_grammars

    @property
    def capture_note(self) -> str | None:
        return next((decoder.capture_note for decoder in self.decoders if decoder.capture_note), None)

    @property
    def tape_passes(self) -> dict[str, str]:
        return self.decoders[0].tape_passes

    @property
    def usual_burst(self) -> int:
        return self.decoders[0].usual_burst

    @usual_burst.setter
    def usual_burst(self, picks: int) -> None:
        for decoder in self.decoders:
            decoder.usual_burst = picks

    def set_search(self, row: int, options: SearchOptions) -> None:
        self._options[row] = options
        self.decoders[row].set_search(options, row)

    async def warm_up(self) -> None:
        # Compiled kernels are the model's, not the decoder's.
        await self.decoders[0].warm_up()

    def reachable(self, row: int, length: int) -> int:
        return self.decoders[row].reachable(length)

    def caches(self, row: int) -> CacheRows | None:
        return self.decoders[row].caches()

    async def rest(self, row: int) -> None:
        await self._drain()
        await self.decoders[row].rest()

    def adopt(self, row: int, source: CacheRows, length: int) -> None:
        self.decoders[row].adopt(source, length)

    async def prefill(self, row: int, ids: Sequence[int], past: int) -> None:
        await self._drain()
        await self.decoders[row].prefill(ids, past)

    def copy(self, source: int, target: int) -> None:
        self.decoders[target].copy_from(self.decoders[source])

    def reorder(self, parents: Sequence[int]) -> None:
        old = list(self.decoders)
        # A parent's decoder goes to the first of its children, so that nothing is copied for that one: to itself if it
        # is among them.
        heirs: dict[int, int] = {parent: parent for row, parent in enumerate(parents) if row == parent}
        for row, parent in enumerate(parents):
            heirs.setdefault(parent, row)
        free = [decoder for row, decoder in enumerate(old) if row not in heirs]
        for row, parent in enumerate(parents):
            if heirs[parent] == row:
                self.decoders[row] = old[parent]
            else:
                self.decoders[row] = free.pop()
                self.decoders[row].copy_from(old[parent])
        for row, options in enumerate(self._options):
            # Draws depend on the row.
            if options is not None and not options.greedy and self.decoders[row] is not old[row]:
                self.decoders[row].set_search(options, row)

    def follow(self, row: int, tokens: Sequence[int], prompt: int, padding: int = 0) -> None:
        self.decoders[row].follow(tokens, prompt, padding)

    def submit(self, picks: int, sample_first: bool, rows: Sequence[int]) -> Awaitable[RowBurst]:
        bursts = {row: self.decoders[row].submit(picks, sample_first) for row in rows}
        return _Bursts(self.rows, bursts, self._unread)

    @property
    def finds_drafts(self) -> bool:
        """As Decoder.finds_drafts, of the first row."""
        return self.decoders[0].finds_drafts

    async def prepare_drafts(self, options: Speculation) -> str | None:
        """As Decoder.prepare_drafts, for the first row."""
        return await self.decoders[0].prepare_drafts(options)

    def submit_drafted(self, steps: int, drafts: Sequence[int] | None) -> Awaitable[RowBurst]:
        """As Decoder.submit_drafted, for the first row."""
        return _Bursts(self.rows, {0: self.decoders[0].submit_drafted(steps, drafts)}, self._unread)

    async def run_picked(self, rows: Sequence[int]) -> None:
        for row in rows:
            await self.decoders[row].run_picked()

    def set_lora(self, lora: LoraWeights | None) -> None:
        for decoder in self.decoders:
            decoder.set_lora(lora)

    async def give_scratch(self, scratch: Loan | None) -> None:
        await self._drain()
        old, spans = self.scratch, None if scratch is None else tuple(scratch.spans.values())
        moved: list[Decoder] = []
        try:
            for decoder in self.decoders:
                await decoder.give_scratch(spans)
                moved.append(decoder)
        except BaseException:
            for decoder in moved:
                await decoder.give_scratch(None if old is None else tuple(old.spans.values()))
            raise
        self.scratch = scratch
        if old is not None:
            old.end()

    def allow(self, row: int, mask: bytes) -> None:
        self.decoders[row].allow(mask)

    def follow_grammar(self, row: int, position: Sequence[int]) -> None:
        self.decoders[row].follow_grammar(position)

    async def step(self, tokens: Sequence[int]) -> None:
        for decoder, token in zip(self.decoders, tokens, strict=True):
            await decoder.step(token)

    async def logits(self, row: int) -> memoryview[float]:
        return await self.decoders[row].logits()

    async def shortlists(self, count: int, rows: Sequence[int]) -> list[Shortlist]:
        return list(await gather(*(self.decoders[row].shortlist(count) for row in rows)))

    def set_logits(self, row: int, values: memoryview[float]) -> None:
        self.decoders[row].set_logits(values)

    def edit_logits(self, row: int, edits: Mapping[int, float]) -> None:
        self.decoders[row].edit_logits(edits)

    def counters(self) -> Counters:
        totals = self.decoders[0].counters()
        for decoder in self.decoders[1:]:
            for name, count in decoder.counters().items():
                if name == "steps" or not decoder.counts_device:
                    totals[name] += count
        return totals

    async def close(self) -> None:
        await self._drain()
        for decoder in self.decoders:
            await decoder.close()
        if self.scratch is not None:
            self.scratch.end()

    async def _drain(self) -> None:
        while self._unread:
            with suppress(CapstanError):
                await self._unread.pop(0)


class _Bursts:
    """One burst of each row. Unlike a coroutine it may be dropped unread."""

    def __init__(self, rows: int, bursts: Mapping[int, Awaitable[Burst]], unread: list[Awaitable[Burst]]) -> None:
        self._rows, self._bursts, self._unread = rows, bursts, unread

    def __await__(self) -> Generator[Any, Any, RowBurst]:
        return self._read().__await__()

    async def _read(self) -> RowBurst:
        waiting = [*self._bursts.values()]
        found: list[Burst] = []
        try:
            while waiting:
                found.append(await waiting.pop(0))
        finally:
            # After a fault or a cancelled wait: nothing of the other rows may be under way in the next run.
            self._unread += waiting
        ids = dict(zip(self._bursts, (burst.ids for burst in found), strict=True))
        return RowBurst(
            tuple(ids.get(row, ()) for row in range(self._rows)),
            submitted=min(burst.submitted for burst in found),
            done=max(burst.done for burst in found),
            readable=max(burst.readable for burst in found),
            host=sum(burst.host for burst in found),
            entered=max(burst.entered for burst in found),
            crossings=len(found),
            steps=found[0].steps,
        )
