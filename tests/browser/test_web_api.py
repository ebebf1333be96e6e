"""`Capstan.load` and `chat` in a page, with everything that a page leaves out left out."""

from __future__ import annotations

import numpy as np
import pytest
from playwright.sync_api import Page, Route

from capstan import Generator, Model
from capstan_host.site_server import SiteServer
from tests import oracle
from tests.browser.model_variants import LLAMA

FIXTURES = LLAMA.parent

LONG_MS = 240_000
CHAT = """async () => {
  const { Capstan } = await import("/capstan/capstan.js");
  const progress = [];
  const llm = await Capstan.load("/models/nano-qwen2", {
    device: "webgpu",
    onProgress: ({ status, file }) => progress.push(file ?? status),
  });
  const found = { progress, before: llm.stats() };
  const messages = [{ role: "user", content: "hello" }];
  const first = llm.chat(messages, { maxTokens: 8 });
  found.parts = [];
  for await (const part of first) found.parts.push(part);
  found.first = await first.result;
  messages.push({ role: "assistant", content: found.first.text }, { role: "user", content: "more" });
  found.second = await llm.chat(messages, { maxTokens: 8 }).result;
  found.early = [];
  for (let again = 0; again < 3; again++) {
    const early = new AbortController();
    const ended = llm.chat(messages, { signal: early.signal });
    await ended[Symbol.asyncIterator]().next();
    early.abort();
    found.early.push((await ended.result).finishReason);
  }
  const stop = new AbortController();
  const long = llm.chat(messages, { signal: stop.signal });
  const next = llm.complete("once", { maxTokens: 3, temperature: 0.7, seed: 1 });
  found.abortedParts = [];
  for await (const part of long) {
    found.abortedParts.push(part);
    stop.abort();
  }
  found.aborted = await long.result;
  found.next = await next.result;
  const answers = { name: "answer", schema: { type: "string", enum: ["yes", "no"] } };
  const form = { type: "json_schema", json_schema: answers };
  found.completion = await llm.chat.completions.create({ messages, response_format: form, max_tokens: 12 });
  found.memory = await llm.memory();
  found.python = await llm.python("import capstan; print(capstan.__name__); raise SystemExit(2)");
  try {
    await llm.chat([{ role: "user", content: "x".repeat(600) }]).result;
  } catch (error) {
    found.refused = [error.name, error.code, typeof error.requestId];
  }
  const unnamed = llm.chat(messages, { logitsProcessor: "nobodys" }).result;
  found.unnamed = await unnamed.catch(({ code, message }) => [code, message]);
  found.stats = llm.stats();
  llm.close();
  return found;
}"""


def test_a_page_chats_aborts_and_goes_on(blank_page: Page) -> None:
    found = blank_page.evaluate(CHAT)
    first, second, aborted = found["first"], found["second"], found["aborted"]
    assert "".join(found["parts"]) == first["text"]
    assert (len(first["tokenIds"]), first["finishReason"], first["keptTokens"]) == (8, "length", 0)
    assert second["keptTokens"] >= first["promptTokens"], "the earlier prompt was not computed again"
    assert (aborted["finishReason"], aborted["text"]) == ("abort", "".join(found["abortedParts"]))
    assert found["early"] == ["abort"] * 3
    same = min(len(aborted["tokenIds"]), 8)
    assert same > 0
    assert aborted["tokenIds"][:same] == second["tokenIds"][:same], "what was generated before the abort is kept"
    assert (len(found["next"]["tokenIds"]), found["next"]["finishReason"]) == (3, "length")
    (choice,) = found["completion"]["choices"]
    assert choice["message"]["content"] in ('"yes"', '"no"')
    assert (choice["finish_reason"], found["completion"]["object"]) == ("stop", "chat.completion")
    assert {"weights", "persistent"} <= {entry["category"] for entry in found["memory"]["entries"]}
    assert found["memory"]["bytes"] == sum(entry["bytes"] for entry in found["memory"]["entries"])
    assert found["python"] == {"status": 2, "stdout": "capstan\n", "stderr": ""}
    assert found["refused"] == ["CapstanError", "PromptError", "number"]
    code, said = found["unnamed"]
    assert code == "OptionError"
    assert said.startswith("the logits processor 'nobodys' is not defined; the defined ones are: none.")
    before, stats = found["before"], found["stats"]
    assert (before["capture"], before["canChat"], before["contextLength"]) == ("off", True, 512)
    assert (stats["capture"], stats["captureNote"]) == ("tape", None)
    assert {"starting Python", "model.onnx.data"} <= set(found["progress"])
    assert stats["runs"] == 8
    tokens = sum(len(found[run]["tokenIds"]) for run in ("first", "second", "aborted", "next"))
    assert stats["tokens"] > tokens + found["completion"]["usage"]["completion_tokens"], "those of three aborted runs"


HELD = """
import capstan
from pyodide.code import run_js

@capstan.logits_processor
def held(tokens, logits):
    if len(tokens) == 3 + 4:
        run_js("const held = new XMLHttpRequest(); held.open('GET', '/held', false); held.send()")
"""
"""A processor whose fifth step keeps the worker busy until /held is answered."""
BEGIN_HELD = """async (held) => {
  const { Capstan } = await import("/capstan/capstan.js");
  window.told = 0;
  const onEvent = ({ kind, token_id }) => { if (kind === "text" && token_id >= 0) window.told++; };
  const cancelDeadline = 2 ** 30;
  window.llm = await Capstan.load("/models/nano-llama", { device: "wasm", cancelDeadline, onEvent });
  await llm.python(held);
  window.ending = new AbortController();
  const options = { maxTokens: 200, temperature: 0, signal: ending.signal, logitsProcessor: "held" };
  window.run = llm.complete([5, 6, 7], options);
}"""
ABORT_HELD = """async () => {
  const at = window.told;
  ending.abort();
  const late = new Promise((_, fail) => setTimeout(fail, 60000, new Error("the abort waits for the step")));
  const { text, finishReason, tokenIds } = await Promise.race([run.result, late]);
  const parts = [];
  for await (const part of run) parts.push(part);
  return { at, text, whole: parts.join(""), finishReason, tokenIds };
}"""
GO_ON = """async () => {
  // It waits for the end of the aborted run.
  const { tokenIds } = await llm.complete([5, 6, 7], { maxTokens: 4, temperature: 0 }).result;
  llm.close();
  return { tokenIds, told };
}"""


@pytest.mark.extended
def test_steps_that_keep_a_worker_busy_do_not_keep_an_abort_waiting(blank_page: Page) -> None:
    """The worker's step ends only once /held is answered, after the result is there."""
    held: list[Route] = []
    blank_page.route("**/held", lambda route: held.append(route))
    with blank_page.expect_request("**/held"):
        blank_page.evaluate(BEGIN_HELD, HELD)
    found = blank_page.evaluate(ABORT_HELD)
    ids = oracle.greedy(LLAMA, [5, 6, 7], 200)
    assert (found["finishReason"], found["text"]) == ("abort", found["whole"])
    assert found["tokenIds"] == ids[:4]
    [route] = held
    route.fulfill(body="")
    after = blank_page.evaluate(GO_ON)
    assert after["tokenIds"] == ids[:4]
    assert after["told"] <= found["at"] + 4 + 1, "the next run's four, and the step that was held"


TWO = """async () => {
  const { Capstan } = await import("/capstan/capstan.js");
  const stop = new AbortController();
  const loading = Capstan.load("/models/nano-llama", { device: "webgpu", signal: stop.signal });
  const given_up = loading.then(() => "loaded", ({ message }) => message);
  setTimeout(() => stop.abort(new Error("thought better of it")), 700);
  const [gpu, cpu] = await Promise.all([
    Capstan.load("/models/nano-llama", { device: "webgpu" }),
    Capstan.load("/models/nano-qwen3", { device: "wasm" }),
  ]);
  const least = { temperature: 0, maxTokens: 24 };
  const together = [gpu.complete([5, 6, 7], least), cpu.complete([5, 6, 7], least)];
  const both = await Promise.all(together.map(async ({ result }) => (await result).tokenIds));
  const long = gpu.complete([5, 6, 7], { temperature: 0, maxTokens: 200 });
  await long[Symbol.asyncIterator]().next();
  const cut = long.result.catch(({ code }) => code);
  gpu.close();
  const after = (await cpu.complete([5, 6, 7], least).result).tokenIds;
  cpu.close();
  return { both, cut: await cut, after, given_up: await given_up };
}"""


@pytest.mark.extended
def test_two_engines_at_once_leave_each_other_alone(blank_page: Page) -> None:
    found = blank_page.evaluate(TWO)
    ids = [oracle.greedy(LLAMA.parent / name, [5, 6, 7], 24) for name in ("nano-llama", "nano-qwen3")]
    assert found["both"] == ids
    assert found["after"] == ids[1]
    assert (found["cut"], found["given_up"]) == ("ClosedError", "thought better of it")


LOAD_ALL = """async (models) => {
  const { Capstan } = await import("/capstan/capstan.js");
  const told = (error) => [error.name, error.code, error.message];
  return Promise.all(models.map((model) => Capstan.load(model, { device: "wasm" }).then(() => "loaded", told)));
}"""


def test_what_is_no_model_is_told_with_its_address_and_what_to_do(
    blank_page: Page, page_errors: list[str], site: SiteServer
) -> None:
    blank_page.route("**/html/**", lambda route: route.fulfill(content_type="text/html", body="<!doctype html>"))
    elsewhere = site.url.replace("127.0.0.1", "localhost") + "models/nano-llama/"
    found = blank_page.evaluate(LOAD_ALL, ["/nowhere/", "/html/", elsewhere])
    page_errors.clear()  # what the browser says of each file
    assert [(name, code) for name, code, _ in found] == [("CapstanError", "ModelFileError")] * 3, found
    missing, html, refused = [message for _, _, message in found]
    assert missing.startswith(f"{site.url}nowhere/"), missing
    assert html.startswith(f"{site.url}html/"), html
    assert refused.startswith(elsewhere), refused
    assert "(CORS)" in refused


SESSIONS = """async () => {
  const { Capstan } = await import("/capstan/capstan.js");
  const refused = (work) => { try { work(); return null; } catch ({ code, message }) { return [code, message]; } };
  const asked = { device: "webgpu", prefixCache: 16e6, recoveries: 0, cancelDeadline: 5000 };
  const llm = await Capstan.load("/models/nano-qwen2", asked);
  const options = { maxTokens: 4, temperature: 0 };
  const one = llm.session([{ role: "system", content: "count what is said, and say it again".repeat(2) }]);
  const found = { turns: [] };
  const note = async (run) => {
    const { text, keptTokens, promptTokens } = await run.result;
    found.turns.push([text, keptTokens, promptTokens]);
  };
  const first = one.send("hello", options);
  found.busy = refused(() => one.rewind(1));
  await note(first);
  const other = one.fork();
  await note(one.send("more", options));
  await note(other.send("less", options));
  await note(one.send("again", options));
  await note(other.edit(1, "hello", options));
  await note(other.regenerate(options));
  found.roles = [one, other].map(({ messages }) => messages.map(({ role }) => role));
  found.last = other.messages.at(-1).content;
  one.rewind(2);
  found.place = refused(() => one.rewind(3));
  await note(one.regenerate(options));
  const before = await llm.memory();
  await one.close();
  const after = await llm.memory();
  const persistent = ({ entries }) =>
    entries.filter(({ category }) => category === "persistent").reduce((sum, { bytes }) => sum + bytes, 0);
  found.given = persistent(after) - persistent(before);
  found.closed = refused(() => one.send("more"));
  llm.close();
  return found;
}"""


@pytest.mark.extended
def test_sessions_keep_what_was_computed_and_are_rewound_edited_and_forked(blank_page: Page) -> None:
    found = blank_page.evaluate(SESSIONS)
    first, more, less, again, edited, repeated, rewound = found["turns"]
    assert first[1] == 0
    # The answer's first characters may make a token of their own with the prompt's last line break.
    assert more[1] >= first[2] - 1, "the first turn was there"
    assert less[1] >= 16, "the fork takes over what the other session computed"
    assert again[1] >= more[2], "the other session's turn between disturbed nothing"
    assert edited[0] == repeated[0] == rewound[0] == first[0], "the same messages have the same answer"
    assert edited[1] >= 16
    assert found["roles"] == [["system", *["user", "assistant"] * 3], ["system", "user", "assistant"]]
    assert found["last"] == first[0]
    assert 0 < found["given"] <= 16e6, "what a closed session computed is there for others"
    assert found["busy"][0] == found["place"][0] == found["closed"][0] == "OptionError"
    assert found["place"][1] == "3 is no place among 2 messages; it must be from 0 to 2"


CONTINUED = """async (model) => {
  const { Capstan } = await import("/capstan/capstan.js");
  const llm = await Capstan.load(model, { device: "wasm" });
  const messages = [{ role: "user", content: "hello" }, { role: "assistant", content: "once upon" }];
  const greedy = { maxTokens: 8, temperature: 0 };
  const answer = await llm.chat(messages, { ...greedy, continueFinalMessage: true }).result;
  const params = { messages, max_tokens: 8, temperature: 0, continue_final_message: true };
  const completion = await llm.chat.completions.create(params);
  const prompt = await llm.tokenizer.template(messages, { continueFinalMessage: true });
  const ids = await llm.tokenizer.encode(prompt);
  const text = await llm.complete(ids, greedy).result;
  const refused = llm.chat(messages.slice(0, 1), { continueFinalMessage: true }).result;
  const why = await refused.catch(({ code, message }) => `${code}: ${message}`);
  llm.close();
  const texts = [answer.text, completion.choices[0].message.content];
  return { prompt, why, texts, ids: [answer.tokenIds, text.tokenIds] };
}"""


def test_an_answer_continues_the_assistants_message(blank_page: Page) -> None:
    found = blank_page.evaluate(CONTINUED, "/models/nano-qwen2")
    assert found["prompt"].endswith("assistant\nonce upon")
    assert found["ids"][0] == found["ids"][1] != []
    assert found["texts"][0] == found["texts"][1]
    assert found["why"].startswith("OptionError: continue_final_message: the last message has the role 'user'")


LIKELY = """async ({ prompt, tokens, model }) => {
  const { Capstan } = await import("/capstan/capstan.js");
  const llm = await Capstan.load(model, { device: "webgpu" });
  const sampled = { maxTokens: tokens, temperature: 1.5, topK: 0, seed: 3 };
  const run = (options) => llm.complete(prompt, { ...sampled, ...options }).result;
  const found = { plain: await run({}), told: await run({ logprobs: true, topLogprobs: 4 }) };
  const messages = [{ role: "user", content: "hello" }];
  const asked = { messages, max_tokens: 6, logprobs: true, top_logprobs: 1 };
  found.whole = (await llm.chat.completions.create(asked)).choices[0];
  found.chunks = [];
  for await (const chunk of await llm.chat.completions.create({ ...asked, stream: true }))
    found.chunks.push(chunk.choices[0]);
  found.after = (await llm.chat(messages, { maxTokens: 6 }).result).tokenIds;
  const { tokenizer } = llm;
  found.text = await tokenizer.template(messages);
  found.ids = await tokenizer.encode(found.text);
  found.decoded = await tokenizer.decode(await tokenizer.encode("once upon a time"));
  found.counts = [await tokenizer.count(found.text), await tokenizer.count(messages)];
  const thinking = llm.chat(messages, { thinking: true }).result;
  found.thinking = await thinking.catch(({ code, message }) => [code, message]);
  llm.close();
  return found;
}"""


@pytest.mark.extended
def test_a_page_asks_for_log_probabilities_and_tokens(blank_page: Page) -> None:
    prompt, tokens = [5, 6, 7, 8], 10
    given = {"prompt": prompt, "tokens": tokens, "model": "/models/nano-qwen2"}
    found = blank_page.evaluate(LIKELY, given)
    ids, told = found["plain"]["tokenIds"], found["told"]["logprobs"]
    assert found["plain"]["logprobs"] is None
    assert found["told"]["tokenIds"] == ids == [each["tokenId"] for each in told]
    # The definition: the reference device's logits in front of each token, in float32.
    with Generator(Model(str(FIXTURES / "nano-qwen2"))) as reference:
        for place, each in enumerate(told):
            reference.rewind_to(0)
            reference.append_tokens([*prompt, *ids[:place]])
            logits = np.asarray(reference.get_logits(), np.float64)
            wanted = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
            assert each["logprob"] == pytest.approx(wanted[ids[place]], abs=1e-4)
            top = [other["tokenId"] for other in each["topLogprobs"]]
            assert top == [int(token) for token in np.argsort(-logits, kind="stable")[:4]]
            assert [other["logprob"] for other in each["topLogprobs"]] == pytest.approx(wanted[top], abs=1e-4)
            assert each["bytes"] is None or bytes(each["bytes"]).decode() == each["token"]
    assert any(each["tokenId"] not in [other["tokenId"] for other in each["topLogprobs"]] for each in told)
    whole = found["whole"]["logprobs"]["content"]
    assert "".join(each["token"] for each in whole) == found["whole"]["message"]["content"]
    streamed = [each for chunk in found["chunks"] for each in chunk["logprobs"]["content"]]
    assert [each["token"] for each in streamed] == [each["token"] for each in whole]
    # Its prompt was computed before.
    assert [each["logprob"] for each in streamed] == pytest.approx([each["logprob"] for each in whole], abs=1e-4)
    assert len(found["after"]) == len(whole) == 6
    assert found["counts"] == [len(found["ids"])] * 2
    assert "hello" in found["text"]
    assert found["decoded"] == "once upon a time"
    code, said = found["thinking"]
    assert (code, said[:69]) == ("OptionError", "thinking is True, but the chat template has none of the variables ena")


STORED = """async () => {
  const { Capstan } = await import("/capstan/capstan.js");
  const folder = "/models/nano-qwen2/";
  const found = { fits: await Capstan.fits(folder, { device: "webgpu" }), none: await Capstan.models.size(folder) };
  const llm = await Capstan.load(folder, { device: "webgpu" });
  llm.close();
  found.list = (await Capstan.models.list()).filter(({ model }) => model.endsWith(folder));
  found.verified = await Capstan.models.verify(folder);
  found.around = await Capstan.models.delete("/models/").catch(({ code, message }) => [code, message]);
  found.freed = await Capstan.models.delete(folder);
  found.left = await Capstan.models.size(folder);
  return found;
}"""


@pytest.mark.extended
def test_a_page_looks_after_the_models_that_it_keeps(blank_page: Page) -> None:
    found = blank_page.evaluate(STORED)
    size = (FIXTURES / "nano-qwen2/model.onnx.data").stat().st_size
    assert (found["fits"]["fits"], found["fits"]["device"], found["none"]) == (True, "webgpu", 0)
    assert found["fits"]["bytes"] > size
    [listed] = found["list"]
    assert {**listed, "model": ""} == {"model": "", "bytes": size, "storedBytes": size, "damaged": 0}
    assert found["verified"] == [listed]
    code, said = found["around"]
    assert code == "OptionError"
    assert "/models/ is not a stored model but a folder that has http" in said
    assert found["freed"] >= size
    assert found["left"] == 0
