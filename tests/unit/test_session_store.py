"""Stored sessions survive a crash at any moment, whole or as they were before."""

from __future__ import annotations

import hashlib
import json
from contextlib import closing
from typing import Any

import pytest

from capstan import StorageError
from capstan.generation.state_format import SHARD, FileRows, write_shards
from capstan.host.session_store import SessionStore, StoredSession
from tests.paper_weights import PaperBacking

STATES = [b"first" * 100, b"second" * 100]
LARGE = bytes(range(256)) * (SHARD // 100)
"""Two shards and a part."""


def said(*texts: str, id: str = "talk") -> StoredSession:
    return StoredSession(id, [{"role": "user", "content": text} for text in texts], tokens=len(texts))


async def save(
    backing: PaperBacking, session: StoredSession, state: bytes, budget: int = 10_000
) -> tuple[StoredSession, list[str]]:
    """Store a session whose rows come in caches of 100 bytes, or a few larger ones."""

    async def caches() -> Any:
        step = max(100, len(state) // 7)
        for at in range(0, len(state), step):
            yield state[at : at + step]

    store = SessionStore(backing)
    rows = store.rows(session.id, budget, SHARD)
    try:
        await rows.begin(len(state))
        digests = await write_shards(caches(), rows)
    except StorageError:
        await rows.drop()
        raise
    header = json.dumps({"digests": digests})
    return await store.write(StoredSession(**{**vars(session), "header": header}), rows), rows.evicted


async def found(backing: PaperBacking, id: str = "talk") -> tuple[int, bytes] | None:
    store = SessionStore(backing)
    session = await store.read(id)
    if session is None:
        return None
    with closing(await store.open_rows(session, SHARD)) as file:
        rows = FileRows(file, session.bytes, json.loads(session.header)["digests"])
        return len(session.messages), bytes(await rows.read(0, session.bytes))


class CrashedError(Exception):
    """The page ends."""


async def crash_after(backing: PaperBacking, operations: int) -> bool:
    """Save, but let the page end after some operations on the storage; returns whether it was saved before."""
    left = operations

    def before(_operation: str, _name: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise CrashedError

    backing.before = before
    try:
        await save(backing, said("a", "b"), STATES[1])
        return True
    except CrashedError:
        return False
    finally:
        backing.before = lambda operation, name: None
        # Files that the page had open.
        backing.open_files.clear()


async def test_a_page_that_ends_while_it_saves_leaves_a_whole_session() -> None:
    for crash in range(100):
        backing = PaperBacking()
        await save(backing, said("a"), STATES[0])
        ended = await crash_after(backing, crash)
        assert await found(backing) in ((1, STATES[0]), (2, STATES[1])), crash
        await save(backing, said("a", "b", "c"), STATES[0])
        assert await found(backing) == (3, STATES[0])
        assert len(backing.files) == 2, "nothing is left of the crash"
        if ended:
            assert crash > 4
            return
    raise AssertionError("a save takes no more than 100 operations")


async def test_the_rows_of_a_crash_are_removed_by_the_next_save_of_any_session() -> None:
    left = 0
    for crash in range(20):
        backing = PaperBacking()
        await save(backing, said("a"), STATES[0])
        await crash_after(backing, crash)
        left = max(left, len(backing.files))
        await save(backing, said("x", id="other"), STATES[0])
        assert sorted(name.endswith(".state") for name in backing.files) == [False, False, True, True], crash
        assert await found(backing, "other") == (1, STATES[0])
    assert left == 3, "some crash left rows that no record names"


async def test_rows_that_another_page_is_writing_stay() -> None:
    backing = PaperBacking()
    store = SessionStore(backing)
    rows = store.rows("talk", 10_000, SHARD)
    await rows.begin(len(STATES[0]))
    digests = await write_shards(only(STATES[0]), rows)
    await save(backing, said("x", id="other"), STATES[1])
    await store.write(StoredSession("talk", [], header=json.dumps({"digests": digests})), rows)
    assert await found(backing) == (0, STATES[0])


async def only(state: bytes) -> Any:
    yield state


async def test_rows_are_written_and_read_in_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    backing = PaperBacking()
    stored, _ = await save(backing, said("a"), LARGE, 1 << 30)
    assert len(json.loads(stored.header)["digests"]) == 3
    assert await found(backing) == (1, LARGE)
    store = SessionStore(backing)
    for place in (0, SHARD - 1, SHARD, len(LARGE) - 1):
        backing.files[stored.state][place] ^= 1
        with closing(await store.open_rows(stored, SHARD)) as file:
            rows = FileRows(file, stored.bytes, json.loads(stored.header)["digests"])
            with pytest.raises(StorageError, match=f"shard {place // SHARD} of {SHARD} bytes has another digest"):
                await rows.read(0, stored.bytes)
            untouched = 0 if place >= SHARD else SHARD
            assert await rows.read(untouched, 9) == LARGE[untouched : untouched + 9]
        backing.files[stored.state][place] ^= 1
    del backing.files[stored.state][-1]
    with pytest.raises(StorageError, match="bytes are left of"):
        await store.open_rows(stored, SHARD)


async def test_a_full_storage_leaves_the_last_session() -> None:
    backing = PaperBacking()
    await save(backing, said("a"), STATES[0])

    def full(operation: str, _name: str) -> None:
        if operation == "write":
            raise StorageError("the browser's storage for this origin is full")

    backing.before = full
    with pytest.raises(StorageError, match="is full"):
        await save(backing, said("a", "b"), STATES[1])
    assert await found(backing) == (1, STATES[0])
    assert len(backing.files) == 2


async def test_the_least_recently_used_states_go_and_their_messages_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(100))
    monkeypatch.setattr("capstan.host.session_store.now", lambda: float(next(ticks)))
    backing = PaperBacking()
    store = SessionStore(backing)
    for name in "abc":
        await save(backing, said("x", id=name), bytes(100), 300)
    assert await found(backing, "a") == (1, bytes(100)), "from now on b is the least recently used one"
    _, evicted = await save(backing, said("x", id="d"), bytes(150), 300)
    assert evicted == ["b", "c"]
    assert [(each.id, each.bytes) for each in await store.sessions()] == [("d", 150), ("a", 100), ("c", 0), ("b", 0)]
    gone = await store.read("b")
    assert gone is not None
    assert (len(gone.messages), gone.reason[:21]) == (1, "its state was removed")
    with pytest.raises(StorageError, match="301 bytes; the budget is 300"):
        await save(backing, said("x", id="e"), bytes(301), 300)
    assert len(await store.sessions()) == 4
    await store.remove("a")
    await store.remove("nobody")
    assert [each.id for each in await store.sessions()] == ["d", "c", "b"]
    await store.remove(None)
    assert backing.files == {}


async def test_a_damaged_record_is_refused_and_not_listed(recwarn: Any) -> None:
    backing = PaperBacking()
    store = SessionStore(backing)
    await save(backing, said("a"), STATES[0])
    await save(backing, said("a", id="other"), STATES[0])
    [record] = [name for name in backing.files if name.endswith(".json") and b'"talk"' in backing.files[name]]
    backing.files[record][-3] ^= 1
    with pytest.raises(StorageError, match="damaged: delete the session"):
        await store.read("talk")
    assert [each.id for each in await store.sessions()] == ["other"]
    assert "it is not listed" in str(recwarn.pop().message)
    await save(backing, said("b"), STATES[1])
    assert await found(backing) == (1, STATES[1])


async def test_a_record_of_another_version_is_refused() -> None:
    backing = PaperBacking()
    stored, _ = await save(backing, said("a"), STATES[0])
    store = SessionStore(backing)
    fields = {name: value for name, value in vars(stored).items() if name != "header"}
    text = json.dumps(fields)
    [record] = [name for name in backing.files if name.endswith(".json")]
    await backing.write_text(record, f"{hashlib.sha256(text.encode()).hexdigest()}\n{text}")
    with pytest.raises(StorageError, match="of another Capstan: delete the session"):
        await store.read("talk")
