"""A checked tape is made again without recording: for a second sequence, a second load in a page and a later page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext

from capstan.model_files.gguf.header import GgmlType
from capstan.tape import PASSES
from capstan_host.site_server import SiteServer
from capstan_host.testing.harness import Harness, exec_request
from tests.conftest import BOOT_MS
from tests.gguf_models import make, write

RUN = """
import json, sys
import capstan
from capstan._js.page_gpu_engine import JsGpuEngine
from capstan.host import current_host
from capstan.host.notes import FOLDER

options, damage = json.loads(sys.argv[1])
if damage:
    backing = await current_host().backing(FOLDER)
    for name in await backing.names():
        await backing.write_text(name, "damaged")

asked = []
def noted(name):
    plain = getattr(JsGpuEngine, name)
    async def call(self, *given, **named):
        asked.append(name)
        return await plain(self, *given, **named)
    return plain, call
plain = {}
for name in ("record", "compare", "restore_tape"):
    plain[name], call = noted(name)
    setattr(JsGpuEngine, name, call)
plain["create_session"] = create_session = JsGpuEngine.create_session
async def made(self, model, capture, owner, cache_bits):
    asked.append("create_session" if capture else "eager")
    return await create_session(self, model, capture, owner, cache_bits)
JsGpuEngine.create_session = made

def counted():
    found = {name: asked.count(name) for name in plain}
    asked.clear()
    return found

async def sequence(model):
    params = capstan.GeneratorParams(model)
    params.set_search_options(do_sample=False, max_length=40)
    generator = capstan.Generator(model, params)
    generator.append_tokens([5, 6, 7])
    return generator

async def rest(generator):
    return [token async for token in generator]

async def load():
    place = next(iter(models.values())).replace(".gguf/", ".gguf")
    return await capstan.Model.load(place, device="webgpu", **options)

found = {"asked": {}, "ids": [], "passes": []}
model = await load()
first = await sequence(model)
ids = [await first.generate_next_token_async() for _ in range(3)]
found["asked"]["first"] = counted()
second = await sequence(model)
begun = [await second.generate_next_token_async() for _ in range(9)]
found["asked"]["second"] = counted()
# They take turns, each over its own buffers.
ids += [await first.generate_next_token_async() for _ in range(5)]
found["ids"].append(begun + await rest(second))
found["ids"].append(ids + await rest(first))
found["counters"] = second.counters
found["passes"] += [first.tape_passes, second.tape_passes]
# The tape outlives the sequence that it was recorded for.
await first.aclose()
await model.trim()
found["ids"].append(await rest(third := await sequence(model)))
found["asked"]["third"] = counted()
await third.aclose()
await second.aclose()
await model.aclose()
found["left"] = capstan.memory.ledger().bytes()
model = await load()
again = await sequence(model)
found["ids"].append(await rest(again))
found["asked"]["loaded again"] = counted()
found["passes"].append(again.tape_passes)
await again.aclose()
await model.aclose()
found["left again"] = capstan.memory.ledger().bytes()
for name, method in plain.items():
    setattr(JsGpuEngine, name, method)
print(json.dumps(found))
"""

GGUF = "long/model.gguf"
"""A model whose graph computes its rotary tables."""
MADE_AGAIN = {"record": 0, "compare": 0, "restore_tape": 1, "create_session": 0}


def run(context: BrowserContext, site: SiteServer, model: str, options: dict[str, Any], damage: bool) -> dict[str, Any]:
    """The results of RUN in a new page, with these options of Model.load."""
    page = context.new_page()
    page.set_default_navigation_timeout(BOOT_MS)
    harness = Harness(page, site.url)
    done = harness.exec(RUN, [model], [json.dumps([options, damage])])
    assert (done.status, harness.errors) == (0, []), done.stderr
    assert ("is damaged" in done.stderr) == damage, done.stderr
    page.close()
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(
    scope="module",
    params=[
        ("nano-llama", {}),
        pytest.param(("nano-llama", {"passes": ["clears", "direct"]}), marks=pytest.mark.extended),
        pytest.param(("nano-qwen3", {}), marks=pytest.mark.extended),
        (GGUF, {}),
    ],
    ids=["fused", "as recorded, from tables", "fused in part", "a GGUF file with rotary tables of 2 MiB"],
)
def pages(
    request: pytest.FixtureRequest, browser: Browser, site: SiteServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[dict[str, Any]]]:
    """Two page loads of one profile that stores nothing at first."""
    model, options = request.param
    if model == GGUF:
        made = make("llama", {"": GgmlType.Q4_0}, {"context_length": 8192}, vocabulary=512)
        site.models["long"] = write(made, tmp_path_factory.mktemp("stored") / GGUF).parent
    context = browser.new_context()
    yield [run(context, site, model, options, False) for _ in range(2)]
    context.close()
    site.models.pop("long", None)


def test_the_first_sequence_alone_is_recorded_and_compared(pages: list[dict[str, Any]]) -> None:
    asked = pages[0]["asked"]
    assert asked["first"]["record"] == 1
    assert asked["first"]["compare"] > 0
    assert (asked["first"]["restore_tape"], asked["first"]["create_session"]) == (0, 1)
    for later in ("second", "third", "loaded again"):
        assert asked[later] == MADE_AGAIN, later


def test_a_later_page_neither_records_nor_compares(pages: list[dict[str, Any]]) -> None:
    assert pages[1]["asked"] == dict.fromkeys(("first", "second", "third", "loaded again"), MADE_AGAIN)


def test_every_tape_computes_the_same_and_says_so(pages: list[dict[str, Any]]) -> None:
    ids = [found for page in pages for found in page["ids"]]
    assert len(ids[0]) == 37
    assert ids == 8 * [ids[0]]
    passes = [found for page in pages for found in page["passes"]]
    assert passes == 6 * [passes[0]]


def test_a_restored_tape_makes_nothing_while_it_is_played(pages: list[dict[str, Any]]) -> None:
    for page in pages:
        counters = page["counters"]
        assert (counters["create_buffer"], counters["create_bind_group"], counters["write_buffer"]) == (0, 0, 0)


def test_nothing_is_left(pages: list[dict[str, Any]]) -> None:
    assert [(page["left"], page["left again"]) for page in pages] == 2 * [(0, 0)]


@pytest.mark.extended
def test_other_passes_damage_and_weights_that_are_not_kept_are_recorded_anew(
    browser: Browser, site: SiteServer
) -> None:
    context = browser.new_context()
    kept = {"passes": ["clears"]}
    loads: list[tuple[dict[str, Any], bool]] = [(kept, False), ({"passes": []}, False), (kept, True)]
    loads.append(({**kept, "disable_file_mapped_weights": True}, False))
    found = [run(context, site, "nano-llama", *load) for load in loads]
    context.close()
    assert [page["asked"]["first"]["record"] for page in found] == [1, 1, 1, 1]
    assert [page["asked"]["second"]["record"] for page in found] == [0, 0, 0, 0]
    assert [page["asked"]["loaded again"]["record"] for page in found] == [0, 0, 0, 1], (
        "without storage nothing is kept"
    )
    assert [page["ids"] for page in found] == 4 * [found[0]["ids"]]


RECORD = """
import asyncio
import capstan
from capstan._js.page_gpu_engine import JsGpuEngine

async def call(self, *given, **named):
    print("closing", flush=True)
    await asyncio.Event().wait()
setattr(JsGpuEngine, STAGE, call)
model = await capstan.Model.load(next(iter(models.values())), device="webgpu")
params = capstan.GeneratorParams(model)
params.set_search_options(do_sample=False, max_length=40)
generator = capstan.Generator(model, params)
generator.append_tokens([5, 6, 7])
async for _ in generator:
    pass
"""


@pytest.mark.extended
@pytest.mark.parametrize("stage", ["store_tape", "compare"])
def test_a_page_that_is_closed_while_it_records_leaves_nothing_that_the_next_one_trips_over(
    browser: Browser, site: SiteServer, stage: str
) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.set_default_navigation_timeout(BOOT_MS)
    harness = Harness(page, site.url)
    harness.begin(exec_request(RECORD.replace("STAGE", repr(stage)), ["nano-llama"], [], "script.py"))
    for _ in range(1200):
        if "closing" in harness.text("stdout"):
            break
        page.wait_for_timeout(50)
    assert "closing" in harness.text("stdout"), harness.text("stderr")
    page.close()
    found = run(context, site, "nano-llama", {}, False)
    context.close()
    assert found["asked"]["first"]["restore_tape"] == 0
    assert found["asked"]["loaded again"] == MADE_AGAIN
    assert found["ids"] == 4 * [found["ids"][0]]


PREFILL = """
import json, sys
import capstan
from capstan._js.page_gpu_engine import JsGpuEngine

asked = []
for name in ("record", "restore_tape", "run"):
    def noted(name=name, plain=getattr(JsGpuEngine, name)):
        async def call(self, *given, **named):
            asked.append(name)
            return await plain(self, *given, **named)
        return call
    setattr(JsGpuEngine, name, noted())
model = await capstan.Model.load(next(iter(models.values())), device="webgpu", passes=PASSES)
found = []
for _ in range(int(sys.argv[1])):
    params = capstan.GeneratorParams(model)
    params.set_search_options(do_sample=False, max_length=136)
    async with capstan.Generator(model, params) as generator:
        generator.append_tokens([(37 * i + 11) % 509 for i in range(128)])
        ids = [token async for token in generator]
        counted = {name: asked.count(name) for name in dict.fromkeys(asked)}
        found.append([counted, ids, generator.tape_passes["prefill"]])
        asked.clear()
await model.aclose()
print(json.dumps(found))
"""


@pytest.mark.extended
def test_prefill_tapes_are_made_again_in_a_later_page(browser: Browser, site: SiteServer) -> None:
    context = browser.new_context()
    found: list[list[Any]] = []
    source = PREFILL.replace("PASSES", repr(list(PASSES)))
    for times in (2, 1):
        page = context.new_page()
        page.set_default_navigation_timeout(BOOT_MS)
        harness = Harness(page, site.url)
        done = harness.exec(source, ["nano-llama"], [str(times)])
        assert (done.status, done.stderr, harness.errors) == (0, "", []), done.stderr
        page.close()
        found.append(json.loads(done.stdout))
    context.close()
    [first, second], [later] = found
    assert first[0]["record"] == 1, "the decode step"
    assert second[0]["record"] == 1, "the runs of 64 positions came before"
    assert later[0] == {"restore_tape": 2}, "both: nothing is recorded, and onnxruntime-web runs nothing"
    assert first[1] == second[1] == later[1]
    assert second[2] == later[2]
    assert later[2].startswith("64 positions: ")
