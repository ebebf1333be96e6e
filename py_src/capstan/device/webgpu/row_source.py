"""Makes and keeps decoders of several rows for one model, where a step can be taped that advances all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field

from ...errors import OutOfMemoryError, TapeError, UnsupportedModelError
from ...fallback import fall_back
from ...graph import GraphDescription
from ..interface import DeviceInterface
from .decoder import WebGpuDecoder
from .engine import GpuEngine
from .joint_rows import JointRows
from .row_buffers import RowBuffers
from .row_tape import make_row_tape
from .sequence_buffers import SequenceBuffers, left_out_by_cache

__all__ = ["RowSource"]


@dataclass
class RowSource:
    """What a model's rows are made with."""

    engine: GpuEngine
    device: DeviceInterface
    about: GraphDescription
    passes: Collection[str]
    owner: str
    decoder: Callable[[int], Awaitable[WebGpuDecoder]]
    """One of a capacity."""
    capture: Callable[[SequenceBuffers], Awaitable[tuple[int, int]]]
    """A captured session for steps over a sequence's buffers, and its binding."""
    refused: dict[tuple[int, int], str] = field(default_factory=dict)
    """Why there can be none, by rows and capacity."""
    free: list[JointRows] = field(default_factory=list)
    made: list[JointRows] = field(default_factory=list)
    making: set[asyncio.Future[JointRows | None]] = field(default_factory=set)

    async def take(self, rows: int, capacity: int) -> JointRows | None:
        """Rows of that capacity in one step: those that were given back, else new ones; None where there can be none,
        which is a step down."""
        for i, free in enumerate(self.free):
            if (free.rows, free.capacity) == (rows, capacity):
                return self.free.pop(i)
        making = asyncio.ensure_future(self._made(rows, capacity))
        self.making.add(making)
        making.add_done_callback(self.making.discard)
        try:
            # What runs on the GPU cannot be called back, and its buffers must stay.
            found = await asyncio.shield(making)
        except asyncio.CancelledError:
            making.add_done_callback(self._keep)
            raise
        if found is None:
            fall_back("several rows in one step", self.refused[rows, capacity], "the rows are run one after another")
        return found

    def _keep(self, making: asyncio.Future[JointRows | None]) -> None:
        """Take in rows that nobody waited for."""
        if not making.cancelled() and making.exception() is None and making.result() is not None:
            self.free += [found for found in (making.result(),) if found is not None]

    async def _made(self, rows: int, capacity: int) -> JointRows | None:
        if (rows, capacity) in self.refused:
            return None
        one = await self.decoder(capacity)
        try:
            found = await self._rows_of(one, rows)
        except (TapeError, UnsupportedModelError, OutOfMemoryError) as error:
            await one.close()
            if not self.engine.healthy():
                raise
            self.refused[rows, capacity] = str(error)
            return None
        except BaseException:
            await one.close()
            raise
        self.made.append(found)
        return found

    async def _rows_of(self, one: WebGpuDecoder, rows: int) -> JointRows:
        engine, about, capacity = self.engine, self.about, one.capacity
        if one.capture != "tape":
            raise TapeError(f"a step of one row has no tape: {one.capture_note}")
        if about.states or about.growing:
            raise TapeError("the model has states or caches besides those that attention writes in place")
        buffers = await RowBuffers.allocate(self.device, about, rows, capacity, f"{self.owner} rows of {one.owner}")
        session = binding = 0
        try:
            session, binding = await self.capture(one.buffers)
            left_out = left_out_by_cache(about.left_out_within(capacity), about, one.buffers.cache, engine.recorded_id)
            tape = await make_row_tape(engine, one, buffers, session, binding, self.passes, left_out)
        except BaseException:
            if session:
                engine.retire(binding)
                engine.unbind(binding)
                await engine.release_session(session)
            buffers.destroy()
            raise
        return JointRows(engine, one, buffers, tape, self._give_back)

    async def _give_back(self, rows: JointRows) -> None:
        self.free.append(rows)

    async def trim(self) -> None:
        """Free those that nobody uses."""
        free, self.free = self.free, []
        for rows in free:
            self.made.remove(rows)
            await rows.destroy()

    async def close(self) -> None:
        """Free all of them, before the decoders that they were made with."""
        await asyncio.gather(*self.making, return_exceptions=True)
        self.free.clear()
        while self.made:
            await self.made.pop().destroy()
