"""Programs for the CPU in a page: their ids are those of the definition, in one thread and in more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Route

from capstan.model_files.gguf.header import GgmlType
from capstan_host.site_server import SiteServer
from tests.cpu_programs import Definition, gguf_graph, kernels, opened
from tests.gguf_models import FURTHER, Made, make, write

TYPES = {"": GgmlType.Q4_1, "attn_v": GgmlType.Q6_K, "token_embd": GgmlType.Q8_0}
SIZES = {"block_count": 4, "context_length": 600}
PROMPT = [(37 * i + 11) % 509 for i in range(250)]
"""The caches get more room in the steps after it."""
COUNT = 16

GENERATE = """async ([base, model, prompt, count, capture]) => {
  const { Client } = await import(base + "capstan/capstan.js");
  const capstan = await Client.start();
  const request = { kind: "generate", model, dtype: null, device: "wasm", capture, run_ahead: null, prompt: null,
    prompt_ids: prompt, max_new_tokens: count, search: { do_sample: false } };
  const reply = await capstan.request(request);
  capstan.close();
  return { isolated: crossOriginIsolated, reply };
}"""


@pytest.fixture(scope="module")
def made() -> Made:
    return make("smollm3", TYPES, {**FURTHER["smollm3"], **SIZES}, vocabulary=512)


@pytest.fixture(scope="module")
def model(made: Made, site: SiteServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its address."""
    name = "cpu-program"
    site.models[name] = write(made, tmp_path_factory.mktemp(name) / "model.gguf").parent
    yield f"{site.url}models/{name}/model.gguf"
    del site.models[name]


@pytest.fixture(scope="module")
def wanted(made: Made) -> list[int]:
    node = kernels("plain")
    program = opened(node, gguf_graph(made, 600), 600, {"model.gguf": made.data})
    return Definition(node, program).greedy(PROMPT, COUNT)


def answered(browser: Browser, site: SiteServer, model: str, *, isolated: bool, capture: str = "tape") -> Any:
    context = browser.new_context()

    def strip(route: Route) -> None:
        response = route.fetch()
        headers = {name: value for name, value in response.headers.items() if not name.startswith("cross-origin-")}
        route.fulfill(response=response, headers=headers)

    if not isolated:
        context.route("**/*", strip)
    page = context.new_page()
    page.goto(site.url)
    answer = page.evaluate(GENERATE, [site.url, model, PROMPT, COUNT, capture])
    context.close()
    assert answer["isolated"] is isolated
    assert answer["reply"]["ok"], answer["reply"]
    return answer["reply"]["result"]


@pytest.mark.parametrize("isolated", [True, False])
def test_ids_in_a_page_are_the_definition_s(
    isolated: bool, browser: Browser, site: SiteServer, model: str, wanted: list[int]
) -> None:
    found = answered(browser, site, model, isolated=isolated)
    assert found["token_ids"] == wanted
    assert "is a program of 65 operations on the CPU" in found["capture_note"]
    assert ("threads, which wait" if isolated else "on 1 thread") in found["capture_note"]


def test_onnxruntime_runs_the_model_where_the_load_says_so(browser: Browser, site: SiteServer, model: str) -> None:
    found = answered(browser, site, model, isolated=True, capture="off")
    assert found["capture_note"].startswith("onnxruntime-web runs each step, since there is no program for the CPU")
