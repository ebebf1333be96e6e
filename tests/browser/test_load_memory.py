"""The growth of a page's memory by loading a model of ten times the limit, and its bytes between host and GPU for each
token."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from buildtools.browser import find_browser
from capstan_host.headless.chromium import flags
from capstan_host.site_server import SiteServer
from capstan_host.testing.harness import Harness, exec_request
from tests import large_model, oracle
from tests.conftest import BOOT_MS
from tests.page_memory import Growth, PageMemory, prepare

pytestmark = [
    pytest.mark.extended,
    pytest.mark.skipif(sys.platform != "linux", reason="the memory of processes is read from /proc"),
]
IN_PAGE = Path(__file__).parents[2] / "benches/memory/in_page.py"
MIB = 1 << 20
LARGE = 640
LIMIT = 64 * MIB
PROMPT = [5, 6, 7, 8, 9]
TOKENS = 12
SLACK = 16 * MIB
"""Memory of its own that the browser may give back while something else grows."""
KEPT = 256 * MIB
"""Memory of the model before that the GPU process may still have: allocators give it back late."""
WARM_LOADS = 4
"""By then the runtimes are there."""
NO_OPTIMIZING = "--js-flags=--liftoff-only --no-opt"
"""The browser compiles what has become hot whenever it gets to it, and takes up to 80 MiB for that."""


class Loading:
    """The harness page in a browser with a profile on disk, so that what the page stores is not kept in memory."""

    def __init__(self, context: BrowserContext, page: Page, url: str) -> None:
        self.harness = Harness(page, url)
        self.memory = PageMemory(context, page)
        self.asked: list[str] = []
        """Requests for data files during the last load."""
        context.on("request", lambda request: self._note(request.method, request.url))

    def _note(self, method: str, url: str) -> None:
        if url.endswith(".onnx.data"):
            self.asked.append(method)

    def load(self, model: str, *runs: int) -> tuple[list[dict[str, Any]], Growth]:
        """Load a model, decode runs of so many tokens, close it: what each run gave, and the growth meanwhile."""
        self.harness.events.clear()
        self.asked.clear()
        argv = [json.dumps(PROMPT), json.dumps(runs)]
        request = exec_request(IN_PAGE.read_text(), [model], argv, IN_PAGE.name)
        reply, growth = self.memory.during("(request) => window.capstan.request(request)", request)
        assert reply == {"ok": True, "result": {"status": 0}}, self.harness.text("stderr")
        return json.loads(self.harness.text("stdout")), growth


@pytest.fixture(scope="module")
def folder(site: SiteServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A place on disk with the models `large` and `small`, which give the same ids."""
    folder = tmp_path_factory.mktemp("memory")
    for name, megabytes in (("large", LARGE), ("small", large_model.least_megabytes())):
        site.models[name] = large_model.make(folder / name, megabytes)
    yield folder
    for name in ("large", "small"):
        del site.models[name]
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def loading(browser: Browser, site: SiteServer, folder: Path) -> Iterator[Loading]:
    adapter = os.environ.get("CAPSTAN_ADAPTER", "software")
    context = browser.browser_type.launch_persistent_context(
        folder / "profile", executable_path=str(find_browser()), args=["--headless=new", NO_OPTIMIZING, *flags(adapter)]
    )
    prepare(context)
    page = context.new_page()
    page.set_default_navigation_timeout(BOOT_MS)
    opened = Loading(context, page, site.url)
    for _ in range(WARM_LOADS):
        opened.load("small")
    yield opened
    errors = opened.harness.errors
    context.close()
    assert not errors, f"the page reported {errors}"


@pytest.fixture(scope="module")
def first_load(loading: Loading) -> tuple[list[str], Growth]:
    """The first load of the large model, which is stored by then: the requests for its data, and the growth."""
    _, growth = loading.load("large")
    return list(loading.asked), growth


def in_mib(growth: Growth) -> str:
    return json.dumps({name: round(value / MIB, 1) for name, value in growth.as_json().items()})


def assert_bounded(growth: Growth) -> None:
    assert growth.samples > 20, in_mib(growth)
    assert growth.gpu_process > LARGE * MIB - KEPT, f"the weights did not get to the GPU: {in_mib(growth)}"
    assert growth.heaps < LIMIT, in_mib(growth)
    assert growth.renderer + growth.renderer_shared < LIMIT, in_mib(growth)


def test_the_sampler_sees_what_is_allocated(loading: Loading) -> None:
    script = """async (bytes) => {
      window.held = [new Uint8Array(bytes).fill(1), new WebAssembly.Memory({ initial: bytes >> 16 })];
      new Uint8Array(window.held[1].buffer).fill(1);
    }"""
    _, growth = loading.memory.during(script, 2 * LIMIT)
    loading.harness.evaluate("() => { delete window.held; }")
    assert 2 * LIMIT - SLACK <= growth.array_buffers < 3 * LIMIT, in_mib(growth)
    assert 4 * LIMIT - SLACK <= growth.heaps < 5 * LIMIT, in_mib(growth)
    assert 4 * LIMIT - SLACK <= growth.renderer < 5 * LIMIT, in_mib(growth)


def test_the_first_load_streams_from_the_network(first_load: tuple[list[str], Growth]) -> None:
    asked, growth = first_load
    assert "GET" in asked
    assert_bounded(growth)


@pytest.mark.usefixtures("first_load")
def test_the_second_load_streams_from_the_store(loading: Loading) -> None:
    _, growth = loading.load("large")
    assert set(loading.asked) == {"HEAD"}, "only whether the file is still the same"
    assert_bounded(growth)


def test_a_token_moves_nothing_to_the_gpu_and_four_bytes_back(loading: Loading, folder: Path) -> None:
    (_, shorter, longer), _ = loading.load("large", TOKENS, TOKENS, 2 * TOKENS)
    assert longer["ids"] == oracle.greedy(folder / "small", PROMPT, 2 * TOKENS)
    moved = {name: longer["counts"][name] - shorter["counts"][name] for name in longer["counts"]}
    assert shorter["counts"]["host_to_device_bytes"] > 0, "a prompt is uploaded"
    assert moved["host_to_device_bytes"] == moved["create_buffer"] == 0
    assert moved["device_to_host_bytes"] == 4 * TOKENS
