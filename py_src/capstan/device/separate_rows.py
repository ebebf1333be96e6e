"""Gives each row a separate decoder, and runs the rows one after another. This is right for every model and device."""

from __future__ import annotations

from asyncio import gather
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from ..errors import CapstanError, OutOfMemoryError
from ..memory import Loan
from ..stages.search import SearchOptions
from .row_interface import DISK_COUNTS, ONE, Burst, Counters, DecoderRow, RowDecoder
from .shortlist import Shortlist

if TYPE_CHECKING:
    from .lora_weights import LoraWeights

__all__ = ["SeparateRows", "separate_rows"]


class LoneRow(RowDecoder, DecoderRow, Protocol):
    """A decoder of one row."""

    counts_device: bool
    """Whether its counters except 'steps' count the whole device, for all decoders."""

    def copy_from(self, other: Any) -> None:
        """Copy another decoder of the same model and capacity: its cache, states, length and logits. Called
        while no burst of either is under way. The copy is made on the device."""


D = TypeVar("D", bound=LoneRow)


async def separate_rows(
    decoder: Callable[[int, Loan | None], Awaitable[D]],
    rows: int,
    capacity: int,
    lora: LoraWeights | None = None,
    given: Sequence[Loan | None] = (),
) -> D | SeparateRows[D]:
    """A model's `decoder` for each row, with LoRA adapters, over the buffers in `given`. Raises the errors of
    `decoder`; OutOfMemoryError has the number of rows that fit. On failure the given buffers are released."""
    made: list[D] = []
    try:
        while len(made) < rows:
            made.append(await decoder(capacity, given[len(made)] if given else None))
    except BaseException as error:
        for each in made:
            await each.close()
        # The decoder of the failed row releases its buffers itself, since it may still be working.
        for loan in filter(None, given[len(made) + 1 :]):
            loan.end()
        if isinstance(error, OutOfMemoryError) and made:
            raise OutOfMemoryError(
                f"{rows} rows of {capacity} positions were requested; the memory holds {len(made)} ({error}); lower "
                "batch_size, num_beams, num_return_sequences or max_length"
            ) from error
        raise
    if lora is not None:
        for each in made:
            each.set_lora(lora)
    return made[0] if rows == 1 else SeparateRows(made)


class SeparateRows(Generic[D]):
    """See row_interface.RowDecoder for what each method promises."""

    def __init__(self, decoders: Sequence[D]) -> None:
        self.decoders = list(decoders)
        """By row."""
        self._options: list[SearchOptions | None] = [None] * len(self.decoders)
        self.borrowed: Loan | None = None
        """Borrowed buffers for the scratch of their tapes, which are released with the rows."""
        self._unread: list[Awaitable[Burst]] = []
        """Bursts that are still under way because the wait for another row failed."""
        first = self.decoders[0]
        self.rows = len(self.decoders)
        self.capacity = first.capacity
        self.capture = first.capture
        self.max_in_flight = first.max_in_flight
        self.max_burst = first.max_burst
        self.after_first = first.after_first
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

    def row(self, number: int) -> D:
        return self.decoders[number]

    def set_search(self, options: SearchOptions, row: int = 0) -> None:
        self._options[row] = options
        self.decoders[row].set_search(options, row)

    records_after = None

    async def record(self) -> None:
        """Does nothing: each row's step is recorded when the row is made."""

    async def warm_up(self) -> None:
        # Compiled kernels are the model's, not the decoder's.
        await self.decoders[0].warm_up()

    def rotate(self, long: bool) -> None:
        for decoder in self.decoders:
            decoder.rotate(long)

    async def rest(self) -> None:
        await self._drain()
        for decoder in self.decoders:
            await decoder.rest()

    def reorder(self, parents: Sequence[int]) -> None:
        old = list(self.decoders)
        # The first child of a parent takes over its decoder without a copy; that child is the parent itself if
        # possible.
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
            # Random draws depend on the row's number.
            if options is not None and not options.greedy and self.decoders[row] is not old[row]:
                self.decoders[row].set_search(options, row)

    def submit(self, picks: int, sample_first: bool, rows: Sequence[int] = ONE) -> Awaitable[Burst]:
        bursts = {row: self.decoders[row].submit(picks, sample_first) for row in rows}
        return _Bursts(self.rows, bursts, self._unread)

    async def run_picked(self, rows: Sequence[int] = ONE) -> None:
        for row in rows:
            await self.decoders[row].run_picked()

    def set_lora(self, lora: LoraWeights | None) -> None:
        for decoder in self.decoders:
            decoder.set_lora(lora)

    async def step(self, tokens: Sequence[int]) -> None:
        for decoder, token in zip(self.decoders, tokens, strict=True):
            await decoder.step([token])

    async def shortlists(self, count: int, rows: Sequence[int] = ONE) -> list[Shortlist]:
        return [found for [found] in await gather(*(self.decoders[row].shortlists(count) for row in rows))]

    def counters(self) -> Counters:
        totals = self.decoders[0].counters()
        for decoder in self.decoders[1:]:
            for name, count in decoder.counters().items():
                if name in ("steps", *DISK_COUNTS) or not decoder.counts_device:
                    totals[name] += count
        return totals

    async def close(self) -> None:
        await self._drain()
        for decoder in self.decoders:
            await decoder.close()
        if self.borrowed is not None:
            self.borrowed.end()

    async def _drain(self) -> None:
        while self._unread:
            with suppress(CapstanError):
                await self._unread.pop(0)


class _Bursts:
    """The bursts of all rows. Unlike a coroutine, this object may be dropped without an await."""

    def __init__(self, rows: int, bursts: Mapping[int, Awaitable[Burst]], unread: list[Awaitable[Burst]]) -> None:
        self._rows, self._bursts, self._unread = rows, bursts, unread

    def __await__(self) -> Generator[Any, Any, Burst]:
        return self._read().__await__()

    async def _read(self) -> Burst:
        waiting = [*self._bursts.values()]
        found: list[Burst] = []
        try:
            while waiting:
                found.append(await waiting.pop(0))
        finally:
            # After a fault or a cancelled wait: the next run must not begin before the other rows' bursts have ended.
            self._unread += waiting
        ids = dict(zip(self._bursts, (burst.ids for burst in found), strict=True))
        return Burst(
            tuple(ids.get(row, ()) for row in range(self._rows)),
            submitted=min(burst.submitted for burst in found),
            done=max(burst.done for burst in found),
            readable=max(burst.readable for burst in found),
            host=sum(burst.host for burst in found),
            entered=max(burst.entered for burst in found),
            crossings=len(found),
        )
