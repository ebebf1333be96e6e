"""`Capstan.loadReranker` in a page: scores are those of sentence-transformers and transformers, on both devices."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page

from buildtools.site import assemble
from capstan_host.headless.static_server import running
from capstan_host.site_server import SiteServer
from tests.encoders import ENCODERS
from tests.rerankers import CASES, KINDS, RERANKERS, ranked

RERANK = """async ([address, cases, options]) => {
  const { Capstan } = await import("/capstan/capstan.js");
  const reranker = await Capstan.loadReranker(address, options);
  const found = [];
  for (const [query, documents] of cases) found.push(await reranker.rerank(query, documents));
  const { stats } = reranker;
  reranker.close();
  return [found, stats, await Capstan.models.size(address)];
}"""


@pytest.fixture(scope="module")
def rerankers() -> Iterator[SiteServer]:
    with running(SiteServer(assemble(), {kind: RERANKERS / kind for kind in KINDS})) as server:
        yield server


@pytest.fixture
def page(visit: Callable[[str], Page], rerankers: SiteServer) -> Page:
    return visit(rerankers.url)


@pytest.mark.one_in(12)
@pytest.mark.parametrize("device", ["webgpu", "wasm"])
@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_the_judge(kind: str, device: str, page: Page) -> None:
    found, stats, stored = page.evaluate(RERANK, [f"/models/{kind}/", CASES, {"device": device}])
    for case, results in enumerate(found):
        judged = ranked(kind, case)
        assert [each["index"] for each in results] == [index for index, _ in judged]
        assert [each["score"] for each in results] == pytest.approx([score for _, score in judged], abs=1e-4)
    assert stats == {"device": device, "maxTokens": 256 if kind.startswith("qwen3") else 64}
    assert stored > 0, "the weights in the graph's file are kept"


@pytest.mark.extended
def test_what_is_no_reranker_is_told(page: Page, rerankers: SiteServer, tmp_path: Path) -> None:
    folder = tmp_path / "embedder"
    shutil.copytree(RERANKERS / "bert", folder)
    shutil.copyfile(ENCODERS / "bert/onnx/model.onnx", folder / "onnx/model.onnx")
    rerankers.models["embedder"] = folder
    told = "(address) => import('/capstan/capstan.js').then(({ Capstan }) => "
    told += "Capstan.loadReranker(address)).catch(({ code, message }) => [code, message])"
    code, message = page.evaluate(told, "/models/embedder/")
    assert code == "UnsupportedModelError"
    assert "a reranker gives logits [B, 1]: load encoders of vectors by Capstan.loadEmbedder" in message
