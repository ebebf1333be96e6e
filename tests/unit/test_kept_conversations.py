"""States of conversations are kept while no request runs: a later page begins with them and picks onnxruntime-genai's
ids, and no state that is half-written, damaged or of another model is used or left."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from capstan import DeviceLostError, FallbackWarning, Generator, GeneratorParams, Model, StorageError, Tokenizer
from capstan.device.prefix_cache import Content
from capstan.generation import kept_conversations, state_format
from capstan.generation.chat_prompt import ChatPrompt, ChatPrompts
from capstan.generation.conversation import Conversation
from capstan.generation.kept_conversations import KeptConversations, KeptNote, Restored
from capstan.host.session_store import SessionStore, StoredRows, StoredSession
from tests import oracle
from tests.paper_weights import PaperBacking

FIXTURES = Path(__file__).parents[1] / "fixtures"
LLAMA = FIXTURES / "nano-llama"
LEAST = 16
START = list(range(20, 60))
MORE = [3, 5, 7, *range(90, 110)]


@pytest.fixture(scope="module")
def llama() -> Model:
    return Model(str(LLAMA))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few tokens are kept, and written in small shards."""
    monkeypatch.setattr(kept_conversations, "LEAST", LEAST)
    for module in (kept_conversations, state_format):
        monkeypatch.setattr(module, "SHARD", 4096)


class Page:
    """The conversations of one page."""

    def __init__(self, backing: PaperBacking, model: Model) -> None:
        self.model = model
        self.told: list[KeptNote] = []

        async def nothing() -> None: ...

        async def store() -> SessionStore:
            return SessionStore(backing)

        self.kept = KeptConversations(self.told.append, nothing, store)

    def talk(self) -> Conversation:
        params = GeneratorParams(self.model)
        params.set_search_options(max_length=200, do_sample=False)
        return Conversation(ChatPrompts(Tokenizer(self.model), self.model), Generator(self.model, params))

    async def ask(
        self, talk: Conversation, ids: Sequence[int], count: int = 8, id: str = "talk", contents: Any = ()
    ) -> tuple[Restored, list[int]]:
        """The restored part of a prompt, and the ids of the answer."""
        asked = ChatPrompt("", list(ids), (), contents)
        self.kept.leave(talk)
        restored = await self.kept.bring(id, talk, asked)
        talk.take(asked)
        picked = [await talk.generator.generate_next_token_async() for _ in range(count)]
        self.kept.note(id, talk)
        return restored, picked

    async def rest(self) -> list[KeptNote]:
        """Let all states be kept; returns the reports."""
        self.told.clear()
        self.kept.begin(0)
        if self.kept._time.task:
            await asyncio.wait([self.kept._time.task])
        await self.kept.stop()
        return list(self.told)


def states(backing: PaperBacking) -> list[str]:
    return [name for name in backing.files if name.endswith(".state")]


async def asked_once(backing: PaperBacking, model: Model, ids: Sequence[int] = START, **given: Any) -> list[int]:
    """Keep a conversation in a page that is left; its tokens."""
    page = Page(backing, model)
    talk = page.talk()
    await page.ask(talk, ids, **given)
    [note] = await page.rest()
    assert (note.reason, note.tokens) == ("", talk.generator.token_count())
    return talk.generator.get_sequence()


async def test_a_later_page_begins_with_what_was_kept(llama: Model) -> None:
    backing = PaperBacking()
    said = await asked_once(backing, llama)
    page = Page(backing, Model(str(LLAMA)))
    prompt = [*said, *MORE]
    talk = page.talk()
    restored, picked = await page.ask(talk, prompt)
    assert restored == Restored(len(said) - 1)
    assert talk.generator.reused_tokens == len(said) - 1
    assert picked == oracle.greedy(LLAMA, prompt, 8)


async def test_an_edited_conversation_takes_what_is_common(llama: Model) -> None:
    backing = PaperBacking()
    said = await asked_once(backing, llama)
    for common, restored in ((30, 30), (LEAST - 1, 0)):
        prompt = [*said[:common], *reversed(said)]
        page = Page(backing, llama)
        found, picked = await page.ask(page.talk(), prompt)
        assert (found.tokens, found.reason) == (restored, "")
        assert picked == oracle.greedy(LLAMA, prompt, 8)
    assert len(states(backing)) == 1


async def test_a_state_is_replaced_once_it_grew_enough(llama: Model) -> None:
    backing = PaperBacking()
    page = Page(backing, llama)
    talk = page.talk()
    await page.ask(talk, START[: LEAST - 4], count=2)
    assert (await page.rest(), states(backing)) == ([], []), "too short"
    await page.ask(talk, START)
    [first] = await page.rest()
    [before] = states(backing)
    prompt = [*talk.generator.get_sequence(), 9]
    await page.ask(talk, prompt, count=4)
    assert (await page.rest(), states(backing)) == ([], [before]), "too little is new"
    await page.ask(talk, [*prompt, *MORE])
    [second] = await page.rest()
    [after] = states(backing)
    assert after != before
    assert second.tokens > first.tokens + LEAST
    assert second.bytes > first.bytes
    opened = backing.open_files.total()
    await page.ask(talk, [*talk.generator.get_sequence(), 5])
    assert backing.open_files.total() == opened, "the page has it: nothing is read"


async def test_a_request_that_comes_ends_the_writing_and_it_is_done_later(
    llama: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    backing = PaperBacking()
    page = Page(backing, llama)
    await page.ask(page.talk(), START)
    write, writes, stops = StoredRows.write, list[int](), list[asyncio.Future[None]]()

    async def slow(self: StoredRows, start: int, data: bytearray) -> str:
        writes.append(start)
        if len(writes) == 2:
            stops.append(asyncio.ensure_future(page.kept.stop()))
            await asyncio.sleep(0)
        return await write(self, start, data)

    monkeypatch.setattr(StoredRows, "write", slow)
    assert await page.rest() == []
    await asyncio.gather(*stops)
    assert (writes, backing.files) == ([0, 4096], {}), "nothing is left of it"
    [note] = await page.rest()
    assert (note.reason, len(states(backing))) == ("", 1)
    assert len(writes) > 4


async def test_a_request_before_its_time_has_nothing_written(llama: Model) -> None:
    backing = PaperBacking()
    page = Page(backing, llama)
    await page.ask(page.talk(), START)
    page.kept.begin(60)
    await asyncio.sleep(0)
    await page.kept.stop()
    assert (page.told, backing.files) == ([], {})


def damaged(backing: PaperBacking) -> None:
    [name] = states(backing)
    backing.files[name][5000] ^= 1


def cut(backing: PaperBacking) -> None:
    [name] = states(backing)
    del backing.files[name][-1]


def record(backing: PaperBacking) -> None:
    [name] = [name for name in backing.files if name.endswith(".json")]
    backing.files[name][-9] ^= 1


@pytest.mark.parametrize(
    ("change", "words"),
    [(damaged, "rows are damaged: shard 1"), (cut, "bytes are left of"), (record, "is damaged: delete the session")],
)
async def test_a_damaged_state_is_told_removed_and_computed_again(
    change: Callable[[PaperBacking], None], words: str, llama: Model
) -> None:
    backing = PaperBacking()
    prompt = [*await asked_once(backing, llama), *MORE]
    change(backing)
    page = Page(backing, llama)
    with pytest.warns(FallbackWarning, match="its messages are computed"):
        restored, picked = await page.ask(page.talk(), prompt)
    assert words in restored.reason
    assert restored.tokens == 0
    assert picked == oracle.greedy(LLAMA, prompt, 8)
    assert backing.files == {}
    [note] = await page.rest()
    assert note.reason == ""


async def test_a_state_of_another_model_is_removed_and_replaced(llama: Model) -> None:
    backing = PaperBacking()
    prompt = [*await asked_once(backing, llama), *MORE]
    other = Page(backing, Model(str(FIXTURES / "nano-qwen2")))
    with pytest.warns(FallbackWarning, match="another model"):
        restored, picked = await other.ask(other.talk(), prompt)
    assert "another model" in restored.reason
    assert picked == oracle.greedy(FIXTURES / "nano-qwen2", prompt, 8)
    assert backing.files == {}
    await other.rest()
    again = Page(backing, llama)
    talk = again.talk()
    again.kept.note("talk", talk)
    talk.take(ChatPrompt("", prompt))
    [note] = await again.rest()
    assert (note.reason, len(states(backing))) == ("", 1), "the other model's is replaced"
    assert json.loads((await SessionStore(backing).read("talk")).header)["model"]["files"].keys() == {"model.onnx.data"}  # type: ignore[union-attr]


async def test_a_prompt_with_another_picture_takes_the_tokens_before_it(llama: Model) -> None:
    backing = PaperBacking()
    page = Page(backing, llama)
    talk = page.talk()
    await page.ask(talk, START, contents=(Content(30, 34, "one"),))
    header = await talk.generator.save_rows(state_format.KeptRows())
    assert header["contents"] == []
    header["contents"] = [{"start": 30, "end": 34, "digest": "one"}]
    store = SessionStore(backing)
    rows = store.rows("talk", 10**9, 4096)
    header |= await talk.generator.save_rows(rows) | {"contents": header["contents"]}
    await store.write(StoredSession("talk", [], header=json.dumps(header)), rows)
    later = Page(backing, llama)
    for digest, tokens in (("other", 30), ("one", len(START))):
        found, _ = await later.ask(later.talk(), [*START, *MORE], contents=(Content(30, 34, digest),))
        assert found.tokens == tokens


async def test_a_full_or_refused_storage_is_told_and_the_last_state_stays(llama: Model) -> None:
    backing = PaperBacking()
    page = Page(backing, llama)
    talk = page.talk()
    await page.ask(talk, START)
    await page.rest()
    [before] = states(backing)

    def full(operation: str, _name: str) -> None:
        if operation == "write":
            raise StorageError("the browser's storage for this origin is full")

    backing.before = full
    await page.ask(talk, [*talk.generator.get_sequence(), *MORE])
    [note] = await page.rest()
    assert (note.reason, note.tokens) == ("the browser's storage for this origin is full", 0)
    assert states(backing) == [before]
    assert await page.rest() == [], "it is not tried again without a new answer"

    async def refused() -> SessionStore:
        raise StorageError("this browser keeps no files")

    private = Page(backing, llama)
    private.kept._store = refused
    restored, _ = await private.ask(private.talk(), START)
    [note] = await private.rest()
    assert (restored, note.reason) == (Restored(), "this browser keeps no files")


async def test_the_least_recently_used_goes_for_the_budget(llama: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    backing, ids = PaperBacking(), [START, START[::-1], [*START[20:], *START[:20]]]
    page = Page(backing, llama)
    notes = []
    for name, prompt in zip("abc", ids, strict=True):
        await page.ask(page.talk(), prompt, id=name)
        notes += await page.rest()
        monkeypatch.setattr(kept_conversations, "BUDGET", 2 * notes[0].bytes)
    assert [note.evicted for note in notes] == [[], [], ["a"]]
    later = Page(backing, llama)
    restored, _ = await later.ask(later.talk(), [*START, *MORE], id="a")
    assert restored == Restored()


async def test_what_is_forgotten_or_has_ended_is_not_kept(llama: Model) -> None:
    backing = PaperBacking()
    page = Page(backing, llama)
    talks = [page.talk() for _ in range(3)]
    for name, talk in zip("abc", talks, strict=True):
        await page.ask(talk, START, id=name)
    page.kept.forget("a")
    page.kept.leave(talks[1])
    [note] = await page.rest()
    assert note.id == "c"
    await page.ask(talks[0], START[::-1], id="a")
    page.kept.forget(None)
    assert await page.rest() == []


async def test_a_lost_device_is_raised(llama: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    backing = PaperBacking()
    prompt = [*await asked_once(backing, llama), *MORE]

    async def lost(self: Generator, state: Any) -> None:
        raise DeviceLostError("lost")

    monkeypatch.setattr(Generator, "restore_rows", lost)
    page = Page(backing, llama)
    with pytest.raises(DeviceLostError):
        await page.ask(page.talk(), prompt)
    assert len(states(backing)) == 1, "the state is sound"
