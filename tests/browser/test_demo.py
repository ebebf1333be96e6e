"""The demo page, used as a person uses it: type, run, read, stop, correct a mistake."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, Route, Worker, expect

from buildtools import BUILD, ROOT
from buildtools.server import SiteServer
from tests import oracle
from tests.browser.hub_server import Repository, running_hub
from tests.browser.model_variants import LLAMA
from tests.harness import watch
from tests.repository_layout import lay_out

WATCH_TEXT = """() => {
  const [turns, status, run, stop, output] = ['turns', 'status', 'run', 'stop', 'conversation'].map(
    (id) => document.getElementById(id),
  );
  const composer = document.querySelector('.composer');
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
STOP = """() => new Promise((resolve) => {
  const begun = performance.now();
  new MutationObserver(() => resolve(performance.now() - begun)).observe(document.getElementById('status'), {
    childList: true,
  });
  document.getElementById('stop').click();
})"""
"""Click Stop; the milliseconds until the page says so."""
HOLD = """() => {
  const { postMessage } = self;
  const { mapAsync } = GPUBuffer.prototype;
  const picked = (self.picked = []);
  const requests = (self.requests = []);
  addEventListener('message', ({ data }) => data.tag === 'request' && requests.push(data.request));
  let told = 0;
  let most = Infinity;
  let released;
  self.postMessage = (message) => {
    if (message.event?.kind === 'text') told++;
    if (message.event?.token_id !== undefined) picked.push(message.event.token_id);
    postMessage(message);
  };
  GPUBuffer.prototype.mapAsync = async function (...given) {
    await mapAsync.apply(this, given);
    if (told >= most) await released;
  };
  self.holdAfter = (tokens) => {
    told = 0;
    most = tokens;
    released = new Promise((resolve) => {
      addEventListener('message', ({ data }) => {
        if (data.request?.kind !== 'cancel') return;
        most = Infinity;
        resolve();
      });
    });
  };
}"""
"""In the worker, before it has a device: after `holdAfter(n)` no readback arrives once n tokens were told, until a
request is cancelled. `picked` are the ids that were told, `requests` those that came."""
WATCH_SHIFTS = """() => {
  const shifts = [];
  new PerformanceObserver((list) => shifts.push(...list.getEntries())).observe({ type: 'layout-shift' });
  let begun = 0;
  let ended = 0;
  let length = 0;
  const turns = document.getElementById('turns');
  new MutationObserver(() => {
    const shown = turns.querySelector('.text')?.textContent.length ?? 0;
    if (shown <= length) return;
    length = shown;
    begun ||= performance.now();
    ended = performance.now();
  }).observe(turns, { childList: true, subtree: true });
  window.shifts = async () => {
    const frame = () => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
    document.querySelector('.write').style.marginBottom = '80px';
    await frame();
    await frame();
    document.querySelector('.write').style.marginBottom = '';
    await frame();
    await new Promise((resolve) => setTimeout(resolve, 300));
    const during = shifts.filter(({ startTime }) => startTime >= begun && startTime <= ended);
    const elements = during.flatMap(({ sources }) => sources.map(({ node }) => node?.parentElement)).filter(Boolean);
    // Within the answer a word that has no room on its line goes to the next one.
    const outside = elements.filter((moved) => !moved.closest('.turn'));
    const streaming = outside.map(({ outerHTML }) => outerHTML.slice(0, 80));
    return { seen: shifts.some(({ startTime }) => startTime > ended), streaming };
  };
}"""
"""Watch for layout shifts from the first text of an answer to its last; `shifts()` makes one besides."""
NAMELESS = """
  const { requestAdapter } = GPU.prototype;
  GPU.prototype.requestAdapter = async function (...given) {
    const adapter = await requestAdapter.apply(this, given);
    const names = { vendor: '', architecture: '', device: '', description: '' };
    if (adapter) Object.defineProperty(adapter, 'info', { value: names });
    return adapter;
  };
  const { getContext } = HTMLCanvasElement.prototype;
  HTMLCanvasElement.prototype.getContext = function (kind, ...given) {
    if (kind !== 'webgl') return getContext.call(this, kind, ...given);
    return { RENDERER: 7937, getExtension: () => null, getParameter: (name) => name === 7937 && 'A GPU of WebGL' };
  };
"""
"""An adapter as Firefox tells of it, and a WebGL that knows the GPU."""
DROP = """(files) => {
  const dataTransfer = new DataTransfer();
  for (const [name, bytes] of Object.entries(files)) dataTransfer.items.add(new File([new Uint8Array(bytes)], name));
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
REFUSE = """() => {
  const { setItem } = Storage.prototype;
  const refuse = () => { throw new DOMException('refused by the test', 'SecurityError'); };
  Storage.prototype.setItem = refuse;
  navigator.clipboard.writeText = async () => refuse();
  window.restore = () => {
    Storage.prototype.setItem = setItem;
    delete navigator.clipboard.writeText;
  };
}"""
EDGES = """() => {
  const inside = document.getElementById('inside');
  const fields = [...document.querySelectorAll('aside input, aside select, aside textarea')];
  const options = fields.filter((field) => !inside.contains(field) && field.checkVisibility());
  const ends = options.map((field) => field.getBoundingClientRect().bottom);
  return [Math.max(...ends), inside.getBoundingClientRect().top];
}"""
"""Where the last option ends, and where the diagnostics begin, in pixels."""
PICTURES = BUILD / "pictures" / "demo"
THEMES = ("dark", "light")
WIDTHS = (320, 768, 1280)
BOOT_MS = 120_000
RUN_MS = 120_000
CHOOSE = {"#device-choice": "webgpu", "#capture-choice": "tape"}


def choose(page: Page, model: str = "nano-llama") -> None:
    """Choose a model of the site, and by which way its steps are computed."""
    page.select_option("#model", value=page.locator(f"#model option[data-name='{model}']").get_attribute("value"))
    for selector, label in CHOOSE.items():
        page.select_option(selector, label=label)


@dataclass
class Demo:
    """The booted page, what went wrong in it, and every address it or its worker asked for."""

    page: Page
    errors: list[str]
    addresses: list[str]

    @property
    def worker(self) -> Worker:
        """The one that runs Python; the other, which starts onnxruntime-web beside it, ends by itself. Threads of
        onnxruntime-web on the CPU are workers too, of onnxruntime-web's own file."""
        deadline = time.monotonic() + BOOT_MS / 1000
        while len(found := self.python_workers()) > 1 and time.monotonic() < deadline:
            self.page.wait_for_timeout(50)
        [worker] = found
        return worker

    def python_workers(self) -> list[Worker]:
        return [worker for worker in self.page.workers if worker.url.endswith("/worker.js")]

    def set(self, **fields: str) -> None:
        """Fill fields by id, `_` for `-`."""
        for name, value in fields.items():
            self.page.fill("#" + name.replace("_", "-"), value)

    def text(self, name: str) -> str:
        return self.page.inner_text("#" + name)

    def answer(self) -> str:
        """What the model wrote last, with its spaces."""
        return str(self.page.locator("#turns .turn").last.locator(".text").text_content())

    def send(self) -> None:
        """Send what stands in the prompt, and wait for the end of the answer."""
        self.clear_status()
        self.page.click("#run")
        self.wait("status", "^Done$")

    def clear_status(self) -> None:
        """So that what it says next is seen."""
        self.page.evaluate("() => { document.getElementById('status').textContent = ''; }")

    def picked(self) -> list[int]:
        """The ids of all tokens that the worker has told of."""
        found: list[int] = self.worker.evaluate("() => picked")
        return [token for token in found if token >= 0]

    def requests(self, kind: str) -> list[dict[str, Any]]:
        """What the page has asked the worker for."""
        found: list[dict[str, Any]] = self.worker.evaluate(
            "kind => requests.filter((each) => each.kind === kind)", kind
        )
        return found

    def hold_after(self, tokens: int) -> None:
        """Let the next run stand still after some tokens, also in a worker that was started anew since."""
        if not self.worker.evaluate("() => 'holdAfter' in self"):
            self.worker.evaluate(HOLD)
        self.worker.evaluate("tokens => holdAfter(tokens)", tokens)

    def hold(self, tokens: int) -> None:
        """Begin a run that stands still after some tokens, until it is stopped."""
        self.hold_after(tokens)
        self.set(max_new_tokens="200", prompt="def fibonacci(n):")
        self.page.click("#run")
        self.wait("tokens", rf"^({tokens}|{tokens + 1}|\d\d+)$")

    def look(self) -> None:
        """Look at the tokens of the last answer, and wait for all that is told of them."""
        self.clear_status()
        self.page.get_by_role("button", name="Tokens", pressed=False).last.click()
        self.wait("status", "^Done$")

    @contextmanager
    def sized(self, width: int, height: int = 800) -> Iterator[None]:
        """The page at this size, in pixels."""
        usual = self.page.viewport_size
        assert usual is not None
        self.page.set_viewport_size({"width": width, "height": height})
        yield
        self.page.set_viewport_size(usual)

    def wait(self, name: str, text: str) -> None:
        expect(self.page.locator("#" + name)).to_have_text(re.compile(text), timeout=RUN_MS)

    def faults(self) -> list[str]:
        """What went wrong in the page so far; it is taken out of the list."""
        found = list(self.errors)
        self.errors.clear()
        return found


@pytest.fixture(scope="module")
def booted(browser: Browser, site: SiteServer) -> Iterator[Demo]:
    assert browser.is_connected(), "the browser crashed in an earlier test"
    context = browser.new_context()
    page = context.new_page()
    demo = Demo(page, watch(page, []), [])
    context.on("request", lambda request: demo.addresses.append(request.url))
    page.goto(site.url)
    expect(page.locator("#status")).to_have_text(re.compile("^Ready: Python started"), timeout=BOOT_MS)
    demo.worker.evaluate(HOLD)
    yield demo
    context.close()


@pytest.fixture
def demo(booted: Demo) -> Iterator[Demo]:
    """The page with nano-llama chosen and short, greedy runs; a console error in it fails the test."""
    booted.page.evaluate("() => { for (const part of document.querySelectorAll('aside details')) part.open = true; }")
    choose(booted.page)
    booted.page.select_option("#search", "greedy")
    if booted.page.is_enabled("#clear"):
        booted.page.click("#clear")
    booted.set(prompt="def fibonacci(n):", max_new_tokens="6", run_ahead="", repository="", hub="", folder="")
    yield booted
    assert not booted.faults()


def test_a_run_streams_text_and_tells_how_it_was_computed(demo: Demo) -> None:
    demo.page.evaluate(WATCH_TEXT)
    demo.page.click("#run")
    demo.wait("status", "^Done$")
    assert demo.text("tokens") == "6"
    seen = demo.page.evaluate("() => window.seen")
    assert len(set(seen["text"])) >= 4, f"the text came as {seen['text']}, not token by token"
    assert {tuple(busy) for busy in seen["busy"]} == {(True, False, "true")}
    assert len(set(seen["places"])) == 1, "nothing around the text moves while it comes"
    loading = re.compile(r"Loading model.onnx.data: [\d.]+ [kM]B of [\d.]+ [kM]B")
    assert any(loading.fullmatch(status) for status in seen["status"]), seen["status"]
    assert demo.page.locator("#turns .echo").all_inner_texts() == ["def fibonacci(n):"]
    assert demo.answer()
    assert float(demo.text("speed")) > 0
    assert re.fullmatch(r"\d+ ms|\d+\.\d s", demo.text("first"))
    assert (demo.text("finish"), demo.text("device")) == ("length", "webgpu")
    assert (demo.text("capture"), demo.text("capture-note")) == ("tape", "")
    assert re.search(r"\w+ .*\((software|hardware)\)", demo.text("adapter"))
    expect(demo.page.locator("#conversation")).to_have_attribute("aria-busy", "false")
    expect(demo.page.locator("#run")).to_be_enabled()


def test_the_counters_of_the_decode_steps_are_shown_per_step(demo: Demo) -> None:
    demo.page.keyboard.press("Control+Enter")
    demo.wait("status", "^Done$")
    rows = demo.page.locator("#counter-rows tr").all_inner_texts()
    shown = {name: (total, each) for name, total, each in (row.split("\t") for row in rows)}
    assert shown["decode steps"] == ("5", "1")
    assert shown["bytes read back"] == ("24", "4.8")
    assert shown["buffers created"] == shown["bind groups created"] == shown["buffer writes"] == ("0", "0")


def test_a_software_adapter_is_named_as_slow(demo: Demo) -> None:
    if "software" not in demo.text("adapter"):
        pytest.skip("this machine has a hardware adapter")
    expect(demo.page.locator("#notice")).to_be_visible()
    assert "WebGPU is software here" in demo.text("notice")
    demo.page.select_option("#device-choice", "auto")
    assert demo.text("device") == "wasm"
    assert demo.text("device-note") == "auto: the WebGPU adapter is software"
    assert not demo.page.locator("#notice").is_visible()


def test_the_cpu_device_tells_why_there_is_no_tape(demo: Demo) -> None:
    demo.page.select_option("#device-choice", "wasm")
    demo.page.click("#run")
    demo.wait("status", "^Done$")
    assert (demo.text("device"), demo.text("capture"), demo.text("tokens")) == ("wasm", "off", "6")
    assert "no GPU commands to record" in demo.text("capture-note")


def test_stop_ends_a_run_midway_and_the_next_one_works(demo: Demo) -> None:
    demo.set(max_new_tokens="200")
    demo.hold_after(3)
    demo.page.click("#run")
    demo.wait("tokens", r"^([3-9]|\d\d+)$")
    assert demo.page.evaluate(STOP) < 100
    demo.wait("status", "^Stopped")
    count = int(demo.text("tokens"))
    assert 3 <= count < 200
    assert demo.text("finish") == "stop"
    assert float(demo.text("speed")) > 0
    assert not demo.page.locator("#error").is_visible()
    demo.set(max_new_tokens="6", prompt="def fibonacci(n):")
    demo.send()
    assert demo.text("tokens") == "6"


def test_a_stop_string_ends_a_run_before_it(demo: Demo) -> None:
    demo.send()
    whole = demo.answer()
    stop = whole[len(whole) // 2 :][:3]
    demo.set(stop_strings=stop, prompt="def fibonacci(n):")
    demo.send()
    demo.set(stop_strings="")
    assert demo.answer() == whole.partition(stop)[0] != ""
    assert demo.text("finish") == "stop"


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("temperature", "-1", "temperature is -1.0; it must be at least 0"),
        ("top-p", "1.5", "top_p is 1.5; it must be from 0 to 1"),
        ("run-ahead", "65", "run_ahead is 65; it must be from 1 to 64"),
        ("max-new-tokens", "0", "max_new_tokens is 0; it must be at least 1"),
        ("top-k", "1.5", "top_k is 1.5; it must be a whole number"),
        ("prompt", "", "the prompt is empty"),
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
    row = demo.page.locator("#stored-rows tr").filter(has_text="nano-llama/model.onnx.data")
    expect(row).to_contain_text("232 kB")
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


def test_every_control_has_a_name(demo: Demo) -> None:
    demo.page.select_option("#search", "sample")
    for role in ("textbox", "combobox", "spinbutton", "button"):
        for control in demo.page.get_by_role(role).all():
            snapshot = control.aria_snapshot()
            assert re.match(rf"""- '?{role} "[^"]+""", snapshot), snapshot


def test_no_request_leaves_the_origin(demo: Demo, site: SiteServer) -> None:
    worker = [address for address in demo.addresses if "/capstan/" in address]
    assert len(worker) >= 5, "the worker's own requests are seen"
    assert {urlsplit(address).netloc for address in demo.addresses} == {urlsplit(site.url).netloc}


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


def test_a_worker_that_does_not_start_is_reported(browser: Browser, site: SiteServer) -> None:
    context = browser.new_context()
    context.route("**/python.json", lambda route: route.abort())
    page = context.new_page()
    page.goto(site.url)
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("The worker is not running", timeout=BOOT_MS)
    expect(alert).to_contain_text("Reload the page")
    context.unroute("**/python.json")
    page.select_option("#model", value=page.locator("#model option[data-name=nano-llama]").get_attribute("value"))
    page.fill("#max-new-tokens", "4")
    page.fill("#prompt", "def fibonacci(n):")
    page.click("#run")
    expect(page.locator("#status")).to_have_text("Done", timeout=BOOT_MS)
    expect(alert).to_be_hidden()
    context.close()


def test_a_model_of_a_hub_runs_and_an_address_that_is_none_is_pointed_out(demo: Demo, tmp_path: Path) -> None:
    folder = lay_out(LLAMA, tmp_path / "nano")
    with running_hub({"nano/llama": Repository(folder), "nano/private": Repository(folder, private=True)}) as hub:
        demo.set(repository="nano/llama", hub=hub.url)
        demo.page.click("#run")
        demo.wait("status", "^Done$")
        prompt = oracle.encode(LLAMA, "def fibonacci(n):")
        assert demo.answer() == oracle.decode(LLAMA, oracle.greedy(LLAMA, prompt, 6))
        demo.set(repository="nano/private", token="hub_reader", revision="v9", prompt="def fibonacci(n):")
        demo.page.click("#run")
        demo.wait("error-message", "v9")
        demo.set(revision="main")
        demo.send()
        assert demo.answer() == oracle.decode(LLAMA, oracle.greedy(LLAMA, prompt, 6))
        demo.set(repository="nano/llama", token="", revision="")
        asked = len(hub.requests)
        assert asked
        demo.set(hub="hub.test", prompt="def fibonacci(n):")
        demo.page.click("#run")
        demo.wait("error-message", "^hub is 'hub.test', but must be an address and begin with https:// or http://$")
        assert demo.page.get_attribute("#hub", "aria-invalid") == "true"
        assert len(hub.requests) == asked


def test_a_chat_goes_on_and_is_edited_kept_and_answered_again(demo: Demo) -> None:
    choose(demo.page, "nano-qwen2")
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
    assert demo.page.input_value("#prompt") == asked
    expect(demo.page.locator("#turns .replaced")).to_have_count(2)
    demo.page.keyboard.press("Escape")
    expect(demo.page.locator("#turns .replaced")).to_have_count(0)
    demo.page.get_by_role("button", name="Edit").first.click()
    demo.page.click("#keep")
    assert (demo.page.input_value("#prompt"), len(echoes.all())) == ("", 2)
    demo.page.get_by_role("button", name="Edit").last.click()
    demo.set(prompt="Or else?")
    demo.send()
    assert echoes.all_inner_texts() == [asked, "Or else?"]
    demo.clear_status()
    demo.page.get_by_role("button", name="Answer again").first.click()
    demo.wait("status", "^Done$")
    assert (echoes.all_inner_texts(), demo.answer()) == ([asked], first), "the first answer, as it was"
    demo.page.click("#clear")
    expect(demo.page.locator("#welcome")).to_be_visible()


def test_tokens_are_looked_at_and_an_answer_goes_on_from_one(demo: Demo) -> None:
    demo.send()
    answer, prompt = demo.answer(), oracle.encode(LLAMA, "def fibonacci(n):")
    ids = oracle.greedy(LLAMA, prompt, 6)
    demo.look()
    tokens = demo.page.locator("#turns .tokens [role=button]")
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
    assert demo.answer().startswith(oracle.decode(LLAMA, [ids[0], second]))
    demo.look()
    tokens.nth(1).click()
    demo.clear_status()
    demo.page.get_by_role("button", name="Pick anew from here").click()
    demo.wait("status", "^Done$")
    assert demo.answer() == answer
    demo.look()
    demo.page.get_by_role("button", name="Tokens", pressed=True).click()
    expect(tokens).to_have_count(0)
    assert demo.answer() == answer


def test_a_token_of_a_chat_is_replaced_and_the_conversation_goes_on(demo: Demo) -> None:
    choose(demo.page, "nano-qwen2")
    demo.set(prompt="Hello")
    demo.send()
    first = demo.answer()
    demo.set(prompt="And then?")
    demo.send()
    second = demo.answer()
    demo.look()
    tokens = demo.page.locator("#turns .tokens [role=button]")
    tokens.nth(3).click()
    panel = demo.page.get_by_role("region", name="The chosen token")
    assert panel.locator("li").first.inner_text().split("\n")[0].endswith("(taken)"), "it was picked greedily"
    demo.clear_status()
    panel.get_by_role("button", name="Pick anew").click()
    demo.wait("status", "^Done$")
    assert demo.answer() == second
    assert demo.page.locator("#turns .text").first.text_content() == first


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


def test_the_drawer_says_why_there_are_no_operations(demo: Demo) -> None:
    demo.page.select_option("#device-choice", "wasm")
    demo.page.click("#drawer-open")
    demo.page.click("#tape-ask")
    demo.wait("tape-note", "^The steps run with capture off. the decode steps of this generator run with capture 'off'")
    assert demo.page.locator("#tape-strip .piece").count() == 0
    demo.page.locator("#drawer").get_by_role("button", name="Close").click()


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
    *("model", "folder", "repository", "hub", "revision", "token", "prompt", "dtype"),
    *("schema", "system", "processor"),
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
    demo.page.locator("[name=prompt]").fill("Hello")
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
    demo.wait("error-message", "^dtype is 'q4', but .* names the one graph there is; leave it out$")
    expect(demo.page.locator("select[name=dtype]")).to_have_attribute("aria-invalid", "true")
    demo.page.locator("select[name=dtype]").select_option("")


def test_nothing_jumps_while_an_answer_streams(demo: Demo) -> None:
    demo.set(max_new_tokens="60")
    demo.page.evaluate(WATCH_SHIFTS)
    demo.send()
    shifts = demo.page.evaluate("() => window.shifts()")
    assert demo.text("tokens") == "60"
    assert shifts["seen"], "the observer sees a shift that is made"
    assert shifts["streaming"] == []


def test_an_answer_and_a_link_are_copied_and_the_theme_is_kept(demo: Demo) -> None:
    demo.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    demo.send()
    copied = "() => navigator.clipboard.readText()"
    demo.page.get_by_role("button", name="Copy", exact=True).click()
    expect(demo.page.get_by_role("button", name="Copied")).to_be_visible()
    assert demo.page.evaluate(copied) == "def fibonacci(n):" + demo.answer()
    demo.page.click("#share")
    expect(demo.page.locator("#share")).to_have_text("Copied")
    link = demo.page.evaluate(copied)
    assert link.startswith(demo.page.url.partition("#")[0] + "#")
    assert "prompt=def+fibonacci%28n%29%3A" in link
    ground = "() => getComputedStyle(document.documentElement).backgroundColor"
    demo.page.select_option("#theme", "light")
    light = demo.page.evaluate(ground)
    demo.page.select_option("#theme", "dark")
    assert demo.page.evaluate(ground) != light
    assert demo.page.evaluate("() => localStorage.getItem('capstan-theme')") == "dark"
    demo.page.select_option("#theme", "")


def test_where_nothing_may_be_kept_or_copied_theme_and_link_work(demo: Demo) -> None:
    demo.page.evaluate(REFUSE)
    ground = "() => getComputedStyle(document.documentElement).backgroundColor"
    demo.page.select_option("#theme", "light")
    light = demo.page.evaluate(ground)
    demo.page.select_option("#theme", "dark")
    assert demo.page.evaluate(ground) != light
    demo.page.click("#share")
    expect(demo.page.locator("#share")).to_have_text("In the address")
    assert "prompt=def+fibonacci%28n%29%3A" in demo.page.url
    demo.page.select_option("#theme", "")
    demo.page.evaluate("() => restore()")


def test_an_adapter_without_a_name_has_webgls(browser: Browser, site: SiteServer) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.add_init_script(NAMELESS)
    page.goto(site.url)
    adapter = page.locator("#adapter")
    expect(adapter).to_have_text(re.compile("^A GPU of WebGL, by WebGL's name \\((software|hardware)\\)$"))
    context.close()


ONLY = """import capstan


@capstan.logits_processor
def only(tokens, logits):
    for token in range(len(logits)):
        if token != {token}:
            logits[token] = float("-inf")
"""


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
    before = demo.answer().count(oracle.decode(LLAMA, [333]))
    assert before >= 5, "the answer goes on behind what it had"
    assert demo.answer().count(oracle.decode(LLAMA, [344])) == 200 - before
    assert told[-1] == 344
    demo.set(processor="1 / 0", prompt="def fibonacci(n):", max_new_tokens="6")
    demo.page.click("#run")
    demo.wait("error-message", "the processor's code defines none; put a function under")
    expect(demo.page.locator("#processor")).to_have_attribute("aria-invalid", "true")
    demo.page.click("#processor-example")
    demo.page.fill("#processor", "1 / 0\n" + ONLY.format(token=3))
    demo.page.click("#run")
    demo.wait("error-message", "^ZeroDivisionError: division by zero$")
    assert demo.text("error-title") == "ProcessorError"
    demo.set(processor="")
    demo.send()


def percents(logits: np.ndarray) -> list[float]:
    """The probabilities of all tokens, the largest first."""
    powers = np.exp(logits.astype(np.float64) - logits.max())
    return sorted((100 * powers / powers.sum()).tolist(), reverse=True)


def test_settings_are_in_the_address_and_taken_from_it_but_no_token(demo: Demo) -> None:
    demo.page.select_option("#search", "sample")
    demo.page.fill("#temperature", "0.3")
    demo.page.fill("#token", "secret")
    demo.page.locator("#token").blur()
    assert "temperature=0.3" in demo.page.url
    assert "secret" not in demo.page.url
    demo.page.evaluate("() => { location.hash = 'model=nano-qwen2&temperature=1.2&min_p=0.1&token=other&prompt=a+b'; }")
    expect(demo.page.locator("#chosen")).to_have_text("nano-qwen2")
    values = [demo.page.input_value("#" + name) for name in ("temperature", "min-p", "token", "prompt")]
    assert values == ["1.2", "0.1", "secret", "a b"]
    demo.set(temperature="0.7", min_p="", token="")


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
    expect(note).to_have_text("A folder of this machine.")
    demo.send()
    prompt = oracle.encode(LLAMA, "def fibonacci(n):")
    assert demo.answer() == oracle.decode(LLAMA, oracle.greedy(LLAMA, prompt, 6))


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
    prompt = oracle.encode(LLAMA, "def fibonacci(n):")
    assert demo.answer() == oracle.decode(LLAMA, oracle.greedy(LLAMA, prompt, 6))
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
    assert demo.text("error-title") == "GuidanceError"
    demo.set(schema="")


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


@pytest.mark.extended
def test_no_state_theme_or_width_has_anything_that_axe_or_an_eye_would_find(demo: Demo) -> None:
    """The pictures are left in PICTURES, for eyes."""
    page = demo.page
    page.evaluate("() => {" + (ROOT / "node_modules/axe-core/axe.min.js").read_text() + "}")
    shutil.rmtree(PICTURES, ignore_errors=True)
    found: dict[str, list[str]] = {}

    def look(state: str) -> None:
        found[state] = accessibility(page, state)

    look("welcome, settings open")
    page.evaluate("() => { for (const part of document.querySelectorAll('aside details')) part.open = false; }")
    look("settings closed")
    page.evaluate("() => { for (const part of document.querySelectorAll('aside details')) part.open = true; }")
    demo.hold(3)
    look("streaming")
    page.click("#stop")
    look("stopped")
    page.click("#clear")
    demo.set(max_new_tokens="6", prompt="def fibonacci(n):")
    demo.send()
    look("answered")
    demo.look()
    page.locator("#turns .tokens [role=button]").nth(2).click()
    look("tokens looked at")
    page.get_by_role("button", name="Edit").click()
    look("edited")
    demo.set(prompt="")
    page.click("#run")
    look("refused")
    page.click("#drawer-open")
    page.click("#tape-ask")
    demo.wait("tape-note", "operations, in the order")
    look("drawer")
    page.keyboard.press("Escape")
    page.click("#race-open")
    demo.hold_after(2)
    page.click("#race-start")
    demo.wait("race-note", "Preparing the decode step|Generating|generating")
    look("race running")
    page.click("#race-stop")
    demo.wait("race-note", "^Stopped")
    look("race stopped")
    page.keyboard.press("Escape")
    page.context.route("**/nano-qwen2/tokenizer.json", lambda route: route.fulfill(status=404, body="no such file"))
    choose(page, "nano-qwen2")
    demo.set(prompt="def fibonacci(n):")
    page.click("#run")
    demo.wait("error-title", "^ModelFileError$")
    look("a model that cannot be loaded")
    page.context.unroute("**/nano-qwen2/tokenizer.json")
    demo.errors.clear()  # Chromium writes of each 404.
    assert not any(found.values()), found
    assert len(list(PICTURES.glob("*.png"))) == len(found) * len(THEMES) * len(WIDTHS)


@pytest.mark.parametrize("width", WIDTHS)
def test_options_are_above_diagnostics(width: int, demo: Demo) -> None:
    with demo.sized(width):
        options, diagnostics = demo.page.evaluate(EDGES)
    assert options <= diagnostics


@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_ends_where_its_content_ends(width: int, demo: Demo) -> None:
    demo.send()
    expect(demo.page.locator("#stored-table")).to_be_visible(timeout=RUN_MS)
    with demo.sized(width):
        end = demo.page.evaluate("() => document.documentElement.scrollHeight")
        content = demo.page.evaluate("() => document.querySelector('main').getBoundingClientRect().bottom")
    assert end <= max(800, content + 1)


def accessibility(page: Page, state: str) -> list[str]:
    """What axe finds in the page as it is, in both themes at each width, of all of which a picture is kept."""
    usual = page.viewport_size
    assert usual is not None
    PICTURES.mkdir(parents=True, exist_ok=True)
    found = []
    for theme in THEMES:
        page.evaluate("theme => { document.documentElement.dataset.theme = theme; }", theme)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 800})
            page.screenshot(path=PICTURES / f"{state}, {theme}, {width}.png", full_page=True)
            assert page.evaluate("() => document.documentElement.scrollWidth") == width, "it scrolls one way only"
            violations = page.evaluate(
                "async () => (await axe.run(document, { resultTypes: ['violations'] })).violations"
            )
            for violation in violations:
                places = [node["html"][:200] for node in violation["nodes"]]
                found.append(f"{theme}, {width} pixels: {violation['help']}: {places}")
    page.evaluate("() => { document.documentElement.dataset.theme = ''; }")
    page.set_viewport_size(usual)
    return found


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
    demo.page.click("#race-start")
    demo.wait("race-note", "^Preparing")
    demo.page.click("#race-stop")
    demo.wait("race-note", "^Stopped")
    demo.page.keyboard.press("Escape")
    expect(demo.page.locator("#race")).to_be_hidden()
    demo.send()
