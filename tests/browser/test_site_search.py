"""The search of the documentation's site finds the right page first, in the page and by the engine that readers use."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from buildtools.commands import docs
from tests.plain_server import serving_plainly

QUERIES = {
    "react": "web_bundlers",
    "vite": "web_bundlers",
    "next.js": "web_bundlers",
    "convert": "convert",
    "quantize": "convert",
    "system prompt": "chat",
    "safari": "browsers",
    "iphone": "browsers",
    "firefox": "browsers",
    "image": "see",
    "speech recognition": "hear",
    "whisper": "hear",
    "microphone": "hear",
    "text to speech": "speak",
    "json": "guidance",
    "function calling": "tools",
    "gguf": "models",
    "lora": "lora",
    "rag": "embeddings",
    "rerank": "rerankers",
    "offline": "offline",
    "download size": "costs",
    "slow": "speed_here",
    "benchmark": "speed",
    "webllm": "porting_webllm",
    "transformers.js": "porting_transformers_js",
    "error": "errors",
    "cors": "questions",
    "notebook": "pyodide",
    "kubernetes": "fleet",
    "openai": "web_openai",
    "tokenizer": "web_tokens",
    "install": "five_minutes_web",
    "memory": "memory",
    "fleet": "five_minutes_fleet",
}
"""Searched words, and the page that has to be first."""


@pytest.fixture(scope="module")
def page(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """The home page of the site, with the search open."""
    with serving_plainly(docs.build_site(tmp_path_factory.mktemp("docs"))) as url:
        page = browser.new_page()
        page.goto(url + "index.html")
        page.locator("[data-md-component=search-query]").click()
        yield page
        page.close()


@pytest.mark.extended
@pytest.mark.parametrize("query", QUERIES)
def test_the_page_that_people_look_for_is_the_first_result(page: Page, query: str) -> None:
    field, found = page.locator("[data-md-component=search-query]"), page.locator(".md-search-result__item")
    field.fill("")
    field.press("Backspace")  # the search listens to keys
    expect(found).to_have_count(0)
    field.press_sequentially(query)
    link = found.first.locator("a").first
    expect(link).to_have_attribute("href", re.compile(rf"(^|/){QUERIES[query]}\.html"), timeout=10_000)
