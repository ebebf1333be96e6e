"""Stores conversations with their computed states in the browser's storage.

A session has a record, a sealed text with its messages and the header of its state, and a file with the state's rows.
The file is written before the record that names it, so that a crash leaves the last whole session. When rows exceed
their budget, the least recently used ones are removed; their messages stay.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ..errors import StorageError
from ..fallback import fall_back
from ..model_files.bounded_json import NotJsonError, clipped, read_json
from . import current_host
from .storage_interface import Backing, DataFile, short_hash

__all__ = ["SessionStore", "StoredRows", "StoredSession"]

FOLDER = "capstan-sessions"
RECORD, STATE = ".json", ".state"


@dataclass(frozen=True)
class StoredSession:
    """A stored conversation."""

    id: str
    messages: list[dict[str, Any]]
    options: dict[str, Any] = field(default_factory=dict)
    """The options of its runs."""
    tokens: int = 0
    """Tokens of its state."""
    header: str = ""
    """The header of its state, JSON."""
    bytes: int = 0
    """Bytes of the rows of its state."""
    bits: int = 0
    """The bits of a number of the rows; 0 for those of the cache."""
    used: float = 0
    """The time when it was last saved or restored, in milliseconds since 1970."""
    state: str = ""
    """The name of the file with the rows; empty if it has none."""
    reason: str = ""
    """The reason why it has no state."""


class StoredRows:
    """Writes the rows of a state that is being saved; see capstan.generation.state_format.RowSink."""

    def __init__(self, store: SessionStore, id: str, budget: int, shard: int) -> None:
        self.name, self.size = "", 0
        """The file and its bytes."""
        self.evicted: list[str] = []
        """The ids of the sessions whose rows were removed."""
        self._store, self._id, self._budget, self._shard = store, id, budget, shard
        self._file: DataFile | None = None

    async def begin(self, size: int) -> None:
        if size > self._budget:
            raise StorageError(
                f"the state of the session {self._id!r} has {size} bytes; the budget is {self._budget}: raise it, or "
                "keep session.messages yourself"
            )
        await self.drop()
        self.evicted += await self._store.make_room(self._id, self._budget - size)
        self.size, self.name = size, f"{short_hash(self._id)}-{time.time_ns()}{STATE}"
        self._file = await self._store.backing.open(self.name, size, self._shard, write=True)

    async def write(self, start: int, data: bytearray) -> str:
        assert self._file is not None
        return await self._file.write(start, data)

    async def flush(self) -> None:
        """Wait until the disk has all rows."""
        if self._file is not None:
            await self._file.flush()

    def close(self) -> None:
        """Close the file: until then no other page removes it."""
        if self._file is not None:
            self._file.close()
            self._file = None

    async def drop(self) -> None:
        """Remove what was written."""
        self.close()
        if self.name:
            await self._store.backing.remove(self.name)
            self.name, self.size = "", 0


class SessionStore:
    """The stored sessions of this origin. Methods raise StorageError."""

    def __init__(self, backing: Backing) -> None:
        self.backing = backing

    @classmethod
    async def open(cls) -> SessionStore:
        """The store of this browser. Raises StorageError if the browser keeps nothing."""
        backing = await current_host().backing(FOLDER)
        if backing is None:
            raise StorageError(
                "this browser keeps no files for this page: open it in a window that is not private, from https: or "
                "localhost"
            )
        return cls(backing)

    def rows(self, id: str, budget: int, shard: int) -> StoredRows:
        """A new file for the rows of a session, in shards of this number of bytes; all files together have at most
        `budget` bytes.
        """
        return StoredRows(self, id, budget, shard)

    async def write(self, session: StoredSession, rows: StoredRows) -> StoredSession:
        """Store a session in place of the last one of its id, with the rows that were written; returns it."""
        try:
            await rows.flush()
            stored = replace(session, state=rows.name, bytes=rows.size, used=now())
            await self._note(stored)
        except BaseException:
            with suppress(StorageError):
                await rows.drop()
            raise
        rows.close()
        # Another page that reads an earlier one has it open: a later save removes it.
        with suppress(StorageError):
            await self._remove_states(stored)
        return stored

    async def read(self, id: str) -> StoredSession | None:
        """The session of an id, None if there is none. Raises StorageError if its record is damaged."""
        return await self._record(record_of(id))

    async def open_rows(self, session: StoredSession, shard: int) -> DataFile:
        """The file of a session's rows, which are from now on the most recently used ones. Raises StorageError if it is
        gone or cut off.
        """
        file = await self.backing.open(session.state, session.bytes, shard, write=False)
        try:
            await self._note(replace(session, used=now()))
        except BaseException:
            file.close()
            raise
        return file

    async def sessions(self) -> list[StoredSession]:
        """All sessions, the most recently used first. A damaged record is left out, with a fallback."""
        found = []
        for name in await self.backing.names():
            if name.endswith(RECORD):
                try:
                    session = await self._record(name)
                except StorageError as error:
                    fall_back("a stored session", str(error), "it is not listed")
                    continue
                if session is not None:
                    found.append(session)
        return sorted(found, key=lambda each: -each.used)

    async def remove(self, id: str | None) -> None:
        """Remove a session, or all."""
        start = "" if id is None else short_hash(id)
        for name in sorted(await self.backing.names()):
            # Records are before states in this order.
            if name.startswith(start):
                await self.backing.remove(name)

    async def make_room(self, saved: str, room: int) -> list[str]:
        """Remove the files that no record names, and then the least recently used rows of sessions other than `saved`
        until the others have at most `room` bytes; returns the ids of these sessions.
        """
        sessions = await self.sessions()
        await self._sweep({each.state for each in sessions})
        others = [each for each in sessions if each.id != saved and each.state]
        evicted = []
        while sum(each.bytes for each in others) > room:
            last = others.pop()
            reason = "its state was removed for those of later sessions"
            without = replace(last, state="", header="", bytes=0, reason=reason)
            await self._note(without)
            await self._remove_states(without)
            evicted.append(last.id)
        return evicted

    async def _sweep(self, named: Collection[str]) -> None:
        """Remove the rows that a page left when it ended while it saved."""
        for name in await self.backing.names():
            if name.endswith(STATE) and name not in named:
                # Another page that writes it has it open.
                with suppress(StorageError):
                    await self.backing.remove(name)

    async def _note(self, session: StoredSession) -> None:
        text = json.dumps(asdict(session))
        await self.backing.write_text(record_of(session.id), f"{digest(text)}\n{text}")

    async def _record(self, name: str) -> StoredSession | None:
        text = await self.backing.read_text(name)
        if text is None:
            return None
        head, _, content = text.partition("\n")
        if head != digest(content):
            raise StorageError(f"the record {name} of a stored session is damaged: delete the session")
        try:
            fields = read_json(content)
        except NotJsonError as error:
            raise StorageError(f"the record {name} of a stored session: {error}; delete the session") from error
        if not isinstance(fields, dict) or fields.keys() != KINDS.keys():
            raise StorageError(f"the record {name} of a stored session is of another Capstan: delete the session")
        for field_name, kind in KINDS.items():
            value = fields[field_name]
            if type(value) not in kind or (kind == NUMBER and not value >= 0):
                raise StorageError(
                    f"the record {name} of a stored session has {field_name} {clipped(value)}: delete the session"
                )
        if record_of(fields["id"]) != name:
            raise StorageError(f"the record {name} is of the session {clipped(fields['id'])}: delete the session")
        return StoredSession(**fields)

    async def _remove_states(self, session: StoredSession) -> None:
        """Remove the files of a session's earlier states."""
        start = short_hash(session.id) + "-"
        for name in await self.backing.names():
            if name.startswith(start) and name != session.state:
                await self.backing.remove(name)


NUMBER = (int, float)
KINDS: Mapping[str, tuple[type, ...]] = {
    "id": (str,),
    "messages": (list,),
    "options": (dict,),
    "tokens": (int,),
    "header": (str,),
    "bytes": (int,),
    "bits": (int,),
    "used": NUMBER,
    "state": (str,),
    "reason": (str,),
}
"""The types of a record's fields."""


def record_of(id: str) -> str:
    return short_hash(id) + RECORD


def digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def now() -> float:
    return time.time() * 1e3
