"""Stores the sessions of a page with what was computed for them, and continues them in a later page."""

from __future__ import annotations

import json
from contextlib import closing, suppress
from typing import Any

from ..errors import CapstanError, DeviceLostError, StorageError
from ..fallback import fall_back
from ..generation.run_options import SequenceOptions
from ..generation.state_format import SHARD, FileRows, SavedState
from ..host.session_store import SessionStore, StoredSession
from ..loading.load_options import rows
from ..model import Model
from .page_session import OF_A_GENERATOR, PageSession
from .requests import RestoreSessionRequest, SavedSessionsRequest, SaveSessionRequest

__all__ = ["listed", "restore", "save"]

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
    try:
        header = SavedState.header_of(found.header.encode())
        with closing(await store.open_rows(found, SHARD)) as file:
            state = SavedState(header, FileRows(file, found.bytes, header["digests"]))
            talk = await session.conversation_with(model, {**request, **found.options})  # type: ignore[typeddict-item]
            await talk.generator.restore_rows(state)
        talk.resume(state.contents)
    except DeviceLostError:
        raise
    except CapstanError as error:
        await session.end_conversation(request.get("session"))
        return str(error)
    return ""


async def listed(request: SavedSessionsRequest) -> list[dict[str, Any]]:
    """The stored sessions, after removing some."""
    store = await SessionStore.open()
    if request["action"] == "delete":
        await store.remove(request["id"])
    return [report(each) for each in await store.sessions()]


def report(stored: StoredSession) -> dict[str, Any]:
    """A stored session in the form for pages."""
    told = {name: getattr(stored, name) for name in ("id", "tokens", "bytes", "bits", "used", "reason")}
    return {**told, "messages": len(stored.messages)}
