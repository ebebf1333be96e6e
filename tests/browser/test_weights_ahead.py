"""The worker begins with a model's weights while Python starts: with their download, or with those that are stored."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Request, Route

from buildtools import SITE
from buildtools.ready_made import READY, Header, make_ready
from capstan.model_files.gguf.header import GgmlType
from capstan_host.headless.served_files import byte_range
from capstan_host.site_server import SiteServer
from tests import oracle
from tests.browser.hub_server import LARGE, Repository, running_hub
from tests.browser.model_variants import LLAMA
from tests.conftest import BOOT_MS
from tests.gguf_models import make, write
from tests.repository_layout import lay_out

pytestmark = pytest.mark.extended

MODEL = "/models/nano-llama"
DATA = f"{MODEL}/model.onnx.data"
BEGIN = """([model, options]) => {
  window.progress = [];
  window.stop = new AbortController();
  window.ended = (async () => {
    const { Capstan } = await import("/capstan/capstan.js");
    const onProgress = (progress) => window.progress.push(progress);
    try {
      const { signal } = window.stop;
      const llm = await Capstan.load(model, { device: "webgpu", capture: "off", onProgress, signal, ...options });
      const { tokenIds } = await llm.complete([5, 6, 7], { maxTokens: 6, temperature: 0 }).result;
      const { entries } = await llm.memory();
      llm.close();
      const weights = entries.filter(({ category }) => category === "weights").map(({ bytes }) => bytes);
      return { tokenIds, weights };
    } catch (error) {
      return { code: error.code ?? error.name, message: error.message };
    }
  })();
}"""
SPOIL = """async () => {
  // Once nobody reads the files any more.
  const folder = await (await navigator.storage.getDirectory()).getDirectoryHandle("capstan-weights");
  for await (const [name, handle] of folder.entries()) {
    if (!name.endsWith(".data")) continue;
    const { size } = await handle.getFile();
    let writable = null;
    while (!writable) writable = await handle.createWritable().catch(() => new Promise((go) => setTimeout(go, 50)));
    await writable.write(new Uint8Array(size));
    await writable.close();
  }
}"""


class Start:
    """A load of the model, with these options, in a page whose Python does not start before `release`."""

    def __init__(self, page: Page, url: str, model: str = MODEL, **options: Any) -> None:
        self.page = page
        self.asked: list[Request] = []
        self.held: list[Route] = []
        page.on("request", lambda request: self.asked.append(request) if "/models/" in request.url else None)
        page.route("**/*.snapshot", lambda route: self.held.append(route))
        page.goto(f"{url}blank.html")
        page.evaluate(BEGIN, [model, options])

    def release(self) -> dict[str, Any]:
        """Let Python start; how the load ended."""
        for _ in range(BOOT_MS // 50):
            if self.held:
                break
            self.page.wait_for_timeout(50)
        for route in self.held:
            route.continue_()
        found: dict[str, Any] = self.page.evaluate("() => window.ended")
        return found

    def wait_for_data(self, name: str = DATA) -> Request:
        """The request for the weights themselves."""
        for _ in range(BOOT_MS // 100):
            for request in self.asked:
                if request.url.endswith(name) and request.method == "GET":
                    return request
            self.page.wait_for_timeout(100)
        raise AssertionError("the weights were not asked for before Python was there")

    def counts(self) -> Counter[str]:
        return Counter(f"{request.method} {request.url.rpartition('/')[2]}" for request in self.asked)


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """A profile that stores nothing at first."""
    context = browser.new_context()
    context.set_default_timeout(BOOT_MS)
    yield context
    context.close()


@contextmanager
def starting(context: BrowserContext, site: SiteServer, *model: str, **options: Any) -> Iterator[Start]:
    page = context.new_page()
    yield Start(page, site.url, *model, **options)
    page.close()


def test_a_download_and_an_upload_begin_before_python_is_there(context: BrowserContext, site: SiteServer) -> None:
    with starting(context, site) as first:
        first.wait_for_data()
        downloaded = first.release()
        assert set(first.counts().values()) == {1}, first.counts()
    with starting(context, site) as second:
        second.page.wait_for_function("() => window.progress.some(({ loaded, total }) => total && loaded === total)")
        # Weights that are on the GPU already are not read from the store again.
        second.page.evaluate(SPOIL)
        uploaded = second.release()
        assert set(second.counts().values()) == {1}, second.counts()
        assert "GET model.onnx.data" not in second.counts()
    assert len(downloaded["tokenIds"]) == 6, downloaded
    assert uploaded == downloaded


def test_the_weights_of_a_gguf_file_begin_before_python_is_there(
    context: BrowserContext, site: SiteServer, tmp_path: Path
) -> None:
    """They are rearranged on the way. Nothing of the file is read again, not even its header."""
    made = make("llama", {"": GgmlType.Q4_1, "token_embd": GgmlType.Q6_K}, {"block_count": 1}, vocabulary=512)
    name = "gguf-ahead"
    model = f"/models/{name}/{write(made, tmp_path / name / 'model.gguf').name}"
    site.models[name] = tmp_path / name
    try:
        with starting(context, site, model) as first:
            first.wait_for_data("model.gguf")
            stored = first.release()
            # Its header is read of what comes before Python is there.
            assert first.counts()["GET model.gguf"] == 1
        with starting(context, site, model) as second:
            second.page.wait_for_function(
                "() => window.progress.some(({ loaded, total }) => total && loaded === total)"
            )
            second.page.evaluate(SPOIL)
            uploaded = second.release()
            assert second.counts() == {"HEAD model.gguf": 2}
    finally:
        del site.models[name]
    assert len(stored["tokenIds"]) == 6, stored
    assert uploaded == stored


def test_of_a_file_that_the_site_knows_nothing_is_computed(
    browser: Browser, context: BrowserContext, site: SiteServer, tmp_path: Path
) -> None:
    fresh = browser.new_context()
    fresh.set_default_timeout(BOOT_MS)
    made = make("llama", {"": GgmlType.Q4_1, "token_embd": GgmlType.Q6_K}, {"block_count": 1}, vocabulary=512)
    file = write(made, tmp_path / "gguf-known" / "model.gguf")
    # Playwright has an event loop in this thread.
    with ThreadPoolExecutor() as aside:
        known, _ = aside.submit(lambda: make_ready([Header.of(file, tmp_path)], tmp_path)).result()
    index = json.loads((SITE / "capstan/python.json").read_text())
    asked: list[str] = []

    def results(route: Route) -> None:
        asked.append(route.request.url.rpartition("/")[2])
        route.fulfill(path=tmp_path / READY / asked[-1])

    site.models["gguf-known"] = file.parent
    model = f"/models/gguf-known/{file.name}"
    try:
        with starting(context, site, model) as plain:
            computed = plain.release()
            assert max(noted(plain)) > 10_000
        fresh.route("**/capstan/python.json", lambda route: route.fulfill(json={**index, "ready": known}))
        fresh.route(f"**/capstan/{READY}/*", results)
        with starting(fresh, site, model) as first:
            first.wait_for_data("model.gguf")
            assert first.release() == computed
            assert first.counts()["GET model.gguf"] == 1
            assert max(noted(first)) > 10_000
        assert len(asked) == 1
        with starting(fresh, site, model) as second:
            assert second.release() == computed
            assert second.counts() == {"HEAD model.gguf": 2}
    finally:
        fresh.close()
        del site.models["gguf-known"]
    assert len(asked) == 1, "the second visit has notes"


def noted(start: Start) -> list[int]:
    """The bytes of each note about a file."""
    found: list[int] = start.page.evaluate(
        """async () => {
          const folder = await (await navigator.storage.getDirectory()).getDirectoryHandle("capstan-file-notes");
          const sizes = [];
          for await (const handle of folder.values()) sizes.push((await handle.getFile()).size);
          return sizes;
        }"""
    )
    return found


def test_a_download_that_was_begun_ends_by_abort_and_fails_as_any_other(
    context: BrowserContext, site: SiteServer
) -> None:
    held: list[Route] = []
    context.route(f"**{DATA}", lambda route: held.append(route) if route.request.method == "GET" else route.continue_())
    with starting(context, site) as aborted:
        aborted.wait_for_data()
        asked = len(aborted.asked)
        aborted.page.evaluate("() => window.stop.abort()")
        assert aborted.release()["code"] == 20, "that of an AbortError"
        aborted.page.wait_for_timeout(500)
        assert len(aborted.asked) == asked
    with starting(context, site) as failed:
        failed.wait_for_data()
        held[-1].fulfill(status=403)
        assert failed.release() == {
            "code": "ModelFileError",
            "message": f"{site.url.rstrip('/')}{DATA}: the weights cannot be read (HTTP 403); sign in to its "
            "server, or have it give the model's files without a login",
        }


def test_of_a_hub_the_weights_come_before_python_is_there_and_each_byte_once(
    context: BrowserContext, site: SiteServer, tmp_path: Path
) -> None:
    folder = lay_out(LLAMA, tmp_path / "nano", parts=2)
    with running_hub({"nano/ahead": Repository(folder)}) as hub:

        def sent() -> Counter[str]:
            """Bytes that the server of large files was asked for, by file."""
            found: Counter[str] = Counter()
            for request in hub.requests:
                if request.server == "cdn" and request.method == "GET":
                    file = hub.cdn.files[request.path.strip("/")]
                    span = byte_range(request.range, file.stat().st_size)
                    found[file.name] += span[1] if span else file.stat().st_size
            return found

        with starting(context, site, "nano/ahead", hub=hub.url, dtype="q4") as start:
            names = ["model_q4.onnx_data", "model_q4.onnx_data_1"]
            for _ in range(BOOT_MS // 100):
                if set(names) <= sent().keys():
                    break
                start.page.wait_for_timeout(100)
            ahead = sent()
            loaded = start.release()
        large = [file for file in folder.rglob("*") if LARGE.search(file.name)]
        sizes = {file.name: file.stat().st_size for file in large}
        assert {name: ahead[name] for name in names} == {name: sizes[name] for name in names}, "before Python was there"
        assert sent() == Counter(sizes)
    assert loaded.get("tokenIds") == oracle.greedy(LLAMA, [5, 6, 7], 6), loaded
