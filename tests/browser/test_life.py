"""Workers that die, in which something ends fatally, or that do not end what was cancelled: no request waits for ever,
and the next one is answered."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from capstan_host.site_server import SiteServer
from capstan_host.testing.harness import Harness, before_worker, exec_request, generate_request
from tests import oracle

pytestmark = pytest.mark.own_page

LLAMA = Path(__file__).parents[1] / "fixtures" / "nano-llama"
PROMPT = [5, 6, 7, 8, 9]
WAITING = "\nimport asyncio\nawait asyncio.sleep(600)\n"

FAULTS = {
    "ended": ("import js\njs.self.close()", "the browser ended it"),
    "python": ("import json\njson.loads('[' * 20000 + ']' * 20000)", "Python ended by a fatal error, RangeError"),
    "task": (
        "import asyncio, ctypes\nasyncio.get_running_loop().call_later(0.05, ctypes.CFUNCTYPE(None)(123456789))",
        "Python ended by a fatal error, ",
    ),
    "onnxruntime": (
        "from pyodide.code import run_js\n"
        "ort = await run_js('() => import(\"/capstan/ort/ort.webgpu.min.mjs\")')()\n"
        "ort.InferenceSession.create = run_js('async () => { throw new WebAssembly.RuntimeError(\"unreachable\"); }')\n"
        "import capstan\n"
        "await capstan.Model.load('/models/nano-llama/', device='webgpu')",
        "onnxruntime-web ended by a fatal error, RuntimeError: unreachable",
    ),
}
"""Scripts, and the reported reason."""

ASK = """async (requests) => {
  const settled = (asked) => asked.then(
    (reply) => reply,
    (error) => ({ code: error.code, message: error.message }),
  );
  const late = new Promise((resolve) => setTimeout(() => resolve("nothing was answered"), 60000));
  return Promise.race([late, Promise.all(requests.map((request) => settled(window.capstan.request(request))))]);
}"""


def script(source: str) -> dict[str, Any]:
    return exec_request(source, [], [], "script.py")


@pytest.mark.one_in
@pytest.mark.parametrize("device", ["wasm", "webgpu"])
@pytest.mark.parametrize("what", FAULTS)
def test_requests_are_rejected_when_a_worker_dies_and_the_next_is_answered(
    what: str, device: str, harness: Harness
) -> None:
    source, reason = FAULTS[what]
    assert harness.generate("nano-llama", prompt_ids=PROMPT, max_new_tokens=4, device=device)["token_ids"]
    harness.events.clear()
    asked = [script(source + WAITING), {"kind": "models", "action": "list", "which": None}]
    found = harness.evaluate(ASK, asked)
    assert [answer.get("code") for answer in found] == ["WorkerLostError"] * 2, found
    assert reason in found[0]["message"]
    assert "another one is started, ask again" in found[0]["message"]
    [restarted] = [event for event in harness.events if event["kind"] == "restarted"]
    assert reason in restarted["reason"]
    stored = harness.reply({"kind": "models", "action": "list", "which": None})
    assert any(LLAMA.name in source for file in stored["result"]["files"] for source in file["sources"]), stored
    again = harness.generate("nano-llama", prompt_ids=PROMPT, max_new_tokens=12, device=device)
    assert again["token_ids"] == oracle.greedy(LLAMA, PROMPT, 12)


LIST = {"kind": "models", "action": "list", "which": None}
ISOLATED = {"Cross-Origin-Embedder-Policy": "require-corp", "Cross-Origin-Resource-Policy": "same-origin"}


def test_requests_are_rejected_with_the_reason_why_a_new_worker_does_not_start(
    blank_page: Page, page_errors: list[str]
) -> None:
    blank_page.evaluate(START, NEVER_MS)
    broken = {"content_type": "text/javascript", "headers": ISOLATED, "body": "throw new Error('out of order');"}
    blank_page.route("**/worker.js", lambda route: route.fulfill(**broken))
    found = blank_page.evaluate(ASK, [script(FAULTS["ended"][0] + WAITING), LIST])
    assert [answer["code"] for answer in found] == ["WorkerLostError"] * 2, found
    for _ in range(2):
        [refused] = blank_page.evaluate(ASK, [LIST])
        assert refused["code"] == "StartError", refused
        assert "the worker failed: " in refused["message"]
        assert "out of order" in refused["message"]
    page_errors.clear()


NO_LOCKS = "Object.defineProperty(Object.getPrototypeOf(navigator), 'locks', { value: undefined });\n"


def test_a_fatal_error_is_noticed_without_locks(blank_page: Page, page_errors: list[str]) -> None:
    """As on an insecure origin."""
    before_worker(blank_page, NO_LOCKS)
    blank_page.evaluate(NO_LOCKS)
    blank_page.evaluate(START, NEVER_MS)
    source, reason = FAULTS["python"]
    good = generate_request("nano-llama", prompt_ids=PROMPT, max_new_tokens=6, device="wasm")
    [lost] = blank_page.evaluate(ASK, [script(source + WAITING)])
    assert lost["code"] == "WorkerLostError", lost
    assert reason in lost["message"]
    [again] = blank_page.evaluate(ASK, [good])
    assert again["result"]["token_ids"] == oracle.greedy(LLAMA, PROMPT, 6)
    blank_page.evaluate("() => window.capstan.close()")
    page_errors.clear()  # of the worker that ended


MUTE = """
class Mute(BaseException):
    def __str__(self):
        return str(1 / 0)
raise Mute
"""
NO_ARRAY = """
import capstan
from capstan._js.js_errors import typed_errors
from pyodide.code import run_js
full = "throw new RangeError('Array buffer allocation failed')"
try:
    with typed_errors():
        run_js(full)
except capstan.OutOfMemoryError as error:
    print("OutOfMemoryError", str(error).split(" (")[0])
ort = await run_js("() => import('/capstan/ort/ort.wasm.min.mjs')")()
create = ort.InferenceSession.create
ort.InferenceSession.create = run_js("async () => { " + full + " }")
try:
    await capstan.Model.load("/models/nano-llama/", device="wasm", capture="off", prefix_cache=1)
except capstan.UnsupportedModelError as error:
    print("UnsupportedModelError")
finally:
    ort.InferenceSession.create = create
"""


def test_errors_that_leave_python_whole_end_no_worker(harness: Harness) -> None:
    """Whatever escapes a script or the answer itself, and RangeErrors that are not of a heap that is full."""
    harness.events.clear()
    for source, kind, told in (
        ("class Odd(BaseException):\n    pass\nraise Odd('odd')", "Odd", "odd"),
        (MUTE, "PythonError", "ZeroDivisionError"),
    ):
        error = harness.reply(script(source))["error"]
        assert (error["type"], told in error["message"]) == (kind, True), error
    assert harness.reply(script(NO_ARRAY)) == {"ok": True, "result": {"status": 0}}
    printed = "".join(event["text"] for event in harness.events if event["kind"] == "stdout")
    assert printed == "OutOfMemoryError the browser has no memory left for JavaScript\nUnsupportedModelError\n"
    assert [event for event in harness.events if event["kind"] == "restarted"] == []
    again = harness.generate("nano-llama", prompt_ids=PROMPT, max_new_tokens=12)
    assert again["token_ids"] == oracle.greedy(LLAMA, PROMPT, 12)


START = """async (cancelDeadline) => {
  const { Client } = await import("/capstan/capstan.js");
  window.events = [];
  window.capstan = await Client.start({ base: "/capstan/", cancelDeadline, onEvent: (event) => events.push(event) });
}"""
BUSY = """
from pyodide.code import run_js
print("busy", flush=True)
run_js('for (const end = Date.now() + %d; Date.now() < end; );')
"""
"""JavaScript that cannot be interrupted, once it has told that it runs."""
DEADLINE_MS = 1500
NEVER_MS = 2**30
CANCEL = """async ([endless, behind]) => {
  const first = window.capstan.request(endless);
  const second = window.capstan.request(behind);
  while (!window.events.some((event) => event.kind === "stdout")) {
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  const begun = performance.now();
  const cancel = window.capstan.request({ kind: "cancel" });
  const stopped = await first;
  const took = performance.now() - begun;
  return { stopped, took, behind: await second, cancel: await cancel, restarts: window.capstan.restarts };
}"""


def test_a_busy_worker_lives_until_a_cancel_is_not_obeyed(blank_page: Page) -> None:
    blank_page.evaluate(START, DEADLINE_MS)
    [busy] = blank_page.evaluate(ASK, [script(BUSY % (2 * DEADLINE_MS))])
    assert busy == {"ok": True, "result": {"status": 0}}, "nobody cancelled it"
    assert blank_page.evaluate("() => window.capstan.restarts") == 0
    behind = generate_request("nano-llama", prompt_ids=PROMPT, max_new_tokens=6, device="wasm")
    blank_page.evaluate("() => { window.events.length = 0; }")
    found = blank_page.evaluate(CANCEL, [script(BUSY % 600_000), behind])
    assert found["stopped"]["error"]["type"] == "KeyboardInterrupt"
    assert f"did not end within {DEADLINE_MS} ms" in found["stopped"]["error"]["message"]
    assert found["took"] >= DEADLINE_MS - 50
    assert found["cancel"] == {"ok": True, "result": None}
    assert found["behind"]["result"]["token_ids"] == oracle.greedy(LLAMA, PROMPT, 6), "it was not begun before"
    assert found["restarts"] == 1
    blank_page.evaluate("() => window.capstan.close()")


FULL = """{
const { grow } = WebAssembly.Memory.prototype;
WebAssembly.Memory.prototype.grow = function (pages) {
  if (globalThis.noMoreMemory) throw new RangeError("WebAssembly.Memory.grow(): Maximum memory size exceeded");
  return grow.call(this, pages);
};
}
"""
"""In front of worker.js: heaps that are full as soon as `noMoreMemory` is set."""
NO_MORE = "import js\njs.noMoreMemory = True\n"
CAUGHT = """
import capstan
for _ in range(2):
    try:
        await capstan.Model.load("/models/full/", device="wasm")
    except capstan.OutOfMemoryError as error:
        print(error)
"""
LARGE_SESSION = """
import js
from capstan.graph.onnx_pb2 import ModelProto
from capstan.onnxruntime import InferenceSession

model = ModelProto(ir_version=8)
model.opset_import.add(version=13)
model.graph.name = "large"
model.graph.node.add(op_type="Add", input=["x", "w"], output=["y"])
for values, name in ((model.graph.input, "x"), (model.graph.output, "y")):
    made = values.add(name=name)
    made.type.tensor_type.elem_type = 1
    made.type.tensor_type.shape.dim.add(dim_value=20_000_000)
model.graph.initializer.add(name="w", dims=[20_000_000], data_type=1, raw_data=bytes(80_000_000))
data = model.SerializeToString()
js.noMoreMemory = True
await InferenceSession.create(data, providers=["CPUExecutionProvider"])
"""


@pytest.fixture
def full(site: SiteServer, tmp_path: Path) -> Iterator[None]:
    """A model with a tokenizer.json of 60 MB under /models/full/."""
    shutil.copytree(LLAMA, tmp_path / "full")
    with (tmp_path / "full/tokenizer.json").open("ab") as file:
        file.write(b" " * 60_000_000)
    site.models["full"] = tmp_path / "full"
    yield
    del site.models["full"]


@pytest.mark.extended
def test_a_heap_that_is_full_ends_its_worker_and_the_next_one_answers(
    blank_page: Page, full: None, page_errors: list[str]
) -> None:
    """Python's in a load and in a script that goes on, then onnxruntime-web's; what waits behind is answered."""
    before_worker(blank_page, FULL)
    blank_page.evaluate(START, NEVER_MS)
    good = generate_request("nano-llama", prompt_ids=PROMPT, max_new_tokens=6, device="wasm")
    ids = oracle.greedy(LLAMA, PROMPT, 6)
    large = generate_request("full", prompt_ids=PROMPT, max_new_tokens=6, device="wasm")
    found = blank_page.evaluate(ASK, [good, script(NO_MORE), large, good])
    assert [answer.get("result", {}).get("token_ids") for answer in (found[0], found[3])] == [ids, ids], found
    assert found[2]["error"]["type"] == "OutOfMemoryError", found[2]
    assert found[2]["error"]["message"].startswith("Python has no memory left (MemoryError), and is not used any more")
    assert blank_page.evaluate(
        "() => [capstan.restarts, events.filter(({ kind }) => kind === 'restarted').length]"
    ) == [
        1,
        1,
    ]
    found = blank_page.evaluate(ASK, [script(NO_MORE + CAUGHT), good])
    assert [found[0], found[1]["result"]["token_ids"]] == [{"ok": True, "result": {"status": 0}}, ids]
    printed = blank_page.evaluate(
        "() => events.filter(({ kind }) => kind === 'stdout').map(({ text }) => text).join('')"
    )
    assert printed.count("Python has no memory left") == 2, "what is full stays so"
    assert blank_page.evaluate("() => capstan.restarts") == 2
    [lost] = blank_page.evaluate(ASK, [script(LARGE_SESSION)])
    assert lost["code"] == "WorkerLostError", lost
    [again] = blank_page.evaluate(ASK, [good])
    assert again["result"]["token_ids"] == ids
    assert blank_page.evaluate("() => capstan.restarts") == 3
    blank_page.evaluate("() => window.capstan.close()")
    page_errors.clear()  # of workers that ended


COPY = """
import capstan
from capstan._js.js_errors import typed_errors
from pyodide.code import run_js
for source in ("new Uint8Array(4).set(new Uint8Array(8))", "'fine'"):
    try:
        with typed_errors():
            run_js(source)
    except capstan.CapstanError as error:
        print(type(error).__name__, str(error).split(", ")[0])
"""
"""The error of a copy into a heap that is full, then a copy that would work."""


def test_a_copy_that_fails_ends_its_worker_and_the_next_one_answers(blank_page: Page, page_errors: list[str]) -> None:
    blank_page.evaluate(START, NEVER_MS)
    good = generate_request("nano-llama", prompt_ids=PROMPT, max_new_tokens=6, device="wasm")
    found = blank_page.evaluate(ASK, [script(COPY), good])
    printed = blank_page.evaluate(
        "() => events.filter(({ kind }) => kind === 'stdout').map(({ text }) => text).join('')"
    )
    assert printed == "OutOfMemoryError Python has no memory left (JsException)\n" * 2
    assert found[1]["result"]["token_ids"] == oracle.greedy(LLAMA, PROMPT, 6)
    assert blank_page.evaluate("() => capstan.restarts") == 1
    blank_page.evaluate("() => window.capstan.close()")
    page_errors.clear()  # of the worker that ended


AT_ONCE = """async ([endless, behind]) => {
  const replies = Promise.all([endless, { kind: "cancel" }, behind].map((one) => window.capstan.request(one)));
  return { replies: await replies, restarts: window.capstan.restarts };
}"""


def test_a_cancel_right_behind_its_request_stops_it_and_no_other(blank_page: Page) -> None:
    """Python has not begun with the request when the cancel comes."""
    blank_page.evaluate(START, NEVER_MS)
    endless = script("import asyncio\nawait asyncio.sleep(600)")
    for _ in range(5):
        found = blank_page.evaluate(AT_ONCE, [endless, script("print('next')")])
        stopped, cancel, behind = found["replies"]
        assert stopped["error"]["message"] == "stopped by the user"
        assert (cancel["ok"], behind) == (True, {"ok": True, "result": {"status": 0}})
        assert found["restarts"] == 0
    blank_page.evaluate("() => window.capstan.close()")


def test_a_cancel_that_is_obeyed_ends_no_worker(blank_page: Page) -> None:
    blank_page.evaluate(START, DEADLINE_MS)
    endless = script("print('begun', flush=True)\nwhile True:\n    pass")
    found = blank_page.evaluate(CANCEL, [endless, script("print('next')")])
    assert found["stopped"]["error"]["message"] == "stopped by the user"
    assert found["behind"] == {"ok": True, "result": {"status": 0}}
    blank_page.wait_for_timeout(DEADLINE_MS)
    assert blank_page.evaluate("() => window.capstan.restarts") == 0
    refused = blank_page.evaluate(
        "async () => { const { Client } = await import('/capstan/capstan.js');"
        "const start = (options) => Client.start(options).catch((error) => error.message);"
        "return [await start({ cancelDeadline: 0 }), await start({ verifyAfter: -1 })]; }"
    )
    assert refused == [
        "cancelDeadline is 0; it must be milliseconds above 0",
        "verifyAfter is -1; it must be milliseconds from 0",
    ]
    blank_page.evaluate("() => window.capstan.close()")
