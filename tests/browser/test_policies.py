"""Pages that a policy or a sandbox restricts: a model loads, or the error names the remedy."""

from __future__ import annotations

import html
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from buildtools.site import assemble
from tests.browser.model_variants import LLAMA
from tests.plain_server import serving_plainly

SECONDS = 120


@dataclass
class Places:
    """Two origins that serve the package and a model, and the folder of the first one."""

    folder: Path
    own: str
    other: str


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    folder = tmp_path_factory.mktemp("policies")
    (folder / "capstan").symlink_to(assemble() / "capstan")
    shutil.copytree(LLAMA, folder / "model")
    with serving_plainly(folder, any_origin=True) as own, serving_plainly(folder, any_origin=True) as other:
        yield Places(folder, own, other)


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with browser.new_context() as context:
        yield context.new_page()


def outcome(page: Page, places: Places, origin: str, policy: str = "", frame: str | None = None) -> str:
    """Load a model with the package of `origin`, in a page under a policy or in a frame with this sandbox; 'loaded' or
    the error."""
    load = f"""import("{origin}capstan/capstan.js")
      .then(({{ Capstan }}) => Capstan.load("{places.own}model/", {{ device: "wasm", assetsUrl: "{origin}capstan/" }}))
      .then((llm) => (llm.close(), "loaded"), ({{ code, message }}) => `${{code}}: ${{message}}`)
      .then((told) => parent.postMessage(told, "*"));"""
    script = "<script>addEventListener('message', ({ data }) => (window.told = data))</script>"
    inner = f"<script type=module>{load}</script>"
    body = inner if frame is None else f'<iframe sandbox="{frame}" srcdoc="{html.escape(inner)}"></iframe>'
    meta = f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">' if policy else ""
    # A name of its own: the server would answer within the same second that the file is unchanged.
    name = f"page-{len([*places.folder.iterdir()])}.html"
    (places.folder / name).write_text(f"<!doctype html>{meta}{script}{body}")
    page.goto(places.own + name)
    for _ in range(10 * SECONDS):
        # `wait_for_function` evaluates text, which policies forbid.
        if told := page.evaluate("window.told"):
            return str(told)
        page.wait_for_timeout(100)
    raise AssertionError(f"nothing was told within {SECONDS} s")


@pytest.mark.extended
def test_the_package_of_another_origin_needs_its_origin_in_the_policy(page: Page, places: Places) -> None:
    other = places.other.rstrip("/")
    scripts = f"script-src 'self' 'unsafe-inline' 'wasm-unsafe-eval' {other}"
    assert outcome(page, places, places.other, f"{scripts}; worker-src blob: {other}") == "loaded"
    told = outcome(page, places, places.other, f"{scripts}; worker-src blob:")
    assert told.startswith("StartError: the worker failed: ")
    assert f"has to allow worker-src blob: {other} and script-src {other} 'wasm-unsafe-eval'" in told


def test_the_package_of_the_page_itself_needs_no_more_than_webassembly(page: Page, places: Places) -> None:
    policy = "default-src 'self' 'unsafe-inline'; script-src 'self' 'unsafe-inline' 'wasm-unsafe-eval'"
    assert outcome(page, places, places.own, policy) == "loaded"


def test_a_sandboxed_frame_needs_its_origin(page: Page, places: Places) -> None:
    told = outcome(page, places, places.own, frame="allow-scripts")
    assert told.startswith("StartError: the worker failed: ")
    assert "an opaque origin, as a sandboxed iframe, whose workers a browser refuses); add allow-same-origin" in told
    assert outcome(page, places, places.own, frame="allow-scripts allow-same-origin") == "loaded"
