"""Keeps the states of conversations in the browser's storage while no request runs, so that a later page need not
compute their prompts again.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any

from ..errors import CapstanError, DeviceLostError, StorageError
from ..fallback import fall_back
from ..host.session_store import SessionStore, StoredRows, StoredSession
from ..host.unused_time import UnusedTime
from .chat_prompt import ChatPrompt
from .conversation import Conversation, shared
from .generator import Generator
from .state_format import SHARD, FileRows, SavedState, contents_of

__all__ = ["AFTER", "BUDGET", "LEAST", "KeptConversations", "KeptNote", "Restored", "restore_stored"]

LEAST = 256
"""A state is kept, replaced or restored only if that spares this number of tokens: for fewer, opening the files may
take as long as computing the tokens. The number was chosen, not measured.
"""
GROWTH = 4
"""A state is replaced once more than one of this number of tokens is new: all replacements of a growing conversation
write a few times its last size.
"""
AFTER = 1.0
"""Seconds without a request before anything is kept."""
BUDGET = 10**9
"""The most bytes of all states, those of saved sessions included."""


class StoppedError(Exception):
    """A request came while a state was being written."""


@dataclass(frozen=True)
class KeptNote:
    """A report about a state: it was kept, or `reason` says why not."""

    id: str
    tokens: int = 0
    bytes: int = 0
    evicted: list[str] = field(default_factory=list)
    """The ids that lost their states for this one."""
    reason: str = ""


@dataclass(frozen=True)
class Restored:
    """The tokens that a prompt took from a state."""

    tokens: int = 0
    """Tokens that need not be computed."""
    bits: int = 0
    reason: str = ""
    """The reason why a state could not be used; else empty."""


class StoppableRows:
    """Rows of a state whose writing ends when a request comes."""

    def __init__(self, rows: StoredRows, stopped: Callable[[], bool]) -> None:
        self._rows, self._stopped = rows, stopped

    async def begin(self, size: int) -> None:
        self._continue()
        await self._rows.begin(size)

    async def write(self, start: int, data: bytearray) -> str:
        self._continue()
        return await self._rows.write(start, data)

    def _continue(self) -> None:
        if self._stopped():
            raise StoppedError


class KeptConversations:
    """The conversations whose states are to be kept, by the ids that callers gave them.

    States are written between `begin` and `stop`; one that was stopped is written after the next `begin`.
    """

    def __init__(
        self,
        notify: Callable[[KeptNote], None],
        others: Callable[[], Awaitable[object]],
        store: Callable[[], Awaitable[SessionStore]] = SessionStore.open,
    ) -> None:
        """`others` returns when no other work between two requests, such as a load, is left."""
        self._notify, self._store = notify, store
        self._time = UnusedTime(others, self._keep_all)
        self._due: dict[str, Conversation] = {}
        self._stopped = False

    def note(self, id: str, talk: Conversation) -> None:
        """Keep the present state of a conversation under this id."""
        self.leave(talk)
        self._due[id] = talk

    def leave(self, talk: Conversation) -> None:
        """Keep nothing of a conversation whose generator ends, or has another sequence from now on."""
        self._due = {name: each for name, each in self._due.items() if each is not talk}

    def forget(self, id: str | None) -> None:
        """Keep nothing under this id, or under any."""
        self._due = {name: each for name, each in self._due.items() if id not in (name, None)}

    def begin(self, after: float = AFTER) -> None:
        """Begin after this number of seconds without a request."""
        if self._due:
            self._stopped = False
            self._time.begin(after)

    async def stop(self) -> None:
        """Stop for a request, and return when no file is being written."""
        self._stopped = True
        await self._time.stop(cancel=not self._time.working)

    async def _keep_all(self) -> None:
        try:
            while self._due and not self._stopped:
                name, talk = next(iter(self._due.items()))
                try:
                    note = await self._keep(name, talk)
                except CapstanError as error:
                    note = KeptNote(name, reason=str(error))
                if self._due.get(name) is talk:
                    del self._due[name]
                if note is not None:
                    self._notify(note)
        except StoppedError:
            return

    async def _keep(self, id: str, talk: Conversation) -> KeptNote | None:
        """Write a state unless that spares too little. Raises CapstanError, StoppedError."""
        generator, sequence = talk.generator, talk.sequence
        count = len(sequence.ids)
        if count < LEAST:
            return None
        store, kept = await self._store(), 0
        with suppress(CapstanError):  # A state that cannot be used is replaced.
            if (found := await usable(store, id, generator)) is not None:
                kept = shared(prompt_of(found[1]), sequence)
        if count - kept < max(LEAST, count // GROWTH):
            return None
        rows = store.rows(id, BUDGET, SHARD)
        try:
            header = await generator.save_rows(StoppableRows(rows, lambda: self._stopped))
        except BaseException:
            with suppress(StorageError):
                await rows.drop()
            raise
        stored = await store.write(StoredSession(id, [], tokens=count, header=json.dumps(header)), rows)
        return KeptNote(id, count, stored.bytes, rows.evicted)

    async def bring(self, id: str, talk: Conversation, asked: ChatPrompt) -> Restored:
        """Give a conversation the state that is kept under an id if it spares a prompt enough tokens. A state that is
        damaged, or of another model, is removed; that is a fallback. Raises DeviceLostError.
        """
        generator, own = talk.generator, shared(talk.sequence, asked)
        if len(asked.ids) - own < LEAST:
            return Restored()
        try:
            store = await self._store()
        except StorageError:
            return Restored()  # Nothing is kept here.
        before = generator.reused_tokens
        try:
            if (found := await usable(store, id, generator)) is None:
                return Restored()
            stored, header = found
            length = shared(prompt_of(header), asked)
            if length - own < LEAST:
                return Restored()
            generator.rewind_to(0)
            await restore_stored(talk, store, stored, header)
        except DeviceLostError:
            raise
        except CapstanError as error:
            with suppress(StorageError):
                await store.remove(id)
            fall_back(f"what was kept of the conversation {id!r}", str(error), "its messages are computed")
            return Restored(reason=str(error))
        return Restored(min(length, generator.reused_tokens - before), header["bits"])


async def usable(store: SessionStore, id: str, generator: Generator) -> tuple[StoredSession, Mapping[str, Any]] | None:
    """The stored state of an id, and its header; None if there is none. Raises CapstanError if it cannot be used."""
    stored = await store.read(id)
    if stored is None or not stored.header:
        return None
    header = SavedState.header_of(stored.header)
    generator.require_state_of_model(header)
    return stored, header


async def restore_stored(
    talk: Conversation, store: SessionStore, stored: StoredSession, header: Mapping[str, Any]
) -> None:
    """Make a stored state the sequence of a conversation, which is empty. Raises the errors of
    Generator.restore_state.
    """
    with closing(await store.open_rows(stored, SHARD)) as file:
        state = SavedState(header, FileRows(file, header["bytes"], header["digests"]))
        await talk.generator.restore_rows(state)
        talk.resume(state.contents)


def prompt_of(header: Mapping[str, Any]) -> ChatPrompt:
    """The sequence of a state."""
    return ChatPrompt("", header["tokens"], (), contents_of(header))
