"""Reads the rows of tables that stay on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ..host import current_host
from ..host.storage_interface import PartsFile, Progress
from .noted_graphs import OpenWeights

if TYPE_CHECKING:
    from ..graph import DiskTable

__all__ = ["TableReader", "open_tables"]

Place = tuple[int, int]
"""An offset in a file, and a length."""


class TableReader:
    """The tables of a model on disk, whose files stay open until `close`."""

    def __init__(self, tables: Sequence[DiskTable], files: Mapping[str, PartsFile]) -> None:
        """`files` has the data files by location."""
        self._tables, self._files = tables, files

    async def rows(self, tokens: Sequence[int]) -> tuple[list[bytes], int]:
        """The rows of these tokens by table, one after another, and the number of bytes that were read. Raises
        ModelFileError, StorageError.
        """
        wanted = [[table.place(token) for token in tokens] for table in self._tables]
        found: dict[tuple[str, Place], bytes] = {}
        for location, file in self._files.items():
            mine = zip(self._tables, wanted, strict=True)
            # Several tables of a GGUF file are made of the same bytes.
            places = list(dict.fromkeys(at for table, each in mine if table.entry.location == location for at in each))
            data, start = await file.parts(places), 0
            for place in places:
                found[location, place] = data[start : start + place[1]]
                start += place[1]
        made = [
            made_rows(table, len(tokens), b"".join(found[table.entry.location, place] for place in places))
            for table, places in zip(self._tables, wanted, strict=True)
        ]
        return made, sum(map(len, found.values()))

    def close(self) -> None:
        """Close the files; closing twice is harmless."""
        files, self._files = self._files, {}
        for file in files.values():
            file.close()


def made_rows(table: DiskTable, count: int, rows: bytes) -> bytes:
    """The rows as the graph takes them."""
    how = table.unpack(count)
    return rows if how is None else current_host().unpack_rows(rows, how)


async def open_tables(
    tables: Sequence[DiskTable], open_weights: OpenWeights, progress: Progress
) -> tuple[TableReader | None, list[str | None]]:
    """Open the files of tables on disk; also returns the keys of these files' contents. There is no reader without
    tables. Files that are not on this machine are stored first. Raises StorageError, ModelFileError,
    WeightsChangedError.
    """
    files: dict[str, PartsFile] = {}
    contents: list[str | None] = []
    try:
        for location in sorted({table.entry.location for table in tables}):
            file = await open_weights(location)
            end = max(table.entry.end for table in tables if table.entry.location == location)
            files[location] = await file.opened(end, partial(progress, location))
            contents.append(file.content)
    except BaseException:
        for opened in files.values():
            opened.close()
        raise
    return TableReader(tables, files) if files else None, contents
