"""The JavaScript of the guides runs, block after block; test_web_api.py has that of docs/web*.md."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page

from buildtools import ROOT

RUN = """async (blocks) => {
  const { Capstan } = await import("/capstan/capstan.js");
  const AsyncFunction = (async () => {}).constructor;
  const loaded = [];
  class Closed extends Capstan {}
  Closed.load = async (model, options) => {
    // The pages on porting load from a hub, where OWNER/NAME is no repository.
    const given = model.startsWith("OWNER/") ? ["models/nano-qwen2/"] : [model, options];
    loaded.push(await Capstan.load(...given));
    return loaded.at(-1);
  };
  const printed = [];
  for (const block of blocks) {
    const lines = [];
    const log = (...given) => lines.push(given.join(" "));
    Object.assign(globalThis, { show: log, messages: [{ role: "user", content: "hello" }], onProgress: () => {} });
    await new AsyncFunction("Capstan", "console", block)(Closed, { log });
    for (const llm of loaded.splice(0)) llm.close();
    printed.push(lines);
  }
  return printed;
}"""
NAME_AND_AGE = r'^\{"name":"[^"]{0,12}","age":\d+\}\n\d{4}-\d\d-\d\d$'
EXPECTED = {
    "chat": [r"[1-9]\d* of \d+ tokens were computed before: ", r"^abort$"],
    "guidance": [NAME_AND_AGE],
    "large_models": [r"^takes \d+ bytes$"],
    "offline": [r"^\d+$"],
    "porting_transformers_js": [r"."],
    "porting_webllm": [r"."],
    "porting_wllama": [r"^$"],
    "speed_here": [r"^wasm on .+, capture off [^$]*first token after [\d.]+ ms, then [\d.]+ a second"],
    "tools": [r'^temperature \{"city":"(Oslo|Rome)","celsius":(4|18)\}\n'],
}
"""By page, the words that each block prints."""


@pytest.mark.one_in
@pytest.mark.parametrize("guide", EXPECTED)
def test_the_code_of_a_guide_runs(blank_page: Page, guide: str) -> None:
    text = (ROOT / f"docs/{guide}.md").read_text(encoding="utf-8")
    printed = blank_page.evaluate(RUN, re.findall(r"^```js\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    assert len(printed) == len(EXPECTED[guide])
    for lines, words in zip(printed, EXPECTED[guide], strict=True):
        assert re.search(words, "\n".join(lines)), lines
