"""Makes and keeps JointRows for one model: decoders of several rows, which one step of a tape advances together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from ...errors import CapstanError, OutOfMemoryError, TapeError, UnsupportedModelError
from ...fallback import fall_back
from ...memory import DeviceBuffer, Loan
from ...tape import fuse_step
from ..model_memory import Borrowed
from .decoder import WebGpuDecoder
from .joint_rows import JointRows
from .loaded_model import Loaded
from .packed_prompts import run_length
from .row_buffers import RowBuffers
from .sequence_buffers import left_out_by_cache
from .step_source import StepSource
from .tapes.beam_tapes import BeamBuffers, beam_kind
from .tapes.draft_tapes import DraftBuffers, draft_kind
from .tapes.pack_tapes import PackBuffers, pack_kind
from .tapes.row_tapes import Closable, RowTape, TapeKind, row_kind, widened_tape
from .unused_time import UnusedTime

__all__ = ["RowSource"]

REFUSALS = (TapeError, UnsupportedModelError, OutOfMemoryError)
"""The errors after which a step of several tokens has no tape."""

B = TypeVar("B", bound=Closable)
T = TypeVar("T")


@dataclass
class RowSource:
    """Makes a model's joint rows, and keeps released ones."""

    loaded: Loaded
    steps: StepSource
    passes: Collection[str]
    decoder: Callable[[int, Loan | None], Awaitable[WebGpuDecoder]]
    """Makes a decoder of a capacity over given buffers."""
    unused: UnusedTime
    refused: dict[tuple[int, int], str] = field(default_factory=dict)
    """Why joint rows are impossible, by rows and capacity."""
    prompted: dict[tuple[int, int], str] = field(default_factory=dict)
    """The rows and capacities that ran several prompts, with the reason why these share no runs, if known."""
    busy: set[tuple[int, int]] = field(default_factory=set)
    """The rows and capacities whose rows were in use when the tape of their prompts was due."""
    free: list[JointRows] = field(default_factory=list)
    made: list[JointRows] = field(default_factory=list)
    recording: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Serialises recording: if equal tapes are requested at once, the first is recorded and the others are restored."""
    making: set[asyncio.Future[JointRows | None]] = field(default_factory=set)
    leaving: set[asyncio.Future[None]] = field(default_factory=set)

    async def take(self, rows: int, capacity: int, borrowed: Borrowed | None = None) -> JointRows | None:
        """Rows of that capacity, which one step advances: released rows, or else new ones over the borrowed buffers. If
        that is impossible, it returns None, which is a fallback, and has released the buffers, but not the scratch.
        """
        await self.unused.paused()
        given = borrowed is not None and (borrowed.rows is not None or any(borrowed.sequences))
        for i, free in enumerate(self.free):
            if not given and (free.rows, free.capacity) == (rows, capacity):
                found = self.free.pop(i)
                found.rotate(False)
                found.row(0).see(None, ())
                return found
        making = asyncio.ensure_future(self._made(rows, capacity, borrowed))
        self.making.add(making)
        making.add_done_callback(self.making.discard)
        try:
            # GPU work cannot be cancelled, and needs its buffers.
            made = await asyncio.shield(making)
        except asyncio.CancelledError:
            making.add_done_callback(self._keep)
            raise
        if made is None and not given:
            fall_back("several rows in one step", self.refused[rows, capacity], "the rows are run one after another")
        return made

    def _keep(self, making: asyncio.Future[JointRows | None]) -> None:
        """Keep finished rows whose caller was cancelled."""
        found = None if making.cancelled() or making.exception() else making.result()
        if found is not None:
            giving = asyncio.ensure_future(self._give_back(found))
            self.leaving.add(giving)
            giving.add_done_callback(self.leaving.discard)

    async def _made(self, rows: int, capacity: int, borrowed: Borrowed | None) -> JointRows | None:
        one: WebGpuDecoder | None = None
        found: JointRows | None = None
        try:
            if (rows, capacity) not in self.refused:
                one = await self.decoder(capacity, borrowed.sequences[0] if borrowed is not None else None)
                found = await self._over(one, rows, borrowed.rows if borrowed is not None else None)
            return found
        finally:
            if found is None and borrowed is not None and borrowed.rows is not None:
                borrowed.rows.end()
            if one is None and borrowed is not None and borrowed.sequences[0] is not None:
                borrowed.sequences[0].end()

    async def _over(self, one: WebGpuDecoder, rows: int, given: Loan | None) -> JointRows | None:
        """Make rows whose prompts `one` runs; `one` is closed if rows are impossible."""
        async with AsyncExitStack() as undo:
            undo.push_async_callback(one.close)
            try:
                self._require_taped(one)
                if self.loaded.about.states:
                    raise TapeError("the model has states, which a step of several rows would advance in idle rows")
                owner = f"{self.loaded.owner} rows of {one.owner}"
                buffers = await RowBuffers.allocate(one.buffers, rows, owner, given)
                tape = await self._tape(one, row_kind(self.loaded.engine, one.runs, buffers), self._recorded)
                undo.push_async_callback(tape.release)
                beams, packs = partial(self.beams, one, buffers), partial(self.packs, one, buffers)
                found = JointRows(self.loaded.engine, one, tape, self._give_back, beams, packs if self._packs else None)
            except REFUSALS as error:
                self.refused[rows, one.capacity] = self._reason(error)
                return None
            undo.pop_all()
        self.made.append(found)
        return found

    @property
    def _packs(self) -> bool:
        """Whether prompts of several rows may share runs; they may not in models that hear, where a token would need
        its row's sound.
        """
        return "prompts" in self.passes and not self.loaded.about.cross

    def _reason(self, error: CapstanError) -> str:
        """The reason why there is no tape; for a lost device the error is raised again."""
        if not self.loaded.engine.healthy():
            raise error
        return str(error)

    async def drafts(
        self, one: WebGpuDecoder, positions: int, reads: DeviceBuffer | None
    ) -> RowTape[DraftBuffers] | str:
        """A tape of a decoder's steps over `positions` positions, or the reason why there is none; a
        multi-token-prediction head `reads` hidden states.
        """
        kind = partial(draft_kind, self.loaded.engine, one.runs, positions, reads)
        return await self._tried(one, kind, self._recorded)

    async def beams(self, one: WebGpuDecoder, rows: RowBuffers) -> RowTape[BeamBuffers] | str:
        """A tape of steps of rows that read each other's caches by a table, or the reason why there is none."""
        if rows.windows:
            return "caches over a window slide, and the table of beams gives places in whole caches"
        return await self._tried(one, partial(beam_kind, self.loaded.engine, one.runs, rows), self._recorded)

    async def packs(self, one: WebGpuDecoder, rows: RowBuffers, now: bool = False) -> RowTape[PackBuffers] | str | None:
        """A tape of runs of tokens of any rows, or the reason why there is none. As with PrefillTapes, a stored tape is
        restored; otherwise the result is None, and a tape is recorded while the device is unused. If the rows were in
        use then, it is recorded at the next prompts, or `now`. No tape is recorded over given scratch, which may be too
        small.
        """
        what, own = (rows.rows, rows.capacity), one.scratch.given is None
        again = own and (now or what in self.busy)
        self.prompted[what] = reason = self.prompted.get(what, "")
        if reason:
            return reason
        length = run_length(self.loaded.interface.about().software)
        kind = partial(pack_kind, self.loaded.engine, one.runs, rows, length)
        found = await self._tried(one, kind, self._recorded if again else unrecorded)
        if isinstance(found, str):
            self.prompted[what] = found
        elif found is None and own:
            name = f"a tape of the prompts of {rows.rows} rows in {rows.capacity} positions"
            self.unused.request(name, partial(self._pack_unused, *what))
        return found

    async def _pack_unused(self, rows: int, capacity: int) -> None:
        """Record the tape of prompts over released rows."""
        for found in self.free:
            if (found.rows, found.capacity) == (rows, capacity):
                self.free.remove(found)
                try:
                    await found.make_packs()
                finally:
                    await self._give_back(found)
                return
        self.busy.add((rows, capacity))

    async def _tried(
        self,
        one: WebGpuDecoder,
        kind: Callable[[], Awaitable[TapeKind[B]]],
        missing: Callable[[WebGpuDecoder, TapeKind[B]], Awaitable[T]],
    ) -> RowTape[B] | T | str:
        """`_tape` of a kind of step, or the reason why there is none."""
        try:
            self._require_taped(one)
            return await self._tape(one, await kind(), missing)
        except REFUSALS as error:
            return self._reason(error)

    async def _tape(
        self, one: WebGpuDecoder, kind: TapeKind[B], missing: Callable[[WebGpuDecoder, TapeKind[B]], Awaitable[T]]
    ) -> RowTape[B] | T:
        """The tape of a step of several tokens: a stored one, else one that `missing` makes. The tape owns the kind's
        buffers; without a tape they are closed.
        """
        async with AsyncExitStack() as undo:
            undo.callback(kind.buffers.close)
            async with self.recording:
                tape = await self._restored(one, kind) or await missing(one, kind)
            if isinstance(tape, RowTape):
                undo.push_async_callback(tape.release)
                await one.scratch.add(tape.tape, f"the {kind.name}", kind.sequences)
                undo.pop_all()
        return tape

    async def _restored(self, one: WebGpuDecoder, kind: TapeKind[B]) -> RowTape[B] | None:
        """Restore a stored tape; None if there is none."""
        loaded = self.loaded
        found = await loaded.stored.restore(kind.name, self.steps.key(one.capacity), one.buffers, kind.bound)
        if found is None:
            return None
        return RowTape(loaded.engine, found.tape, 0, 0, found.passes["rows"], kind.buffers, one.scratch)

    def _require_taped(self, one: WebGpuDecoder) -> None:
        if one.capture != "tape":
            raise TapeError(f"a step of one row has no tape: {one.capture_note}")
        if self.loaded.about.growing:
            raise TapeError("the model has caches that grow with each run")

    async def _recorded(self, one: WebGpuDecoder, kind: TapeKind[B]) -> RowTape[B]:
        """A new tape, recorded with a captured session over the decoder's buffers, checked and stored."""
        steps, engine, about = self.steps, self.loaded.engine, self.loaded.about
        session, binding = await steps.capture(one.buffers)
        async with AsyncExitStack() as undo:
            undo.push_async_callback(engine.release_session, session)
            undo.callback(engine.unbind, binding)
            undo.callback(engine.retire, binding)
            missing = about.left_out_within(one.capacity)
            left_out = left_out_by_cache(missing, one.buffers, engine.recorded_id)
            fuse = partial(
                fuse_step,
                passes=self.passes,
                left_out=left_out,
                weights=steps.quantized(),
                tables=steps.tables(),
                positions=one.buffers.recorded_positions(engine.recorded_id),
            )
            tape, report = await widened_tape(engine, one.runs, kind, binding, fuse)
            undo.pop_all()
            made = RowTape(engine, tape, session, binding, report, kind.buffers, one.scratch)
            undo.push_async_callback(made.release)
            key, stored = steps.key(one.capacity), self.loaded.stored
            await stored.keep(kind.name, key, one.buffers, tape, {"rows": report}, kind.bound)
            undo.pop_all()
        return made

    async def _give_back(self, rows: JointRows) -> None:
        if rows.reusable:
            self.free.append(rows)
        else:
            self.made.remove(rows)
            await rows.destroy()

    async def trim(self) -> None:
        """Free unused rows."""
        free, self.free = self.free, []
        for rows in free:
            self.made.remove(rows)
            await rows.destroy()

    async def close(self) -> None:
        """Free all rows. Call it before their decoders are freed."""
        await asyncio.gather(*self.making, return_exceptions=True)
        await asyncio.gather(*self.leaving, return_exceptions=True)
        self.free.clear()
        while self.made:
            await self.made.pop().destroy()


async def unrecorded(one: WebGpuDecoder, kind: TapeKind[Any]) -> None:
    """Does nothing: a tape that is not stored is not recorded either."""
