"""A second page load reuses the first one's findings: the device's capabilities and the rewritten graphs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext

from capstan_host.site_server import SiteServer
from capstan_host.testing.harness import Harness
from tests.conftest import BOOT_MS

pytestmark = pytest.mark.extended

MODEL = "nano-llama"
LOAD = """
import json, sys
import capstan
from capstan._js import host_calls
from capstan.device.webgpu import webgpu_graphs
from capstan.host.notes import FOLDER
from capstan.host import current_host

rewrite, rewrites = webgpu_graphs.rewrite, []
async def counted(*given):
    rewrites.append(1)
    return await rewrite(*given)
webgpu_graphs.rewrite = counted
options, damage = json.loads(sys.argv[1])
if damage:
    backing = await current_host().backing(FOLDER)
    for name in await backing.names():
        await backing.write_text(name, damage)
async with await capstan.Model.load(next(iter(models.values())), device="webgpu", capture="off", **options) as model:
    probing = host_calls.gpu().counters()["readbacks"]
    params = capstan.GeneratorParams(model)
    params.set_search_options(do_sample=False, max_length=16)
    async with capstan.Generator(model, params) as generator:
        generator.append_tokens([5, 6, 7])
        ids = [token async for token in generator]
    capabilities = await model.device.capabilities()
    found = {"rewrites": len(rewrites), "readbacks": probing, "ids": ids, "phases": list(model.load_times)}
    found["capabilities"] = str(capabilities)
webgpu_graphs.rewrite = rewrite
print(json.dumps(found))
"""


TORN = "{}"


@pytest.fixture(scope="module")
def starts(browser: Browser, site: SiteServer) -> Iterator[list[dict[str, Any]]]:
    """Page loads of one profile that stores nothing at first: the third finds its notes damaged, the last is not to
    keep anything."""
    context = browser.new_context()
    loads: list[tuple[dict[str, Any], str]] = [({}, ""), ({}, ""), ({}, TORN), ({}, "")]
    loads.append(({"disable_file_mapped_weights": True}, ""))
    yield [start(context, site, *load) for load in loads]
    context.close()


def start(context: BrowserContext, site: SiteServer, options: dict[str, Any], damage: str) -> dict[str, Any]:
    """Load a page and the model in it; what it found out for itself."""
    page = context.new_page()
    page.set_default_navigation_timeout(BOOT_MS)
    harness = Harness(page, site.url)
    done = harness.exec(LOAD, [MODEL], [json.dumps([options, damage])])
    assert (done.status, harness.errors) == (0, []), done.stderr
    assert ("is damaged" in done.stderr) == bool(damage), done.stderr
    page.close()
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_first_page_probes_and_rewrites(starts: list[dict[str, Any]]) -> None:
    assert starts[0]["rewrites"] == 1
    assert starts[0]["readbacks"] > 0
    assert set(starts[0]["phases"]) == {
        "files",
        "adapter",
        "model.onnx",
        "device",
        "graph",
        "probe",
        "weights",
        "session",
        "tokenizer",
    }


@pytest.mark.parametrize("later", [1, 3])
def test_the_next_page_neither_probes_nor_rewrites(later: int, starts: list[dict[str, Any]]) -> None:
    assert starts[later]["rewrites"] == starts[later]["readbacks"] == 0


def test_damaged_notes_are_found_out_anew(starts: list[dict[str, Any]]) -> None:
    assert starts[2]["rewrites"] == 1
    assert starts[2]["readbacks"] == starts[0]["readbacks"]


def test_where_weights_are_not_kept_neither_are_graphs(starts: list[dict[str, Any]]) -> None:
    assert starts[4]["rewrites"] == 1
    assert starts[4]["readbacks"] == 0, "capabilities are no weights"


def test_every_page_computes_the_same(starts: list[dict[str, Any]]) -> None:
    for key in ("ids", "capabilities"):
        assert [found[key] for found in starts] == 5 * [starts[0][key]], key


ON_THE_CPU = """
import json
import capstan
from capstan.device.wasm import cpu_graph

prepare, prepared = cpu_graph.prepare, []
def counted(*given):
    prepared.append(1)
    return prepare(*given)
cpu_graph.prepare = counted
async with await capstan.Model.load(next(iter(models.values())), device="wasm") as model:
    params = capstan.GeneratorParams(model)
    params.set_search_options(do_sample=False, max_length=16)
    async with capstan.Generator(model, params) as generator:
        generator.append_tokens([5, 6, 7])
        ids = [token async for token in generator]
    phases = sorted(model.load_times)
cpu_graph.prepare = prepare
print(json.dumps({"rewrites": len(prepared), "ids": ids, "phases": phases}))
"""


def test_the_next_page_finds_the_graph_for_the_cpu(browser: Browser, site: SiteServer) -> None:
    context = browser.new_context()
    found = []
    for _ in range(2):
        page = context.new_page()
        page.set_default_navigation_timeout(BOOT_MS)
        harness = Harness(page, site.url)
        done = harness.exec(ON_THE_CPU, [MODEL], [])
        assert (done.status, harness.errors) == (0, []), done.stderr
        found.append(json.loads(done.stdout))
        page.close()
    context.close()
    first, second = found
    assert first["phases"] == ["adapter", "files", "graph", "model.onnx", "session", "tokenizer", "weights"]
    assert first["rewrites"] == 1
    assert second == {**first, "rewrites": 0}


FROM_TAPES = """
import json, sys
import capstan
from capstan._js import host_calls
from capstan.host import spans

def made():
    return [each.name for each in spans.end().kept].count("create a session")

rest = json.loads(sys.argv[1])
spans.begin(host_calls.now)
async with await capstan.Model.load(next(iter(models.values())), device="webgpu") as model:
    found = {"in the load": made()}
    spans.begin(host_calls.now)
    if rest:
        await model.settled_async()
    found["while unused"] = made()
    spans.begin(host_calls.now)
    params = capstan.GeneratorParams(model)
    params.set_search_options(do_sample=False, max_length=16)
    async with capstan.Generator(model, params) as generator:
        generator.append_tokens([5, 6, 7])
        found["ids"] = [token async for token in generator]
        found["capture"] = generator.capture
    found["in the answer"] = made()
print(json.dumps(found))
"""


def test_a_page_with_stored_tapes_makes_the_session_in_unused_time_or_for_its_first_run(
    browser: Browser, site: SiteServer
) -> None:
    context = browser.new_context()
    found = []
    for rest in (False, False, True):
        page = context.new_page()
        page.set_default_navigation_timeout(BOOT_MS)
        harness = Harness(page, site.url)
        done = harness.exec(FROM_TAPES, [MODEL], [json.dumps(rest)])
        assert (done.status, harness.errors) == (0, []), done.stderr
        found.append(json.loads(done.stdout))
        page.close()
    context.close()
    places = [[each[where] for where in ("in the load", "while unused", "in the answer")] for each in found]
    assert places[0][0] > 0, "nothing is stored yet"
    assert places[1:] == [[0, 0, 0], [0, 1, 0]], "the first run makes it without a call from Python"
    assert [each["ids"] for each in found] == [found[0]["ids"]] * 3
    assert {each["capture"] for each in found} == {"tape"}
