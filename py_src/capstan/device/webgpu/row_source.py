"""Makes and keeps JointRows for one model: decoders of several rows, which one step of a tape advances together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial

from ...errors import CapstanError, OutOfMemoryError, TapeError, UnsupportedModelError
from ...fallback import fall_back
from ...graph import GraphDescription
from ...memory import Loan
from ...tape import NBitsWeights, TableParts, TapeKey, fuse_step
from ..interface import DeviceInterface
from ..model_memory import Lent
from .decoder import WebGpuDecoder
from .engine import GpuEngine
from .joint_rows import JointRows
from .packed_prompts import run_length
from .row_buffers import RowBuffers
from .sequence_buffers import SequenceBuffers, left_out_by_cache
from .tapes.beams import BeamBuffers, BeamTape, make_beam_tape
from .tapes.drafts import DraftBuffers, DraftTape, make_draft_tape
from .tapes.packs import PackBuffers, PackTape, make_pack_tape
from .tapes.rows import Fuse, RowTape, make_row_tape
from .tapes.stored import Span, StoredTapes

__all__ = ["RowSource"]

REFUSALS = (TapeError, UnsupportedModelError, OutOfMemoryError)
"""The errors by which a step of several tokens has no tape."""

Make = Callable[[int, int, Fuse], Awaitable[RowTape]]
"""Makes a tape with a captured session and its binding, and owns the session then."""


@dataclass
class RowSource:
    """Makes a model's joint rows, and keeps those that are given back."""

    engine: GpuEngine
    device: DeviceInterface
    about: GraphDescription
    passes: Collection[str]
    owner: str
    decoder: Callable[[int, Loan | None], Awaitable[WebGpuDecoder]]
    """One of a capacity, over buffers that are given."""
    capture: Callable[[SequenceBuffers], Awaitable[tuple[int, int]]]
    """A captured session for steps over a sequence's buffers, and its binding."""
    stored: StoredTapes
    key: Callable[[int], TapeKey]
    """The key of stored tapes for a capacity."""
    weights: Callable[[], Mapping[int, NBitsWeights]]
    """Quantized weights by recorded buffer."""
    tables: Callable[[], Collection[TableParts]]
    """Tables in parts, as recorded buffers."""
    refused: dict[tuple[int, int], str] = field(default_factory=dict)
    """Why joint rows are impossible, by rows and capacity."""
    prompted: dict[tuple[int, int], str] = field(default_factory=dict)
    """The rows and capacities for which several prompts came, with the reason why these share no runs, if known."""
    free: list[JointRows] = field(default_factory=list)
    made: list[JointRows] = field(default_factory=list)
    recording: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Serialises recording: when equal tapes are asked for at once, the first is recorded and the others restored."""
    making: set[asyncio.Future[JointRows | None]] = field(default_factory=set)
    leaving: set[asyncio.Future[None]] = field(default_factory=set)

    async def take(self, rows: int, capacity: int, lent: Lent | None = None) -> JointRows | None:
        """Rows of that capacity in one step: rows that were given back, else new ones over the lent buffers; None, a
        step down, if no such rows are possible. Without rows it releases the buffers, but not the scratch."""
        given = lent is not None and (lent.rows is not None or any(lent.sequences))
        for i, free in enumerate(self.free):
            if not given and (free.rows, free.capacity) == (rows, capacity):
                found = self.free.pop(i)
                found.rotate(False)
                return found
        making = asyncio.ensure_future(self._made(rows, capacity, lent))
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

    async def _made(self, rows: int, capacity: int, lent: Lent | None) -> JointRows | None:
        one: WebGpuDecoder | None = None
        found: JointRows | None = None
        try:
            if (rows, capacity) not in self.refused:
                one = await self.decoder(capacity, lent.sequences[0] if lent is not None else None)
                found = await self._over(one, rows, lent.rows if lent is not None else None)
            return found
        finally:
            if found is None and lent is not None and lent.rows is not None:
                lent.rows.end()
            if one is None and lent is not None and lent.sequences[0] is not None:
                lent.sequences[0].end()

    async def _over(self, one: WebGpuDecoder, rows: int, given: Loan | None) -> JointRows | None:
        """Rows beside a decoder, which is closed where there can be none."""
        capacity = one.capacity
        try:
            found = await self._rows_of(one, rows, given)
        except REFUSALS as error:
            await one.close()
            self.refused[rows, capacity] = self._reason(error)
            return None
        except BaseException:
            await one.close()
            raise
        self.made.append(found)
        return found

    def _reason(self, error: CapstanError) -> str:
        """Why there is no tape; the error itself is raised again where the device is lost."""
        if not self.engine.healthy():
            raise error
        return str(error)

    async def drafts(self, one: WebGpuDecoder, positions: int) -> DraftTape | str:
        """A tape of a decoder's steps over that many positions, or the reason for none."""
        try:
            self._require_taped(one)
            buffers = await DraftBuffers.allocate(one.buffers, positions)
            try:
                make = partial(make_draft_tape, self.engine, one, buffers)
                tape = await self._tape(f"step over {positions} positions", one, buffers.bound(one.buffers), make)
            except BaseException:
                buffers.close()
                raise
            return DraftTape(tape, buffers)
        except REFUSALS as error:
            return self._reason(error)

    async def beams(self, one: WebGpuDecoder, rows: RowBuffers) -> BeamTape | str:
        """A tape of steps of rows that read each other's caches by a table, or the reason for none."""
        if rows.windows:
            return "caches of windows slide, and the table of beams tells places of whole caches"
        try:
            buffers = await BeamBuffers.allocate(rows)
            try:
                make = partial(make_beam_tape, self.engine, one, rows, buffers)
                tape = await self._tape(f"step of {rows.rows} beams", one, buffers.bound(rows), make)
            except BaseException:
                buffers.close()
                raise
            return BeamTape(tape, buffers)
        except REFUSALS as error:
            return self._reason(error)

    async def packs(self, one: WebGpuDecoder, rows: RowBuffers) -> PackTape | str | None:
        """A tape of runs of tokens of any rows, or the reason for none. As with PrefillTapes, one that is stored is
        made again; else one is recorded when prompts of so many rows come for the second time, None before. Over
        given scratch, which may be too small, none is recorded."""
        what = rows.rows, rows.capacity
        again = what in self.prompted and one.scratch.given is None
        self.prompted[what] = reason = self.prompted.get(what, "")
        if reason:
            return reason
        try:
            buffers = await PackBuffers.allocate(rows, run_length(self.device.about().software))
            tape: RowTape | None = None
            try:
                name, spans = f"run of {buffers.tokens} tokens of {rows.rows} rows", buffers.bound(rows)
                if again:
                    tape = await self._tape(name, one, spans, partial(make_pack_tape, self.engine, one, rows, buffers))
                else:
                    async with self.recording:
                        tape = await self._restored(name, one, spans)
            finally:
                if tape is None:
                    buffers.close()
            return PackTape(tape, buffers) if tape is not None else None
        except REFUSALS as error:
            self.prompted[what] = reason = self._reason(error)
            return reason

    async def _rows_of(self, one: WebGpuDecoder, rows: int, given: Loan | None) -> JointRows:
        self._require_taped(one)
        owner = f"{self.owner} rows of {one.owner}"
        buffers = await RowBuffers.allocate(one.buffers, rows, owner, given)
        tape: RowTape | None = None
        try:
            make = partial(make_row_tape, self.engine, one, buffers)
            tape = await self._tape(f"step of {rows} rows", one, buffers.bound(), make)
            await one.scratch.add(tape.tape, f"the step of {rows} rows", rows)
            packs = partial(self.packs, one, buffers) if "prompts" in self.passes else None
            beams = partial(self.beams, one, buffers)
            return JointRows(self.engine, one, buffers, tape, self._give_back, beams, packs)
        except BaseException:
            if tape is not None:
                one.scratch.drop(tape.tape)
                await tape.release()
            buffers.destroy()
            raise

    async def _tape(self, what: str, one: WebGpuDecoder, spans: Mapping[str, Span], make: Make) -> RowTape:
        """The tape of a step of several tokens: a stored one, else one that is recorded and checked."""
        key = self.key(one.capacity)
        async with self.recording:
            restored = await self._restored(what, one, spans)
            if restored is not None:
                return restored
            tape = await self._captured(one, make)
            try:
                await self.stored.keep(what, key, one.buffers, tape.tape, {"rows": tape.said}, spans)
            except BaseException:
                await tape.release()
                raise
            return tape

    async def _restored(self, what: str, one: WebGpuDecoder, spans: Mapping[str, Span]) -> RowTape | None:
        """A stored tape of such a step, made again."""
        restored = await self.stored.restore(what, self.key(one.capacity), one.buffers, spans)
        return None if restored is None else RowTape(self.engine, restored.tape, 0, 0, restored.passes["rows"])

    def _require_taped(self, one: WebGpuDecoder) -> None:
        if one.capture != "tape":
            raise TapeError(f"a step of one row has no tape: {one.capture_note}")
        if self.about.states or self.about.growing:
            raise TapeError("the model has states or caches besides those that attention writes in place")

    async def _captured(self, one: WebGpuDecoder, make: Make) -> RowTape:
        """The tape that `make` makes with a captured session over the decoder's buffers; it owns the session."""
        engine, about = self.engine, self.about
        session, binding = await self.capture(one.buffers)
        try:
            missing = about.left_out_within(one.capacity)
            left_out = left_out_by_cache(missing, one.buffers, engine.recorded_id)
            fuse = partial(
                fuse_step, passes=self.passes, left_out=left_out, weights=self.weights(), tables=self.tables()
            )
            return await make(session, binding, fuse)
        except BaseException:
            engine.retire(binding)
            engine.unbind(binding)
            await engine.release_session(session)
            raise

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
        """Free all rows; to be called before their decoders are freed."""
        await asyncio.gather(*self.making, return_exceptions=True)
        await asyncio.gather(*self.leaving, return_exceptions=True)
        self.free.clear()
        while self.made:
            await self.made.pop().destroy()
