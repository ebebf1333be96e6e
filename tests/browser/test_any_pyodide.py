"""The wheel in a Pyodide that Capstan did not start: on a page's main thread, and in a worker of it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from capstan import Generator, GeneratorParams, Model
from capstan_host.testing.harness import watch
from tests import oracle
from tests.browser.any_pyodide import PROMPT
from tests.other_pyodide import FIXTURES, installers, serving_pyodide

SCRIPT = Path(__file__).with_name("any_pyodide.py")
LEAST = """delete WebAssembly.Suspending;
delete WebAssembly.promising;
Object.defineProperty(Navigator.prototype, "gpu", { value: undefined });"""
"""A browser without WebGPU and JavaScript Promise Integration."""
STRICT = {"Content-Type": "text/html", "Content-Security-Policy": "script-src 'self' 'wasm-unsafe-eval'"}
STRICT_PAGE = """<!doctype html><title>strict</title><script id="wanted" type="application/json">{}</script>
<script type="module" src="strict.js"></script><output id="found"></output>"""
STRICT_SCRIPT = """import { run } from "./start.js";
const [told] = await run(JSON.parse(document.querySelector("#wanted").textContent));
document.querySelector("#found").textContent = told.import ?? "nothing was told";"""
IN_BOTH = """async ({ page, worker }) => {
  const started = new Worker("start.js", { type: "module" });
  const inAWorker = new Promise((resolve, reject) => {
    started.onmessage = ({ data }) => (data.error ? reject(new Error(data.error)) : resolve(data.results));
    started.onerror = ({ message }) => reject(new Error(message));
    started.postMessage(worker);
  });
  const { run } = await import("./start.js");
  const [onThePage, there] = await Promise.all([run(page), inAWorker]);
  return { page: onThePage, worker: there };
}"""


@pytest.fixture(scope="module")
def found(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The results of the script's functions, on the main thread and in a worker of one page."""
    folder = tmp_path_factory.mktemp("any_pyodide")
    with serving_pyodide(folder) as url:
        page = browser.new_page()
        faults = watch(page, [])
        page.goto(url)
        wheels = [f"{url}wheels/{name}" for name in installers(folder)]
        common = {"wheels": wheels, "script": SCRIPT.read_text()}
        on_the_page = {**common, "calls": [["refusals", url], ["tokens", url, f"{url}ort"]]}
        in_a_worker = {**common, "calls": [["install", url], ["tokens", url, "/ort"]]}
        results: dict[str, Any] = page.evaluate(IN_BOTH, {"page": on_the_page, "worker": in_a_worker})
        page.close()
    missing = [fault for fault in faults if "404" not in fault]
    assert not missing
    return results


@pytest.mark.extended
@pytest.mark.parametrize("place", ["page", "worker"])
def test_every_device_and_loop_gives_the_oracles_ids(place: str, found: dict[str, Any]) -> None:
    tokens = found[place][1]
    wanted = oracle.greedy(FIXTURES / "nano-llama", PROMPT, 19)
    ways = [f"{device}, {loop}" for device in ("wasm", "webgpu") for loop in ("awaited", "blocking")]
    assert {way: tokens[way] for way in ways} == dict.fromkeys(ways, wanted)
    assert tokens["webgpu, capture"] == "tape"
    assert tokens["chat"] == "[{'role': 'user', 'content': 'hi'}]"


@pytest.mark.extended
def test_what_is_missing_or_does_not_fit_is_told(found: dict[str, Any]) -> None:
    told = found["page"][0]
    assert told["pyodide"] == (
        "VersionError: this page has Pyodide 0.25.1; Capstan needs 0.28 or newer: load a newer version"
    )
    assert told["nowhere"].startswith("DeviceUnavailableError: ort.wasm.min.mjs: it is not known where")
    assert 'capstan.configure(ort_url="...")' in told["nowhere"]
    assert "/absent/ort.wasm.min.mjs cannot be loaded (HTTP 404)" in told["absent"]
    assert "is of onnxruntime-web 1.22.0, but this version of Capstan needs 1.30.0" in told["older"]
    assert told["older"].startswith("VersionError: ")


@pytest.mark.extended
def test_what_a_page_cannot_do_is_told(browser: Browser, tmp_path: Path) -> None:
    """In one page a browser that has little, in another a policy that allows little."""
    with serving_pyodide(tmp_path) as url:
        wheels = sorted(f"{url}wheels/{path.name}" for path in (tmp_path / "wheels").glob("*.whl"))
        common = {"wheels": wheels, "script": SCRIPT.read_text()}
        page = browser.new_page()
        page.add_init_script(LEAST)
        page.goto(url)
        request = {**common, "calls": [["least", url]]}
        (told,) = page.evaluate("async (request) => (await import('./start.js')).run(request)", request)
        page.close()
        page = browser.new_page()
        strict = STRICT_PAGE.format(json.dumps({**common, "calls": [["strict", url]]}).replace("<", "\\u003c"))
        page.route("**/strict.html", lambda route: route.fulfill(headers=STRICT, body=strict))
        (tmp_path / "strict.js").write_text(STRICT_SCRIPT)
        page.goto(f"{url}strict.html")
        page.locator("#found").filter(has_text=re.compile(".")).wait_for(timeout=120_000)
        refused = page.locator("#found").inner_text()
        page.close()
    assert told["webgpu"] == (
        'DeviceUnavailableError: the device "webgpu" was requested, but this browser has no WebGPU; '
        'use the device "auto" or "wasm", or a browser with WebGPU'
    )
    assert told["Model"].startswith("AsyncRequiredError: Model(")
    assert "use `await Model.load(" in told["Model"]
    assert told["generate"].startswith("AsyncRequiredError: generate_next_token() would have to wait here; use `await ")
    assert told["auto"] == f"wasm {oracle.greedy(FIXTURES / 'nano-llama', PROMPT, 3)}"
    assert told["guided"] == str(guided())
    assert refused.startswith("DeviceUnavailableError: host.js could not be run here (")
    assert refused.endswith("a Content-Security-Policy has to allow 'unsafe-eval'")


def guided() -> list[int]:
    """The ids of the reference device."""
    model = Model(str(FIXTURES / "nano-llama"))
    params = GeneratorParams(model)
    params.set_search_options(do_sample=False, max_length=8)
    params.set_guidance("regex", "[a-z]+")
    with Generator(model, params) as generator:
        generator.append_tokens(PROMPT)
        while not generator.is_done():
            generator.generate_next_token()
        return generator.get_sequence()[len(PROMPT) :]
