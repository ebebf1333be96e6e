"""The page in browsers that are not Chromium, and without what only some have: ids equal the oracle's everywhere."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from capstan_host.site_server import SiteServer
from capstan_host.testing.harness import Harness, before_worker
from tests import oracle
from tests.browser.least_limits import LEAST
from tests.browser.page_scripts import PageScripts
from tests.other_browsers import harness_in

FIXTURES = Path(__file__).parents[1] / "fixtures"
PROMPT = [5, 6, 7, 8, 9]
WITHOUT_WAITING = "delete WebAssembly.Suspending; delete WebAssembly.promising;"
NO_SHARED_MEMORY = "no memory is shared, because the page is not cross-origin isolated"
AWAITS = """
import sys

import capstan

model = await capstan.Model.load(models["nano-llama"], device=sys.argv[1])
params = capstan.GeneratorParams(model)
params.set_search_options(max_length=12)
async with capstan.Generator(model, params) as generator:
    generator.append_tokens([5, 6, 7, 8, 9])
    try:
        generator.generate_next_token()
    except capstan.AsyncRequiredError as error:
        print(error)
    while not generator.is_done():
        await generator.generate_next_token_async()
    print(generator.get_sequence())
"""


def told_to_await(harness: Harness, device: str) -> None:
    """A script's blocking call raises AsyncRequiredError, its asynchronous twin works."""
    done = harness.exec(AWAITS, ["nano-llama"], [device])
    assert done.status == 0, done.stderr
    refusal, sequence = done.stdout.splitlines()
    assert "generate_next_token_async" in refusal
    assert json.loads(sequence) == [*PROMPT, *oracle.greedy(FIXTURES / "nano-llama", PROMPT, 7)]


def completed(harness: Harness, name: str, device: str, **options: Any) -> dict[str, Any]:
    """A greedy completion of 16 tokens, which must be the oracle's."""
    found = harness.generate(name, prompt_ids=PROMPT, max_new_tokens=16, device=device, **options)
    assert found["token_ids"] == oracle.greedy(FIXTURES / name, PROMPT, 16)
    assert not harness.errors
    return found


COMPLETES = """async (device) => {
  const chat = document.querySelector("capstan-chat").shadowRoot;
  const element = (id) => document.getElementById(id) ?? chat.getElementById(id);
  const until = async (done) => {
    while (!done()) await new Promise((resolve) => setTimeout(resolve, 50));
  };
  await until(() => element("status").textContent.startsWith("Ready"));
  const { options } = element("model");
  element("model").value = [...options].find(({ text }) => text.startsWith("nano-llama")).value;
  element("model").dispatchEvent(new Event("change", { bubbles: true }));
  element("device-choice").value = device;
  element("device-choice").dispatchEvent(new Event("change", { bubbles: true }));
  element("search").value = "greedy";
  element("search").dispatchEvent(new Event("change", { bubbles: true }));
  element("prompt").value = "def fibonacci(n):";
  element("max-new-tokens").value = "6";
  element("run").click();
  await until(() => element("status").textContent === "Done" || !element("error").hidden);
  const read = (id) => element(id).textContent;
  return [read("error-message"), read("tokens"), read("finish"), read("device"), read("capture"), read("adapter")];
}"""


def complete_in_the_demo(harness: Harness, url: str, device: str) -> list[str]:
    """A completion in the demo page of the same browser: error, tokens, finish, device, capture, GPU adapter."""
    harness.page.goto(url)
    found: list[str] = harness.page.evaluate(COMPLETES, device)
    assert not harness.errors
    return found


class TestFirefox:
    """A second WebGPU: wgpu and naga, with other validation and other limits, on Mesa's lavapipe."""

    @pytest.fixture(scope="class")
    @classmethod
    def harness(cls, site: SiteServer) -> Iterator[Harness]:
        with harness_in("firefox", site.url) as harness:
            yield harness

    @pytest.fixture(scope="class")
    @classmethod
    def scripts(cls, harness: Harness) -> PageScripts:
        return PageScripts.install(harness)

    @pytest.mark.extended
    def test_a_tape_is_recorded_and_fused(self, harness: Harness) -> None:
        found = completed(harness, "nano-llama", "webgpu")
        assert (found["device"], found["capture"], found["capture_note"]) == ("webgpu", "tape", None)
        assert found["tape_passes"]["fused"].endswith("1 of them as recorded")

    @pytest.mark.extended
    def test_sampling_is_the_references(self, harness: Harness) -> None:
        search = {"do_sample": True, "random_seed": 5, "temperature": 1.3, "top_k": 50, "top_p": 0.95, "min_p": 0.01}
        found = [
            harness.generate("nano-llama", prompt_ids=PROMPT, max_new_tokens=16, device=device, search=search)
            for device in ("webgpu", "wasm")
        ]
        assert found[0]["token_ids"] == found[1]["token_ids"]
        assert found[0]["capture"] == "tape"

    @pytest.mark.extended
    def test_the_least_limits_are_enough_and_weights_are_in_parts(self, scripts: PageScripts) -> None:
        call = {"model": "nano-blocks", "prompt": PROMPT, "count": 16, "times": 1, "limits": LEAST, "largest": 16384}
        found = scripts.run("adapters", "limited", "nano-blocks", **call)
        assert found["ids"] == [oracle.greedy(FIXTURES / "nano-blocks", PROMPT, 16)]
        assert [parts for _, parts, _ in found["split"]] == [8, 2]
        assert (found["capture"], found["note"]) == ("tape", None)
        assert found["passes"]["fused"].endswith(" 0 of them as recorded")

    @pytest.mark.extended
    def test_a_lost_device_is_told_and_a_new_load_works(self, scripts: PageScripts) -> None:
        found = scripts.run("faults", "in_a_burst", "nano-llama", what="device")
        assert found["error"]["type"] == "DeviceLostError"
        assert found["fresh"] == oracle.greedy(FIXTURES / "nano-llama", PROMPT, 12)

    @pytest.mark.extended
    @pytest.mark.parametrize("device", ["webgpu", "wasm"])
    def test_a_stored_state_continues(self, device: str, scripts: PageScripts) -> None:
        call = {"model": "nano-llama", "prompt": PROMPT, "load": {"device": device}}
        ids, reused = scripts.run("saving", "stored", "nano-llama", **call)
        assert ids == oracle.greedy(FIXTURES / "nano-llama", PROMPT, 12)[4:]
        assert reused == len(PROMPT) + 3

    @pytest.mark.extended
    def test_the_demo_completes_a_prompt(self, harness: Harness, site: SiteServer) -> None:
        *told, adapter = complete_in_the_demo(harness, site.url, "webgpu")
        assert told == ["", "6", "the limit", "webgpu", "tape"]
        assert re.fullmatch(r"(an adapter that the browser does not name|.+, by WebGL's name) \(software\)", adapter)


class TestWebKit:
    """Neither WebGPU nor JavaScript Promise Integration nor shared memory."""

    @pytest.fixture(scope="class")
    @classmethod
    def harness(cls, site: SiteServer) -> Iterator[Harness]:
        with harness_in("webkit", site.url) as harness:
            yield harness

    def test_the_cpu_computes_and_the_reason_is_told(self, harness: Harness) -> None:
        found = completed(harness, "nano-llama", "auto")
        assert (found["device"], found["adapter"]) == ("wasm", f"cpu (wasm, 1 thread: {NO_SHARED_MEMORY})")
        assert "this browser offers no WebGPU adapter" in found["capture_note"]

    def test_webgpu_is_refused_with_what_to_do(self, harness: Harness) -> None:
        error = harness.error("nano-llama", prompt_ids=PROMPT, max_new_tokens=4)
        assert error.type == "DeviceUnavailableError"
        assert 'use the device "auto" or "wasm"' in error.message

    def test_a_script_awaits_and_is_told_where_it_would_have_to_wait(self, harness: Harness) -> None:
        told_to_await(harness, "wasm")

    @pytest.mark.extended
    def test_the_demo_completes_a_prompt(self, harness: Harness, site: SiteServer) -> None:
        *told, _ = complete_in_the_demo(harness, site.url, "auto")
        assert told == ["", "6", "the limit", "wasm", "off"]


class TestWithoutPromiseIntegration:
    """Chromium without what Python needs to wait within a call."""

    @pytest.fixture(scope="class")
    @classmethod
    def harness(cls, browser: Browser, site: SiteServer) -> Iterator[Harness]:
        page = browser.new_page()
        before_worker(page, WITHOUT_WAITING)
        yield Harness(page, site.url)
        page.close()

    @pytest.mark.extended
    def test_a_tape_is_recorded_and_fused(self, harness: Harness) -> None:
        assert completed(harness, "nano-llama", "webgpu")["capture"] == "tape"

    def test_a_script_awaits_and_is_told_where_it_would_have_to_wait(self, harness: Harness) -> None:
        told_to_await(harness, "webgpu")
