"""The demo page, used as a person uses it: type, run, read, stop, correct a mistake."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Route, expect

import capstan
from capstan_host.site_server import SiteServer
from tests import oracle
from tests.browser.demo_page import BOOT_MS, RUN_MS, Demo, choose
from tests.browser.hub_server import Repository, running_hub
from tests.browser.model_variants import LLAMA
from tests.repository_layout import lay_out

WATCH_TEXT = """() => {
  const chat = document.querySelector('capstan-chat').shadowRoot;
  const [turns, status, run, stop, output] = ['turns', 'status', 'run', 'stop', 'conversation'].map(
    (id) => chat.getElementById(id),
  );
  const composer = chat.querySelector('.composer');
  const seen = (window.seen = { text: [], status: [], busy: [], places: [] });
  new MutationObserver(() => {
    const text = turns.querySelector('.turn:last-child .text')?.textContent;
    if (!text) return;
    seen.text.push(text);
    if (status.textContent !== 'Done') seen.busy.push([run.disabled, stop.disabled, output.getAttribute('aria-busy')]);
    seen.places.push([composer, status, output].map((element) => element.getBoundingClientRect().top).join());
  }).observe(turns, { childList: true, subtree: true });
  new MutationObserver(() => seen.status.push(status.textContent)).observe(status, { childList: true });
}"""
STOP = """() => {
  const chat = document.querySelector('capstan-chat').shadowRoot;
  chat.getElementById('stop').click();
  return chat.getElementById('status').textContent;
}"""
"""Click Stop; the status right after the click, before the page does anything else."""
DROP = """(files) => {
  const dataTransfer = new DataTransfer();
  for (const [name, bytes] of Object.entries(files)) {
    const type = name.endsWith('.png') ? 'image/png' : '';
    dataTransfer.items.add(new File([new Uint8Array(bytes)], name, { type }));
  }
  for (const kind of ['dragover', 'drop'])
    document.body.dispatchEvent(new DragEvent(kind, { dataTransfer, bubbles: true, cancelable: true }));
}"""
DROP_GONE = """() => {
  const { webkitGetAsEntry } = DataTransferItem.prototype;
  const reader = { readEntries: (_, refuse) => refuse(new Error('it is gone')) };
  DataTransferItem.prototype.webkitGetAsEntry = () => ({
    isDirectory: true, isFile: false, name: 'dropped', createReader: () => reader,
  });
  const dataTransfer = new DataTransfer();
  dataTransfer.items.add(new File([], 'dropped'));
  document.body.dispatchEvent(new DragEvent('drop', { dataTransfer, bubbles: true, cancelable: true }));
  DataTransferItem.prototype.webkitGetAsEntry = webkitGetAsEntry;
}"""
"""Drop a folder that cannot be read."""
OFFER = """(files) => {
  window.showDirectoryPicker = async () => {
    if (!files) throw new DOMException('no picker here', 'SecurityError');
    const root = await navigator.storage.getDirectory();
    const folder = await root.getDirectoryHandle('my-llama', { create: true });
    for (const [name, bytes] of Object.entries(files)) {
      const writable = await (await folder.getFileHandle(name, { create: true })).createWritable();
      await writable.write(new Uint8Array(bytes));
      await writable.close();
    }
    return folder;
  };
}"""
"""A picker of folders that gives one with these files, or is refused, as it is in another site's frame."""


def test_a_run_streams_text_and_tells_how_it_was_computed(demo: Demo) -> None:
    demo.page.evaluate(WATCH_TEXT)
    demo.page.click("#run")
    demo.wait("status", "^Done$")
    assert demo.text("tokens") == "6"
    seen = demo.page.evaluate("() => window.seen")
    assert len(set(seen["text"])) >= 4, f"the text came as {seen['text']}, not token by token"
    assert {tuple(busy) for busy in seen["busy"]} == {(True, False, "true")}
    assert len(set(seen["places"])) == 1, "nothing around the text moves while it comes"
    loading = re.compile(r"Loading: \d+ (of \d+ )?MB(, \d+ s left)?")
    assert any(loading.fullmatch(status) for status in seen["status"]), seen["status"]
    assert demo.page.locator("#turns .echo").all_inner_texts() == ["def fibonacci(n):"]
    assert demo.answer()
    assert float(demo.text("speed")) > 0
    assert re.fullmatch(r"\d+ ms|\d+\.\d s", demo.text("first"))
    assert (demo.text("finish"), demo.text("device")) == ("the limit", "webgpu")
    assert (demo.text("capture"), demo.text("capture-note")) == ("tape", "")
    assert re.search(r"\w+ .*\((software|hardware)\)", demo.text("adapter"))
    expect(demo.page.locator("#conversation")).to_have_attribute("aria-busy", "false")
    expect(demo.page.locator("#run")).to_be_enabled()


@pytest.mark.extended
def test_a_step_that_takes_long_tells_its_seconds(demo: Demo) -> None:
    keep = "() => { window.usual = setInterval; window.setInterval = (work) => { window.tick = work; return 0; }; }"
    demo.page.evaluate(keep)
    held: list[Route] = []
    pattern = "**/nano-qwen3/genai_config.json"
    demo.page.route(pattern, lambda route: held.append(route))
    choose(demo.page, "nano-qwen3")
    demo.page.click("#run")
    step = "^Finding the model"
    demo.wait("status", step + "$")
    demo.page.evaluate("() => tick()")
    demo.wait("status", step + r": \d+ s so far(; without a GPU it takes minutes)?$")
    for route in held:
        route.continue_()
    demo.wait("status", "^Done$")
    demo.page.unroute(pattern)
    demo.page.evaluate("() => { window.setInterval = window.usual; }")


@pytest.mark.extended
def test_the_counters_of_the_decode_steps_are_shown_per_step(demo: Demo) -> None:
    demo.page.keyboard.press("Control+Enter")
    demo.wait("status", "^Done$")
    rows = demo.page.locator("#counter-rows tr").all_inner_texts()
    shown = {name: (total, each) for name, total, each in (row.split("\t") for row in rows)}
    assert shown["decode steps"] == ("5", "1")
    assert shown["bytes read back"] == ("24", "4.8")
    assert shown["buffers created"] == shown["bind groups created"] == shown["buffer writes"] == ("0", "0")


def test_enter_in_a_field_of_the_options_sends_the_prompt(demo: Demo) -> None:
    demo.clear_status()
    demo.page.locator("#max-new-tokens").press("Enter")
    demo.wait("status", "^Done$")
    assert demo.text("tokens") == "6"


@pytest.mark.extended
def test_the_cpu_device_tells_why_there_is_no_program(demo: Demo) -> None:
    demo.page.select_option("#device-choice", "wasm")
    demo.page.click("#run")
    demo.wait("status", "^Done$")
    assert (demo.text("device"), demo.text("capture"), demo.text("tokens")) == ("wasm", "off", "6")
    assert "there is no program for the CPU: its products require" in demo.text("capture-note")


def test_stop_ends_a_run_midway_and_the_next_one_works(demo: Demo) -> None:
    demo.set(max_new_tokens="200")
    demo.hold_after(3)
    demo.page.click("#run")
    demo.wait("tokens", r"^([3-9]|\d\d+)$")
    assert demo.page.evaluate(STOP).startswith("Stopped")
    count = int(demo.text("tokens"))
    assert 3 <= count < 200
    assert demo.text("finish") == "stop"
    assert float(demo.text("speed")) > 0
    assert not demo.page.locator("#error").is_visible()
    demo.set(max_new_tokens="6", prompt="def fibonacci(n):")
    demo.send()
    assert demo.text("tokens") == "6"


@pytest.mark.extended
def test_a_stop_string_ends_a_run_before_it(demo: Demo) -> None:
    demo.send()
    whole = demo.answer()
    stop = whole[len(whole) // 2 :][:3]
    demo.set(stop_strings=stop, prompt="def fibonacci(n):")
    demo.send()
    demo.set(stop_strings="")
    assert demo.answer() == whole.partition(stop)[0] != ""
    assert demo.text("finish") == "stop"


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("temperature", "-1", "temperature is -1.0; it must be at least 0"),
        ("top-p", "1.5", "top_p is 1.5; it must be from 0 to 1"),
        ("run-ahead", "65", "run_ahead is 65; it must be from 1 to 64"),
        ("max-new-tokens", "0", "max_new_tokens is 0; it must be at least 1"),
        ("top-k", "1.5", "top_k is 1.5; it must be a whole number"),
        ("prompt", "", "The prompt is empty"),
    ],
)
def test_a_bad_value_is_explained_at_its_field_and_the_next_run_works(
    field: str, value: str, message: str, demo: Demo
) -> None:
    demo.page.select_option("#search", "sample")
    right = demo.page.input_value("#" + field)
    demo.page.fill("#" + field, value)
    demo.page.click("#run")
    alert = demo.page.get_by_role("alert")
    expect(alert).to_contain_text(message, timeout=RUN_MS)
    expect(demo.page.locator("#" + field)).to_have_attribute("aria-invalid", "true")
    expect(demo.page.locator("#" + field)).to_be_focused()
    assert (demo.text("capture"), demo.text("capture-note")) == ("–", ""), "nothing is prepared"
    demo.page.fill("#" + field, right)
    if field != "prompt":
        assert demo.page.input_value("#prompt") == "def fibonacci(n):", "what was asked is not lost"
    demo.page.keyboard.press("Control+Enter")
    demo.wait("status", "^Done$")
    expect(alert).to_be_hidden()
    expect(demo.page.locator("[aria-invalid]")).to_have_count(0)


@pytest.mark.extended
def test_an_error_of_python_has_its_traceback(demo: Demo) -> None:
    demo.page.select_option("#search", "sample")
    demo.set(temperature="-1")
    demo.page.click("#run")
    traceback = demo.page.locator("#error-traceback")
    expect(demo.page.locator("#error-code")).to_have_text("OptionError", timeout=RUN_MS)
    expect(traceback).to_be_hidden()
    demo.page.locator("#error-details > summary").click()
    expect(traceback).to_be_visible()
    lines = traceback.inner_text().strip().split("\n")
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == f"capstan.errors.OptionError: {demo.text('error-message')}"
    demo.set(temperature="0.7")
    demo.clear_status()
    demo.page.keyboard.press("Meta+Enter")
    demo.wait("status", "^Done$")
    expect(traceback).to_be_hidden()


@pytest.mark.extended
def test_a_seed_repeats_a_sampled_run(demo: Demo) -> None:
    demo.page.select_option("#search", "sample")
    texts = []
    for seed in ("7", "7", "8"):
        demo.set(seed=seed, max_new_tokens="12", prompt="def fibonacci(n):")
        demo.send()
        texts.append(demo.answer())
    demo.set(seed="")
    assert texts[0] == texts[1]
    assert texts[1] != texts[2]


def test_stored_weights_are_listed_verified_and_removed(demo: Demo) -> None:
    demo.send()
    demo.wait("stored-note", "^Kept in this origin's private file system.$")
    rows = demo.page.locator("#stored-rows tr")
    row = rows.filter(has_text="nano-llama/model.onnx.data")
    expect(row).to_contain_text("232 kB")
    others = rows.filter(has_not_text="nano-llama/model.onnx.data")
    for left in reversed(range(others.count())):  # models of the tests before
        others.first.get_by_role("button", name="Remove").click()
        expect(others).to_have_count(left)
    expect(row).to_contain_text("complete")
    with demo.sized(390, 844):
        assert demo.page.evaluate("() => document.documentElement.scrollWidth") == 390, "a phone scrolls one way only"
    row.get_by_role("button", name="Verify nano-llama/model.onnx.data").click()
    demo.wait("stored-note", "^Every byte is as it was stored. Kept")
    row.get_by_role("button", name="Remove nano-llama/model.onnx.data").click()
    demo.wait("stored-note", "^232 kB removed. Kept .* Nothing is stored.$")
    expect(demo.page.locator("#stored-table")).to_be_hidden()
    demo.page.select_option("#device-choice", "wasm")
    demo.set(prompt="def fibonacci(n):")
    demo.send()
    expect(row).to_contain_text("complete", timeout=RUN_MS)


def test_no_request_leaves_the_origin(demo: Demo, site: SiteServer) -> None:
    worker = [address for address in demo.addresses if "/capstan/" in address]
    assert len(worker) >= 5, "the worker's own requests are seen"
    assert {urlsplit(address).netloc for address in demo.addresses} == {urlsplit(site.url).netloc}


@pytest.mark.extended
def test_without_isolation_the_page_works(browser: Browser, site: SiteServer) -> None:
    """As from a web server that does not send the headers."""
    context = browser.new_context()

    def strip(route: Route) -> None:
        response = route.fetch()
        headers = {name: value for name, value in response.headers.items() if not name.startswith("cross-origin-")}
        route.fulfill(response=response, headers=headers)

    context.route("**/*", strip)
    page = context.new_page()
    page.goto(site.url)
    assert page.evaluate("() => crossOriginIsolated") is False
    page.select_option("#model", value=page.locator("#model option[data-name=nano-llama]").get_attribute("value"))
    page.fill("#max-new-tokens", "4")
    page.fill("#prompt", "def fibonacci(n):")
    page.click("#run")
    expect(page.locator("#status")).to_have_text("Done", timeout=BOOT_MS)
    assert page.inner_text("#tokens") == "4"
    context.close()


@pytest.mark.extended
def test_a_worker_that_does_not_start_is_reported(browser: Browser, site: SiteServer) -> None:
    context = browser.new_context()
    refuses = [True]
    context.route("**/python.json", lambda route: route.abort() if refuses else route.continue_())
    page = context.new_page()
    page.goto(site.url)
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("The worker is not running", timeout=BOOT_MS)
    expect(alert).to_contain_text("Reload the page")
    refuses.clear()
    page.select_option("#model", value=page.locator("#model option[data-name=nano-llama]").get_attribute("value"))
    page.fill("#max-new-tokens", "4")
    page.fill("#prompt", "def fibonacci(n):")
    page.click("#run")
    expect(page.locator("#status")).to_have_text("Done", timeout=BOOT_MS)
    expect(alert).to_be_hidden()
    context.close()


@pytest.mark.extended
def test_a_model_of_a_hub_runs_and_an_address_that_is_none_is_pointed_out(demo: Demo, tmp_path: Path) -> None:
    folder = lay_out(LLAMA, tmp_path / "nano")
    with running_hub({"nano/llama": Repository(folder), "nano/private": Repository(folder, private=True)}) as hub:
        demo.set(repository="nano/llama", hub=hub.url)
        demo.page.click("#run")
        demo.wait("status", "^Done$")
        prompt = oracle.prompt(LLAMA, "def fibonacci(n):")
        assert demo.answer() == oracle.text(LLAMA, oracle.greedy(LLAMA, prompt, 6))
        demo.set(repository="nano/private", token="hub_reader", revision="v9", prompt="def fibonacci(n):")
        demo.page.click("#run")
        demo.wait("error-message", "v9")
        demo.set(revision="main")
        demo.send()
        assert demo.answer() == oracle.text(LLAMA, oracle.greedy(LLAMA, prompt, 6))
        demo.set(repository="nano/llama", token="", revision="")
        asked = len(hub.requests)
        assert asked
        demo.set(hub="hub.test", prompt="def fibonacci(n):")
        demo.page.click("#run")
        demo.wait("error-message", "^hub is 'hub.test', but must be an address and begin with https:// or http://$")
        assert demo.page.get_attribute("#hub", "aria-invalid") == "true"
        assert len(hub.requests) == asked


def test_known_models_are_offered_with_their_sizes_and_come_from_the_hub(demo: Demo) -> None:
    page = demo.page
    offered = [(model.id, model.bytes) for model in capstan.models]
    options = page.locator("#model optgroup option")
    assert options.evaluate_all("all => all.map(({ value }) => value)") == [name for name, _ in offered]
    first, size = offered[0]
    assert size == 98_362_432
    expect(options.first).to_have_text("SmolLM2-135M-Instruct, 98.4 MB")
    page.context.route("https://huggingface.co/**", lambda route: route.abort())
    page.select_option("#model", value=first)
    expect(page.locator("#chosen")).to_have_text("SmolLM2-135M-Instruct")
    page.select_option("#search", "sample")
    assert [page.get_attribute(f"#{name}", "placeholder") for name in ("temperature", "top-p")] == ["0.2", "0.9"]
    page.select_option("#search", "")
    expect(page.locator("#model-note")).to_have_text(
        re.compile("^SmolLM2-135M-Instruct, 135 M parameters, 98.4 MB, Apache-2.0, 8,192 tokens at most. From https://")
    )
    assert not any("huggingface.co" in address for address in demo.addresses), "choosing asks nobody"
    page.click("#fit")
    expect(page.locator("#fit-note")).to_have_text(re.compile("huggingface.co"), timeout=RUN_MS)
    hub = {"repository": first, "hub": "https://huggingface.co", "revision": None, "token": None}
    assert demo.requests("plan")[-1]["model"] == hub
    choose(page)


def test_a_known_model_that_the_site_has_is_listed_once(browser: Browser, site: SiteServer) -> None:
    first = next(iter(capstan.models)).id
    name = first.split(":")[1].removesuffix(".gguf")
    page = browser.new_page()
    page.route("**/models/index.json", lambda route: route.fulfill(json=[{"name": name, "url": "models/bundled/"}]))
    page.goto(site.url)
    expect(page.locator("#model > option")).to_have_text(name)
    values = page.locator("#model optgroup option").evaluate_all("all => all.map(({ value }) => value)")
    assert values == [model.id for model in capstan.models][1:]
    page.close()


LISTS = {
    "object": ({"models": []}, ["bundled"]),
    "number": (5, ["bundled"]),
    "entries": (
        [
            *(None, 5, [], {}, {"name": 1, "url": "models/bundled/"}, {"name": "x", "url": "http://["}),
            {"name": "a", "url": "models/a/", "facts": 5, "chat": "no"},
            {"name": "b", "url": "models/b/", "facts": {"name": "B", "title": 1, "search": None}},
            {"name": "c", "url": "models/c/", "bytes": "many"},
        ],
        ["a", "b"],
    ),
}


@pytest.mark.parametrize("form", list(LISTS))
def test_a_list_of_models_of_another_form_leaves_the_page_usable(form: str, browser: Browser, site: SiteServer) -> None:
    given, names = LISTS[form]
    page = browser.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.route("**/models/index.json", lambda route: route.fulfill(json=given))
    page.goto(site.url)
    expect(page.locator("#model > option")).to_have_text(names)
    expect(page.locator("#chosen")).to_have_text(names[0])
    page.close()
    assert not faults


def test_the_fit_of_a_model_is_told_before_it_is_loaded(demo: Demo) -> None:
    choose(demo.page, "nano-gemma3")
    demo.page.click("#fit")
    told = re.compile(r"Fits webgpu: about [\d.]+ [kM]B for ([\d,]+) tokens, [\d.]+ [kM]B of it weights")
    expect(demo.page.locator("#fit-note")).to_have_text(told, timeout=RUN_MS)
    assert demo.text("fit-note").endswith("Nothing of it is stored in this browser.")
    assert not any("nano-gemma3/model.onnx.data" in address for address in demo.addresses), "no weights were read"
    choose(demo.page)
    assert demo.text("fit-note") == ""
    demo.send()
    demo.page.click("#fit")
    expect(demo.page.locator("#fit-note")).to_have_text(re.compile(r"232 kB of it is stored in this browser"))


def test_a_model_is_chosen_from_all_whether_it_fits_is_told_and_what_is_stored_of_it_is_deleted(demo: Demo) -> None:
    page = demo.page
    demo.send()
    page.get_by_role("button", name="nano-llama", exact=True).click()
    models = page.locator("#models .model")
    row = models.filter(has=page.get_by_role("button", name="Use nano-llama", exact=True))
    expect(row).to_have_attribute("aria-current", "true")
    expect(row).to_contain_text("in use")
    expect(row).to_contain_text("Continues a text; it has no chat template.")
    expect(row).to_contain_text("Stored in this browser: 232 kB.", timeout=RUN_MS)
    expect(page.locator("#models-note")).to_contain_text("of weights is stored in this browser; there is room for ")
    hub = models.filter(has_text="SmolLM2-135M-Instruct")
    expect(hub).to_contain_text("135 M parameters, 98.4 MB, Apache-2.0, 8,192 tokens at most")
    expect(hub).to_contain_text("Nothing of it is stored.")
    expect(hub.get_by_role("button", name="Delete")).to_have_count(0)
    row.get_by_role("button", name="Does it fit? nano-llama").click()
    expect(row.get_by_role("status")).to_have_text(re.compile(r"^Fits webgpu: .* kB for "), timeout=RUN_MS)
    row.get_by_role("button", name="Delete what is stored of nano-llama").click()
    expect(row).to_contain_text("Nothing of it is stored.", timeout=RUN_MS)
    page.get_by_role("button", name="Use nano-qwen2", exact=True).click()
    expect(page.locator("#models")).to_be_hidden()
    expect(page.locator("#chosen")).to_have_text("nano-qwen2")
    expect(page.locator("#prompt")).to_be_focused()
    choose(page)
    demo.hold(3)
    page.click("#chosen")
    expect(page.locator("#models-note")).to_contain_text("A run is under way")
    expect(page.get_by_role("button", name="Use nano-qwen2", exact=True)).to_be_disabled()
    page.keyboard.press("Escape")
    expect(page.locator("#models")).to_be_hidden()
    expect(page.locator("#conversation")).to_have_attribute("aria-busy", "true")
    page.click("#stop")


def test_the_form_shows_and_leaves_alone_how_a_models_tokens_are_picked(demo: Demo) -> None:
    page = demo.page
    page.select_option("#search", "")
    usual = page.locator("#search option").first
    expect(usual).to_have_text("usual for the model: the most probable")
    expect(page.locator("#temperature")).to_be_hidden()
    demo.send()
    assert demo.requests("generate")[-1]["search"] == {}
    page.select_option("#search", "sample")
    shown = {name: page.get_attribute(f"#{name}", "placeholder") for name in ("temperature", "top-k", "top-p", "min-p")}
    assert shown == {"temperature": "1", "top-k": "50", "top-p": "1", "min-p": "0"}
    assert [page.input_value(f"#{name}") for name in shown] == ["", "", "", ""]
    page.select_option("#search", "")
    page.evaluate("() => { location.hash = 'model=nano-llama&top_k=3'; }")
    expect(page.locator("#top-k")).to_have_value("3")
    expect(page.locator("#top-k")).to_be_visible()
    demo.set(prompt="def fibonacci(n):")
    demo.send()
    assert demo.requests("generate")[-1]["search"] == {"do_sample": True, "top_k": 3}
    demo.set(top_k="")
    page.locator("#top-k").blur()
    expect(page.locator("#top-k")).to_be_hidden()


FIELDS = {
    "max_new_tokens": ("5", 5),
    "run_ahead": ("2", 2),
}
SEARCH = {
    "temperature": ("0.9", 0.9),
    "top_k": ("30", 30),
    "top_p": ("0.8", 0.8),
    "min_p": ("0.01", 0.01),
    "random_seed": ("11", 11),
    "repetition_penalty": ("1.1", 1.1),
    "frequency_penalty": ("0.2", 0.2),
    "presence_penalty": ("0.1", 0.1),
    "no_repeat_ngram_size": ("3", 3),
    "min_length": ("7", 7),
    "stop_strings": ("a\\nb", ["a\nb"]),
}
CHOICES = {"search": "sample", "device": "webgpu", "capture": "off"}
ELSEWHERE = {
    *("model", "folder", "repository", "hub", "revision", "token", "dtype"),
    *("schema", "system", "processor", "transcriber", "voice"),
}
"""Fields that other tests fill."""


def test_every_option_is_in_the_request_and_a_chat_has_its_instruction(demo: Demo) -> None:
    choose(demo.page, "nano-qwen2")
    names = set(demo.page.evaluate("() => [...document.getElementById('form').elements].map(({ name }) => name)"))
    assert names - {""} == {*FIELDS, *SEARCH, *CHOICES, *ELSEWHERE}, "a new field is to be tried here"
    for name, value in CHOICES.items():
        demo.page.locator(f"select[name={name}]").select_option(value)
    for name, (value, _) in {**FIELDS, **SEARCH}.items():
        demo.page.locator(f"[name={name}]").fill(value)
    demo.page.locator("[name=system]").fill("Be brief.")
    demo.set(prompt="Hello")
    demo.send()
    asked = demo.requests("chat")[-1]
    assert asked["search"] == {"do_sample": True, **{name: value for name, (_, value) in SEARCH.items()}}
    assert {name: asked[name] for name in FIELDS} == {name: value for name, (_, value) in FIELDS.items()}
    assert (asked["device"], asked["capture"], asked["dtype"]) == ("webgpu", "off", None)
    assert [message["role"] for message in asked["messages"]] == ["system", "user"]
    assert demo.text("capture") == "off"
    for name in [*SEARCH, "system"]:
        field = demo.page.locator(f"[name={name}]")
        field.fill(str(field.evaluate("field => field.defaultValue")))
    demo.page.locator("select[name=dtype]").select_option("q4")
    demo.set(prompt="Hello")
    demo.page.click("#run")
    demo.wait("error-message", "^dtype is 'q4', but .* names the only graph; leave it out$")
    expect(demo.page.locator("select[name=dtype]")).to_have_attribute("aria-invalid", "true")
    demo.page.locator("select[name=dtype]").select_option("")


@pytest.mark.extended
@pytest.mark.parametrize("way", ["picked", "refused", "dropped"])
def test_a_folder_of_this_machine_runs(way: str, demo: Demo) -> None:
    files = {path.name: list(path.read_bytes()) for path in LLAMA.iterdir()}
    if way == "picked":
        demo.page.evaluate(OFFER, files)
        demo.page.click("#pick")
    elif way == "refused":
        demo.page.evaluate(OFFER, None)
        with demo.page.expect_file_chooser() as chooser:
            demo.page.click("#pick")
        chooser.value.set_files(LLAMA)
    else:
        demo.page.evaluate(DROP, files)
    note = demo.page.locator("#model-note")
    expect(note).to_have_text("On this machine.")
    demo.send()
    prompt = oracle.prompt(LLAMA, "def fibonacci(n):")
    assert demo.answer() == oracle.text(LLAMA, oracle.greedy(LLAMA, prompt, 6))


def test_a_dropped_picture_goes_with_the_message_and_is_no_model(demo: Demo) -> None:
    chosen = demo.page.locator("#model").input_value()
    for names, told in (
        (["cat.png"], ["cat.png"]),
        (["a.png", "b.txt"], ["cat.png", "a.png", "b.txt"]),
    ):
        demo.page.evaluate(DROP, {name: [137, 80, 78, 71] for name in names})
        attached = demo.page.locator("#files .attached > :not(button)")
        expect(attached).to_have_count(len(told))
        assert attached.evaluate_all("all => all.map((each) => each.alt ?? each.textContent)") == told
        assert demo.page.locator("#model").input_value() == chosen
    for button in demo.page.get_by_role("button", name="Remove ").all()[::-1]:
        button.click()


@pytest.mark.extended
def test_an_address_runs_and_a_folder_that_cannot_be_read_is_told(demo: Demo, site: SiteServer) -> None:
    demo.page.evaluate(DROP_GONE)
    expect(demo.page.locator("#model-note")).to_have_text("dropped cannot be read: it is gone")
    demo.set(folder=f"{site.url}models/nano-llama")
    demo.page.locator("#prompt").press("End")
    demo.page.keyboard.press("Shift+Enter")
    assert demo.page.input_value("#prompt") == "def fibonacci(n):\n", "a line, and no run"
    demo.page.keyboard.press("Backspace")
    demo.clear_status()
    demo.page.keyboard.press("Enter")
    demo.wait("status", "^Done$")
    prompt = oracle.prompt(LLAMA, "def fibonacci(n):")
    assert demo.answer() == oracle.text(LLAMA, oracle.greedy(LLAMA, prompt, 6))
    assert demo.requests("generate")[-1]["model"] == f"{site.url}models/nano-llama/"


def test_an_answer_is_held_to_a_schema_and_a_wrong_one_is_pointed_out(demo: Demo) -> None:
    demo.set(schema='{"enum": ["yes"]}')
    demo.send()
    assert demo.answer() == '"yes"'
    demo.page.click("#schema-example")
    assert json.loads(demo.page.input_value("#schema"))["type"] == "object"
    demo.set(schema="{", prompt="def fibonacci(n):")
    demo.page.click("#run")
    expect(demo.page.locator("#schema")).to_have_attribute("aria-invalid", "true", timeout=RUN_MS)
    expect(demo.page.locator("#error-code")).to_have_text("GuidanceError")
    demo.set(schema="")


@pytest.mark.extended
def test_stop_ends_a_download_and_the_next_run_goes_on(demo: Demo) -> None:
    held: list[Route] = []
    demo.page.context.route("**/nano-phi4/model.onnx.data", lambda route: held.append(route))
    choose(demo.page, "nano-phi4")
    demo.page.click("#run")
    deadline = time.monotonic() + BOOT_MS / 1000
    while not held and time.monotonic() < deadline:
        demo.page.wait_for_timeout(50)
    demo.page.click("#stop")
    demo.wait("status", "^Stopped; what was downloaded is kept")
    demo.page.context.unroute("**/nano-phi4/model.onnx.data")
    demo.set(prompt="def fibonacci(n):")
    demo.send()
    assert demo.text("tokens") == "6"
    demo.errors.clear()  # The request that was held ends as an error.
