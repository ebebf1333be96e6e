"""The files that `Capstan.load` asks for, and its errors for those of the package that are missing."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, Route

LOAD = """async ([device, model = "nano-llama"]) => {
  const { Capstan } = await import("/capstan/capstan.js");
  try {
    (await Capstan.load(`/models/${model}/`, { device })).close();
    return ["loaded", ""];
  } catch (error) {
    return [error.code, error.message];
  }
}"""


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("file", "device"),
    [
        ("python.json", "wasm"),
        ("pyodide.asm.wasm", "wasm"),
        ("ort-wasm-simd-threaded.wasm", "wasm"),
        ("ort.webgpu.min.mjs", "webgpu"),
    ],
)
def test_a_file_that_is_not_there_is_named(file: str, device: str, blank_page: Page, page_errors: list[str]) -> None:
    def refuse(route: Route) -> None:
        route.fulfill(status=404, content_type="text/html", body="<!doctype html>")

    blank_page.route(f"**/{file}", refuse)
    code, message = blank_page.evaluate(LOAD, [device])
    page_errors.clear()
    assert code in ("StartError", "DeviceUnavailableError")
    assert f"/{file}" in message
    assert "404" in message


def test_a_worker_without_the_header_of_isolation_is_told_of_it(blank_page: Page, page_errors: list[str]) -> None:
    def without(route: Route) -> None:
        response = route.fetch()
        headers = {name: value for name, value in response.headers.items() if "embedder" not in name}
        route.fulfill(response=response, headers=headers)

    blank_page.route("**/worker.js", without)
    code, message = blank_page.evaluate(LOAD, ["wasm"])
    page_errors.clear()
    assert code == "StartError"
    assert "/worker.js" in message
    assert "Cross-Origin-Embedder-Policy: require-corp" in message


def test_a_load_of_the_bundled_model_asks_for_no_file_that_is_missing(blank_page: Page) -> None:
    missing: list[str] = []
    blank_page.on("response", lambda response: missing.append(response.url) if response.status >= 400 else None)
    assert blank_page.evaluate(LOAD, ["wasm", "bundled"])[0] == "loaded"
    assert missing == []
