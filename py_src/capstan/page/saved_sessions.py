"""Stores the sessions of a page with what was computed for them, and continues them in a later page."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from .._js import host_calls
from ..errors import CapstanError, DeviceLostError, StorageError
from ..fallback import fall_back
from ..generation.kept_conversations import restore_stored
from ..generation.run_options import SequenceOptions
from ..generation.state_format import SHARD, SavedState
from ..host.session_store import SessionStore, StoredSession
from ..loading.load_options import rows
from ..model import Model
from .page_session import OF_A_GENERATOR, PageSession
from .requests import (
    ConversationRequest,
    OpenSessionRequest,
    RestoreSessionRequest,
    SavedSessionsRequest,
    SaveSessionRequest,
)

__all__ = ["listed", "opened", "restore", "save"]

MOST_BYTES = 1 << 30
"""The size of the largest state that is read from an address."""

KEPT = {*rows(SequenceOptions), "max_length"} - {"logits_processor"}
"""The options that a restored session has in common with the saved one; the others are those of the new load."""


async def save(session: PageSession, request: SaveSessionRequest) -> dict[str, Any]:
    """Store a session's messages, with its state if a run has begun one. Raises the errors of Generator.save_state."""
    store = await SessionStore.open()
    rows = store.rows(request["id"], request["budget"], SHARD)
    tokens, header, options = 0, "", {}
    if (held := session.conversations.get(request["session"])) is not None:
        _, asked, talk = held
        values = zip((*OF_A_GENERATOR, "max_length"), json.loads(asked), strict=False)
        options = {name: value for name, value in values if name in KEPT and value is not None}
        if tokens := talk.generator.token_count():
            try:
                header = json.dumps(await talk.generator.save_rows(rows, request["bits"]))
            except BaseException:
                with suppress(StorageError):
                    await rows.drop()
                raise
    reason = "" if header else "nothing was computed for it when it was saved"
    bits = request["bits"] if header else 0
    given = StoredSession(request["id"], list(request["messages"]), options, tokens, header, bits=bits, reason=reason)
    return {**report(await store.write(given, rows)), "evicted": rows.evicted}


async def restore(session: PageSession, request: RestoreSessionRequest) -> dict[str, Any] | None:
    """Make a stored session a conversation. If its state cannot be used, that is a fallback: the conversation is
    computed with the first answer.
    """
    model = await session.load_once(request)
    store = await SessionStore.open()
    found = await store.read(request["id"])
    if found is None:
        return None
    reason = found.reason or await continued(session, model, request, found, store)
    if reason:
        fall_back(f"the state of the session {found.id!r}", reason, "its messages are computed again")
    tokens, bits = (0, 0) if reason else (found.tokens, found.bits)
    return {"messages": found.messages, "tokens": tokens, "bits": bits, "reason": reason}


async def continued(
    session: PageSession, model: Model, request: RestoreSessionRequest, found: StoredSession, store: SessionStore
) -> str:
    """Continue a conversation from its state; returns the reason if it cannot."""

    async def begun() -> None:
        header = SavedState.header_of(found.header)
        talk = await session.conversation_with(model, {**request, **found.options})  # type: ignore[typeddict-item]
        await restore_stored(talk, store, found, header)

    return await problem(session, request, begun)


async def opened(session: PageSession, request: OpenSessionRequest) -> dict[str, Any]:
    """Make messages a conversation that begins with the state in a file. If the state cannot be used, that is a
    fallback: the conversation is computed with the first answer.
    """
    model = await session.load_once(request)
    header: Mapping[str, Any] = {}

    async def begun() -> None:
        nonlocal header
        data = await host_calls.fetch_bytes(request["url"], MOST_BYTES, remedy="check the state's address")
        state = SavedState.of_bytes(data)
        talk = await session.conversation_with(model, request)
        await talk.generator.restore_rows(state)
        talk.resume(state.contents)
        header = state.header

    if reason := await problem(session, request, begun):
        fall_back(f"the state {request['url']}", reason, "the messages are computed")
        header = {"tokens": [], "bits": 0}
    tokens, bits = len(header["tokens"]), header["bits"]
    return {"messages": request["messages"], "tokens": tokens, "bits": bits, "reason": reason}


async def problem(session: PageSession, request: ConversationRequest, begin: Callable[[], Awaitable[None]]) -> str:
    """Begin a conversation; returns the reason if its state cannot be used. Raises DeviceLostError."""
    try:
        await begin()
    except DeviceLostError:
        raise
    except CapstanError as error:
        await session.end_conversation(request.get("session"))
        return str(error)
    return ""


async def listed(session: PageSession, request: SavedSessionsRequest) -> list[dict[str, Any]]:
    """The stored sessions, after removing some."""
    store = await SessionStore.open()
    if request["action"] == "delete":
        session.kept.forget(request["id"])
        await store.remove(request["id"])
    return [report(each) for each in await store.sessions()]


def report(stored: StoredSession) -> dict[str, Any]:
    """A stored session in the form for pages."""
    told = {name: getattr(stored, name) for name in ("id", "tokens", "bytes", "bits", "used", "reason")}
    return {**told, "messages": len(stored.messages)}
