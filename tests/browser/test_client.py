"""The page's handle on the worker."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path

import pytest
from playwright.sync_api import Page

from capstan_host.site_server import SiteServer
from capstan_host.testing.harness import before_worker
from tests.browser.hub_server import Repository, running_hub
from tests.repository_layout import lay_out

FIXTURES = Path(__file__).parents[1] / "fixtures"

START = """async () => {
  const { Client } = await import("/capstan/capstan.js");
  try {
    await Client.start({ base: "/capstan/" });
    return "it started";
  } catch (error) {
    return `${error.code}: ${error.message}`;
  }
}"""
ISOLATED = {"Cross-Origin-Embedder-Policy": "require-corp", "Cross-Origin-Resource-Policy": "same-origin"}
OUT_OF_ORDER = "setInterval(() => 0, 1000); setTimeout(() => { throw new Error('out of order'); });"


def test_a_worker_that_fails_while_it_starts_is_ended(blank_page: Page, page_errors: list[str]) -> None:
    answer = {"content_type": "text/javascript", "headers": ISOLATED, "body": OUT_OF_ORDER}
    blank_page.route("**/worker.js", lambda route: route.fulfill(**answer))
    message = blank_page.evaluate(START)
    assert message.startswith("StartError: the worker failed: ")
    assert "out of order" in message
    deadline = time.monotonic() + 60
    while blank_page.workers and time.monotonic() < deadline:
        blank_page.wait_for_timeout(50)
    assert blank_page.workers == []
    page_errors.clear()


SHARED = """async (shared) => {
  const { Capstan } = await import("/capstan/capstan.js");
  const loading = Capstan.load("/models/nano-llama/", { device: "wasm", shared });
  return loading.then(() => "it started", (error) => error.message);
}"""


@pytest.mark.one_in(2)
@pytest.mark.parametrize("shared", [False, True])
def test_a_worker_whose_script_says_nothing_is_given_up(blank_page: Page, shared: bool) -> None:
    """As half a file, whose last statement is whole by chance."""
    answer = {"content_type": "text/javascript", "headers": ISOLATED, "body": "var half;"}
    blank_page.context.route("**/worker.js", lambda route: route.fulfill(**answer))
    message = blank_page.evaluate(SHARED, shared)
    assert "worker.js can be loaded and its worker says nothing: the file is not whole" in message
    blank_page.context.unroute("**/worker.js")


COUNTING = """{
const request = GPUAdapter.prototype.requestDevice;
globalThis.devicesRequested = 0;
GPUAdapter.prototype.requestDevice = function (...given) {
  globalThis.devicesRequested++;
  return request.apply(this, given);
};
}
"""
"""In front of worker.js."""
EXPECTING = """async (expected) => {
  const { Client } = await import("/capstan/capstan.js");
  window.printed = "";
  const onEvent = (event) => (window.printed += event.kind === "stdout" || event.kind === "stderr" ? event.text : "");
  window.capstan = await Client.start({ base: "/capstan/", onEvent, expected });
}"""
LOAD = """
import json
import capstan, js

found = [js.devicesRequested]
async with await capstan.Model.load("/models/nano-llama/", device="webgpu", capture="off"):
    found.append(js.devicesRequested)
async with await capstan.Model.load("/models/nano-llama/", device="webgpu", capture="off"):
    found.append(js.devicesRequested)
print(json.dumps(found))
"""
ASK = """async (source) => {
  const request = { kind: "exec", source, filename: "load.py", argv: [], models: {}, files: {} };
  const reply = await window.capstan.request(request);
  return [reply, window.printed];
}"""
AHEAD = ["genai_config.json", "model.onnx", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]


def test_what_is_expected_is_fetched_and_opened_while_python_starts(blank_page: Page) -> None:
    before_worker(blank_page, COUNTING)
    asked: Counter[str] = Counter()
    blank_page.on("request", lambda request: asked.update([request.url.rpartition("/models/nano-llama/")[2]]))
    blank_page.evaluate(EXPECTING, {"model": "/models/nano-llama", "device": "webgpu"})
    assert {name: asked[name] for name in AHEAD} == dict.fromkeys(AHEAD, 1), "Python has not asked for anything yet"
    reply, printed = blank_page.evaluate(ASK, LOAD)
    assert reply == {"ok": True, "result": {"status": 0}}, (reply, printed)
    assert json.loads(printed) == [1, 1, 1], "the first load takes the device that is there and leaves it to the second"
    assert {name: asked[name] for name in AHEAD} == dict.fromkeys(AHEAD, 2), "a file that was fetched serves one read"


LOAD_REPOSITORY = """
import capstan

repository = %s
async with await capstan.Model.load(repository, device="wasm", dtype="q4"):
    pass
"""
SMALL = ["config.json", "onnx/model_q4.onnx", "tokenizer.json", "tokenizer_config.json"]


@pytest.mark.extended
def test_a_repository_may_be_expected(
    blank_page: Page, page_errors: list[str], site: SiteServer, tmp_path: Path
) -> None:
    site.models["expected"] = lay_out(FIXTURES / "nano-llama", tmp_path / "expected")
    asked: Counter[str] = Counter()
    blank_page.on("request", lambda request: asked.update([request.url.rpartition("/models/expected/")[2]]))
    blank_page.evaluate(EXPECTING, {"model": "/models/expected/", "dtype": "q4", "device": "wasm"})
    names = [*SMALL, "genai_config.json", "generation_config.json", "chat_template.jinja"]
    assert {name: asked[name] for name in names} == dict.fromkeys(names, 1)
    reply, printed = blank_page.evaluate(ASK, LOAD_REPOSITORY % repr("/models/expected/"))
    assert reply == {"ok": True, "result": {"status": 0}}, (reply, printed)
    page_errors.clear()  # of files that are not there
    # How large the graph is, is asked for by itself.
    assert {name: asked[name] for name in names} == dict.fromkeys(names, 1) | {"onnx/model_q4.onnx": 2}


@pytest.mark.extended
def test_a_repository_of_a_hub_may_be_expected(blank_page: Page, tmp_path: Path) -> None:
    folder = lay_out(FIXTURES / "nano-llama", tmp_path / "nano")
    with running_hub({"nano/expected": Repository(folder)}) as hub:
        model = {"repository": "nano/expected", "hub": hub.url, "revision": None, "token": None}
        blank_page.evaluate(EXPECTING, {"model": model, "dtype": "q4", "device": "wasm"})

        def asked() -> Counter[str]:
            return Counter(
                request.path.rpartition("/resolve/")[2]
                for request in hub.requests
                if request.server == "hub" and "onnx_data" not in request.path
            )

        commit = hub.repositories["nano/expected"].commit
        first = asked()
        assert first == Counter([f"{commit}/{name}" for name in SMALL] + ["/api/models/nano/expected/revision/main"])
        load = LOAD_REPOSITORY % f"capstan.HubRepository('nano/expected', {hub.url!r})"
        reply, printed = blank_page.evaluate(ASK, load)
        assert reply == {"ok": True, "result": {"status": 0}}, (reply, printed)
        assert asked() == first


def test_of_an_expected_file_of_a_hub_its_repository_is_opened(blank_page: Page, tmp_path: Path) -> None:
    (tmp_path / "nano").mkdir()
    (tmp_path / "nano/model.gguf").write_bytes(b"GGUF")
    with running_hub({"nano/expected": Repository(tmp_path / "nano")}) as hub:
        model = {"repository": "nano/expected:model.gguf", "hub": hub.url, "revision": None, "token": None}
        blank_page.evaluate(EXPECTING, {"model": model, "device": "wasm"})
        asked, *_ = [request.path for request in hub.requests]
        assert asked == "/api/models/nano/expected/revision/main"
