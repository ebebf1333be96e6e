"""The demo page, used as a person uses it: type, run, read, stop, correct a mistake."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, Route, Worker, expect

from buildtools.server import SiteServer
from tests import oracle
from tests.browser.hub_server import Repository, running_hub
from tests.browser.model_variants import LLAMA
from tests.harness import watch
from tests.repository_layout import lay_out

WATCH_TEXT = """() => {
  const [text, status, run, stop, output] = ['text', 'status', 'run', 'stop', 'output'].map(
    (id) => document.getElementById(id),
  );
  const watch = (element, look, seen) => {
    new MutationObserver(() => seen.push(look())).observe(element, { childList: true });
    return seen;
  };
  window.seen = {
    text: watch(text, () => text.textContent, []),
    status: watch(status, () => status.textContent, []),
    busy: watch(text, () => [run.disabled, stop.disabled, output.getAttribute('aria-busy')], []),
  };
}"""
HOLD = """() => {
  const { postMessage } = self;
  const { mapAsync } = GPUBuffer.prototype;
  let told = 0;
  let most = Infinity;
  let released;
  self.postMessage = (message) => {
    if (message.event?.kind === 'text') told++;
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
request is cancelled."""
BOOT_MS = 120_000
RUN_MS = 120_000
CHOOSE = {"#model": "nano-llama", "#device-choice": "webgpu", "#capture-choice": "tape"}


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
    for selector, label in CHOOSE.items():
        booted.page.select_option(selector, label=label)
    booted.page.select_option("#search", "greedy")
    booted.set(prompt="def fibonacci(n):", max_new_tokens="6", run_ahead="", repository="", hub="")
    yield booted
    assert not booted.faults()


def test_a_run_streams_text_and_tells_how_it_was_computed(demo: Demo) -> None:
    demo.page.evaluate(WATCH_TEXT)
    demo.page.click("#run")
    demo.wait("status", "^Done$")
    assert demo.text("tokens") == "6"
    seen = demo.page.evaluate("() => window.seen")
    assert len(set(seen["text"])) >= 4, f"the text came as {seen['text']}, not token by token"
    assert all(busy == [True, False, "true"] for busy in seen["busy"]), seen["busy"]
    loading = re.compile(r"Loading model.onnx.data: [\d.]+ [kM]B of [\d.]+ [kM]B")
    assert any(loading.fullmatch(status) for status in seen["status"]), seen["status"]
    assert demo.text("echo") == "def fibonacci(n):"
    assert demo.text("text")
    assert float(demo.text("speed")) > 0
    assert re.fullmatch(r"\d+ ms|\d+\.\d s", demo.text("first"))
    assert (demo.text("finish"), demo.text("device")) == ("length", "webgpu")
    assert (demo.text("capture"), demo.text("capture-note")) == ("tape", "")
    assert re.search(r"\w+ .*\((software|hardware)\)", demo.text("adapter"))
    expect(demo.page.locator("#output")).to_have_attribute("aria-busy", "false")
    expect(demo.page.locator("#run")).to_be_enabled()


def test_the_counters_of_the_decode_steps_are_shown_per_step(demo: Demo) -> None:
    demo.page.keyboard.press("Control+Enter")
    demo.wait("status", "^Done$")
    demo.page.evaluate("() => { document.querySelector('#counters').open = true; }")
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
    demo.worker.evaluate("tokens => holdAfter(tokens)", 3)
    demo.page.click("#run")
    demo.wait("tokens", r"^([3-9]|\d\d+)$")
    demo.page.click("#stop")
    demo.wait("status", "^Stopped")
    count = int(demo.text("tokens"))
    assert 3 <= count < 200
    assert demo.text("finish") == "stop"
    assert float(demo.text("speed")) > 0
    assert not demo.page.locator("#error").is_visible()
    demo.set(max_new_tokens="6")
    demo.page.click("#run")
    demo.wait("status", "^Done$")
    assert demo.text("tokens") == "6"


def test_a_stop_string_ends_a_run_before_it(demo: Demo) -> None:
    demo.page.click("#run")
    demo.wait("status", "^Done$")
    whole = str(demo.page.text_content("#text"))
    stop = whole[len(whole) // 2 :][:3]
    demo.set(stop_strings=stop)
    demo.page.click("#run")
    demo.wait("status", "^Done$")
    demo.set(stop_strings="")
    assert demo.page.text_content("#text") == whole.partition(stop)[0] != ""
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
    demo.page.keyboard.press("Control+Enter")
    demo.wait("status", "^Done$")
    expect(alert).to_be_hidden()
    expect(demo.page.locator("[aria-invalid]")).to_have_count(0)


def test_a_seed_repeats_a_sampled_run(demo: Demo) -> None:
    demo.page.select_option("#search", "sample")
    texts = []
    for seed in ("7", "7", "8"):
        demo.set(seed=seed, max_new_tokens="12")
        demo.page.click("#run")
        demo.wait("status", "^Done$")
        texts.append(demo.text("text"))
    demo.set(seed="")
    assert texts[0] == texts[1]
    assert texts[1] != texts[2]


def test_stored_weights_are_listed_verified_and_removed(demo: Demo) -> None:
    demo.page.click("#run")
    demo.wait("status", "^Done$")
    demo.page.click("#stored summary")
    demo.wait("stored-note", "^Kept in this origin's private file system.$")
    row = demo.page.locator("#stored-rows tr").filter(has_text="nano-llama/model.onnx.data")
    expect(row).to_contain_text("232 kB")
    expect(row).to_contain_text("complete")
    usual = demo.page.viewport_size
    assert usual is not None
    demo.page.set_viewport_size({"width": 390, "height": 844})
    assert demo.page.evaluate("() => document.documentElement.scrollWidth") == 390, "a phone scrolls one way only"
    demo.page.set_viewport_size(usual)
    row.get_by_role("button", name="Verify nano-llama/model.onnx.data").click()
    demo.wait("stored-note", "^Every byte is as it was stored. Kept")
    row.get_by_role("button", name="Remove nano-llama/model.onnx.data").click()
    demo.wait("stored-note", "^232 kB removed. Kept .* Nothing is stored.$")
    expect(demo.page.locator("#stored-table")).to_be_hidden()
    demo.page.select_option("#device-choice", "wasm")
    demo.page.click("#run")
    demo.wait("status", "^Done$")
    expect(row).to_contain_text("complete", timeout=RUN_MS)
    demo.page.click("#stored summary")


def test_every_control_has_a_name(demo: Demo) -> None:
    demo.page.select_option("#search", "sample")
    for role in ("textbox", "combobox", "spinbutton", "button"):
        for control in demo.page.get_by_role(role).all():
            snapshot = control.aria_snapshot()
            assert re.match(rf'- {role} "[^"]+"', snapshot), snapshot


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
    page.select_option("#model", label="nano-llama")
    page.fill("#max-new-tokens", "4")
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
    page.select_option("#model", label="nano-llama")
    page.fill("#max-new-tokens", "4")
    page.click("#run")
    expect(page.locator("#status")).to_have_text("Done", timeout=BOOT_MS)
    expect(alert).to_be_hidden()
    context.close()


def test_a_model_of_a_hub_runs_and_an_address_that_is_none_is_pointed_out(demo: Demo, tmp_path: Path) -> None:
    with running_hub({"nano/llama": Repository(lay_out(LLAMA, tmp_path / "nano"))}) as hub:
        demo.set(repository="nano/llama", hub=hub.url)
        demo.page.click("#run")
        demo.wait("status", "^Done$")
        prompt = oracle.encode(LLAMA, "def fibonacci(n):")
        assert demo.text("text") == oracle.decode(LLAMA, oracle.greedy(LLAMA, prompt, 6))
        asked = len(hub.requests)
        assert asked
        demo.set(hub="hub.test")
        demo.page.click("#run")
        demo.wait("error-message", "^hub is 'hub.test', but must be an address and begin with https:// or http://$")
        assert demo.page.get_attribute("#hub", "aria-invalid") == "true"
        assert len(hub.requests) == asked
