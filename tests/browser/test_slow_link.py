"""The link bounds a first visit over 100 million bits a second. A page on a slow one shows its progress."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, expect

from benches.link import SlowLink, SlowServer, Visit, first_visit
from buildtools.browser import find_browser
from buildtools.site import assemble
from capstan import graph
from capstan_host.headless.chromium import flags
from capstan_host.headless.static_server import running
from tests.browser.model_variants import LLAMA

MBIT = 100.0
LIMIT_MS = 120_000
FRONT = 80 << 20
"""Bytes before the weights in their file. They are fetched, hashed and stored, too."""


SLOW_BYTES = 8e6
"""A second; the runtime alone has 52 million."""
TOLD = """async (url) => {
  const { Capstan } = await import("/capstan/capstan.js");
  const told = [];
  const llm = await Capstan.load(url, { device: "webgpu", onProgress: (progress) => told.push(progress) });
  llm.close();
  return told;
}"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return larger(tmp_path_factory.mktemp("link") / "large", FRONT)


def larger(folder: Path, front: int) -> Path:
    """nano-llama with so many bytes before its weights."""
    shutil.copytree(LLAMA, folder)
    model = graph.parse((folder / "model.onnx").read_bytes())
    for tensor in model.graph.initializer:
        for item in tensor.external_data:
            if item.key == "offset":
                item.value = str(int(item.value) + front)
    (folder / "model.onnx").write_bytes(graph.serialize(model))
    data = folder / "model.onnx.data"
    data.write_bytes(bytes(front) + data.read_bytes())
    for digests in folder.glob("*.shards.json"):
        digests.unlink()
    return folder


@pytest.fixture(scope="module")
def visit(browser: Browser, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Visit:
    context = browser.browser_type.launch_persistent_context(
        tmp_path_factory.mktemp("profile"), executable_path=find_browser(), args=flags("software")
    )
    try:
        return first_visit(context, folder, MBIT, "wasm")
    finally:
        context.close()


@pytest.mark.extended
def test_the_link_is_never_idle_for_long(visit: Visit) -> None:
    assert visit.sent > FRONT
    assert visit.sent * 8 / MBIT / 1e6 == pytest.approx(visit.last - visit.idle, rel=0.05)
    assert visit.idle < 0.15 * visit.last, visit


@pytest.mark.extended
def test_hashing_and_storing_end_soon_after_the_last_byte(visit: Visit) -> None:
    assert visit.seconds - visit.last < 3, visit


@pytest.fixture
def slow(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[BrowserContext, SlowServer, SlowLink]]:
    """A browser in which nothing is stored, and a slow server with a model."""
    link, folder = SlowLink(SLOW_BYTES), tmp_path_factory.mktemp("slow")
    models = {"one": larger(folder / "one", 16 << 20)}
    context = browser.browser_type.launch_persistent_context(
        folder / "profile", executable_path=find_browser(), args=flags("software")
    )
    with running(SlowServer(assemble(), models, link)) as server:
        yield context, server, link
    context.close()


@pytest.mark.extended
def test_a_load_tells_one_fraction_over_runtime_and_model(
    slow: tuple[BrowserContext, SlowServer, SlowLink],
) -> None:
    context, server, link = slow
    page = context.new_page()
    page.set_default_timeout(LIMIT_MS)
    page.goto(f"{server.url}blank.html")
    told = page.evaluate(TOLD, "/models/one/")
    page.close()
    fractions = [progress["fraction"] for progress in told]
    assert fractions == sorted(fractions)
    assert (fractions[0], fractions[-1]) == (0, 1)
    steps = [after - before for before, after in pairwise(fractions)]
    assert max(steps) < 0.2, "the bar moves while a file comes"
    assert sum(0 < fraction < 0.5 for fraction in fractions) > 10, "and while Python starts"
    known = [progress for progress in told if progress["totalBytes"] is not None]
    assert known[-1]["bytes"] == known[-1]["totalBytes"]
    assert link.sent == pytest.approx(known[-1]["bytes"], rel=0.05)
    assert {"starting Python"} < {progress["status"] for progress in told}
    left = [progress["secondsLeft"] for progress in told if progress["secondsLeft"]]
    assert len(left) > 10
    assert left[-1] < left[0]


@pytest.mark.extended
def test_the_demo_page_has_a_bar_and_the_time_left_while_python_starts(
    slow: tuple[BrowserContext, SlowServer, SlowLink],
) -> None:
    context, server, _ = slow
    page = context.new_page()
    page.goto(server.url)
    status, bar = page.locator("#status"), page.locator("#progress")
    expect(status).to_have_text(re.compile(r"^Loading: \d+ of \d\d MB, \d+ s left$"), timeout=LIMIT_MS)
    expect(bar).to_have_attribute("max", "1")
    before = float(bar.get_attribute("value") or 0)
    assert 0 < before < 1
    page.wait_for_function(
        "(before) => document.getElementById('chat').shadowRoot.getElementById('progress').value > before + 0.1",
        arg=before,
        timeout=LIMIT_MS,
    )
    expect(status).to_have_text(re.compile("^Ready: "), timeout=LIMIT_MS)
    expect(bar).to_be_hidden()
    page.close()
