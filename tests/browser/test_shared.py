"""Pages that share one worker and its model (`shared: true`): they join it, take turns, and leave it."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from buildtools.site import assemble
from capstan_host.headless.static_server import running
from tests import oracle
from tests.browser.weight_server import WeightServer
from tests.plain_server import serving_plainly

FIXTURES = Path(__file__).parents[1] / "fixtures"
LLAMA, QWEN = FIXTURES / "nano-llama", FIXTURES / "nano-qwen2"
PROMPT = [5, 6, 7, 8, 9]
LONG_MS = 240_000
WAIT_SECONDS = 60

LOAD = """async ([model, options]) => {
  const { Capstan } = await import("/capstan/capstan.js");
  window.events = [];
  const onEvent = (event, id) => window.events.push([event.kind, id, event.text ?? event.reason ?? event.what ?? null]);
  try {
    window.llm = await Capstan.load(`/models/${model}`, { device: "wasm", shared: true, onEvent, ...options });
  } catch ({ code, message }) {
    return [code, message];
  }
  const { shared, sharedNote, loadTimes } = window.llm.stats();
  return { shared, sharedNote, loadTimes };
}"""
COMPLETE = """async ([prompt, maxTokens]) => {
  const run = window.llm.complete(prompt, { maxTokens, temperature: 0 });
  return run.result.then(
    ({ tokenIds, finishReason, requestId }) => ({ tokenIds, finishReason, requestId }),
    ({ code, message }) => ({ code, message }),
  );
}"""
CLIENT = """async ([name, options]) => {
  const { Client } = await import("/capstan/capstan.js");
  const shared = { name, device: "wasm" };
  window.client = await Client.start({ shared, ...options });
  return window.client.sharing;
}"""
SCRIPT = {"kind": "exec", "filename": "script.py", "argv": ["script.py"], "models": {}, "files": {}}
PYTHON = """async (source) => {
  const told = [];
  const { client } = window.llm;
  return client
    .request({ ...SCRIPT, source }, ({ kind, text }) => kind === "stdout" && told.push(text))
    .then(() => told.join("").trim(), ({ code }) => code);
}""".replace("SCRIPT", json.dumps(SCRIPT))
"""A script in the shared worker, where `llm.python` puts none."""


@dataclass
class Pages:
    """Pages of one profile, and the server of their models."""

    browser: Browser
    context: BrowserContext
    server: WeightServer
    errors: list[str] = field(default_factory=list)

    def open(self, script: str = "") -> Page:
        page = self.context.new_page()
        page.set_default_timeout(LONG_MS)
        if script:
            page.add_init_script(script)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda said: self.errors.append(said.text) if said.type == "error" else None)
        page.goto(self.server.url + "blank.html")
        return page

    def load(self, model: str = "nano-llama", page: Page | None = None, **options: Any) -> tuple[Page, Any]:
        page = page or self.open()
        return page, page.evaluate(LOAD, [model, options])

    def workers(self) -> list[str]:
        """The kinds of the workers that live: each shared one, and one for all others, which may have threads."""
        session = self.browser.new_browser_cdp_session()
        try:
            targets = session.send("Target.getTargets", {"filter": [{}]})["targetInfos"]
        finally:
            session.detach()
        own = (target for target in targets if target.get("browserContextId") in self.known(targets))
        kinds = [target["type"] for target in own if "worker" in target["type"]]
        return ["shared_worker"] * kinds.count("shared_worker") + ["worker"] * ("worker" in kinds)

    def known(self, targets: list[dict[str, Any]]) -> set[str]:
        """The context of these pages, by their address."""
        return {target["browserContextId"] for target in targets if target["url"].startswith(self.server.url)}

    def until(self, workers: list[str]) -> None:
        """Wait until these workers live, and no others."""
        end = time.monotonic() + WAIT_SECONDS
        while (found := self.workers()) != workers:
            assert time.monotonic() < end, f"there are {found} instead of {workers}"
            time.sleep(0.1)


@pytest.fixture
def pages(browser: Browser) -> Iterator[Pages]:
    server = WeightServer(assemble(), {"nano-llama": LLAMA, "nano-qwen2": QWEN})
    with running(server), browser.new_context() as context:
        made = Pages(browser, context, server)
        yield made
    assert not made.errors


def ids(answer: dict[str, Any]) -> list[int]:
    assert "tokenIds" in answer, answer
    return list(answer["tokenIds"])


def test_a_second_page_joins_the_model_and_fetches_nothing(pages: Pages) -> None:
    first, loaded = pages.load(device="webgpu")
    assert loaded["shared"], loaded
    assert loaded["sharedNote"] is None
    pages.server.forget()
    second = pages.open()
    before = {request.path for request in pages.server.requests}
    _, joined = pages.load(page=second, device="webgpu")
    assert joined == loaded, "it is the model of the first page"
    fetched = {request.path for request in pages.server.requests} - before
    assert fetched <= {"/capstan/capstan.js", "/capstan/worker.js"}, fetched
    assert pages.workers() == ["shared_worker"]
    expected = oracle.greedy(LLAMA, PROMPT, 12)
    for page in (first, second, first):
        assert ids(page.evaluate(COMPLETE, [PROMPT, 12])) == expected
    own, _ = pages.load(shared=False)
    assert ids(own.evaluate(COMPLETE, [PROMPT, 12])) == expected
    assert pages.workers() == ["shared_worker", "worker"]


def test_a_page_that_comes_while_the_model_loads_waits_for_it(pages: Pages) -> None:
    """Both hear of the load, and the weights are sent once."""
    begin = f"(given) => {{ window.loading = ({LOAD})(given); }}"
    first, second = pages.open(), pages.open()
    for page in (first, second):
        page.evaluate(begin, ["nano-llama", {}])
    found = [page.evaluate("window.loading") for page in (first, second)]
    assert found[0] == found[1]
    assert found[0]["shared"], found
    for page in (first, second):
        told = [text for _, _, text in page.evaluate("window.events")]
        assert "model.onnx.data" in told, told
    data = "/models/nano-llama/model.onnx.data"
    assert pages.server.sent[data] == (LLAMA / "model.onnx.data").stat().st_size


@pytest.mark.extended
def test_pages_that_load_something_else_share_nothing(pages: Pages) -> None:
    pages.load()
    pages.load("nano-qwen2")
    pages.load(capture="off")
    assert pages.workers() == ["shared_worker"] * 3


BOTH = """async ([prompt, maxTokens]) => {
  const heard = [];
  window.events.length = 0;
  const runs = [0, 1, 2].map(() => window.llm.complete(prompt, { maxTokens, temperature: 0 }));
  const results = await Promise.all(runs.map((run) => run.result));
  const texts = window.events.filter(([kind]) => kind === "text").map(([, id, text]) => [id, text]);
  return { texts, results: results.map(({ requestId, text, tokenIds }) => ({ requestId, text, tokenIds })) };
}"""


@pytest.mark.extended
def test_events_go_to_the_page_that_asked(pages: Pages) -> None:
    asked = {pages.load(device="webgpu")[0]: prompt for prompt in ([5, 6, 7], [9, 8, 7, 6])}
    begin = f"(given) => {{ window.running = ({BOTH})(given); }}"
    for page, prompt in asked.items():
        page.evaluate(begin, [prompt, 10])
    for page, prompt in asked.items():
        found = page.evaluate("window.running")
        for result in found["results"]:
            assert result["tokenIds"] == oracle.greedy(LLAMA, prompt, 10)
            told = "".join(text for number, text in found["texts"] if number == result["requestId"])
            assert told == result["text"]
        assert {number for number, _ in found["texts"]} == {result["requestId"] for result in found["results"]}


SAY = """async (said) => {
  window.session ??= window.llm.session();
  const { tokenIds, keptTokens } = await window.session.send(said, { maxTokens: 6, temperature: 0 }).result;
  return { tokenIds, keptTokens };
}"""
CHAT = """async (said) => {
  const { tokenIds, keptTokens } = await window.llm.chat(
    [{ role: "user", content: said }], { maxTokens: 6, temperature: 0 }).result;
  return { tokenIds, keptTokens };
}"""


@pytest.mark.extended
def test_conversations_of_pages_do_not_mix(pages: Pages) -> None:
    """Both call their session the same, and both chat without one."""
    said = (("hello", "more"), ("good day to you", "and then"))
    alone = []
    for texts in said:
        page, _ = pages.load("nano-qwen2")
        alone.append([page.evaluate(SAY, text) for text in texts])
        alone[-1] += [page.evaluate(CHAT, "one"), page.evaluate(CHAT, "one")]
        page.close()
        pages.until([])
    assert [answer["keptTokens"] > 0 for answer in alone[0]] == [False, True, False, True]
    both = [pages.load("nano-qwen2")[0], pages.load("nano-qwen2")[0]]
    found = [[page.evaluate(SAY, texts[0])] for page, texts in zip(both, said, strict=True)]
    for page, texts, answers in zip(both, said, found, strict=True):
        answers += [page.evaluate(SAY, texts[1]), page.evaluate(CHAT, "one")]
    both[1].evaluate(CHAT, "something else")
    found[0].append(both[0].evaluate(CHAT, "one"))
    assert found[0] == alone[0]
    assert found[1] == alone[1][:3]


ANSWER = "Promise.race([window.answer, new Promise((resolve) => setTimeout(resolve, 90000, {}))])"
KEPT = "from capstan.page.request_handler import handler\nprint(len(handler.session.conversations))"


@pytest.mark.extended
def test_the_run_of_a_closed_page_ends_and_its_sessions_are_given_back(pages: Pages) -> None:
    first, second = (pages.load("nano-qwen2")[0] for _ in range(2))
    second.evaluate(CHAT, "one")
    first.evaluate(SAY, "hello")
    first.evaluate(CHAT, "hello")
    assert second.evaluate(PYTHON, KEPT) == "3"
    sleep = "import asyncio\nawait asyncio.sleep(600)"
    first.evaluate(f"(source) => {{ void ({PYTHON})(source); void window.llm.complete([5, 6]); }}", sleep)
    second.wait_for_timeout(300)
    second.evaluate(f"() => {{ window.answer = ({CHAT})('one'); }}")
    first.close()
    assert second.evaluate(ANSWER).get("keptTokens"), "the run of the closed page goes on"
    assert second.evaluate(PYTHON, KEPT) == "1"


OWN = "(code) => window.llm.python(code).then(({ stdout }) => stdout.trim(), ({ code }) => code)"


def test_a_script_that_never_ends_keeps_no_other_page_waiting(pages: Pages) -> None:
    """It runs in a worker of its page's own, which ends with the page's model."""
    first, second = (pages.load()[0] for _ in range(2))
    assert first.evaluate(OWN, "import builtins; builtins.seen = 5; print(1)") == "1"
    assert second.evaluate(PYTHON, "import builtins; print(hasattr(builtins, 'seen'))") == "False"
    loop = "from pyodide.code import run_js\nrun_js(\"new BroadcastChannel('loops').postMessage(0)\")\nwhile True: pass"
    first.evaluate(
        """(source) => {
          const loops = new Promise((resolve) => (new BroadcastChannel("loops").onmessage = () => resolve()));
          window.script = window.llm.python(source).catch(({ code }) => code);
          return loops;
        }""",
        loop,
    )
    assert ids(second.evaluate(COMPLETE, [PROMPT, 3])) == oracle.greedy(LLAMA, PROMPT, 3)
    third, loaded = pages.load()
    assert loaded["shared"]
    assert ids(third.evaluate(COMPLETE, [PROMPT, 3])) == oracle.greedy(LLAMA, PROMPT, 3)
    assert pages.workers() == ["shared_worker", "worker"]
    first.evaluate("window.llm.close()")
    assert first.evaluate("window.script") == "ClosedError"
    pages.until(["shared_worker"])


def test_the_last_page_ends_the_worker(pages: Pages) -> None:
    first, _ = pages.load()
    second, _ = pages.load()
    assert pages.workers() == ["shared_worker"]
    first.evaluate("window.llm.close()")
    second.wait_for_timeout(300)
    assert ids(second.evaluate(COMPLETE, [PROMPT, 3])) == oracle.greedy(LLAMA, PROMPT, 3)
    assert pages.workers() == ["shared_worker"]
    second.evaluate("window.llm.close()")
    pages.until([])
    again, loaded = pages.load(page=first)
    assert loaded["shared"]
    assert ids(again.evaluate(COMPLETE, [PROMPT, 3])) == oracle.greedy(LLAMA, PROMPT, 3)
    again.goto("about:blank")
    pages.until([])


@pytest.mark.extended
def test_a_page_may_join_a_worker_that_just_ends(pages: Pages) -> None:
    one, other = pages.open(), pages.open()
    one.evaluate(CLIENT, ["race", {}])
    other.evaluate("() => import('/capstan/capstan.js')")
    late = "new Promise((resolve) => setTimeout(resolve, 60000, 'it has not joined'))"
    for _ in range(6):
        one.evaluate("() => window.client.close()")
        found = other.evaluate(f"(given) => Promise.race([({CLIENT})(given), {late}])", ["race", {}])
        assert found == {"shared": True, "note": None}
        one, other = other, one


ORDER = """async (scripts) => {
  window.asked = Promise.all(scripts.map((source) => window.client.request({ ...%s, source })));
}""".replace("%s", json.dumps(SCRIPT))
NOTE = "import builtins\nbuiltins.order = getattr(builtins, 'order', '') + "
TOLD = """async (request) => {
  const told = [];
  await window.client.request(request, ({ kind, text }) => kind === "stdout" && told.push(text));
  return told.join("").trim();
}"""


@pytest.mark.extended
def test_a_page_with_many_requests_does_not_starve_another_one(pages: Pages) -> None:
    one, other = pages.open(), pages.open()
    for page in (one, other):
        page.evaluate(CLIENT, ["turns", {}])
    one.evaluate(ORDER, ["import asyncio\nawait asyncio.sleep(1)", *[f"{NOTE}'a'"] * 10])
    other.evaluate(ORDER, [f"{NOTE}'b'"] * 2)
    for page in (one, other):
        assert all(reply["ok"] for reply in page.evaluate("window.asked"))
    told = other.evaluate(TOLD, {**SCRIPT, "source": "import builtins\nprint(builtins.order)"})
    assert told == "baba" + "a" * 8


@pytest.mark.extended
def test_weights_are_stored_for_all(pages: Pages) -> None:
    """A worker of a page's own fetches nothing that a shared worker stored, and the other way round."""
    data = "/models/nano-llama/model.onnx.data"
    size = (LLAMA / "model.onnx.data").stat().st_size
    first, _ = pages.load()
    first.close()
    pages.until([])
    assert pages.server.sent[data] == size
    second, loaded = pages.load(shared=False)
    assert not loaded["shared"]
    second.close()
    third, loaded = pages.load()
    assert loaded["shared"]
    assert ids(third.evaluate(COMPLETE, [PROMPT, 3])) == oracle.greedy(LLAMA, PROMPT, 3)
    assert pages.server.sent[data] == size, "it was sent once"
    [stored] = third.evaluate("async () => (await import('/capstan/capstan.js')).Capstan.models.list()")
    assert stored["storedBytes"] == stored["bytes"] == size
    third.evaluate("() => window.llm.close()")
    pages.until([])
    third.evaluate("async () => (await import('/capstan/capstan.js')).Capstan.models.delete()")
    pages.load(page=third)
    assert pages.server.sent[data] == 2 * size


def test_without_shared_workers_a_page_has_its_own_and_is_told(pages: Pages) -> None:
    page = pages.open("delete globalThis.SharedWorker;")
    _, loaded = pages.load(page=page)
    assert (loaded["shared"], loaded["sharedNote"]) == (False, "this browser has no SharedWorker")
    assert ["unshared", 0, loaded["sharedNote"]] in page.evaluate("window.events")
    assert ids(page.evaluate(COMPLETE, [PROMPT, 3])) == oracle.greedy(LLAMA, PROMPT, 3)
    assert pages.workers() == ["worker"]


@pytest.mark.extended
def test_where_the_model_would_be_on_the_cpu_a_page_has_its_own_and_is_told(pages: Pages) -> None:
    page, loaded = pages.load(device="auto")
    assert not loaded["shared"]
    assert loaded["sharedNote"].startswith("the GPU is a software adapter"), loaded
    pages.until(["worker"])
    _, loaded = pages.load(page=page, device="wasm")
    assert loaded["shared"], "whoever asks for the CPU has it"


NO_GPU = "if ('SharedWorkerGlobalScope' in self) Object.defineProperty(navigator, 'gpu', { value: undefined });\n"


@pytest.mark.extended
def test_without_webgpu_in_shared_workers_a_page_has_its_own_and_is_told(browser: Browser, tmp_path: Path) -> None:
    root = tmp_path / "site"
    shutil.copytree(assemble(), root, copy_function=os.link)
    worker = root / "capstan" / "worker.js"
    source = worker.read_text()
    worker.unlink()
    worker.write_text(NO_GPU + source)
    server = WeightServer(root, {"nano-llama": LLAMA})
    with running(server), browser.new_context() as context:
        pages = Pages(browser, context, server)
        page, loaded = pages.load(device="webgpu")
        assert (loaded["shared"], loaded["sharedNote"]) == (False, "this browser gives a SharedWorker no WebGPU")
        assert ids(page.evaluate(COMPLETE, [PROMPT, 3])) == oracle.greedy(LLAMA, PROMPT, 3)
        pages.until(["worker"])


@pytest.mark.extended
def test_the_package_of_another_origin_is_not_shared_and_that_is_told(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "capstan").symlink_to(assemble() / "capstan")
    shutil.copytree(LLAMA, tmp_path / "model")
    (tmp_path / "page.html").write_text("<!doctype html>")
    load = """async ([own, other]) => {
      const { Capstan } = await import(`${own}capstan/capstan.js`);
      const llm = await Capstan.load(`${own}model/`, { device: "wasm", shared: true, assetsUrl: `${other}capstan/` });
      return llm.stats().sharedNote;
    }"""
    with (
        serving_plainly(tmp_path, any_origin=True) as own,
        serving_plainly(tmp_path, any_origin=True) as other,
        browser.new_context() as context,
    ):
        page = context.new_page()
        page.goto(own + "page.html")
        told = page.evaluate(load, [own, other])
        assert told == f"worker.js is of {other[:-1]}, and browsers share workers of a page's own origin only"


HANG = "from pyodide.code import run_js\nrun_js(\"new BroadcastChannel('hangs').postMessage(0); for (;;);\")"
STUCK = """async (source) => {
  const hangs = new Promise((resolve) => (new BroadcastChannel("hangs").onmessage = resolve));
  const script = window.llm.client.request({ ...%s, source });
  await hangs;
  await window.llm.client.request({ kind: "cancel" });
  return (await script).error;
}"""


@pytest.mark.extended
def test_a_stuck_worker_is_left_by_all_pages(pages: Pages) -> None:
    first, second = (pages.load(cancelDeadline=700)[0] for _ in range(2))
    second.evaluate(
        """() => {
          window.hangs = new Promise((resolve) => (new BroadcastChannel("hangs").onmessage = () => resolve()));
        }"""
    )
    first.evaluate(f"(source) => {{ window.stuck = ({STUCK % json.dumps(SCRIPT)})(source); }}", HANG)
    second.evaluate("() => window.hangs")
    second.evaluate(f"(given) => {{ window.answer = ({COMPLETE})(given); }}", [PROMPT, 3])
    error = first.evaluate("window.stuck")
    assert error["type"] == "KeyboardInterrupt"
    assert "did not end within 700 ms" in error["message"]
    lost = second.evaluate(ANSWER)
    assert lost.get("code") == "WorkerLostError", lost
    for page in (first, second):
        assert ids(page.evaluate(COMPLETE, [PROMPT, 3])) == oracle.greedy(LLAMA, PROMPT, 3)
        told = {kind: text for kind, _, text in page.evaluate("window.events")}
        assert "did not end within 700 ms" in told["unshared"], told
        assert not page.evaluate("window.llm.stats().shared")
    third, loaded = pages.load(cancelDeadline=700)
    assert loaded["sharedNote"] == "the shared worker did not answer within 700 ms"
    assert ids(third.evaluate(COMPLETE, [PROMPT, 3])) == oracle.greedy(LLAMA, PROMPT, 3)


FATAL = "import json\njson.loads('[' * 20000 + ']' * 20000)"


@pytest.mark.extended
@pytest.mark.parametrize("source", [FATAL, "import js\njs.self.close()"])
def test_pages_of_a_worker_that_dies_share_the_next_one(source: str, pages: Pages) -> None:
    both = [pages.load()[0] for _ in range(2)]
    both[0].evaluate(f"(source) => {{ window.answer = ({PYTHON})(source); }}", source)
    assert both[0].evaluate(ANSWER) == "WorkerLostError"
    for page in both:
        assert ids(page.evaluate(COMPLETE, [PROMPT, 3])) == oracle.greedy(LLAMA, PROMPT, 3)
        assert page.evaluate("window.llm.stats().shared")
    pages.until(["shared_worker"])
    pages.errors.clear()


def test_options_that_do_not_go_with_sharing_are_refused(pages: Pages) -> None:
    page, refused = pages.load(shared="yes")
    assert refused == ["OptionError", 'shared is "yes"; it must be a boolean']
    _, refused = pages.load(page=page, trace=True)
    assert refused[0] == "OptionError"
    assert "leave one out" in refused[1]
    picked = """async () => {
      const { Capstan } = await import("/capstan/capstan.js");
      const picked = [new File(["{}"], "genai_config.json")];
      return Capstan.load(picked, { shared: true }).catch(({ code, message }) => [code, message]);
    }"""
    code, message = page.evaluate(picked)
    assert (code, "give the model's address" in message) == ("OptionError", True), message
    assert pages.workers() == []
