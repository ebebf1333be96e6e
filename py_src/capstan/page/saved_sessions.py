"""Stores the sessions of a page with what was computed for them, and continues them in a later page."""

from __future__ import annotations

import json
from typing import Any

from ..errors import CapstanError, DeviceLostError
from ..fallback import fall_back
from ..generation.run_options import SequenceOptions
from ..generation.saved_state import state_contents
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
    state, tokens, options = b"", 0, {}
    if (held := session.conversations.get(request["session"])) is not None:
        _, asked, talk = held
        values = zip((*OF_A_GENERATOR, "max_length"), json.loads(asked), strict=False)
        options = {name: value for name, value in values if name in KEPT and value is not None}
        if tokens := talk.generator.token_count():
            state = await talk.generator.save_state_async()
    reason = "" if state else "nothing was computed for it when it was saved"
    store = await SessionStore.open()
    given = StoredSession(request["id"], list(request["messages"]), options, tokens, reason=reason)
    stored, evicted = await store.write(given, state, request["budget"])
    return {**report(stored), "evicted": evicted}


async def restore(session: PageSession, request: RestoreSessionRequest) -> dict[str, Any] | None:
    """Make a stored session a conversation. If its state cannot be used, that is a fallback: the conversation is
    computed with the first answer.
    """
    model = await session.load_once(request)
    store = await SessionStore.open()
    found = await store.read(request["id"])
    if found is None:
        return None
    reason = found.reason or await continued(session, model, request, found, await store.state(found))
    if reason:
        fall_back(f"the state of the session {found.id!r}", reason, "its messages are computed again")
    return {"messages": found.messages, "tokens": 0 if reason else found.tokens, "reason": reason}


async def continued(
    session: PageSession, model: Model, request: RestoreSessionRequest, found: StoredSession, state: bytes | None
) -> str:
    """Continue a conversation from a state; returns the reason if it cannot."""
    if state is None:
        return "the browser removed its file"
    try:
        talk = await session.conversation_with(model, {**request, **found.options})  # type: ignore[typeddict-item]
        await talk.generator.restore_state_async(state)
        talk.resume(state_contents(state))
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
    told = {name: getattr(stored, name) for name in ("id", "tokens", "bytes", "used", "reason")}
    return {**told, "messages": len(stored.messages)}
