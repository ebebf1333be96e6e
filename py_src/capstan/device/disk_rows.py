"""Feeds the rows of tables that stay on disk."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..memory import round_up
from ..model_files.genai_config import DISK_ROWS
from .run_input import WRITTEN, HostTensor, Room, Run, RunInput, RunTensor, SequenceMemory

if TYPE_CHECKING:
    from ..graph import GraphDescription

__all__ = ["DiskRows", "bring_rows", "disk_reads"]


class DiskRows(RunInput):
    """The rows that the tokens of a run have in tables on disk, and the place of each token's row among them. `bring`
    reads the rows before the run is written.
    """

    def __init__(self, about: GraphDescription, room: Room) -> None:
        super().__init__(about, room)
        self._places: dict[int, int] = {}
        """The place of each token's row among those that were read."""
        self._rows: list[bytes] = []
        """The rows by table, one after another."""
        self.counts = {"table_reads": 0, "table_bytes": 0}
        """The reads, and their bytes."""

    async def bring(self, ids: Sequence[int]) -> None:
        tokens = list(dict.fromkeys(ids))
        if self.room.disk is None or tokens == list(self._places):
            return
        self._places = {}
        self._rows, size = await self.room.disk.rows(tokens)
        self._places = {token: place for place, token in enumerate(tokens)}
        self.counts["table_reads"] += 1
        self.counts["table_bytes"] += size

    def feeds(self, run: Run) -> list[RunTensor]:
        most = 1 if run.which == "input" else self.room.chunk
        entries = [(each.entry, each.row) for each in self.about.tables]
        return [
            RunTensor(DISK_ROWS, f"{run.which} disk rows", "int64", (1, run.tokens)),
            *(RunTensor(e.name, f"{run.which} rows of {e.name}", e.dtype, (most, *row)) for e, row in entries),
        ]

    def write_prompt(self, memory: SequenceMemory, ids: Sequence[int], past: int, valid: int | None) -> None:
        self._write(memory, "prompt", ids)

    def write_step(self, memory: SequenceMemory, token: int, position: int) -> None:
        self._write(memory, "input", [token])

    def _write(self, memory: SequenceMemory, which: str, ids: Sequence[int]) -> None:
        numbers, rows = self._numbers(ids), self._rows
        if which == "input":
            # A step binds room for one row.
            place, numbers = numbers[0], array("q", [0])
            each = zip(rows, self.about.tables, strict=True)
            rows = [data[place * table.row_bytes : (place + 1) * table.row_bytes] for data, table in each]
        memory.device.copy_cpu_to_device(memory.spans[f"{which} disk rows"].sub(0, 8 * len(numbers)), numbers)
        for table, data in zip(self.about.tables, rows, strict=True):
            padded = data.ljust(round_up(len(data), WRITTEN), b"\0")
            span = memory.spans[f"{which} rows of {table.entry.name}"].sub(0, len(padded))
            memory.device.copy_cpu_to_device(span, array("B", padded))

    def _numbers(self, ids: Sequence[int]) -> array[int]:
        return array("q", [self._places[token] for token in ids])

    def on_host(self, ids: Sequence[int], past: int) -> list[HostTensor]:
        found = [HostTensor(DISK_ROWS, "int64", (1, len(ids)), self._numbers(ids).tobytes())]
        for table, data in zip(self.about.tables, self._rows, strict=True):
            entry = table.entry
            found.append(HostTensor(entry.name, entry.dtype, (len(self._places), *table.row), data))
        return found


async def bring_rows(inputs: Sequence[RunInput], ids: Sequence[int]) -> None:
    """Read from disk what a run over these ids needs, before its inputs are written."""
    for each in inputs:
        if isinstance(each, DiskRows):
            await each.bring(ids)


def disk_reads(inputs: Sequence[RunInput]) -> dict[str, int]:
    """The number of reads of rows on disk, and their bytes; empty for a model without tables on disk."""
    found: dict[str, int] = {}
    for each in inputs:
        found |= each.counts if isinstance(each, DiskRows) else {}
    return found
