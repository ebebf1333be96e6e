"""Options of `Capstan.load` that show only when something goes wrong."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page

from capstan_host.site_server import SiteServer
from tests import oracle
from tests.heads import HEADS

DEFINE = """
import capstan
from capstan._js import host_calls
from pyodide.code import run_js

losses = 0


@capstan.logits_processor
def lose_once(tokens, logits):
    global losses
    losses += 1
    if losses == 3:
        host_calls.gpu().destroy_device()


@capstan.logits_processor
def hang(tokens, logits):
    if len(tokens) == 5:
        run_js("new BroadcastChannel('hangs').postMessage(0); for (;;);")
"""
RUN = """async (define) => {
  const { Capstan } = await import("/capstan/capstan.js");
  const options = { maxTokens: 6, temperature: 0 };
  const told = ({ tokenIds, finishReason, requestId }) => ({ tokenIds, finishReason, requestId });
  const failed = ({ code, message }) => ({ code, message });
  const begin = async (given) => {
    const events = [];
    const onEvent = ({ kind, reason }, id) => ["recovered", "restarted"].includes(kind) &&
      events.push([kind, id, reason, performance.now()]);
    const llm = await Capstan.load("/models/nano-llama", { ...given, capture: "off", onEvent });
    await llm.python(define);
    const run = (more) => llm.complete([5, 6, 7], { ...options, ...more });
    return { llm, run, events };
  };
  // Two at once: one gives up at the first loss, the other goes on.
  const [never, twice] = await Promise.all([
    begin({ device: "webgpu", recoveries: 0 }),
    begin({ device: "webgpu", recoveries: 2 }),
  ]);
  const found = {};
  [found.calm, found.beside] = await Promise.all([never.run().result.then(told), twice.run().result.then(told)]);
  found.lost = await never.run({ logitsProcessor: "lose_once" }).result.catch(failed);
  found.recovered = await twice.run({ logitsProcessor: "lose_once" }).result.then(told, failed);
  found.events = [never.events, twice.events];
  never.llm.close();
  twice.llm.close();
  const hasty = await begin({ device: "wasm", cancelDeadline: 700 });
  const hangs = new Promise((resolve) => (new BroadcastChannel("hangs").onmessage = resolve));
  const stuck = hasty.run({ logitsProcessor: "hang", maxTokens: 50 });
  const behind = hasty.run();
  await hangs;
  const { setTimeout } = window;
  found.waits = [];
  window.setTimeout = (then, ms, ...given) => (found.waits.push(ms), setTimeout(then, ms, ...given));
  found.begun = performance.now();
  stuck.abort();
  found.stopped = await stuck.result.then(told, failed);
  found.stillThere = hasty.events.length === 0;
  found.behind = await behind.result.then(told, failed);
  found.restarted = hasty.events;
  hasty.llm.close();
  return found;
}"""


@pytest.mark.extended
def test_recoveries_and_the_cancel_deadline_are_the_loads(blank_page: Page, page_errors: list[str]) -> None:
    found = blank_page.evaluate(RUN, DEFINE)
    page_errors.clear()  # of the lost devices
    calm = found["calm"]["tokenIds"]
    assert len(calm) == 6
    assert found["beside"]["tokenIds"] == calm, "engines side by side"
    assert found["lost"]["code"] == "DeviceLostError", found["lost"]
    assert found["recovered"]["tokenIds"] == calm, found["recovered"]
    none, [[kind, request, *_]] = found["events"]
    assert none == []
    assert (kind, request) == ("recovered", found["recovered"]["requestId"])
    assert found["stopped"]["finishReason"] == "abort", found["stopped"]
    assert found["stopped"]["tokenIds"] == calm[:2], "what came before it hung is kept"
    assert found["behind"]["tokenIds"] == calm, "another worker answers what waited"
    [[kind, request, reason, at]] = found["restarted"]
    assert found["stillThere"], "the result came before the deadline"
    assert at - found["begun"] >= 700 - 50
    assert 700 in found["waits"]
    assert max(found["waits"]) < 10_000, "nothing waited for the usual deadline"
    assert (kind, request) == ("restarted", 0)
    assert "did not end within 700 ms" in reason


STORED = """async (options) => {
  const { Capstan } = await import("/capstan/capstan.js");
  const llm = await Capstan.load("/models/nano-llama", { device: "wasm", ...options });
  await llm.complete([5, 6, 7], { maxTokens: 2 }).result;
  const { stdout } = await llm.python("import capstan; print(len(await capstan.WeightStore().list()))");
  llm.close();
  return stdout.trim();
}"""


@pytest.mark.extended
def test_the_weight_store_is_left_out_if_a_page_says_so(blank_page: Page, page_errors: list[str]) -> None:
    assert blank_page.evaluate(STORED, {"disableFileMappedWeights": True}) == "0"
    assert blank_page.evaluate(STORED, {"disableFileMappedWeights": False}) == "1"
    refused = """async () => (await import("/capstan/capstan.js")).Capstan
      .load("/models/nano-llama", { disableFileMappedWeights: "yes" }).catch(({ code, message }) => [code, message])"""
    code, message = blank_page.evaluate(refused)
    assert (code, message) == ("OptionError", 'disableFileMappedWeights is "yes"; it must be a boolean')


DRAFTED = """async (device) => {
  const { Capstan } = await import("/capstan/capstan.js");
  const found = [];
  for (const draftModel of [undefined, "/models/nano-shape"]) {
    const llm = await Capstan.load("/models/nano-llama", { device, draftModel });
    const { tokenIds, counters } = await llm.complete([5, 6, 7], { maxTokens: 60, temperature: 0 }).result;
    found.push([tokenIds, counters.steps]);
    llm.close();
  }
  const other = Capstan.load("/models/nano-llama", { device, draftModel: "/models/nano-qwen2" });
  found.push(await other.catch(({ code, message }) => [code, message]));
  return found;
}"""


def test_a_draft_model_saves_steps_and_changes_no_token(blank_page: Page, page_errors: list[str]) -> None:
    plain, drafted, (code, message) = blank_page.evaluate(DRAFTED, "wasm")
    assert drafted[0] == plain[0]
    assert drafted[1] < plain[1]
    assert code == "OptionError"
    assert "nano-qwen2" in message
    assert "nano-llama" in message


HEADED = """async (prompt) => {
  const { Capstan } = await import("/capstan/capstan.js");
  const llm = await Capstan.load("/models/qwen3_5_mtp", { device: "wasm" });
  const { tokenIds, counters } = await llm.complete(prompt, { maxTokens: 60, temperature: 0 }).result;
  llm.close();
  return [tokenIds, counters.steps];
}"""


def test_a_head_saves_steps_and_changes_no_token(blank_page: Page, site: SiteServer, page_errors: list[str]) -> None:
    site.models["qwen3_5_mtp"] = HEADS / "qwen3_5_mtp"
    prompt = [(31 * i + 7) % 253 for i in range(70)]
    ids, steps = blank_page.evaluate(HEADED, prompt)
    assert ids == oracle.greedy(HEADS / "qwen3_5_mtp", prompt, 60)
    assert steps < 59
