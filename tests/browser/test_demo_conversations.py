"""Conversations of the demo page: kept over a reload, equal in two tabs, exported, imported, in a link."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, Route, expect

from buildtools import ROOT
from capstan_host.site_server import SiteServer
from tests.browser.demo_page import BOOT_MS
from tests.browser.test_demo_looks import AXE

SETTINGS = "#model=nano-qwen2&device=wasm&max_new_tokens=4&search=greedy"
ANSWER = """() => {
  document.getElementById('chat').answer = async (turn, signal) => {
    turn.append(`so ${turn.asked}`);
    if (turn.asked.startsWith('wait')) await new Promise((resolve) => signal.addEventListener('abort', resolve));
  };
}"""
"""The page answers at once; what begins with "wait" it answers until it is stopped."""
LATE = """() => {
  const { addEventListener } = BroadcastChannel.prototype;
  BroadcastChannel.prototype.addEventListener = function (type, listener) {
    addEventListener.call(this, type, (event) => (window.late ? late.push(() => listener(event)) : listener(event)));
  };
}"""
"""Messages of other tabs wait in the list `late`, once there is one."""


FILES = """async () => {
  const root = await navigator.storage.getDirectory();
  const names = [];
  try {
    for await (const name of (await root.getDirectoryHandle("capstan-sessions")).keys()) names.push(name);
  } catch {} // No conversation was kept yet.
  return names.length;
}"""
"""The number of files that hold what was computed for conversations."""
LONG = "answer in a few words and name the places of which you know something. " * 6


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    yield context
    context.close()


def opened(context: BrowserContext, address: str, answers: bool = True) -> Page:
    page = context.new_page()
    page.goto(address)
    if answers:
        page.evaluate(ANSWER)
    return page


def say(page: Page, text: str) -> None:
    page.fill("#prompt", text)
    page.keyboard.press("Enter")
    if text != "wait":
        expect(page.locator("#conversation")).to_have_attribute("aria-busy", "false")
    expect(page.locator("#turns .text").last).to_contain_text(f"so {text}")


def go_on(page: Page, answer: str) -> str:
    """Have the only answer continued; the longer one."""
    text = page.locator("#turns .text")
    page.get_by_role("button", name="Continue").click()
    expect(text).not_to_have_text(answer, use_inner_text=True, timeout=BOOT_MS)
    expect(page.locator("#status")).to_have_text("Done", timeout=BOOT_MS)
    return text.inner_text()


def answered(page: Page, text: str) -> tuple[str, str]:
    """The model's own answer to a text, and the line about it."""
    page.fill("#prompt", text)
    page.keyboard.press("Enter")
    expect(asked(page).last).to_contain_text(text.strip())
    turns = page.locator("#turns")
    expect(turns.locator(".about").last).to_contain_text("tokens", timeout=BOOT_MS)
    return turns.locator(".text").last.inner_text(), turns.locator(".about").last.inner_text()


def kept_files(page: Page, count: int) -> None:
    """Wait until so many files hold what was computed for conversations."""
    for _ in range(100):
        if page.evaluate(FILES) == count:
            return
        page.wait_for_timeout(100)
    assert page.evaluate(FILES) == count


def titles(page: Page) -> Locator:
    return page.locator(".conversation > button")


def asked(page: Page) -> Locator:
    return page.locator("#turns .echo")


def action(page: Page, name: str) -> None:
    page.get_by_role("button", name=re.compile(f"^{name}: ")).click()


def test_a_reload_during_an_answer_continues_the_conversation(context: BrowserContext, site: SiteServer) -> None:
    page = opened(context, site.url + SETTINGS, answers=False)
    page.fill("#system", "Be brief.")
    page.fill("#prompt", "Hello")
    page.keyboard.press("Enter")
    expect(page.locator("#status")).to_have_text("Done", timeout=BOOT_MS)
    answer = page.locator("#turns .text").inner_text()
    longer = go_on(page, answer)
    expect(titles(page)).to_have_text(["Hello"])
    page.reload()
    expect(page.locator("#turns .text")).to_have_text(longer, use_inner_text=True)
    assert page.input_value("#system") == "Be brief."
    go_on(page, longer)
    page.evaluate(ANSWER)
    for text in ("now", "wait"):
        say(page, text)
    # An answer that grows is stored every second and a half.
    page.wait_for_timeout(2000)
    page.reload()
    expect(asked(page)).to_have_text(["now", "wait"])
    expect(page.locator("#turns .about").last).to_have_text("broken off when the page was left")
    expect(page.locator("#turns .text").last).to_have_text("so wait")


def test_conversations_are_listed_found_named_and_deleted_but_not_for_good(
    context: BrowserContext, site: SiteServer
) -> None:
    page = opened(context, site.url)
    expect(page.locator("#chats-none")).to_have_text("What you write is kept in this browser.")
    say(page, "Where is the capital of Japan, and how many people live there in all?")
    page.click("#chats-new")
    expect(asked(page)).to_have_count(0)
    say(page, "two")
    long = "Where is the capital of Japan, and how many…"
    expect(titles(page)).to_have_text(["two", long])
    action(page, "Rename")
    page.keyboard.type("Numbers")
    page.keyboard.press("Enter")
    expect(titles(page)).to_have_text(["Numbers", long])
    expect(titles(page).first).to_have_attribute("aria-current", "true")
    page.fill("#chats-search", "SO TWO")
    expect(titles(page)).to_have_text(["Numbers"])
    page.fill("#chats-search", "nowhere")
    expect(page.locator("#chats-none")).to_have_text("No conversation has these words.")
    page.fill("#chats-search", "")
    titles(page).last.click()
    expect(asked(page)).to_have_text([re.compile("^Where")])
    action(page, "Delete")
    expect(titles(page)).to_have_text(["Numbers"])
    expect(asked(page)).to_have_count(0)
    page.get_by_role("button", name="Undo").click()
    expect(asked(page)).to_have_text([re.compile("^Where")])
    page.reload()
    expect(asked(page)).to_have_text([re.compile("^Where")])
    expect(titles(page)).to_have_count(2)
    page.locator("#clear").click()
    page.reload()
    expect(titles(page)).to_have_count(2)
    expect(asked(page)).to_have_count(0)


def test_two_tabs_agree_and_two_answers_at_once_are_both_kept(context: BrowserContext, site: SiteServer) -> None:
    one = opened(context, site.url)
    say(one, "one")
    other = opened(context, site.url)
    expect(titles(other)).to_have_text(["one"])
    titles(other).click()
    expect(asked(other)).to_have_text(["one"])
    say(one, "two")
    expect(asked(other)).to_have_text(["one", "two"])
    # The other tab hears nothing of the first one's turn before it has one of its own.
    one.evaluate("() => { window.post = BroadcastChannel.prototype.postMessage }")
    one.evaluate("() => { BroadcastChannel.prototype.postMessage = () => {} }")
    for page, text in ((one, "wait here"), (other, "wait there")):
        page.evaluate("text => void chat.send(text)", text)
        expect(asked(page).last).to_have_text(text)
    one.evaluate("() => { BroadcastChannel.prototype.postMessage = window.post }")
    for page in (one, other):
        page.evaluate("() => chat.stop()")
        expect(titles(page)).to_have_text(["one", "one"])
    expect(asked(one)).to_have_text(["one", "two", "wait here"])
    expect(asked(other)).to_have_text(["one", "two", "wait there"])
    one.bring_to_front()
    action(one, "Delete")
    expect(titles(other)).to_have_count(1)
    expect(asked(other)).to_have_text(["one", "two", "wait there"])


def test_a_turn_that_ends_while_another_tabs_version_is_read_stays(context: BrowserContext, site: SiteServer) -> None:
    one = context.new_page()
    one.add_init_script(f"({LATE})()")
    one.goto(site.url)
    one.evaluate(ANSWER)
    say(one, "one")
    other = opened(context, site.url)
    titles(other).click()
    expect(asked(other)).to_have_text(["one"])
    one.evaluate("() => { window.late = []; }")
    say(other, "two")
    one.wait_for_function("() => late.length > 0")
    one.evaluate("() => { void chat.send('wait'); for (const tell of late) tell(); return chat.stop(); }")
    expect(titles(one)).to_have_text(["one", "one"])
    expect(asked(one)).to_have_text(["one", "wait"])
    expect(asked(other)).to_have_text(["one", "two"])


def test_enter_before_the_page_knows_its_models_is_kept(context: BrowserContext, site: SiteServer) -> None:
    page = context.new_page()
    waiting: list[Route] = []
    page.route("**/models/index.json", lambda route: waiting.append(route))
    page.goto(site.url + SETTINGS)
    page.fill("#prompt", "Hello")
    page.keyboard.press("Enter")
    expect(asked(page)).to_have_text(["Hello"])
    page.wait_for_timeout(500)
    waiting[0].continue_()
    expect(page.locator("#status")).to_have_text("Done", timeout=BOOT_MS)
    expect(page.locator("#chosen")).to_have_text("nano-qwen2")


def test_a_conversation_leaves_as_a_file_and_comes_back_with_its_versions(
    context: BrowserContext, site: SiteServer, tmp_path: Path
) -> None:
    page = opened(context, site.url)
    page.fill("#system", "Be brief.")
    for text in ("one", "two"):
        say(page, text)
    page.get_by_role("button", name="Edit").first.click()
    page.locator(".editor textarea").fill("uno")
    page.keyboard.press("Enter")
    expect(page.locator("#turns .text").last).to_contain_text("so uno")
    files = []
    for name in ("Save as JSON", "Save as Markdown"):
        with page.expect_download() as download:
            action(page, name)
        files.append(tmp_path / download.value.suggested_filename)
        download.value.save_as(files[-1])
    assert [path.name for path in files] == ["one.json", "one.md"]
    assert files[1].read_text() == "# one\n\n## System\n\nBe brief.\n\n## You\n\nuno\n\n## Model\n\nso uno\n"
    messages = json.loads(files[0].read_text())["messages"]
    assert messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "uno"},
        {"role": "assistant", "content": "so uno"},
    ]
    action(page, "Delete")
    page.fill("#system", "")
    page.set_input_files("#chats-file", files[0])
    expect(asked(page)).to_have_text(["uno"])
    assert page.input_value("#system") == "Be brief."
    page.get_by_role("button", name="Earlier version").click()
    expect(asked(page)).to_have_text(["one", "two"])
    with page.expect_download() as download:
        page.click("#chats-export")
    download.value.save_as(tmp_path / "all.json")
    page.set_input_files("#chats-file", tmp_path / "all.json")
    expect(titles(page)).to_have_text(["one", "one"])


BAD = {
    "text.json": ("hello", "text.json is not JSON"),
    "other.json": ('{"a": 1}', 'other.json has no list "messages"'),
    "role.json": ('[{"role": "tool", "content": "x"}]', 'the role of message 0 of role.json is "tool"'),
    "content.json": (
        '[{"role": "user", "content": 5}]',
        "the content of message 0 of content.json is neither text nor a picture",
    ),
    "order.json": ('[{"role": "assistant", "content": "x"}]', "message 0 of order.json is out of turn"),
    "turns.json": ('{"messages": [], "capstan": {"turns": [null], "shown": 0}}', "turn 0 is damaged"),
    "empty.json": ("[]", "empty.json has no conversation"),
}


def test_files_that_are_no_conversation_are_refused_and_leave_nothing_behind(
    context: BrowserContext, site: SiteServer, tmp_path: Path
) -> None:
    page = opened(context, site.url)
    for name, (text, message) in BAD.items():
        path = tmp_path / name
        path.write_text(text)
        page.set_input_files("#chats-file", path)
        expect(page.locator("#chats-note")).to_contain_text(message)
        expect(titles(page)).to_have_count(0)
    page.goto(site.url + "#conversation=AAAA")
    expect(page.locator("#error-message")).to_contain_text("the conversation of this link is damaged")
    expect(titles(page)).to_have_count(0)


def test_a_link_carries_a_conversation_and_no_server_sees_it(context: BrowserContext, site: SiteServer) -> None:
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = opened(context, site.url)
    say(page, "one ä 🎈")
    action(page, "Copy a link that has it")
    expect(page.locator("#chats-note")).to_contain_text("is copied")
    link = page.evaluate("() => navigator.clipboard.readText()")
    assert link.startswith(site.url + "#conversation=")
    action(page, "Delete")
    other = opened(context, link, answers=False)
    expect(asked(other)).to_have_text(["one ä 🎈"])
    assert other.url == site.url
    page.evaluate("text => chat.send(text)", "".join(map(chr, range(200, 60_000))))
    expect(titles(page)).to_have_count(2)
    action(page, "Copy a link that has it")
    expect(page.locator("#chats-note")).to_contain_text("the limit is 30000; export the conversation as a file")


@pytest.mark.parametrize(
    ("refusal", "told"),
    [
        (
            "indexedDB.open = () => { throw new DOMException('not here', 'SecurityError') }",
            "This browser keeps nothing for this page: conversations are gone when it is left.",
        ),
        (
            "IDBObjectStore.prototype.put = () => { throw new DOMException('full', 'QuotaExceededError') }",
            "The conversation is not kept: this browser's storage is full.",
        ),
    ],
)
def test_a_storage_that_is_refused_or_full_is_told_and_the_chat_works(
    refusal: str, told: str, context: BrowserContext, site: SiteServer
) -> None:
    context.add_init_script(refusal)
    page = opened(context, site.url)
    say(page, "one")
    expect(page.locator("#chats-note")).to_contain_text(told)
    say(page, "two")
    expect(asked(page)).to_have_text(["one", "two"])


def test_on_a_narrow_page_the_conversations_are_a_drawer(context: BrowserContext, site: SiteServer) -> None:
    page = opened(context, site.url)
    say(page, "one")
    page.set_viewport_size({"width": 390, "height": 844})
    expect(titles(page)).to_be_hidden()
    page.evaluate("() => {" + (ROOT / "node_modules/axe-core/axe.min.js").read_text() + "}")
    page.get_by_role("button", name="Chats").click()
    expect(titles(page)).to_have_text(["one"])
    for theme in ("light", "dark"):
        page.evaluate("theme => { document.documentElement.dataset.theme = theme; }", theme)
        page.wait_for_timeout(300)
        assert page.evaluate(AXE) == []
    page.keyboard.press("Escape")
    expect(titles(page)).to_be_hidden()
    page.get_by_role("button", name="Chats").click()
    page.click("#chats-new")
    expect(titles(page)).to_be_hidden()
    expect(asked(page)).to_have_count(0)


def test_a_long_conversation_goes_on_after_a_reload_without_being_computed_again(
    context: BrowserContext, site: SiteServer
) -> None:
    page = opened(context, site.url + SETTINGS, answers=False)
    _, about = answered(page, LONG)
    assert "kept" not in about
    kept_files(page, 2)
    page.reload()
    expect(asked(page)).to_have_count(1)
    text, about = answered(page, "more")
    assert (found := re.search(r"; of (\d+) before them (\d+) were kept$", about)), about
    assert int(found[1]) - int(found[2]) < 30
    other = opened(context, site.url + SETTINGS, answers=False)
    titles(other).click()
    expect(asked(other)).to_have_count(2)
    page.bring_to_front()
    page.get_by_role("button", name="Edit").last.click()
    page.locator(".editor textarea").fill("more")
    page.keyboard.press("Enter")
    expect(page.locator("#turns .text").last).to_have_text(text, use_inner_text=True, timeout=BOOT_MS)
    assert "kept" not in page.locator("#turns .about").last.inner_text(), "the page has it"
    page.wait_for_timeout(1500)
    other.bring_to_front()
    action(other, "Delete")
    expect(asked(page)).to_have_count(0)
    kept_files(other, 0)


def test_what_was_computed_is_shown_emptied_and_not_kept_if_the_user_wants_that(
    context: BrowserContext, site: SiteServer
) -> None:
    page = opened(context, site.url + SETTINGS, answers=False)
    panel = page.locator("#this-page")
    panel.locator("summary").click()
    size, option = page.locator("#keep-size"), page.get_by_label("Keep what was computed")
    expect(size).to_have_text("Nothing is kept now.", timeout=BOOT_MS)
    expect(option).to_be_checked()
    answered(page, LONG)
    expect(size).to_have_text(re.compile(r"^Now [\d.]+ [kM]B for a conversation\.$"))
    panel.get_by_role("button", name="Empty").click()
    expect(size).to_have_text("Nothing is kept now.")
    kept_files(page, 0)
    option.uncheck()
    answered(page, LONG)
    page.wait_for_timeout(1500)
    kept_files(page, 0)
    page.reload()
    expect(option).not_to_be_checked()


def test_what_cannot_be_kept_is_told_in_one_line_and_once(context: BrowserContext, site: SiteServer) -> None:
    page = opened(context, site.url + SETTINGS, answers=False)
    answered(page, "Hello")
    # Threads of the CPU's kernels answer nothing while they wait.
    for worker in (each for each in page.workers if each.url.endswith("/worker.js")):
        worker.evaluate("() => { FileSystemSyncAccessHandle.prototype.write = () => 0; }")
    answered(page, LONG)
    expect(page.locator("#status")).to_have_text(
        "This conversation will be computed again after a reload: the browser's storage for this origin is full"
    )
    answered(page, "more")
    page.wait_for_timeout(1500)
    expect(page.locator("#status")).to_have_text("Done")
