"""A start that is disturbed: its page is closed, another tab starts too, storage refuses or is full, the device is lost
while kernels compile, what earlier starts stored is damaged. Ids stay right, and so does the next start."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Route

from capstan.host.notes import file_name
from capstan_host.site_server import SiteServer
from tests import oracle
from tests.browser.model_variants import LLAMA
from tests.conftest import BOOT_MS

PROMPT, TOKENS = [5, 6, 7], 12
IDS = oracle.greedy(LLAMA, PROMPT, TOKENS)
DATA = "model.onnx.data"
EAGER = {"device": "webgpu", "capture": "off"}
TAPE = {"device": "webgpu"}
CPU = {"device": "wasm"}
SEED = int(os.environ.get("CAPSTAN_SEED", "7"))
POINTS = int(os.environ.get("CAPSTAN_CLOSES", "5"))
"""How often a page is closed at a seeded moment, and storage fails at a seeded call."""

START = """([prompt, maxTokens, options]) => {
  window.stages = [];
  new BroadcastChannel("stages").onmessage = ({ data }) => window.stages.push(data);
  window.events = [];
  options.onEvent = (event) => window.events.push(event);
  window.started = (async () => {
    const { Capstan } = await import("/capstan/capstan.js");
    try {
      const llm = await Capstan.load("/models/nano-llama/", { verifyAfter: Infinity, ...options });
      const { tokenIds } = await llm.complete(prompt, { maxTokens, temperature: 0 }).result;
      const counted = "import json, capstan; print(json.dumps(capstan.fallback.fallbacks()))";
      const { stdout } = await llm.python(counted);
      const { capture } = llm.stats();
      llm.close();
      return { ids: tokenIds, fallbacks: JSON.parse(stdout), capture };
    } catch (error) {
      return { code: error.code ?? error.name, message: error.message };
    }
  })();
}"""
END = """(ms) => {
  const late = { code: "late", message: "no answer" };
  const ended = () => ({ ...late, events: window.events.filter(({ kind }) => kind !== "text").slice(-8) });
  return Promise.race([window.started, new Promise((go) => setTimeout(() => go(ended()), ms))]);
}"""
LATE_MS = 90_000
"""After which a start counts as hanging."""
STORED = """async () => {
  const found = {};
  const walk = async (folder, path) => {
    for await (const [name, entry] of folder)
      if (entry.kind === "directory") await walk(entry, `${path}${name}/`);
      else found[path + name] = name.endsWith(".data") ? "" : await (await entry.getFile()).text();
  };
  await walk(await navigator.storage.getDirectory(), "");
  return found;
}"""
REPLACE = """async (texts) => {
  for (const [path, text] of Object.entries(texts)) {
    const [folder, name] = path.split("/");
    const place = await (await navigator.storage.getDirectory()).getDirectoryHandle(folder);
    const writable = await (await place.getFileHandle(name)).createWritable();
    await writable.write(text);
    await writable.close();
  }
}"""
FORGET = """async () => {
  const root = await navigator.storage.getDirectory();
  for await (const name of root.keys()) await root.removeEntry(name, { recursive: true });
  for (const name of await caches.keys()) await caches.delete(name);
}"""
TOLD = """
const told = (what) => new BroadcastChannel("stages").postMessage(what);
const stopHere = (what) => {
  told(what);
  for (;;) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0);
};
"""


@dataclass
class Profile:
    """Tabs of one browser profile, which stores nothing at first."""

    context: BrowserContext
    url: str
    before: str = ""
    """The script in front of the worker's."""
    asked: Counter[str] = field(default_factory=Counter)
    """Requests for the weights, by method."""

    def route(self) -> None:
        def worker(route: Route) -> None:
            served = route.fetch()
            route.fulfill(response=served, body=f"{{{TOLD}{self.before}}}\n{served.text()}" if self.before else None)

        self.context.route("**/capstan/worker.js", worker)
        self.context.on("request", lambda one: self.asked.update([one.method] if one.url.endswith(DATA) else []))

    def begin(self, before: str = "", **options: Any) -> Page:
        """A tab that loads the model and generates."""
        page = self.context.new_page()
        page.goto(f"{self.url}blank.html")
        self.before = before
        page.evaluate(START, [PROMPT, TOKENS, options])
        return page

    def end(self, page: Page) -> dict[str, Any]:
        """The outcome of a tab, which is closed."""
        found: dict[str, Any] = page.evaluate(END, LATE_MS)
        page.close()
        return found

    def start(self, before: str = "", **options: Any) -> dict[str, Any]:
        """The outcome of a tab that loads the model and generates."""
        return self.end(self.begin(before, **options))

    def right(self, **options: Any) -> None:
        """Start undisturbed: with the right ids, and nothing to tell."""
        found = self.start(**options)
        assert (found.get("ids"), found.get("fallbacks")) == (IDS, {}), found

    def whole(self, **options: Any) -> dict[str, str]:
        """Start undisturbed, once more if that fetched weights: then nothing is fetched, and all is whole; the stored
        texts."""
        for _ in range(2):
            self.asked.clear()
            self.right(**options)
            if not self.asked["GET"]:
                break
        assert self.asked["GET"] == 0, "the weights are fetched though they were stored"
        return self.clean()

    def clean(self) -> dict[str, str]:
        """The stored texts; only one whole file with its records may be there."""
        stored = self.stored()
        assert not [name for name in stored if name.endswith((".journal.jsonl", ".crswap"))], sorted(stored)
        assert sum(name.endswith(".data") for name in stored) == 1, sorted(stored)
        return stored

    def stored(self) -> dict[str, str]:
        """The texts of the private file system by their paths."""
        with self.tab() as page:
            found: dict[str, str] = page.evaluate(STORED)
        return found

    def replace(self, texts: dict[str, str]) -> None:
        with self.tab() as page:
            page.evaluate(REPLACE, texts)

    def tab(self) -> Page:
        page = self.context.new_page()
        page.goto(f"{self.url}blank.html")
        return page


@pytest.fixture
def profile(browser: Browser, site: SiteServer) -> Iterator[Profile]:
    with opened(browser, site) as made:
        yield made


@pytest.fixture(scope="module")
def visited(browser: Browser, site: SiteServer) -> Iterator[Profile]:
    """A profile of several tests, each of which leaves whole records behind."""
    with opened(browser, site) as made:
        yield made


@contextmanager
def opened(browser: Browser, site: SiteServer) -> Iterator[Profile]:
    assert browser.is_connected(), "the browser crashed in an earlier test"
    context = browser.new_context()
    context.set_default_timeout(BOOT_MS)
    made = Profile(context, site.url)
    made.route()
    yield made
    context.close()


# Pages that are closed.


def hold_fetch(end: str) -> str:
    return f"""
const plain = self.fetch;
self.fetch = (asked, ...rest) => {{
  if (!String(asked?.url ?? asked).endsWith("{end}")) return plain(asked, ...rest);
  told("here");
  return new Promise(() => {{}});
}};
"""


def half_write(which: str) -> str:
    return f"""
const {{ write }} = FileSystemSyncAccessHandle.prototype;
FileSystemSyncAccessHandle.prototype.write = function (bytes, at) {{
  if (!({which})) return write.call(this, bytes, at);
  write.call(this, bytes.subarray(0, bytes.length / 2), at);
  stopHere("here");
}};
"""


def hold(owner: str, name: str, which: str = "true") -> str:
    return f"""
const plain = {owner}.prototype.{name};
{owner}.prototype.{name} = function (...args) {{
  if (!({which})) return plain.apply(this, args);
  told("here");
  return new Promise(() => {{}});
}};
"""


def hold_text(which: str) -> str:
    return f"""
const {{ write, close }} = FileSystemWritableFileStream.prototype;
FileSystemWritableFileStream.prototype.write = function (text) {{
  this.text = text;
  return write.call(this, text);
}};
FileSystemWritableFileStream.prototype.close = function () {{
  if (!({which})) return close.call(this);
  told("here");
  return new Promise(() => {{}});
}};
"""


STAGES: dict[str, tuple[str, dict[str, str]]] = {
    "the weights are half written": (half_write("bytes.length > 10000"), CPU),
    "the weights are half written for a GPU": (half_write("bytes.length > 10000"), EAGER),
    "the snapshot is fetched": (hold_fetch(".snapshot"), EAGER),
    "Python starts": (hold_fetch("pyodide.asm.wasm"), EAGER),
    "the files are fetched": (hold_fetch("tokenizer.json"), EAGER),
    "the graph is fetched": (hold_fetch("model.onnx"), EAGER),
    "the GPU is opened": (hold("GPUAdapter", "requestDevice"), EAGER),
    "the journal is half written": (half_write("bytes.length < 10000"), EAGER),
    "the record is written": (hold_text("this.text.includes('suspect')"), EAGER),
    "the source is written": (hold_text("this.text.includes('\"content\"')"), EAGER),
    "the plan of the upload is written": (hold_text("this.text.includes('\"pieces\"')"), EAGER),
    "the graphs are noted": (hold_text("this.text.includes('\"decode\"')"), EAGER),
    "the first run compiles": (
        "GPUDevice.prototype.createComputePipeline = () => stopHere('here');",
        EAGER,
    ),
    "fused kernels compile": (hold("GPUDevice", "createComputePipelineAsync"), TAPE),
    "the tape is stored": (hold_text("this.text.includes('\"played\"')"), TAPE),
}


@pytest.mark.one_in(15)
@pytest.mark.parametrize("stage", STAGES)
def test_a_page_closed_at_a_stage_leaves_nothing_that_the_next_one_trips_over(stage: str, profile: Profile) -> None:
    before, options = STAGES[stage]
    page = profile.begin(before, **options)
    page.wait_for_function("() => window.stages.length")
    page.close()
    profile.whole(**options)
    with profile.tab() as page:
        page.wait_for_function("async () => !(await navigator.locks.query()).held.length")


@pytest.mark.extended
def test_a_page_closed_at_any_moment_leaves_nothing_that_the_next_one_trips_over(profile: Profile) -> None:
    numbers = random.Random(SEED)
    begun = time.monotonic()
    profile.right(**TAPE)
    took = time.monotonic() - begun
    for point in range(POINTS):
        with profile.tab() as page:
            page.evaluate(FORGET)
        after = (point + numbers.random()) / POINTS * took
        page = profile.begin(**TAPE)
        page.wait_for_timeout(1000 * after)
        page.close()
        print(f"closed after {after:.1f} of {took:.1f} s")
        profile.whole(**TAPE)


# Two tabs at once.


@pytest.mark.extended
@pytest.mark.parametrize("tabs", [(CPU, EAGER), (EAGER, EAGER)], ids=["one with a GPU", "both with a GPU"])
def test_two_tabs_that_start_at_once_answer_the_same(tabs: tuple[dict[str, str], ...], visited: Profile) -> None:
    """Both at their first visit, then both at their second one."""
    for _ in range(2):
        pages = [visited.begin(**options) for options in tabs]
        visited.asked.clear()
        found = [visited.end(page) for page in pages]
        assert [one.get("ids") for one in found] == 2 * [IDS], found
    assert [one["fallbacks"] for one in found] == [{}, {}]
    assert visited.asked["GET"] == 0
    visited.clean()


@pytest.mark.extended
@pytest.mark.parametrize("visit", range(3))
def test_two_tabs_that_record_at_once_answer_the_same(visit: int, profile: Profile) -> None:
    for _ in range(2):
        pages = []
        for _ in range(2):
            pages.append(profile.begin(**TAPE))
            pages[0].wait_for_timeout(400 * visit)
        found = [profile.end(page) for page in pages]
        assert [one.get("ids") for one in found] == 2 * [IDS], found
    assert [one["fallbacks"] for one in found] == [{}, {}]
    profile.whole(**TAPE)


# Storage that refuses, or is full.


def fails(owner: str, name: str, error: str, call: str = "1") -> str:
    """The `call`th call of a method, and each later one, fails."""
    return f"""
const plain = {owner}.prototype.{name};
let calls = 0;
{owner}.prototype.{name} = function (...args) {{
  if (++calls < {call}) return plain.apply(this, args);
  told("{name}");
  const error = new DOMException("refused by the test", "{error}");
  if ("{name}" === "write" && "{owner}".endsWith("SyncAccessHandle")) throw error;
  return Promise.reject(error);
}};
"""


FULL, NOTHING = "QuotaExceededError", "no private file system"
REFUSALS: dict[str, tuple[str, str]] = {
    NOTHING: (fails("StorageManager", "getDirectory", "SecurityError"), "private file system"),
    "no synchronous access": (fails("FileSystemFileHandle", "createSyncAccessHandle", "UnknownError"), "weight store"),
    "no room for data": (fails("FileSystemSyncAccessHandle", "write", FULL), "weight store"),
    "no room for texts": (fails("FileSystemWritableFileStream", "close", FULL), "notes for the next page load"),
    "no private file system from the third call on": (
        fails("StorageManager", "getDirectory", "SecurityError", "3"),
        "",
    ),
    "no new files": (fails("FileSystemDirectoryHandle", "getFileHandle", FULL), "notes for the next page load"),
    "no texts are begun": (fails("FileSystemFileHandle", "createWritable", FULL), "notes for the next page load"),
    "no room for the journal": (fails("FileSystemSyncAccessHandle", "write", FULL, "2"), "weight store"),
}


@pytest.mark.one_in
@pytest.mark.parametrize("options", [CPU, EAGER], ids=["wasm", "webgpu"])
@pytest.mark.parametrize("how", REFUSALS)
def test_storage_that_refuses_is_told_and_the_model_answers(
    how: str, options: dict[str, str], profile: Profile, visited: Profile
) -> None:
    before, told = REFUSALS[how]
    refused_start(visited if how == NOTHING else profile, before, told, options)


def refused_start(profile: Profile, before: str, told: str, options: dict[str, str]) -> None:
    """A start at which storage fails is right and reports it, and so is the next one, which finds nothing wrong."""
    page = profile.begin(before, **options)
    found = profile.end(page)
    assert found.get("ids") == IDS, found
    assert any(told in name for name in found["fallbacks"]), found
    left = profile.stored()
    whole = any(name.endswith((".weights.json", ".journal.jsonl")) for name in left)
    empty = [name for name, text in left.items() if not text and not (whole and name.endswith(".data"))]
    assert not empty, sorted(left)
    profile.whole(**options)


@pytest.mark.extended
@pytest.mark.parametrize("owner", ["StorageManager.getDirectory", "FileSystemFileHandle.createWritable"])
@pytest.mark.parametrize("stored", [False, True])
def test_storage_that_refuses_at_any_call_is_told(owner: str, stored: bool, profile: Profile) -> None:
    numbers = random.Random(SEED)
    kind, name = owner.split(".")
    for _ in range(POINTS):
        with profile.tab() as page:
            page.evaluate(FORGET)
        if stored:
            profile.right(**EAGER)
        call = numbers.randrange(1, 20)
        page = profile.begin(fails(kind, name, FULL, str(call)), **EAGER)
        stages: list[str] = []
        page.evaluate("() => window.started")
        stages = page.evaluate("() => window.stages")
        found = profile.end(page)
        assert found.get("ids") == IDS, f"{owner} {call}: {found}"
        assert bool(found["fallbacks"]) == bool(stages), f"{owner} {call}: {found} {stages}"
        profile.whole(**EAGER)


# A device that is lost while kernels compile.


def lost(which: str, how: str) -> str:
    """The device is lost in the first asynchronous compilation of which that holds."""
    return f"""
const plain = GPUDevice.prototype.createComputePipelineAsync;
let calls = 0;
GPUDevice.prototype.createComputePipelineAsync = function (...args) {{
  if (!({which}) || ++calls > 1) return plain.apply(this, args);
  told("here");
  {how}
}};
"""


KERNELS = {"onnxruntime-web's": "true", "fused": "args[0].label?.startsWith('matvec')"}
LOSSES = {
    "rejects first": """
  setTimeout(() => this.destroy(), 50);
  return Promise.reject(new DOMException("the device is gone", "OperationError"));
""",
    "never ends": "this.destroy(); return new Promise(() => {});",
    "as it begins": "this.destroy(); return plain.apply(this, args);",
    "on its way": "const made = plain.apply(this, args); this.destroy(); return made;",
}


@pytest.mark.one_in
@pytest.mark.parametrize("how", LOSSES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_device_lost_while_a_kernel_compiles_is_told_or_recovered(kernel: str, how: str, profile: Profile) -> None:
    """In the visit that records the step, and in one that makes the stored tape again. In a load it is an error."""
    told = "the WebGPU device was lost (destroyed: Device was destroyed.); load the model again"
    for visit in range(2):
        page = profile.begin(lost(KERNELS[kernel], LOSSES[how]), **TAPE)
        page.wait_for_function("() => window.stages.length")
        found = profile.end(page)
        if "code" in found:
            assert found == {"code": "DeviceLostError", "message": told}
            assert visit == 0, "a stored tape is made again while tokens are generated"
        else:
            assert found == {"ids": IDS, "fallbacks": {f"the device: {told}": 1}, "capture": "tape"}
        profile.right(**TAPE)


# Records of an earlier start.


NOTES = {
    "capabilities": "capabilities of webgpu",
    "graphs": "graphs of {model}",
    "verdict": "decode step of {model} for 256 positions",
    "tape": "tape of decode for 256 positions of {model}",
    "tapes": "tapes of {model}",
}
RECORDS = {"weights": ".weights.json", "source": ".source.json", "upload": ".upload.json"}
EAGER_KINDS = ("capabilities", "graphs", *RECORDS)
DAMAGES: dict[str, Callable[[str], str]] = {
    "changed": lambda text: text[: len(text) // 2] + chr(ord(text[len(text) // 2]) ^ 1) + text[len(text) // 2 + 1 :],
    "cut": lambda text: text[: len(text) // 2],
    "of nothing": lambda text: "{}",
    "foreign": lambda text: "[" * 20000,
}


def path_of(kind: str, stored: dict[str, str], url: str) -> str:
    if kind in NOTES:
        return "capstan-notes/" + file_name(NOTES[kind].format(model=f"{url}models/nano-llama/"))
    [path] = [path for path in stored if path.endswith(RECORDS[kind])]
    return path


def damaged_start(profile: Profile, kinds: Sequence[str], damage: str, options: dict[str, str]) -> None:
    """A start after these records were damaged reports each and is right, and they are rewritten."""
    before = profile.stored()
    texts = {path_of(kind, before, profile.url): "" for kind in kinds}
    for path in texts:
        texts[path] = DAMAGES[damage](before[path])
        assert texts[path] != before[path]
    profile.replace(texts)
    found = profile.start(**options)
    assert found.get("ids") == IDS, (kinds, found)
    assert all(name.endswith(": it is damaged") for name in found["fallbacks"]), (kinds, found)
    assert list(found["fallbacks"].values()) == len(kinds) * [1], (kinds, found)
    after = profile.stored()
    assert not [path for path, text in texts.items() if after[path] == text], kinds
    profile.right(**options)


@pytest.mark.extended
@pytest.mark.parametrize(
    "damage", [pytest.param(damage, marks=[pytest.mark.extended] if damage != "changed" else []) for damage in DAMAGES]
)
def test_damaged_records_are_told_and_rewritten(damage: str, visited: Profile) -> None:
    """All records that a start without a tape reads, but the weights' own, which is not read without their source's."""
    if not visited.stored():
        visited.right(**EAGER)
    damaged_start(visited, [kind for kind in EAGER_KINDS if kind != "weights"], damage, EAGER)


@pytest.mark.extended
@pytest.mark.parametrize("damage", DAMAGES)
def test_each_damaged_record_is_told_and_rewritten(damage: str, profile: Profile) -> None:
    profile.right(**TAPE)
    for kind in (*NOTES, *RECORDS):
        # A verdict is asked for where the tape is not there.
        damaged_start(profile, ["verdict", "tape"] if kind == "verdict" else [kind], damage, TAPE)


def other_wheel(context: BrowserContext) -> None:
    """Another build of Capstan: a zip archive may begin with anything."""
    context.route("**/capstan*.whl", lambda route: route.fulfill(body=b"another build" + route.fetch().body()))


OTHERS = {
    "browser": "Object.defineProperty(WorkerNavigator.prototype, 'userAgent', { value: 'another browser' });",
    "adapter": "Object.defineProperty(GPUAdapterInfo.prototype, 'description', { value: 'another adapter' });",
    "build": "",
}


@pytest.mark.extended
@pytest.mark.parametrize("other", OTHERS)
def test_records_of_another_browser_adapter_or_build_are_left_alone_and_replaced(other: str, profile: Profile) -> None:
    profile.right(**TAPE)
    before = profile.stored()
    options: dict[str, Any] = {**TAPE, "snapshot": other != "build"}
    if other == "build":
        other_wheel(profile.context)
    found = profile.start(OTHERS[other], **options)
    assert (found.get("ids"), found.get("fallbacks"), found.get("capture")) == (IDS, {}, "tape"), found
    after = profile.stored()
    for kind in NOTES:
        path = path_of(kind, before, profile.url)
        keys = [stored[path].partition(" ")[0] for stored in (before, after)]
        stays = other != "build" and kind in ("graphs", "tapes")
        assert (keys[0] == keys[1]) == stays, kind
    profile.start(OTHERS[other], **options)
    assert profile.stored() == after
