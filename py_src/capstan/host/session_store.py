"""Stores conversations with their computed states in the browser's storage.

A session has a record, a sealed text with its messages, and a file with its state. The file is written before the
record that names it, so that a crash leaves the last whole session. When states exceed their budget, the least recently
used ones are removed; their messages stay.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ..errors import StorageError
from ..fallback import fall_back
from . import current_host
from .storage_interface import Backing, short_hash

__all__ = ["SessionStore", "StoredSession"]

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
    bytes: int = 0
    """Bytes of its state."""
    used: float = 0
    """The time when it was last saved or restored, in milliseconds since 1970."""
    state: str = ""
    """The name of the file with its state; empty if it has none."""
    reason: str = ""
    """The reason why it has no state."""


class SessionStore:
    """The stored sessions of this origin. Methods raise StorageError."""

    def __init__(self, backing: Backing) -> None:
        self._backing = backing

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

    async def write(self, session: StoredSession, state: bytes, budget: int) -> tuple[StoredSession, list[str]]:
        """Store a session in place of the last one of its id; returns it, and the ids whose states were removed."""
        if len(state) > budget:
            raise StorageError(
                f"the state of the session {session.id!r} has {len(state)} bytes; the budget is {budget}: raise it, or "
                "keep session.messages yourself"
            )
        evicted = await self._evict(session.id, budget - len(state)) if state else []
        name = f"{short_hash(session.id)}-{time.time_ns()}{STATE}" if state else ""
        if state:
            try:
                await self._backing.write_bytes(name, state)
            except StorageError:
                await self._backing.remove(name)
                raise
        stored = replace(session, state=name, bytes=len(state), used=now())
        await self._note(stored)
        await self._remove_states(stored)
        return stored, evicted

    async def read(self, id: str) -> StoredSession | None:
        """The session of an id, None if there is none. Raises StorageError if its record is damaged."""
        return await self._record(record_of(id))

    async def state(self, session: StoredSession) -> bytes | None:
        """The state of a session, from now on the most recently used one; None if its file is gone."""
        found = await self._backing.read_bytes(session.state)
        if found is not None:
            await self._note(replace(session, used=now()))
        return found

    async def sessions(self) -> list[StoredSession]:
        """All sessions, the most recently used first. A damaged record is left out, with a fallback."""
        found = []
        for name in await self._backing.names():
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
        for name in sorted(await self._backing.names()):
            # Records are before states in this order.
            if name.startswith(start):
                await self._backing.remove(name)

    async def _evict(self, saved: str, room: int) -> list[str]:
        """Remove the least recently used states of sessions other than `saved` until the others have `room` bytes."""
        others = [each for each in await self.sessions() if each.id != saved and each.state]
        evicted = []
        while sum(each.bytes for each in others) > room:
            last = others.pop()
            without = replace(last, state="", bytes=0, reason="its state was removed for those of later sessions")
            await self._note(without)
            await self._remove_states(without)
            evicted.append(last.id)
        return evicted

    async def _note(self, session: StoredSession) -> None:
        text = json.dumps(asdict(session))
        await self._backing.write_text(record_of(session.id), f"{digest(text)}\n{text}")

    async def _record(self, name: str) -> StoredSession | None:
        text = await self._backing.read_text(name)
        if text is None:
            return None
        head, _, content = text.partition("\n")
        if head != digest(content):
            raise StorageError(f"the record {name} of a stored session is damaged: delete the session")
        return StoredSession(**json.loads(content))

    async def _remove_states(self, session: StoredSession) -> None:
        """Remove the files of a session's earlier states."""
        start = short_hash(session.id) + "-"
        for name in await self._backing.names():
            if name.startswith(start) and name != session.state:
                await self._backing.remove(name)


def record_of(id: str) -> str:
    return short_hash(id) + RECORD


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def now() -> float:
    return time.time() * 1e3
