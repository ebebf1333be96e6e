"""Makes the taped step of beams, whose rows read each other's caches through a table. It is recorded and compared like
the step of rows that read their own caches.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from ....memory import BufferRequest, DeviceBuffer
from ..cache_spans import CacheSpans
from ..gpu_engine import GpuEngine
from ..row_buffers import RowBuffers
from .row_tapes import OneRow, TapeKind, check_rows
from .stored_tapes import Span

__all__ = ["BeamBuffers", "beam_kind"]


@dataclass
class BeamBuffers:
    """The buffers that a beam search needs in addition to those of its rows."""

    table: DeviceBuffer
    """u32 [rows, capacity]: the row whose caches hold a position of a row."""
    scores: DeviceBuffer
    """float32 [rows]."""

    @classmethod
    async def allocate(cls, rows: RowBuffers) -> BeamBuffers:
        """Allocate the buffers. Raises OutOfMemoryError; in that case nothing stays allocated."""
        requests = [
            BufferRequest("beam table", 4 * rows.rows * rows.capacity, "kernels"),
            BufferRequest("beam scores", 4 * rows.rows, "kernels"),
        ]
        return cls(*await rows.device.allocate_all(requests, rows.owner))

    def bound(self, rows: RowBuffers) -> dict[str, Span]:
        """`RowBuffers.bound`, and the table."""
        return {**rows.bound(), "table": (self.table.handle, 0, 4 * rows.rows * rows.capacity)}

    def close(self) -> None:
        self.table.close()
        self.scores.close()


async def beam_kind(engine: GpuEngine, one: OneRow, rows: RowBuffers) -> TapeKind[BeamBuffers]:
    """The step of several beams. Its check overwrites all caches. Raises OutOfMemoryError."""
    beams = await BeamBuffers.allocate(rows)

    async def check(tape: int) -> None:
        await check_rows(engine, one, rows, tape, Exchange(rows, beams.table))

    return TapeKind(f"step of {rows.rows} beams", rows.rows, rows.rows, beams, beams.bound(rows), rows.owner, check)


@dataclass(frozen=True)
class Exchange:
    """Used to check a step of beams: rows hold each other's first positions, and a table lists which row holds
    which.
    """

    rows: RowBuffers
    table: DeviceBuffer

    def part(self, length: int, kept: Sequence[DeviceBuffer]) -> None:
        """Move the first `length` positions of each row into the caches of the row before it, and those of the first
        row into the caches of the last row; `kept` has space for one row's caches.
        """
        rows = self.rows
        first = self._over(kept)
        self._of(0).copy_to(first, length)
        for row in range(rows.rows - 1):
            self._of(row + 1).copy_to(self._of(row), length)
        first.copy_to(self._of(rows.rows - 1), length)
        words = array("I")
        for row in range(rows.rows):
            words.extend([(row - 1) % rows.rows] * length + [row] * (rows.capacity - length))
        rows.device.copy_cpu_to_device(self.table.span(0, 4 * len(words)), words)

    def join(self, row: int, length: int, copies: Sequence[DeviceBuffer]) -> None:
        """Put a row's own first positions back into copies of its caches."""
        self._of((row - 1) % self.rows.rows).copy_to(self._over(copies), length)

    def _of(self, row: int) -> CacheSpans:
        rows = self.rows
        spans = tuple(rows.part(name, row) for name in rows.caches)
        return CacheSpans(rows.device, rows.about, spans, rows.capacity, rows.owner)

    def _over(self, copies: Sequence[DeviceBuffer]) -> CacheSpans:
        rows = self.rows
        spans = tuple(copy.span(0, rows.part(name, 0).length) for name, copy in zip(rows.caches, copies, strict=True))
        return CacheSpans(rows.device, rows.about, spans, rows.capacity, rows.owner)
