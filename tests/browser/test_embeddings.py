"""`Capstan.loadEmbedder` in a page: vectors are those of the native onnxruntime, on both devices."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page

from buildtools import ROOT
from buildtools.site import assemble
from capstan_host.headless.static_server import running
from capstan_host.site_server import SiteServer
from tests.encoders import ENCODERS, KINDS, TEXTS, vectors

EMBED = """async ([address, texts, options]) => {
  const { Capstan } = await import("/capstan/capstan.js");
  const embedder = await Capstan.loadEmbedder(address, options);
  const found = await embedder.embed(texts);
  const { stats } = embedder;
  embedder.close();
  return [found.map((vector) => [...vector]), stats, await Capstan.models.size(address)];
}"""


@pytest.fixture(scope="module")
def encoders() -> Iterator[SiteServer]:
    with running(SiteServer(assemble(), {kind: ENCODERS / kind for kind in KINDS})) as server:
        yield server


@pytest.fixture
def page(visit: Callable[[str], Page], encoders: SiteServer) -> Page:
    return visit(encoders.url)


# Those of the first kind are compared where sentences are searched.
@pytest.mark.one_in(12)
@pytest.mark.parametrize("device", ["webgpu", "wasm"])
@pytest.mark.parametrize("kind", sorted(KINDS, key=lambda kind: kind != "mpnet"))
def test_vectors_are_those_of_the_native_onnxruntime(kind: str, device: str, page: Page) -> None:
    texts = [f"{TEXTS[place % 3]} {place}" for place in range(8)]
    found, stats, stored = page.evaluate(EMBED, [f"/models/{kind}/", texts, {"device": device}])
    assert np.array(found) == pytest.approx(vectors(kind, texts, KINDS[kind]), abs=1e-4)
    assert stats == {"device": device, "pooling": KINDS[kind], "maxTokens": stats["maxTokens"]}
    assert stats["maxTokens"] >= 60
    assert stored > 0, "the weights in the graph's file are kept"


SEARCH = """async ([address, sentences, question]) => {
  const { Capstan } = await import("/capstan/capstan.js");
  const embedder = await Capstan.loadEmbedder(address, { device: "webgpu" });
  const { data } = await embedder.embeddings.create({ input: sentences });
  const [asked] = await embedder.embed([question]);
  const near = ({ embedding }) => embedding.reduce((sum, number, place) => sum + number * asked[place], 0);
  const best = data.toSorted((one, other) => near(other) - near(one)).map(({ index }) => index);
  embedder.close();
  return [best.slice(0, 3), data.slice(0, 3).map(({ embedding }) => [...embedding])];
}"""


@pytest.mark.extended
def test_a_search_over_many_sentences_finds_what_the_definition_finds(page: Page) -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("design*.md")))
    sentences = re.findall(r"[A-Z][a-z ,]{15,90}\.", text)[:40]
    assert len(sentences) == 40
    question = sentences[31].removesuffix(".")
    found, first = page.evaluate(SEARCH, ["/models/bert/", sentences, question])
    defined = vectors("bert", sentences, "mean")
    assert np.array(first) == pytest.approx(defined[:3], abs=1e-4)
    near = defined @ vectors("bert", [question], "mean")[0]
    assert found == list(np.argsort(-near, kind="stable")[:3])
    assert found[0] == 31


@pytest.mark.extended
def test_what_is_no_encoder_is_told(page: Page, encoders: SiteServer, tmp_path: Path) -> None:
    folder = tmp_path / "wrong"
    shutil.copytree(ENCODERS / "bert", folder)
    (folder / "tokenizer.json").unlink()
    encoders.models["wrong"] = folder
    told = "([address, options]) => import('/capstan/capstan.js').then(({ Capstan }) => "
    told += "Capstan.loadEmbedder(address, options)).catch(({ code, message }) => [code, message])"
    code, message = page.evaluate(told, ["/models/wrong/", {}])
    assert code == "ModelFileError"
    assert "/models/wrong/tokenizer.json is missing; copy the tokenizer's files" in message
    code, message = page.evaluate(told, ["/models/bert/", {"pooling": "max"}])
    assert code == "OptionError"
    assert "pooling" in message
