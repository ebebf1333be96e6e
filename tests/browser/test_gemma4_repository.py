"""Gemma 4 in Transformers.js' layout: a page picks the ids of transformers, and decode steps run from a tape."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from buildtools.site import assemble
from capstan.loading.embedded_repository import EMBEDDED
from capstan_host.headless.static_server import running
from capstan_host.site_server import SiteServer
from capstan_host.testing.harness import Harness
from tests.browser.hub_server import HubServer, Repository, running_hub
from tests.browser.page_scripts import PageScripts
from tests.browser.test_hub import weights_read
from tests.browser.test_repositories import GONE

FOLDER = Path(__file__).parents[1] / "fixtures/repositories/nano-gemma4"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())
CASES = EXPECTED["cases"]


@pytest.fixture(scope="module")
def name(site: SiteServer) -> str:
    site.models[FOLDER.name] = FOLDER
    return FOLDER.name


@pytest.mark.one_in
@pytest.mark.parametrize(("device", "capture"), [("webgpu", "tape"), ("webgpu", "off"), ("wasm", "off")])
def test_ids_are_those_of_transformers(
    name: str, device: str, capture: str, harness: Harness, scripts: PageScripts
) -> None:
    scripts.expect(GONE)
    for case in CASES:
        count = len(case["ids"])
        found = harness.generate(name, prompt_ids=case["prompt"], max_new_tokens=count, device=device, capture=capture)
        assert found["token_ids"] == case["ids"]
        assert found["capture"] == capture
        if capture == "tape":
            counters = found["counters"]
            assert (counters["create_buffer"], counters["create_bind_group"]) == (0, 0)
            assert counters["readback_bytes"] == 4 * count
            # Lookups, factors, sums and norms of the layers' inputs stay; both products of a gate join.
            assert found["tape_passes"]["fused"].endswith(" 44 of them as recorded")


ON_DISK = [("webgpu", "tape"), ("webgpu", "off"), ("wasm", "off")]


@pytest.mark.one_in
@pytest.mark.parametrize(("device", "capture"), ON_DISK)
def test_ids_are_the_same_with_tables_on_disk(
    name: str, device: str, capture: str, harness: Harness, scripts: PageScripts
) -> None:
    """Each step reads the rows of its token; a token that follows itself has its rows already."""
    scripts.expect(GONE)
    for case in CASES:
        count = len(case["ids"])
        options = {"device": device, "capture": capture, "embedding_tables": "disk"}
        found = harness.generate(name, prompt_ids=case["prompt"], max_new_tokens=count, **options)
        assert found["token_ids"] == case["ids"]
        assert found["capture"] == capture
        counters = found["counters"]
        assert 0 < counters["table_reads"] <= count
        assert counters["table_bytes"] % counters["table_reads"] == 0
        if capture == "tape":
            assert counters["readback_bytes"] == 4 * count


@pytest.fixture(scope="module")
def hub() -> Iterator[HubServer]:
    with running_hub({"nano/gemma-4": Repository(FOLDER)}) as server:
        yield server


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    with running(SiteServer(assemble(), {})) as server:
        context = browser.new_context()
        page = context.new_page()
        page.goto(server.url + "blank.html")
        yield page
        context.close()


CHAT = """async ([id, hub, messages]) => {
  const { Capstan } = await import("/capstan/capstan.js");
  const { fits, bytes } = await Capstan.fits(id, { hub, device: "webgpu" });
  const llm = await Capstan.load(id, { hub, device: "webgpu" });
  const found = await llm.chat(messages, { temperature: 0, maxTokens: 40 }).result;
  const image = new ImageData(4, 4);
  const seen = llm.chat([{ role: "user", content: [image, { type: "text", text: "What?" }] }]).result;
  const refusal = await seen.then(() => null, ({ code, message }) => [code, message]);
  const { capture } = llm.stats();
  llm.close();
  return { ids: found.tokenIds, refusal, capture, fits, bytes };
}"""


DISK = """async ([id, hub, messages, disableFileMappedWeights]) => {
  const { Capstan } = await import("/capstan/capstan.js");
  const options = { hub, device: "webgpu", embeddingTables: "disk", disableFileMappedWeights };
  const bytes = [];
  for (const embeddingTables of ["memory", "disk"]) {
    bytes.push((await Capstan.fits(id, { hub, device: "webgpu", embeddingTables })).bytes);
  }
  try {
    const llm = await Capstan.load(id, options);
    const found = await llm.chat(messages, { temperature: 0, maxTokens: 40 }).result;
    llm.close();
    return { ids: found.tokenIds, bytes };
  } catch ({ code, message }) {
    return { code, message, bytes };
  }
}"""


@pytest.mark.extended
@pytest.mark.one_in
def test_a_page_reads_rows_of_tables_from_its_storage(page: Page, hub: HubServer) -> None:
    asked = ["nano/gemma-4", hub.url, EXPECTED["messages"]]
    refused = page.evaluate(DISK, [*asked, True])
    assert (refused["code"], "embedding_tables='memory'" in refused["message"]) == ("StorageError", True)
    found = page.evaluate(DISK, [*asked, False])
    assert found["ids"] == CASES[2]["ids"]
    held, on_disk = found["bytes"]
    assert on_disk != held
    hub.requests.clear()
    assert page.evaluate(DISK, [*asked, False])["ids"] == found["ids"]
    assert not weights_read(hub)


@pytest.mark.extended
@pytest.mark.one_in
def test_it_is_loaded_by_its_id_and_refuses_pictures(page: Page, hub: HubServer) -> None:
    asked = ["nano/gemma-4", hub.url, EXPECTED["messages"]]
    found = page.evaluate(CHAT, asked)
    assert (found["ids"], found["capture"], found["fits"]) == (CASES[2]["ids"], "tape", True)
    code, message = found["refusal"]
    assert (code, "reads only text" in message) == ("UnsupportedModelError", True)
    assert weights_read(hub) == {f"{name}_q4.onnx_data" for name in EMBEDDED}
    hub.requests.clear()
    assert page.evaluate(CHAT, asked)["ids"] == found["ids"]
    assert not weights_read(hub)
