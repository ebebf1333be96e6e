"""<capstan-chat> as a page uses it: models, answers of the page's own, turns, events, errors; in the demo's page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from tests import oracle
from tests.browser.demo_page import RUN_MS, Demo
from tests.browser.model_variants import LLAMA, Variants

OPEN = """(attributes) => {
  const chat = document.createElement('capstan-chat');
  chat.id = 'other';
  chat.style.cssText = 'position: fixed; inset: 0; z-index: 2; block-size: auto';
  for (const [name, value] of Object.entries(attributes)) chat.setAttribute(name, value);
  window.told = [];
  for (const kind of ['answer', 'busy', 'clear', 'error'])
    chat.addEventListener('capstan-' + kind, ({ detail }) =>
      told.push([kind, kind === 'error' ? detail.code : (detail?.finishReason ?? detail)]));
  chat.addEventListener('capstan-load', ({ detail }) => (window.llm = detail));
  window.chat = chat;
}"""
"""Make another element, which will lie over the page; `chat` is the element, `told` its events."""
PUT = "() => document.body.append(chat)"
ANSWER = """() => {
  window.asked = [];
  chat.answer = async (turn, signal) => {
    asked.push(chat.messages.map(({ content }) => content));
    chat.showStatus('Thinking');
    if (turn.asked === 'fail') throw new Error('nothing came');
    turn.append('so ');
    if (turn.asked === 'break') throw Object.assign(new Error('it broke'), { code: 'DeviceLostError' });
    if (turn.asked === 'wait') await new Promise((resolve) => signal.addEventListener('abort', resolve));
    else turn.append(turn.asked);
    turn.note = 'by the page';
  };
}"""
"""Answer with what was asked; fail, break off, or wait until it is stopped where that is asked."""
MESSAGES = "() => chat.messages.map(({ content }) => content)"
GREEDY = '{ "temperature": 0, "maxTokens": 6 }'


@pytest.fixture
def page(demo: Demo) -> Iterator[Page]:
    yield demo.page
    demo.page.evaluate("() => chat.remove()")


@pytest.fixture
def answered(page: Page) -> Page:
    """The page with an element whose answers are the page's."""
    page.evaluate(OPEN, {})
    page.evaluate(ANSWER)
    page.evaluate(PUT)
    return page


def say(page: Page, text: str) -> None:
    page.locator("#other #prompt").fill(text)
    page.locator("#other #prompt").press("Enter")


def change(page: Page, text: str, last: bool = False) -> None:
    """Edit the first turn, or the last one, and wait for the end of the answer."""
    edit = page.locator("#other").get_by_role("button", name="Edit")
    (edit.last if last else edit.first).click()
    page.locator("#other .editor textarea").fill(text)
    page.keyboard.press("Enter")
    expect(page.locator("#other #conversation")).to_have_attribute("aria-busy", "false")


def echoes(page: Page) -> list[str]:
    return page.locator("#other .echo").all_inner_texts()


def told(page: Page) -> list[Any]:
    """The events since the last call, without those of busy."""
    found: list[Any] = page.evaluate("() => told.splice(0)")
    busy = [detail for kind, detail in found if kind == "busy"]
    assert busy == [True, False] * (len(busy) // 2)
    return [event for event in found if event[0] != "busy"]


def test_a_page_answers_itself_and_its_turns_are_edited_answered_again_and_cleared(answered: Page) -> None:
    page = answered
    say(page, "one")
    say(page, "two")
    assert page.evaluate(MESSAGES) == ["one", "so one", "two", "so two"]
    assert told(page) == [["answer", "stop"]] * 2
    expect(page.locator("#other .about").last).to_have_text("by the page")
    editor = page.locator("#other .editor textarea")
    page.locator("#other").get_by_role("button", name="Edit").first.click()
    expect(editor).to_be_focused()
    expect(editor).to_have_value("one")
    page.locator("#other").get_by_role("button", name="Cancel").click()
    expect(editor).to_have_count(0)
    page.locator("#other").get_by_role("button", name="Edit").last.click()
    page.keyboard.press("Escape")
    expect(editor).to_have_count(0)
    expect(page.locator("#other #prompt")).to_be_focused()
    change(page, "three", last=True)
    assert echoes(page) == ["one", "three"]
    page.locator("#other").get_by_role("button", name="Answer again").first.click()
    assert page.evaluate("() => asked") == [
        *(["one"], ["one", "so one", "two"], ["one", "so one", "three"], ["one"]),
    ], "a turn that is answered, and those after it, are not among its messages"
    page.evaluate("() => chat.send('x').then(() => chat.send('y')).then(() => chat.rewind(chat.turns[1]))")
    assert echoes(page) == ["one", "x"]
    assert told(page) == [["answer", "stop"]] * 4
    page.locator("#other #clear").click()
    assert (echoes(page), told(page), page.evaluate(MESSAGES)) == ([], [["clear", None]], [])


def test_a_failure_before_the_first_word_changes_nothing_and_a_later_one_keeps_the_words(answered: Page) -> None:
    page, field, alert = answered, answered.locator("#other #prompt"), answered.locator("#other").get_by_role("alert")
    say(page, "one")
    say(page, "fail")
    expect(alert).to_contain_text("Nothing came")
    expect(field).to_have_value("fail")
    assert echoes(page) == ["one"]
    page.locator("#other #prompt").fill("")
    change(page, "fail")
    expect(page.locator("#other .editor textarea")).to_have_value("fail")
    expect(field).to_have_value("")
    assert page.evaluate(MESSAGES) == ["one", "so one"]
    page.keyboard.press("Escape")
    say(page, "break")
    expect(page.locator("#other #error-title")).to_have_text("The GPU was lost")
    expect(page.locator("#other #error-code")).to_have_text("DeviceLostError")
    assert page.evaluate(MESSAGES) == ["one", "so one", "break", "so "]
    expect(page.locator("#other .about").last).to_have_text("broken off")
    say(page, " ")
    expect(field).to_have_attribute("aria-invalid", "true")
    say(page, "two")
    expect(alert).to_be_hidden()
    expect(field).not_to_have_attribute("aria-invalid", "true")
    errors = [["error", code] for code in ("Error", "Error", "DeviceLostError", "PromptError")]
    assert told(page) == [["answer", "stop"], *errors, ["answer", "stop"]]


def test_escape_stops_an_answer_and_what_a_page_brings_goes_with_its_turn(answered: Page) -> None:
    page = answered
    say(page, "wait")
    page.evaluate("""() => {
      for (const place of ['answer', 'below', 'actions']) {
        const brought = document.createElement('button');
        brought.textContent = 'My ' + place;
        chat.turns[0].bring(place, brought);
      }
    }""")
    for place in ("answer", "below", "actions"):
        expect(page.locator("#other > button", has_text=place)).to_be_disabled()
    expect(page.locator("#other #conversation")).to_have_attribute("aria-busy", "true")
    assert page.evaluate("() => chat.send('two').then(() => chat.busy)"), "nothing is sent beside it"
    page.keyboard.press("Escape")
    expect(page.locator("#other #conversation")).to_have_attribute("aria-busy", "false")
    for place in ("answer", "below", "actions"):
        expect(page.locator("#other").get_by_role("button", name=f"My {place}")).to_be_enabled()
    assert (told(page), page.evaluate(MESSAGES)) == ([["answer", "abort"]], ["wait", "so "])
    page.locator("#other").get_by_role("button", name="Answer again").click()
    page.evaluate("() => chat.stop()")
    for place in ("answer", "below", "actions"):
        expect(page.locator("#other > button", has_text=place)).to_be_hidden()
    page.locator("#other").get_by_role("button", name="Earlier version").click()
    for place in ("answer", "below", "actions"):
        expect(page.locator("#other").get_by_role("button", name=f"My {place}")).to_be_enabled()
    page.evaluate("() => chat.clear()")
    expect(page.locator("#other > button")).to_have_count(0)
    assert told(page) == [["answer", "abort"]]


def test_an_edited_turn_stays_beside_the_new_one_with_those_after_it(answered: Page) -> None:
    page = answered
    for text in ("one", "two"):
        say(page, text)
    change(page, "uno")
    versions = page.locator("#other .versions:visible")
    expect(versions).to_have_text("‹2 / 2›")
    assert echoes(page) == ["uno"]
    expect(page.locator("#other").get_by_role("button", name="Later version")).to_be_disabled()
    page.locator("#other").get_by_role("button", name="Earlier version").click()
    assert (echoes(page), page.evaluate(MESSAGES)) == (["one", "two"], ["one", "so one", "two", "so two"])
    expect(versions).to_have_text("‹1 / 2›")
    say(page, "three")
    page.locator("#other").get_by_role("button", name="Later version").click()
    page.locator("#other").get_by_role("button", name="Earlier version").click()
    assert echoes(page) == ["one", "two", "three"]


def test_a_saved_conversation_comes_back_with_all_its_versions(answered: Page) -> None:
    page = answered
    for text in ("one", "two"):
        say(page, text)
    page.evaluate("() => chat.send('uno', chat.turns[0])")
    page.evaluate("() => { chat.turns[0].data = { mine: [1] }; window.saved = JSON.stringify(chat.save()); }")
    page.locator("#other #clear").click()
    assert echoes(page) == []
    page.evaluate("() => chat.restore(JSON.parse(saved))")
    assert (echoes(page), page.evaluate(MESSAGES)) == (["uno"], ["uno", "so uno"])
    assert page.evaluate("() => JSON.stringify(chat.save()) === saved")
    page.locator("#other").get_by_role("button", name="Earlier version").click()
    assert echoes(page) == ["one", "two"]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ("saved.turns[1].before = 1", "turn 1 is damaged"),
        ("saved.turns[0].asked = 3", "turn 0 is damaged"),
        ("saved.shown = 7", "the last turn that is shown is damaged"),
    ],
)
def test_a_damaged_conversation_is_refused_and_the_present_one_stays(answered: Page, change: str, what: str) -> None:
    page = answered
    for text in ("one", "two"):
        say(page, text)
    refusal = f"() => {{ const saved = chat.save(); {change}; try {{ chat.restore(saved) }} catch (e) {{ return e }} }}"
    code = page.evaluate(refusal.replace("return e ", "return [e.code, e.message] "))
    assert code == ["OptionError", f"the conversation cannot be restored: {what}; give what save() returned"]
    assert echoes(page) == ["one", "two"]


def test_a_stopped_answer_is_continued_in_its_own_turn(answered: Page) -> None:
    page = answered
    say(page, "wait")
    page.keyboard.press("Escape")
    expect(page.locator("#other #conversation")).to_have_attribute("aria-busy", "false")
    page.evaluate("() => { void chat.resume(chat.turns[0]) }")
    expect(page.locator("#other #conversation")).to_have_attribute("aria-busy", "true")
    page.keyboard.press("Escape")
    expect(page.locator("#other #conversation")).to_have_attribute("aria-busy", "false")
    assert page.evaluate(MESSAGES) == ["wait", "so so "]
    expect(page.locator("#other .versions:visible")).to_have_count(0)


def test_a_policy_against_inline_styles_lets_the_elements_own_in(answered: Page) -> None:
    scrolls = "() => getComputedStyle(chat.shadowRoot.getElementById('conversation')).overflowY"
    assert answered.evaluate(scrolls) == "auto"


def test_a_model_answers_what_the_turns_say_also_where_the_page_changed_one(page: Page) -> None:
    attributes = {"model": "models/nano-qwen2/", "run-options": GREEDY, "system": "Be brief."}
    page.evaluate(OPEN, attributes)
    page.evaluate(PUT)
    answers = page.evaluate("""async () => {
      const answer = () => chat.messages.at(-1).content;
      await chat.send('Hello');
      await chat.send('And then?');
      const second = answer();
      await chat.send('And then?', chat.turns[1]);
      const again = answer();
      chat.turns[0].answer = 'Yes.';
      await chat.send('And then?', chat.turns[1]);
      const asked = chat.messages.slice(0, -1);
      return { second, again, changed: answer(), asked };
    }""")
    assert [message["content"] for message in answers["asked"]] == ["Be brief.", "Hello", "Yes.", "And then?"]
    asked = "messages => llm.chat(messages, { temperature: 0, maxTokens: 6 }).result.then(({ text }) => text)"
    assert answers["changed"] == page.evaluate(asked, answers["asked"])
    assert answers["again"] == answers["second"] != answers["changed"]


@pytest.fixture
def held(page: Page) -> Iterator[list[Route]]:
    """Requests for a model's configuration, which wait for the test."""
    found: list[Route] = []
    address = "**/models/nano-llama/genai_config.json"
    page.route(address, lambda route: found.append(route))
    page.evaluate(OPEN, {"model": "models/nano-llama/", "run-options": GREEDY})
    page.evaluate(PUT)
    expect(page.locator("#other #status")).to_have_text("Loading the model")
    yield found
    page.unroute(address)


WAITS = re.compile("^Your message is sent when the model is ready. (Loading|Preparing)")


def test_a_message_waits_for_the_model_and_escape_takes_it_back(page: Page, held: list[Route]) -> None:
    field, status = page.locator("#other #prompt"), page.locator("#other #status")
    assert page.evaluate("() => chat.matches(':state(empty)')")
    say(page, "def fibonacci(n):")
    expect(status).to_have_text(WAITS)
    expect(page.locator("#other #run")).to_be_disabled()
    page.keyboard.press("Escape")
    expect(status).to_have_text(re.compile("^(Loading|Preparing)"))
    field.press("Enter")
    expect(status).to_have_text(WAITS)
    expect(field).to_have_value("def fibonacci(n):")
    while not held:
        page.wait_for_timeout(50)
    for route in held:
        route.continue_()
    expect(page.locator("#other .echo")).to_have_text("def fibonacci(n):", timeout=RUN_MS)
    expect(field).to_have_value("")
    expect(page.locator("#other #status")).to_have_text("The answer is as long as it may be.", timeout=RUN_MS)
    assert not page.evaluate("() => chat.matches(':state(empty)')")
    assert told(page) == [["answer", "length"]]


@pytest.mark.extended
def test_a_message_stays_in_the_field_if_the_model_is_not_there(page: Page, held: list[Route]) -> None:
    field = page.locator("#other #prompt")
    say(page, "one")
    expect(page.locator("#other #status")).to_have_text(WAITS)
    while not held:
        page.wait_for_timeout(50)
    for route in held:
        route.fulfill(status=404)
    expect(page.locator("#other").get_by_role("alert")).to_contain_text("HTTP 404", timeout=RUN_MS)
    expect(field).to_have_value("one")
    expect(field).to_be_disabled()
    assert told(page) == [["error", "ModelFileError"]]


def test_a_model_without_a_chat_template_continues_the_text(page: Page) -> None:
    page.evaluate(OPEN, {"model": "models/nano-llama/", "run-options": GREEDY, "label": "Text to go on with"})
    page.evaluate(PUT)
    field = page.locator("#other").get_by_label("Text to go on with")
    expect(field).to_be_enabled()
    expect(page.locator("#other #status")).to_have_text(re.compile(r"^nano-llama, 0\.\d MB$"), timeout=RUN_MS)
    assert page.evaluate("() => [llm.stats().model.name, llm.stats().model.search.do_sample]") == ["nano-llama", False]
    page.evaluate("() => chat.send('def fibonacci(n):')")
    prompt = oracle.prompt(LLAMA, "def fibonacci(n):")
    assert page.evaluate("() => chat.turns[0].answer") == oracle.text(LLAMA, oracle.greedy(LLAMA, prompt, 6))
    expect(page.get_by_role("article", name="Text and completion")).to_be_visible()


@pytest.mark.extended
def test_an_answer_that_begins_within_the_reasoning_is_folded_from_its_first_word(
    demo: Demo, page: Page, variants: Variants
) -> None:
    folder = variants.folder("thinks", LLAMA.parent / "nano-qwen2")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = "{% for message in messages %}{{ message.content }}\n{% endfor %}<think>\n"
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    heading = ".turn:last-child .reasoning > summary"
    page.evaluate(OPEN, {"model": "models/thinks/", "run-options": GREEDY, "options": '{ "device": "webgpu" }'})
    page.evaluate(PUT)
    page.evaluate("() => chat.send('Hello')")
    expect(page.locator(f"#other {heading}")).to_contain_text("Reasoning, not finished")
    assert page.evaluate("() => [chat.turns[0].reply, chat.turns[0].reasoning !== '']") == ["", True]
    page.evaluate("() => chat.remove()")
    demo.set(folder="models/thinks/")
    demo.send()
    expect(page.locator(f"#chat {heading}")).to_contain_text("Reasoning, not finished")
    expect(page.locator("#finish")).to_have_text("the limit")


def test_a_conversation_with_a_name_is_there_again_after_a_reload(answered: Page) -> None:
    page = answered
    page.evaluate("() => chat.setAttribute('storage', 'mine')")
    for text in ("one", "two"):
        say(page, text)
    page.evaluate("() => chat.remove()")
    for name, wanted in (("mine", ["one", "two"]), ("other", [])):
        page.evaluate(OPEN, {"storage": name})
        page.evaluate(PUT)
        page.wait_for_timeout(300)
        page.evaluate(ANSWER)
        expect(page.locator("#other .echo")).to_have_text(wanted)
        if name == "mine":
            page.locator("#other").get_by_role("button", name="New").click()
        page.evaluate("() => chat.remove()")
    page.evaluate(OPEN, {"storage": "mine"})
    page.evaluate(ANSWER)
    page.evaluate(PUT)
    page.wait_for_timeout(300)
    assert echoes(page) == [], "what was cleared does not come back"
