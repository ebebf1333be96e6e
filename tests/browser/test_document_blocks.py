"""The JavaScript of the guides runs, block after block; test_web_api.py has that of docs/web.md."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page

from buildtools import ROOT
from tests.browser.test_web_api import RUN_BLOCKS

EXPECTED = {
    "chat": [r"[1-9]\d* of \d+ tokens were computed before: ", r"^abort$"],
    "speed_here": [r"^wasm on .+, capture off [^$]*first token after [\d.]+ ms, then [\d.]+ a second"],
    "tools": [r'^temperature \{"city":"(Oslo|Rome)","celsius":(4|18)\}\n'],
}
"""By page, the words that each block prints."""


@pytest.mark.parametrize("guide", EXPECTED)
def test_the_code_of_a_guide_runs(blank_page: Page, guide: str) -> None:
    text = (ROOT / f"docs/{guide}.md").read_text(encoding="utf-8")
    printed = blank_page.evaluate(RUN_BLOCKS, re.findall(r"^```js\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    assert len(printed) == len(EXPECTED[guide])
    for lines, words in zip(printed, EXPECTED[guide], strict=True):
        assert re.search(words, "\n".join(lines)), lines
