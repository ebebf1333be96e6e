"""Steps of several tokens are stored like the decode step: a later page makes batches, beams, an engine and drafts go
without recording or comparing anything."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext

from capstan.tape import PASSES
from capstan_host.site_server import SiteServer
from capstan_host.testing.harness import Harness
from tests import oracle
from tests.conftest import BOOT_MS
from tests.heads import HEADS
from tests.unit.test_speculation import FEW

LLAMA = Path(__file__).parents[1] / "fixtures/nano-llama"
PROMPTS = [[5, 6, 7], [8, 9, 10]]
LENGTH = 40
CAPACITY = 256
"""Positions of the buffers for sequences of that length."""
USES = """
import asyncio, json, sys
import capstan
import onnxruntime_genai as og
from capstan._js.page_gpu_engine import JsGpuEngine
from capstan.host import current_host
from capstan.host.notes import FOLDER

damage, width, uses = json.loads(sys.argv[1])
backing = await current_host().backing(FOLDER)

async def notes_of(what):
    "The names and texts of the notes that say so."
    found = [(name, await backing.read_text(name)) for name in await backing.names()]
    return [(name, text) for name, text in found if what in text]

if damage:
    [(cut, two)], [(other, _)] = await notes_of("for 2 rows"), await notes_of("for 3 rows")
    await backing.write_text(cut, two[: len(two) // 2])
    # Whole and sealed, but of another number of rows.
    await backing.write_text(other, two)
    [(drafts, text)] = await notes_of("for 5 positions")
    await backing.write_text(drafts, text.replace("for 5 positions", "for 6 positions"))

asked = []
plain = {name: getattr(JsGpuEngine, name) for name in ("record", "compare", "restore_tape")}
def noted(name):
    async def call(self, *given, **named):
        asked.append(name)
        return await plain[name](self, *given, **named)
    return call
for name in plain:
    setattr(JsGpuEngine, name, noted(name))

found = {"asked": {}, "ids": {}}
def used(use, ids):
    found["asked"][use] = {name: asked.count(name) for name in plain}
    found["ids"][use] = ids
    asked.clear()

async def generated(prompts, speculation=None, **search):
    params = capstan.GeneratorParams(model)
    params.set_search_options(do_sample=False, max_length=LENGTH, batch_size=len(prompts), **search)
    params.set_speculation(speculation)
    async with capstan.Generator(model, params) as generator:
        generator.append_tokens(prompts if len(prompts) > 1 else prompts[0])
        while not generator.is_done():
            await generator.generate_next_token_async()
        return [generator.get_sequence(row) for row in range(len(prompts))]

def answered(prompts):
    shared = og.Model.__new__(og.Model)
    shared.capstan = model
    engine = og.Engine(shared)
    requests = []
    for prompt in prompts:
        limits = og.RequestOptions()
        limits.set_max_session_tokens(LENGTH)
        requests.append(engine.create_request(options=limits))
        options = og.TurnOptions(requests[-1])
        options.set_do_sample(False)
        options.set_max_generated_tokens(9)
        requests[-1].begin_turn(prompt, options)
    ids = {id(request): [] for request in requests}
    events = engine.create_event_buffer(len(requests))
    while engine.has_pending_requests():
        for event in engine.run(events):
            if event.token is not None:
                ids[id(event.request)].append(event.token)
    for request in requests:
        request.close()
    return list(ids.values())

model = await capstan.Model.load(next(iter(models.values())), device="webgpu", passes=PASSES)
used("load", [])
used("batch", await generated((PROMPTS * width)[:width]))
used("batch again", await generated((PROMPTS * width)[:width]))
used("beams", await generated(PROMPTS[:1], num_beams=3))
if "engine" in uses:
    used("engine", answered([*PROMPTS, [4, 9, 8]]))
if "drafts of two at once" in uses:
    short = capstan.Speculation(ngram_size=2, max_draft_tokens=2, always=True)
    twins = await asyncio.gather(*(generated([prompt], short) for prompt in PROMPTS))
    used("drafts of two at once", [sequence for [sequence] in twins])
drafting = capstan.Speculation(ngram_size=2, max_draft_tokens=4, always=True)
used("drafts", await generated([[5, 6, 7, 8, 9]], drafting, logit_bias=FEW))
await model.aclose()
found["left"] = capstan.memory.ledger().bytes()
found["stepped down"] = capstan.fallback.fallbacks()
for name, method in plain.items():
    setattr(JsGpuEngine, name, method)
print(json.dumps(found))
"""
JOINT = [name for name in PASSES if name not in ("prefill", "direct")]
SCRIPT = USES.replace("PASSES", repr(JOINT)).replace("LENGTH", str(LENGTH)).replace("PROMPTS", repr(PROMPTS))
SCRIPT = SCRIPT.replace("FEW", repr(FEW))
USED = ("batch", "beams", "drafts")
MORE = ("engine", "drafts of two at once")
"""Uses of steps over the same numbers of rows, and of two rows' positions."""


def run(context: BrowserContext, site: SiteServer, *more: str, damage: bool = False, width: int = 2) -> dict[str, Any]:
    """The results of USES in a new page, with a batch of that many rows and these of MORE."""
    page = context.new_page()
    page.set_default_navigation_timeout(BOOT_MS)
    harness = Harness(page, site.url)
    done = harness.exec(SCRIPT, ["nano-llama"], [json.dumps([damage, width, more])])
    assert (done.status, harness.errors) == (0, []), done.stderr
    page.close()
    return {**json.loads(done.stdout), "told": done.stderr}


def recorded(found: dict[str, Any]) -> dict[str, int]:
    """How often something was recorded, by use."""
    return {use: asked["record"] for use, asked in found["asked"].items() if asked["record"]}


@pytest.fixture(
    scope="module", params=[(), pytest.param(MORE, marks=pytest.mark.extended)], ids=["some uses", "all uses"]
)
def more(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """The uses beside USED."""
    return tuple(request.param)


@pytest.fixture(scope="module")
def context(more: tuple[str, ...], browser: Browser) -> Iterator[BrowserContext]:
    """A profile that stores nothing at first."""
    context = browser.new_context()
    yield context
    context.close()


@pytest.fixture(scope="module")
def pages(more: tuple[str, ...], context: BrowserContext, site: SiteServer) -> list[dict[str, Any]]:
    """Its first two page loads."""
    return [run(context, site, *more) for _ in range(2)]


@pytest.mark.extended
def test_the_first_page_records_and_compares(more: tuple[str, ...], pages: list[dict[str, Any]]) -> None:
    asked = pages[0]["asked"]
    assert recorded(pages[0]) == dict.fromkeys((*USED, *more), 1) | {"batch": 2, "batch again": 1, "beams": 2}
    assert all(asked[use]["compare"] for use in (*USED, *more, "batch again"))
    assert pages[0]["ids"]["batch again"] == pages[0]["ids"]["batch"]
    assert pages[0]["ids"]["batch"] == oracle.rows(LLAMA, PROMPTS, max_length=LENGTH).sequences
    assert pages[0]["ids"]["beams"] == oracle.rows(LLAMA, PROMPTS[:1], num_beams=3, max_length=LENGTH).sequences


@pytest.mark.extended
def test_a_later_page_makes_them_again_with_the_same_ids(more: tuple[str, ...], pages: list[dict[str, Any]]) -> None:
    first, later = pages
    assert later["asked"].keys() == {"load", "batch again", *USED, *more}
    assert not any(asked["record"] + asked["compare"] for asked in later["asked"].values())
    assert all(later["asked"][use]["restore_tape"] for use in (*USED, *more))
    # The step of one, that of all rows, and the runs of their prompts, at once.
    assert [later["asked"][use]["restore_tape"] for use in ("batch", "batch again")] == [3, 0]
    assert later["ids"] == first["ids"]
    assert [(page["told"], page["stepped down"], page["left"]) for page in pages] == 2 * [("", {}, 0)]


@pytest.mark.extended
def test_damaged_ones_are_told_recorded_and_stored_again(
    more: tuple[str, ...], pages: list[dict[str, Any]], context: BrowserContext, site: SiteServer
) -> None:
    damaged, after = run(context, site, *more, damage=True), run(context, site, *more)
    assert recorded(damaged) == {"batch": 1, "beams": 1, "drafts": 1}
    for what in ("step of 2 rows", "step of 3 rows", "step over 5 positions"):
        told = [times for each, times in damaged["stepped down"].items() if what in each]
        assert told == [1], what
        assert f"the note 'tape of {what} for {CAPACITY} positions of" in damaged["told"]
    assert sum(asked["record"] + asked["compare"] for asked in after["asked"].values()) == 0
    assert (after["told"], after["stepped down"]) == ("", {})
    assert damaged["ids"] == after["ids"] == pages[0]["ids"]


@pytest.mark.extended
def test_another_number_of_rows_has_a_tape_of_its_own(
    pages: list[dict[str, Any]], context: BrowserContext, site: SiteServer
) -> None:
    found = run(context, site, width=5)
    assert recorded(found) == {"batch": 1, "batch again": 1}
    wanted = oracle.rows(LLAMA, (3 * PROMPTS)[:5], max_length=LENGTH).sequences
    assert (found["ids"]["batch"], found["told"]) == (wanted, "")


HEADED = """
import json
import capstan
from capstan._js.page_gpu_engine import JsGpuEngine

recorded, record = [], JsGpuEngine.record
async def counting(self, *given):
    recorded.append(given)
    return await record(self, *given)
JsGpuEngine.record = counting
async with await capstan.Model.load(next(iter(models.values())), device="webgpu", passes=PASSES) as model:
    params = capstan.GeneratorParams(model)
    params.set_search_options(do_sample=False, max_length=40)
    params.set_speculation(capstan.Speculation(max_draft_tokens=2, always=True))
    async with capstan.Generator(model, params) as generator:
        generator.append_tokens([5, 6, 7, 8, 9])
        while not generator.is_done():
            await generator.generate_next_token_async()
        found = {"recorded": len(recorded), "ids": generator.get_sequence(0)}
        found["accepted"] = generator.speculation.accepted
JsGpuEngine.record = record
print(json.dumps(found))
"""


def test_a_later_page_records_neither_a_model_nor_its_head(browser: Browser, site: SiteServer) -> None:
    """Both are in one folder, each with a step over one token and one over three."""
    site.models["headed"] = HEADS / "qwen3_5_mtp"
    context = browser.new_context()
    found = []
    for _ in range(2):
        page = context.new_page()
        page.set_default_navigation_timeout(BOOT_MS)
        done = Harness(page, site.url).exec(HEADED.replace("PASSES", repr(JOINT)), ["headed"], [])
        assert done.status == 0, done.stderr
        found.append(json.loads(done.stdout))
        page.close()
    context.close()
    del site.models["headed"]
    assert [each["recorded"] for each in found] == [4, 0]
    assert found[0]["accepted"] == found[1]["accepted"] > 0
    assert found[0]["ids"] == found[1]["ids"]
