"""The option `keep` of a chat: a later page begins with what was computed for the conversation, and of a conversation
that is deleted nothing is left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page

from capstan_host.site_server import SiteServer
from tests.browser.test_saved_sessions import SET_UP

LONG = "answer in a few words and name the places of which you know something. " * 6
"""More than 256 tokens for nano-qwen2, whose context has 512."""
GREEDY = {"temperature": 0, "maxTokens": 8}
OPEN = """async (given) => {
  window.told = [];
  window.llm = await load("nano-qwen2", { ...given, onEvent: (event) => told.push(event) });
  window.kept = async (count) => {
    const found = () => told.filter(({ kind }) => kind === "kept");
    while (found().length < count) await new Promise((resolve) => setTimeout(resolve, 20));
    return found();
  };
  window.names = async () => (await files("")).map(([, name]) => name.split(".").at(-1)).sort();
  window.chat = async (messages, options) => {
    const { answer, tokenIds, promptTokens, keptTokens, restored } = await llm.chat(messages, options).result;
    return { answer, tokenIds, restored, computed: promptTokens - keptTokens };
  };
}"""
ASK = """async ([messages, options, count]) => {
  const found = await chat(messages, options);
  if (count) found.told = await kept(count);
  return { ...found, names: count ? await names() : [] };
}"""


@pytest.fixture
def page(visit: Callable[[str], Page], site: SiteServer) -> Page:
    return visit(site.url)


def opened(page: Page, **given: Any) -> Page:
    """The page with a model; a page that had one is loaded again."""
    if page.evaluate("() => 'llm' in window"):
        page.reload()
    page.evaluate(SET_UP)
    page.evaluate(OPEN, given)
    return page


def say(messages: list[dict[str, str]], text: str, answer: str = "") -> list[dict[str, str]]:
    """The conversation with the answer to its last message, and another message."""
    answered = [{"role": "assistant", "content": answer}] if answer else []
    return [*messages, *answered, {"role": "user", "content": text}]


@pytest.mark.one_in(2)
@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "load",
    [{"device": "webgpu"}, {"device": "wasm"}, {"device": "wasm", "shared": True}],
    ids=["webgpu", "wasm", "shared"],
)
def test_a_later_page_begins_with_what_was_kept(load: dict[str, Any], page: Page) -> None:
    options = {**GREEDY, "keep": "talk"}
    messages = say([], LONG)
    first = opened(page, **load).evaluate(ASK, [messages, options, 1])
    assert first["restored"] == {"tokens": 0, "bits": 0, "reason": ""}
    [note] = first["told"]
    assert (note["id"], note["reason"], note["evicted"]) == ("talk", "", [])
    assert note["bytes"] > note["tokens"] > 256
    assert first["names"] == ["json", "state"]
    messages = say(messages, "and more", first["answer"])
    unbroken = page.evaluate(ASK, [messages, options, 0])
    assert unbroken["restored"]["tokens"] == 0, "the page has it"
    later = opened(page, **load).evaluate(ASK, [messages, options, 0])
    assert later["tokenIds"] == unbroken["tokenIds"]
    assert later["restored"]["tokens"] > 256
    assert later["computed"] <= unbroken["computed"] + 1
    assert page.evaluate("() => llm.stats().restoredTokens") == later["restored"]["tokens"]
    plain = page.evaluate(ASK, [messages, GREEDY, 0])
    assert (plain["tokenIds"], plain["restored"]) == (unbroken["tokenIds"], None)
    page.evaluate(ASK, [say([], LONG[20:]), GREEDY, 0])
    again = page.evaluate(ASK, [messages, options, 0])
    assert again == later, "also after another conversation in the same page"


DAMAGE = "() => rewrite('.state', (bytes) => { bytes[9] ^= 4; return bytes; })"


def test_a_damaged_one_is_told_computed_again_and_kept_again(page: Page) -> None:
    options = {**GREEDY, "keep": "talk"}
    messages = say([], LONG)
    first = opened(page, device="wasm").evaluate(ASK, [messages, options, 1])
    messages = say(messages, "and more", first["answer"])
    unbroken = page.evaluate(ASK, [messages, options, 0])
    page.evaluate(DAMAGE)
    found = opened(page, device="wasm").evaluate(ASK, [messages, options, 1])
    assert "rows are damaged: shard 0" in found["restored"]["reason"]
    assert (found["restored"]["tokens"], found["tokenIds"]) == (0, unbroken["tokenIds"])
    assert "its messages are computed" in "".join(page.evaluate("() => told.map(({ text }) => text ?? '')"))
    assert (found["told"][0]["reason"], found["names"]) == ("", ["json", "state"])


def test_a_conversation_that_is_deleted_leaves_no_files(page: Page) -> None:
    opened(page, device="wasm").evaluate(ASK, [say([], LONG), {**GREEDY, "keep": "one"}, 1])
    page.evaluate(ASK, [say([], LONG[9:]), {**GREEDY, "keep": "two"}, 0])
    page.evaluate("async () => { await llm.sessions.delete('two'); await llm.sessions.delete('one'); }")
    page.wait_for_timeout(1500)
    assert page.evaluate("() => names()") == []
    code, message = page.evaluate("() => failure(chat([{ role: 'user', content: 'a' }], { keep: 'one', n: 2 }))")
    assert code == "OptionError"
    assert "2 answers keep nothing" in message


def test_two_tabs_agree(page: Page, site: SiteServer) -> None:
    options = {**GREEDY, "keep": "talk"}
    messages = say([], LONG)
    first = opened(page, device="wasm").evaluate(ASK, [messages, options, 1])
    messages = say(messages, "and more", first["answer"])
    other = page.context.new_page()
    other.goto(site.url + "blank.html")
    there = opened(other, device="wasm").evaluate(ASK, [messages, options, 0])
    assert there["restored"]["tokens"] > 256
    here = page.evaluate(ASK, [messages, options, 0])
    assert there["tokenIds"] == here["tokenIds"]
    edited = other.evaluate(ASK, [say([], LONG[9:]), options, 1])
    assert edited["names"] == ["json", "state"], "the other tab's branch has the place of this one's"
    again = opened(page, device="wasm").evaluate(ASK, [messages, options, 1])
    assert (again["tokenIds"], again["restored"]) == (here["tokenIds"], first["restored"])
    assert again["names"] == ["json", "state"]
