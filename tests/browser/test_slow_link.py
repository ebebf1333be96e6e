"""The link bounds a first visit over 100 million bits a second."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from benches.link import Visit, first_visit
from buildtools.browser import find_browser, flags
from capstan import graph
from tests.browser.model_variants import LLAMA

MBIT = 100.0
FRONT = 80 << 20
"""Bytes before the weights in their file. They are fetched, hashed and stored, too."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """nano-llama with a large data file."""
    folder = tmp_path_factory.mktemp("link") / "large"
    shutil.copytree(LLAMA, folder)
    model = graph.parse((folder / "model.onnx").read_bytes())
    for tensor in model.graph.initializer:
        for item in tensor.external_data:
            if item.key == "offset":
                item.value = str(int(item.value) + FRONT)
    (folder / "model.onnx").write_bytes(graph.serialize(model))
    data = folder / "model.onnx.data"
    data.write_bytes(bytes(FRONT) + data.read_bytes())
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
