"""The demo's race where the site has Transformers.js, too: a folder in its layout, in the same page and policy."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from buildtools.contenders import CONTENDERS
from buildtools.site import assemble
from capstan_host.model_arguments import mounts
from capstan_host.site_server import SiteServer, serving, transformers_js_files
from capstan_host.testing.harness import watch
from tests.browser.model_variants import LLAMA
from tests.repository_layout import lay_out

RUN_MS = 240_000
TOLD = {"use_external_data_format": {"model_q4.onnx": 2}, "free_dimension_overrides": {"kv_cache_dim": 16}}
"""The hints for Transformers.js in config.json of repositories with graphs by onnxruntime-genai's builder."""
POLICY = """() => document.addEventListener("securitypolicyviolation", ({ violatedDirective }) =>
  console.error(violatedDirective))"""


@pytest.fixture(scope="module")
def with_transformers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SiteServer]:
    """A site with Transformers.js, nano-llama and the same in its layout."""
    repository = lay_out(
        LLAMA, tmp_path_factory.mktemp("race") / "nano-repository", config={"transformers.js_config": TOLD}
    )
    files = transformers_js_files(CONTENDERS["transformers_js"].install())
    with serving(assemble(), mounts([LLAMA, repository]), files=files) as server:
        yield server


@pytest.fixture
def race(with_transformers: SiteServer, browser: Browser) -> Iterator[Page]:
    """The page with the race open; a console error in it, or of its policy, fails the test."""
    context = browser.new_context()
    page = context.new_page()
    errors = watch(page, [])
    page.goto(with_transformers.url)
    page.evaluate(POLICY)
    yield page
    context.close()
    assert errors == []


def begin(page: Page, model: str) -> None:
    page.select_option("#model", value=page.locator(f"#model option[data-name='{model}']").get_attribute("value"))
    page.click("#race-open")
    page.click("#race-start")


def stop(page: Page) -> None:
    page.click("#race-stop")
    expect(page.locator("#race-note")).to_have_text("Stopped.", timeout=RUN_MS)
    page.keyboard.press("Escape")


@pytest.mark.extended
def test_transformers_js_has_a_lane_for_a_model_that_it_reads(race: Page) -> None:
    lane = race.locator(".lane", has_text="Transformers.js")
    expect(lane).to_be_hidden()
    begin(race, "nano-repository")
    expect(lane).to_be_visible()
    stop(race)


@pytest.mark.extended
def test_transformers_js_runs_in_the_race_and_picks_the_same_ids(race: Page) -> None:
    begin(race, "nano-llama")
    expect(race.locator(".lane", has_text="Transformers.js")).to_be_hidden()
    stop(race)
    begin(race, "nano-repository")
    ended = re.compile("^(All picked the same ids|Ids differ|The race ended)")
    expect(race.locator("#race-note")).to_have_text(ended, timeout=RUN_MS)
    assert race.inner_text("#race-note").startswith("All picked the same ids. The tape is ")
    lanes = race.locator(".lane")
    texts = lanes.locator(".lane-text").all_text_contents()
    paces = lanes.locator(".lane-pace").all_inner_texts()
    assert [bool(re.fullmatch(r"[\d.]+ tokens/s", pace)) for pace in paces] == [True] * 5, paces
    assert len(texts[0]) > 20
    assert texts == [texts[0]] * 5
