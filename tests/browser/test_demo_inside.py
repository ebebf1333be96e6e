"""Answers of the demo page looked into: conversations, tokens, the drawer, processors, the race."""

from __future__ import annotations

import re

import numpy as np
import pytest
from playwright.sync_api import Browser, expect

from capstan_host.site_server import SiteServer
from tests import oracle
from tests.browser.demo_page import RUN_MS, Demo, choose, png_size
from tests.browser.model_variants import LLAMA, Variants


def test_a_chat_goes_on_and_is_edited_kept_and_answered_again(demo: Demo) -> None:
    choose(demo.page, "nano-qwen2")
    demo.page.select_option("#device-choice", "wasm")
    example = demo.page.locator("#examples button").first
    asked = example.inner_text()
    demo.clear_status()
    example.click()
    demo.wait("status", "^Done$")
    first = demo.answer()
    demo.set(prompt="And then?")
    demo.send()
    echoes = demo.page.locator("#turns .echo")
    assert echoes.all_inner_texts() == [asked, "And then?"]
    demo.page.get_by_role("button", name="Edit").first.click()
    editor = demo.page.locator("#turns .editor textarea")
    assert editor.input_value() == asked
    demo.page.keyboard.press("Escape")
    expect(editor).to_have_count(0)
    demo.page.get_by_role("button", name="Edit").last.click()
    editor.fill("Or else?")
    demo.clear_status()
    editor.press("Enter")
    demo.wait("status", "^Done$")
    assert echoes.all_inner_texts() == [asked, "Or else?"]
    demo.clear_status()
    demo.page.get_by_role("button", name="Answer again").first.click()
    demo.wait("status", "^Done$")
    assert (echoes.all_inner_texts(), demo.answer()) == ([asked], first), "the first answer, as it was"
    demo.page.click("#clear")
    expect(demo.page.locator("#welcome")).to_be_visible()


@pytest.mark.extended
def test_tokens_are_looked_at_and_an_answer_goes_on_from_one(demo: Demo) -> None:
    demo.send()
    answer, prompt = demo.answer(), oracle.prompt(LLAMA, "def fibonacci(n):")
    ids = oracle.greedy(LLAMA, prompt, 6)
    demo.look()
    tokens = demo.page.locator(".tokens [role=button]")
    assert "".join(text or "" for text in tokens.all_text_contents()) == answer
    tokens.first.focus()
    panel = demo.page.get_by_role("region", name="The chosen token")
    for key in ("End", "ArrowLeft", "Space"):
        demo.page.keyboard.press(key)
    expect(panel.get_by_role("status")).to_have_text(re.compile(r"token 5 of 6: [\d.]+ %$"))
    for key in ("Home", "ArrowRight", "Enter"):
        demo.page.keyboard.press(key)
    expect(panel.get_by_role("status")).to_have_text(re.compile(r"token 2 of 6: [\d.]+ %$"))
    shares = [float(text.split()[-2]) for text in panel.locator(".share").all_inner_texts()]
    assert len(shares) == 8
    assert shares == sorted(shares, reverse=True)
    assert panel.locator("li").first.inner_text().split("\n")[0].endswith("(taken)"), "it was picked greedily"
    logits = oracle.logits(LLAMA, [*prompt, ids[0]])
    assert shares[:2] == pytest.approx(percents(logits)[:2], abs=0.51)
    demo.clear_status()
    panel.get_by_role("button").first.click()
    demo.wait("status", "^Done$")
    second = int(np.argsort(-logits, kind="stable")[1])
    assert demo.picked()[-4:] == oracle.greedy(LLAMA, [*prompt, ids[0], second], 4)
    assert demo.text("tokens") == "4", "two of the six were given"
    assert demo.answer().startswith(oracle.text(LLAMA, [ids[0], second]))
    demo.look()
    tokens.nth(1).click()
    demo.clear_status()
    demo.page.get_by_role("button", name="Pick again from here").click()
    demo.wait("status", "^Done$")
    assert demo.answer() == answer
    demo.look()
    demo.page.get_by_role("button", name="Tokens", pressed=True).click()
    expect(tokens).to_have_count(0)
    assert demo.answer() == answer


@pytest.mark.extended
def test_an_answer_is_ended_at_a_token_that_could_have_ended_it(
    demo: Demo, site: SiteServer, variants: Variants
) -> None:
    prompt = oracle.prompt(LLAMA, "def fibonacci(n):")
    begun = oracle.greedy(LLAMA, prompt, 2)
    fourth = int(np.argsort(-oracle.logits(LLAMA, [*prompt, *begun]), kind="stable")[3])
    name = variants.config("could-end", model__eos_token_id=[1, fourth])
    demo.set(folder=f"{site.url}models/{name}")
    demo.send()
    demo.set(prompt="class Point:")
    demo.send()
    expect(demo.page.locator("#turns .turn")).to_have_count(2)
    demo.clear_status()
    demo.page.get_by_role("button", name="Tokens", pressed=False).first.click()
    demo.wait("status", "^Done$")
    demo.page.locator(".tokens [role=button]").nth(2).click()
    demo.page.get_by_role("button", name="End the answer here").click()
    expect(demo.page.locator("#turns .turn")).to_have_count(1)
    assert demo.answer() == oracle.text(LLAMA, begun)
    assert demo.page.locator("#turns .about").inner_text() == "2 tokens, ended by hand"
    demo.set(prompt="class Point:")
    demo.send()
    assert demo.text("tokens") == "6"


@pytest.mark.extended
def test_a_token_of_a_chat_is_replaced_and_the_conversation_goes_on(demo: Demo) -> None:
    choose(demo.page, "nano-qwen2")
    demo.set(prompt="Hello")
    demo.send()
    first = demo.answer()
    demo.set(prompt="And then?")
    demo.send()
    second = demo.answer()
    demo.look()
    tokens = demo.page.locator(".tokens [role=button]")
    tokens.nth(3).click()
    panel = demo.page.get_by_role("region", name="The chosen token")
    assert panel.locator("li").first.inner_text().split("\n")[0].endswith("(taken)"), "it was picked greedily"
    demo.clear_status()
    panel.get_by_role("button", name="Pick again").click()
    demo.wait("status", "^Done$")
    assert demo.answer() == second
    assert demo.page.locator("#turns .text").first.text_content() == first


def test_the_drawer_shows_bursts_operations_and_memory(demo: Demo) -> None:
    demo.set(run_ahead="2")
    assert not any(address.endswith("/drawer.js") for address in demo.addresses), "it is loaded when it is opened"
    demo.send()
    demo.page.click("#drawer-open")
    note = re.compile(r"^6 tokens in (\d) bursts, [\d.]+ ms. JavaScript encodes and submits: [\d.]+ ms; GPU")
    expect(demo.page.locator("#timeline-note")).to_have_text(note, timeout=RUN_MS)
    assert any(address.endswith("/drawer.js") for address in demo.addresses)
    found = note.match(demo.text("timeline-note"))
    assert found is not None
    assert 3 <= int(found[1]) <= 4, "two tokens in a burst"
    expect(demo.page.locator("#timeline canvas")).to_be_visible()
    expect(demo.page.locator("#memory-note")).to_have_text(re.compile(r"^[\d.]+ [kM]B in all.$"))
    categories = demo.page.locator("#memory-rows th").all_inner_texts()
    assert {"weights", "persistent", "io"} <= {name.partition(",")[0] for name in categories}, categories
    demo.page.click("#tape-ask")
    demo.wait("tape-note", r"^\d+ operations, in the order")
    operations = int(demo.text("tape-note").split()[0])
    assert demo.page.locator("#tape-strip .piece").count() == operations
    kinds = [row.split("\t") for row in demo.page.locator("#tape-rows tr").all_inner_texts()]
    assert sum(int(kind[1]) for kind in kinds) == operations
    assert sum(kind[0].startswith("sampler") for kind in kinds) == 2
    assert re.search(r"fused\s+\d+ operations became \d+", demo.text("tape-passes"))
    demo.page.keyboard.press("Escape")
    expect(demo.page.locator("#drawer")).to_be_hidden()
    demo.set(prompt="def fibonacci(n):")
    demo.send()


@pytest.mark.extended
def test_the_drawer_says_why_there_are_no_operations(demo: Demo) -> None:
    demo.page.select_option("#device-choice", "wasm")
    demo.page.click("#drawer-open")
    demo.page.click("#tape-ask")
    demo.wait("tape-note", "^The steps run with capture off. the decode steps of this generator run with capture 'off'")
    assert demo.page.locator("#tape-strip .piece").count() == 0
    demo.page.locator("#drawer").get_by_role("button", name="Close").click()


ONLY = """import capstan


@capstan.logits_processor
def only(tokens, logits):
    for token in range(len(logits)):
        if token != {token}:
            logits[token] = float("-inf")
"""


@pytest.mark.extended
def test_a_processor_in_python_edits_logits_and_is_changed_while_an_answer_streams(demo: Demo) -> None:
    demo.set(processor=ONLY.format(token=333))
    demo.send()
    assert demo.picked()[-6:] == [333] * 6
    assert "processor" not in demo.page.url, "no link brings code along"
    demo.set(prompt="def fibonacci(n):", max_new_tokens="200")
    demo.page.click("#run")
    demo.wait("tokens", r"^([5-9]|\d\d+)$")
    demo.clear_status()
    demo.page.fill("#processor", ONLY.format(token=344))
    demo.wait("status", "^Done$")
    told = demo.picked()[-200:]
    before = demo.answer().count(oracle.text(LLAMA, [333]))
    assert before >= 5, "the answer goes on behind what it had"
    assert demo.answer().count(oracle.text(LLAMA, [344])) == 200 - before
    assert told[-1] == 344
    demo.set(processor="1 / 0", prompt="def fibonacci(n):", max_new_tokens="6")
    demo.page.click("#run")
    demo.wait("error-message", "the processor's code defines none; put a function under")
    expect(demo.page.locator("#processor")).to_have_attribute("aria-invalid", "true")
    demo.page.click("#processor-example")
    demo.page.fill("#processor", "1 / 0\n" + ONLY.format(token=3))
    demo.page.click("#run")
    demo.wait("error-message", "^ZeroDivisionError: division by zero$")
    expect(demo.page.locator("#error-code")).to_have_text("ProcessorError")
    demo.set(processor="")
    demo.send()


def percents(logits: np.ndarray) -> list[float]:
    """The probabilities of all tokens, the largest first."""
    powers = np.exp(logits.astype(np.float64) - logits.max())
    return sorted((100 * powers / powers.sum()).tolist(), reverse=True)


@pytest.mark.extended
def test_a_race_runs_each_way_in_turn_and_compares_the_ids(demo: Demo) -> None:
    demo.page.click("#race-open")
    demo.page.click("#race-start")
    ended = re.compile("^(All picked the same ids|Ids differ|The race ended)")
    expect(demo.page.locator("#race-note")).to_have_text(ended, timeout=4 * RUN_MS)
    assert demo.text("race-note").startswith("All picked the same ids. The tape is ")
    lanes = demo.page.locator(".lane")
    paces = lanes.locator(".lane-pace").all_inner_texts()
    assert [bool(re.fullmatch(r"[\d.]+ tokens/s", pace)) for pace in paces] == [True] * 4, paces
    assert len(set(lanes.locator(".lane-text").all_text_contents())) == 1
    assert set(lanes.locator("meter").evaluate_all("all => all.map((meter) => meter.value > 0)")) == {True}
    picture = demo.page.locator("#race-picture")
    told = picture.get_attribute("aria-label") or ""
    assert all(f": {pace}" in told for pace in paces)
    assert "All picked the same tokens. nano-llama, 48 tokens after “def fibonacci(n):”, " in told
    with demo.page.expect_download() as saved:
        demo.page.get_by_role("button", name="Save as a picture").click()
    assert re.fullmatch(r"capstan-race-\d{4}-\d\d-\d\d\.png", saved.value.suggested_filename)
    assert png_size(saved.value.path()) == (1200, 630)
    slowest = min(range(4), key=lambda place: float(paces[place].split()[0]))
    fastest = max(range(4), key=lambda place: float(paces[place].split()[0]))
    whole = lanes.locator(".lane-text").first.text_content() or ""
    demo.page.get_by_role("button", name="Replay side by side").click()
    expect(lanes.nth(fastest).locator(".lane-text")).to_have_text(whole, use_inner_text=False, timeout=RUN_MS)
    assert len(lanes.nth(slowest).locator(".lane-text").text_content() or "") < len(whole)
    demo.page.fill("#race-prompt", "class Point:")
    demo.page.click("#race-start")
    expect(picture).to_be_hidden()
    demo.wait("race-note", "^Preparing")
    demo.page.click("#race-stop")
    demo.wait("race-note", "^Stopped")
    assert demo.requests("generate")[-1]["prompt"] == "class Point:"
    demo.page.fill("#race-prompt", "def fibonacci(n):")
    demo.page.locator("#race").get_by_role("button", name="Close").click()
    expect(demo.page.locator("#race")).to_be_hidden()
    demo.page.click("#race-open")
    demo.page.keyboard.press("Escape")
    expect(demo.page.locator("#race")).to_be_hidden()
    demo.send()


def test_a_race_leaves_out_those_that_the_browser_cannot_run_and_says_why(browser: Browser, site: SiteServer) -> None:
    page = browser.new_page()
    page.add_init_script("Object.defineProperty(navigator, 'gpu', { value: undefined })")
    page.goto(site.url)
    expect(page.locator("#adapter")).to_contain_text("none")
    expect(page.locator("#race-hero")).to_be_hidden()
    page.click("#race-open")
    expect(page.locator(".lane")).to_have_count(1)
    expect(page.locator("#race-left")).to_contain_text("no WebGPU: Capstan's tape, onnxruntime-web")
    page.close()
