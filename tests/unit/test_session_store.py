"""Stored sessions survive a crash at any moment, whole or as they were before."""

from __future__ import annotations

from typing import Any

import pytest

from capstan import StorageError
from capstan.host.session_store import SessionStore, StoredSession
from tests.paper_weights import PaperBacking

STATES = [b"first" * 100, b"second" * 100]


def said(*texts: str, id: str = "talk") -> StoredSession:
    return StoredSession(id, [{"role": "user", "content": text} for text in texts], tokens=len(texts))


async def found(backing: PaperBacking, id: str = "talk") -> tuple[int, bytes] | None:
    store = SessionStore(backing)
    session = await store.read(id)
    return None if session is None else (len(session.messages), await store.state(session) or b"")


class CrashedError(Exception):
    """The page ends."""


async def test_a_page_that_ends_while_it_saves_leaves_a_whole_session() -> None:
    for crash in range(100):
        backing = PaperBacking()
        await SessionStore(backing).write(said("a"), STATES[0], 10_000)
        left = crash

        def before(_operation: str, _name: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise CrashedError

        backing.before = before
        try:
            await SessionStore(backing).write(said("a", "b"), STATES[1], 10_000)
            ended = True
        except CrashedError:
            ended = False
        backing.before = lambda operation, name: None
        assert await found(backing) in ((1, STATES[0]), (2, STATES[1])), crash
        await SessionStore(backing).write(said("a", "b", "c"), STATES[0], 10_000)
        assert await found(backing) == (3, STATES[0])
        assert len(backing.files) == 2, "nothing is left of the crash"
        if ended:
            assert crash > 4
            return
    raise AssertionError("a save takes no more than 100 operations")


async def test_a_full_storage_leaves_the_last_session() -> None:
    backing = PaperBacking()
    store = SessionStore(backing)
    await store.write(said("a"), STATES[0], 10_000)

    def full(operation: str, _name: str) -> None:
        if operation == "write_bytes":
            raise StorageError("the browser's storage for this origin is full")

    backing.before = full
    with pytest.raises(StorageError, match="is full"):
        await store.write(said("a", "b"), STATES[1], 10_000)
    assert await found(backing) == (1, STATES[0])
    assert len(backing.files) == 2


async def test_the_least_recently_used_states_go_and_their_messages_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(100))
    monkeypatch.setattr("capstan.host.session_store.now", lambda: float(next(ticks)))
    backing = PaperBacking()
    store = SessionStore(backing)
    for name in "abc":
        await store.write(said("x", id=name), bytes(100), 300)
    assert await found(backing, "a") == (1, bytes(100)), "from now on b is the least recently used one"
    _, evicted = await store.write(said("x", id="d"), bytes(150), 300)
    assert evicted == ["b", "c"]
    assert [(each.id, each.bytes) for each in await store.sessions()] == [("d", 150), ("a", 100), ("c", 0), ("b", 0)]
    gone = await store.read("b")
    assert gone is not None
    assert (len(gone.messages), gone.reason[:21]) == (1, "its state was removed")
    with pytest.raises(StorageError, match="301 bytes; the budget is 300"):
        await store.write(said("x", id="e"), bytes(301), 300)
    assert len(await store.sessions()) == 4
    await store.remove("a")
    await store.remove("nobody")
    assert [each.id for each in await store.sessions()] == ["d", "c", "b"]
    await store.remove(None)
    assert backing.files == {}


async def test_a_damaged_record_is_refused_and_not_listed(recwarn: Any) -> None:
    backing = PaperBacking()
    store = SessionStore(backing)
    await store.write(said("a"), STATES[0], 10_000)
    await store.write(said("a", id="other"), STATES[0], 10_000)
    [record] = [name for name in backing.files if name.endswith(".json") and b'"talk"' in backing.files[name]]
    backing.files[record][-3] ^= 1
    with pytest.raises(StorageError, match="damaged: delete the session"):
        await store.read("talk")
    assert [each.id for each in await store.sessions()] == ["other"]
    assert "it is not listed" in str(recwarn.pop().message)
    await store.write(said("b"), STATES[1], 10_000)
    assert await found(backing) == (1, STATES[1])
