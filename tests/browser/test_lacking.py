"""A browser or machine that lacks something: page, promise and Python name it with a remedy, and the remedy helps."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import Browser, Page, expect

from capstan_host.site_server import SiteServer
from capstan_host.testing.harness import before_worker
from tests import oracle
from tests.browser.model_variants import LLAMA, Variants, through_float16

BOOT_MS = 60_000

MEDDLE = {
    "no WebGPU": "Object.defineProperty(navigator, 'gpu', { value: undefined, configurable: true });",
    "no adapter": "GPU.prototype.requestAdapter = async () => null;",
    "no f16": """{
  const { get } = Object.getOwnPropertyDescriptor(GPUAdapter.prototype, "features");
  Object.defineProperty(GPUAdapter.prototype, "features", {
    get() { return new Set([...get.call(this)].filter((name) => name !== "shader-f16")); },
  });
}""",
    "no memory for the weights": """{
  const { pushErrorScope, popErrorScope } = GPUDevice.prototype;
  const scopes = [];
  GPUDevice.prototype.pushErrorScope = function (filter) {
    scopes.push(filter);
    return pushErrorScope.call(this, filter);
  };
  GPUDevice.prototype.popErrorScope = async function () {
    const lacks = scopes.pop() === "out-of-memory";
    const found = await popErrorScope.call(this);
    return lacks ? new GPUOutOfMemoryError("no room") : found;
  };
}""",
    "no binding so large": """{
  const { get } = Object.getOwnPropertyDescriptor(GPUAdapter.prototype, "limits");
  const least = { maxStorageBufferBindingSize: 2 ** 27 };
  Object.defineProperty(GPUAdapter.prototype, "limits", {
    get() {
      const limits = get.call(this);
      return new Proxy(limits, { get: (_, name) => least[name] ?? limits[name] });
    },
  });
}""",
    "no storage": """{
  const refuse = () => { throw new DOMException("refused by the test", "SecurityError"); };
  StorageManager.prototype.getDirectory = async () => refuse();
  Object.defineProperty(self, "caches", { get: refuse });
}""",
}
"""In front of worker.js."""


@dataclass(frozen=True)
class Told:
    """The error, as Python, the promise and the page tell it."""

    code: str
    what: str
    """The beginning of the message, which names the lack."""
    remedy: str
    """The end of the message, which names the remedy."""
    helps: bool = True
    """Whether that is device='wasm'."""


OTHER = 'use the device "auto" or "wasm", or '
TOLD = {
    "no WebGPU": Told(
        "DeviceUnavailableError",
        'the device "webgpu" was requested, but this browser has no WebGPU; ',
        f"{OTHER}a browser with WebGPU",
    ),
    "no adapter": Told(
        "DeviceUnavailableError",
        'the device "webgpu" was requested, but this browser offers no GPU adapter; ',
        f"{OTHER}turn on graphics acceleration in the browser's settings",
    ),
    "no f16": Told(
        "DeviceUnavailableError",
        "the model computes in float16",
        "export it with use_webgpu_fp32=true, or use device='wasm'",
    ),
    "no memory for the weights": Told(
        "OutOfMemoryError",
        "there is no memory for ",
        "no room; close other models and pages, or ask for less",
    ),
    "no binding so large": Told(
        "OutOfMemoryError",
        "kv past_key_values.0.key takes 2",
        r"webgpu allows 134217728 bytes in one binding .*; use a max_length of at most \d+, or load the "
        r"model for that length \(its max_length, at most 2097152\), or load the model with kv_cache_dtype='int8' "
        r"\(at most 2097152\) or 'int4' \(at most 2097152\)",
        False,
    ),
}
LOAD = """async (model) => {
  const { Capstan, CapstanError } = await import("/capstan/capstan.js");
  try {
    const llm = await Capstan.load(model, { device: "webgpu", capture: "off" });
    await llm.complete([5, 6, 7], { maxTokens: 2e6 }).result.finally(() => llm.close());
    return [];
  } catch (error) {
    return [error instanceof CapstanError, error.code, error.message, error.traceback];
  }
}"""


def model_for(lack: str, variants: Variants) -> str:
    if lack == "no f16":
        return variants.graph("nano-half", through_float16)
    if lack == "no binding so large":
        return variants.config("nano-wide", model__context_length=2**21, search__max_length=2**21)
    return "nano-llama"


@pytest.fixture
def page(lack: str, browser: Browser) -> Iterator[Page]:
    """A page whose workers are on a machine that lacks it."""
    assert browser.is_connected(), "the browser crashed in an earlier test"
    context = browser.new_context()
    before_worker(context, MEDDLE[lack])
    yield context.new_page()
    context.close()


@pytest.mark.one_in
@pytest.mark.parametrize("lack", TOLD)
def test_what_is_lacking_is_told_with_what_to_do(lack: str, variants: Variants, page: Page, site: SiteServer) -> None:
    told, model = TOLD[lack], model_for(lack, variants)
    page.goto(site.url)
    page.evaluate("() => { for (const part of document.querySelectorAll('aside details')) part.open = true; }")
    page.select_option("#model", value=page.locator(f"#model option[data-name={model}]").get_attribute("value"))
    page.select_option("#device-choice", "webgpu")
    page.select_option("#capture-choice", "off")
    page.fill("#max-new-tokens", "2" if told.helps else "2000000")
    page.fill("#prompt", "def fibonacci(n):")
    page.click("#run")
    message = re.compile(f"^{re.escape(told.what)}.*{told.remedy}$", re.IGNORECASE)
    expect(page.locator("#error-code")).to_have_text(told.code, timeout=BOOT_MS)
    expect(page.locator("#error-message")).to_have_text(message)
    typed, code, said, traceback = page.evaluate(LOAD, f"/models/{model}/")
    assert (typed, code) == (True, told.code)
    assert message.match(said), said
    assert traceback.endswith(f"\ncapstan.errors.{code}: {said}\n"), "what Python raised"
    if not told.helps:
        return
    page.select_option("#device-choice", "wasm")
    page.fill("#prompt", "def fibonacci(n):")
    page.click("#run")
    expect(page.locator("#status")).to_have_text("Done", timeout=BOOT_MS)
    expect(page.locator("#error")).to_be_hidden()


CLOSE = """async () => {
  const { Capstan } = await import("/capstan/capstan.js");
  const told = ({ name, code, message }) => [name, code, message];
  const llm = await Capstan.load("/models/nano-llama/", { device: "wasm" });
  const { tokenIds } = await llm.complete([5, 6, 7], { maxTokens: 4, temperature: 0 }).result;
  const running = llm.complete([5, 6, 7], { maxTokens: 400 });
  const waiting = llm.complete([5, 6, 7]);
  await running[Symbol.asyncIterator]().next();
  llm.close();
  const late = [running.result, waiting.result, llm.complete([5]).result, llm.memory()];
  return { tokenIds, closed: await Promise.all(late.map((each) => each.then(() => null, told))) };
}"""


@pytest.mark.extended
@pytest.mark.parametrize("lack", ["no storage"])
def test_a_page_without_storage_works_and_what_is_closed_is_told(lack: str, page: Page, site: SiteServer) -> None:
    page.goto(f"{site.url}blank.html")
    found = page.evaluate(CLOSE)
    assert found["tokenIds"] == oracle.greedy(LLAMA, [5, 6, 7], 4)
    assert found["closed"] == [["CapstanError", "ClosedError", "the Capstan worker was closed; start a new one"]] * 4
