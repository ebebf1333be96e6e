"""The JavaScript of the documents runs as it is written, block after block, and prints what is documented."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, FilePayload, Page

from buildtools.bundles import ENTRIES, bundle
from capstan_host.digests import SHARD_SIZE, write_digests
from capstan_host.headless.chromium import flags
from capstan_host.site_server import SiteServer
from capstan_host.testing.harness import watch
from tests.browser.agent_module import agent_module
from tests.documented import (
    CHAT_MODEL,
    chat_model,
    chat_model_beside,
    examples,
    hub_at_its_address,
    prints,
    repositories,
)
from tests.pictures import gradient, png_file
from tests.sounds import quiet, voice, wave_file

RUN = """async ([blocks, agents]) => {
  const { Capstan } = await import("/capstan/capstan.js");
  const { Agent } = await import(agents);
  const AsyncFunction = (async () => {}).constructor;
  const kept = (window.kept ??= new Map());
  const printed = [];
  for (const block of blocks) {
    // Blocks that load a model with no option and close nothing share it: loading it again shows nothing more.
    const shares = !/load\\([^)]*,|close\\(|python\\(/.test(block);
    const loaded = [];
    class Closed extends Capstan {}
    Closed.load = async (...given) => {
      const llm = (shares && kept.get(given[0])) || (await Capstan.load(...given));
      if (shares) kept.set(given[0], llm);
      else loaded.push(llm);
      return llm;
    };
    const lines = [];
    const log = (...given) => lines.push(given.join(" "));
    await new AsyncFunction("Capstan", "Agent", "console", block)(Closed, Agent, { log });
    for (const llm of loaded) llm.close();
    printed.push(lines.flatMap((line) => line.split("\\n")));
  }
  return printed;
}"""
BODY = """() => {
  document.body.innerHTML = `<input id="input" type="file"> <input id="photo" type="file">
    <input id="question" type="file"> <button id="button"></button> <button id="done"></button>
    <p id="captions"></p> <p id="partial"></p>`;
  setInterval(() => captions.textContent && done.click(), 100);
}"""
"""The elements that examples name; somebody stops the captions once there is one."""
SAID = wave_file(np.concatenate([quiet(0.6), voice(1.6), quiet(1.0)]).tolist())
SOUND: FilePayload = {"name": "speech.wav", "mimeType": "audio/wav", "buffer": SAID}
PICTURE: FilePayload = {"name": "picture.png", "mimeType": "image/png", "buffer": png_file(gradient())}
GIVEN = {"hear": {"input": SOUND}, "see": {"input": PICTURE}, "see_and_hear": {"photo": PICTURE, "question": SOUND}}
"""The files that a document's reader picks."""
OF_RANDOM_WEIGHTS = re.compile(r'"(onnx-community|Xenova|HuggingFaceTB)/')
"""These repositories have random weights here: readers see another output."""
IMPORTS = re.compile(r'^import .*"capstan-webgpu(?:/[a-z-]+)?";\n', re.MULTILINE)
PROMPT_API = """async () => {
  // Chromium has one, without a model.
  delete window.LanguageModel;
  window.install = (await import("/prompt_api.js")).install;
}"""
PAGES = (
    *("web", "web_load", "web_tokens", "web_models", "saved_conversations", "web_openai", "chat", "tools", "guidance"),
    *("large_models", "offline", "speed_here", "costs", "README", "porting_webllm", "porting_wllama"),
    *("porting_transformers_js", "embeddings", "rerankers", "agents", "hear", "see", "speak", "see_and_hear", "trace"),
    "prompt_api",
)


@pytest.fixture(scope="module")
def errors() -> list[str]:
    """The errors in the page."""
    return []


@pytest.fixture(scope="module")
def page(
    browser: Browser, quick_browser: Path, site: SiteServer, errors: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Page]:
    """A page of a browser with a microphone, and with what readers have beside their page."""
    folder = tmp_path_factory.mktemp("documents")
    (folder / "said.wav").write_bytes(SAID)
    fake = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
    fake += [f"--use-file-for-fake-audio-capture={folder / 'said.wav'}", "--autoplay-policy=no-user-gesture-required"]
    arguments = ["--headless=new", *flags("software"), *fake]
    other = browser.browser_type.launch(executable_path=str(quick_browser), args=arguments)
    context = other.new_context()
    client = ["--alias:capstan-webgpu=/capstan/capstan.js", "--external:/capstan/capstan.js"]
    script = bundle(ENTRIES["prompt-api"], folder / "prompt_api.js", client)
    context.route("**/prompt_api.js", lambda route: route.fulfill(path=script, content_type="text/javascript"))
    with chat_model_beside(site), hub_at_its_address(context, repositories(folder)):
        page = context.new_page()
        watch(page, errors)
        page.goto(site.url + "blank.html")
        page.evaluate(BODY)
        yield page
    other.close()


@pytest.fixture(scope="module")
def agents(site: SiteServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the module of agents."""
    with agent_module(tmp_path_factory.mktemp("agents"), site) as url:
        yield url


def brief_state(folder: Path) -> bytes:
    """The file that the document's Python writes."""
    [(code, _)] = examples("saved_conversations", "python")
    (folder / "models").mkdir()
    model = folder / CHAT_MODEL
    model.symlink_to(chat_model())
    write_digests(model, SHARD_SIZE)
    with contextlib.chdir(folder):
        exec(code, {})  # the document's own
    return (folder / "brief.state").read_bytes()


@pytest.mark.one_in(4)
@pytest.mark.parametrize("document", PAGES)
def test_the_code_of_a_document_runs_and_prints_what_is_documented(
    page: Page, agents: str, errors: list[str], document: str, tmp_path: Path
) -> None:
    blocks = examples(document, "js")
    assert blocks
    if document == "prompt_api":
        page.evaluate(PROMPT_API)
    if document == "saved_conversations":
        state = brief_state(tmp_path)
        page.context.route("**/brief.state", lambda route: route.fulfill(body=state, content_type="application/x"))
    for field, file in GIVEN.get(document, {}).items():
        page.locator(f"#{field}").set_input_files(file)
    printed = page.evaluate(RUN, [[IMPORTS.sub("", code) for code, _ in blocks], agents])
    for lines, (code, documented) in zip(printed, blocks, strict=True):
        if documented or not OF_RANDOM_WEIGHTS.search(code):
            assert prints(lines, documented), f"{code}\nprints\n" + "\n".join(lines)
    assert not errors
