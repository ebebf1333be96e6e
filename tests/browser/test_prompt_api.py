"""`LanguageModel` of capstan-webgpu/prompt-api in a page: what the specification and the web platform's tests demand of
a browser's own, over a small model."""

from __future__ import annotations

import itertools
import shutil
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route

import capstan
from buildtools.bundles import ENTRIES, bundle
from buildtools.site import assemble
from capstan_host.headless.static_server import running
from capstan_host.site_server import SiteServer
from capstan_host.testing.harness import watch
from tests import oracle
from tests.browser.test_chat import FOLDER, prompt_of
from tests.pictures import gradient, png_file
from tests.unit.test_picture_chats import FIXTURES, TEMPLATE, begun, image, said, user

NEW = 8
PICTURE = png_file(gradient())
SET_UP = """async () => {
  // Chromium has one, without a model.
  window.browsers = window.LanguageModel;
  delete window.LanguageModel;
  window.api = await import("./prompt_api.js");
  const options = { device: "wasm" };
  window.use = (model, more = {}) =>
    api.install({ model: `/models/${model}/`, options, runOptions: { maxTokens: 8 }, unloadAfter: 1e9, ...more });
  use("nano-qwen2");
  window.failure = async (work) => {
    try {
      await work();
    } catch (error) {
      const name = error instanceof DOMException ? `DOMException ${error.name}` : error.constructor.name;
      return [name, error.message];
    }
    return ["none", ""];
  };
  window.all = async (stream) => {
    const parts = [];
    for await (const part of stream) parts.push(part);
    return parts;
  };
}"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The entry as the package has it, over the site's client."""
    flags = ["--alias:capstan-webgpu=./capstan/capstan.js", "--external:./capstan/capstan.js"]
    return bundle(ENTRIES["prompt-api"], tmp_path_factory.mktemp("prompt") / "prompt_api.js", flags).read_text("utf-8")


@pytest.fixture(scope="module")
def sees(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("chats") / "sees"
    shutil.copytree(FIXTURES / "vision/nano-gemma3-vl", made)
    (made / "chat_template.jinja").write_text(TEMPLATE)
    return made


@pytest.fixture(scope="module")
def opened(browser: Browser, script: str, sees: Path) -> Iterator[Page]:
    models = {"nano-qwen2": FOLDER, "nano-llama": FOLDER.parent / "nano-llama", "sees": sees}
    with running(SiteServer(assemble(), models)) as server:
        context = browser.new_context()
        context.route("**/prompt_api.js", lambda route: fulfil(route, script))
        page = context.new_page()
        page.goto(server.url + "blank.html")
        page.evaluate(SET_UP)
        yield page
        context.close()


def fulfil(route: Route, script: str) -> None:
    route.fulfill(body=script, content_type="text/javascript")


@pytest.fixture
def page(opened: Page) -> Iterator[Page]:
    errors = watch(opened, [])
    yield opened
    assert not errors, f"the page reported {errors}"


def answer(*turns: str, count: int = NEW) -> str:
    """The oracle's answer to a conversation."""
    prompt = prompt_of(*turns)
    return oracle.text(FOLDER, oracle.drive(FOLDER, [("append", prompt), ("generate", count)]).picked)


MEMBERS = """() => {
  const kind = (place, name) => {
    const { value, get, set, enumerable } = Object.getOwnPropertyDescriptor(place, name) ?? {};
    const what = typeof value === "function" ? `method ${value.length}` : get ? (set ? "attribute" : "readonly") : "";
    return `${what}${enumerable ? "" : " hidden"}`;
  };
  const names = (place) => Object.getOwnPropertyNames(place).filter((name) => kind(place, name) !== " hidden");
  const kinds = (place) => Object.fromEntries(names(place).map((name) => [name, kind(place, name)]));
  return {
    kinds: [browsers, LanguageModel].map((one) => one && [kinds(one), kinds(one.prototype)]),
    tag: LanguageModel.prototype[Symbol.toStringTag],
    base: Object.getPrototypeOf(LanguageModel) === EventTarget,
    same: LanguageModel === api.LanguageModel,
    place: Object.getOwnPropertyDescriptor(window, "LanguageModel").enumerable,
  };
}"""
"""The members of the interface, as idlharness.js looks at them."""


def test_the_interface_has_the_members_of_the_specification(page: Page) -> None:
    found = page.evaluate(MEMBERS)
    browsers, (own, members) = found["kinds"]
    assert own == {"create": "method 0", "availability": "method 0", "params": "method 0"}
    assert members == {
        "prompt": "method 1",
        "promptStreaming": "method 1",
        "append": "method 1",
        "measureContextUsage": "method 1",
        "measureInputUsage": "method 1",
        "contextUsage": "readonly",
        "contextWindow": "readonly",
        "inputUsage": "readonly",
        "inputQuota": "readonly",
        "oncontextoverflow": "attribute",
        "onquotaoverflow": "attribute",
        "topK": "readonly",
        "temperature": "readonly",
        "samplingMode": "readonly",
        "clone": "method 0",
        "destroy": "method 0",
        "constructor": "method 0 hidden",
    }
    if browsers:
        assert browsers[0].items() <= own.items(), "those of Chromium's"
        assert browsers[1].items() <= members.items()
    assert (found["tag"], found["base"], found["same"], found["place"]) == ("LanguageModel", True, True, False)
    illegal = page.evaluate("() => failure(() => new LanguageModel())")
    assert illegal == ["TypeError", "Illegal constructor: await LanguageModel.create()"]


CONVERSE = """async () => {
  const events = [];
  const monitor = (m) => {
    m.addEventListener("downloadprogress", ({ loaded, total, lengthComputable }) =>
      events.push([loaded, total, lengthComputable]));
    m.ondownloadprogress = ({ type }) => void (window.heard = type);
  };
  const before = await LanguageModel.availability();
  const creating = LanguageModel.create({ monitor });
  const during = await LanguageModel.availability();
  const session = await creating;
  const count = events.length;
  const found = { events, states: [before, during, await LanguageModel.availability()], heard };
  found.usage = [session.contextUsage, await session.measureContextUsage("hello"), session.contextWindow];
  found.first = await session.prompt("hello");
  found.usage.push(session.contextUsage);
  found.parts = await all(session.promptStreaming("more"));
  found.usage.push(session.contextUsage, session.inputUsage, session.inputQuota);
  found.usage.push(await session.measureInputUsage("hello"));
  const fork = await session.clone();
  [found.forked, found.going] = await Promise.all([fork.prompt("why"), session.prompt("why")]);
  found.object = await session.measureContextUsage({}) === await session.measureContextUsage("[object Object]");
  found.sampling = [session.samplingMode, session.topK, session.temperature];
  fork.destroy();
  session.destroy();
  found.late = events.length - count;
  return found;
}"""


def test_a_conversation_has_the_oracles_answers_and_a_monitor_hears_of_the_load(page: Page) -> None:
    found = page.evaluate(CONVERSE)
    first = answer("hello")
    assert found["first"] == first
    second = answer("hello", first, "more")
    assert "".join(found["parts"]) == second
    assert len(found["parts"]) > 1
    assert found["forked"] == found["going"] == answer("hello", first, "more", second, "why")
    assert found["states"] == ["downloadable", "downloading", "available"]
    events = found["events"]
    assert (events[0][0], events[-1][0], found["heard"], found["late"]) == (0, 1, "downloadprogress", 0)
    assert all(total == 1 and computable and loaded * 0x10000 % 1 == 0 for loaded, total, computable in events)
    assert all(one[0] < other[0] for one, other in itertools.pairwise(events))
    alone = len(prompt_of("hello"))
    whole = len(prompt_of("hello", first, "more")) + NEW
    assert found["usage"] == [0, alone, 512, alone + NEW, whole, whole, 512, alone]
    assert (found["object"], found["sampling"]) == (True, ["balanced", 1, 0])


APPEND = """async () => {
  const initialPrompts = [
    { role: "user", content: [{ type: "text", value: "hel" }, { type: "text", value: "lo" }] },
    { role: "assistant", content: "yes" },
  ];
  const found = {};
  const session = await LanguageModel.create({ initialPrompts });
  found.begun = [session.contextUsage, await session.measureContextUsage(initialPrompts)];
  found.nothing = await session.append([]);
  found.still = session.contextUsage;
  found.appended = await session.append("more");
  found.usage = session.contextUsage;
  found.answer = await session.prompt([{ role: "assistant", content: "Once", prefix: true }]);
  found.next = await session.prompt("why");
  const system = await LanguageModel.create();
  await system.append([{ role: "system", content: "be" }]);
  found.system = [system.contextUsage, await system.measureContextUsage([{ role: "system", content: "be" }])];
  found.twice = await failure(() => system.prompt([{ role: "system", content: "be" }]));
  found.told = await system.prompt("hello");
  session.destroy();
  system.destroy();
  return found;
}"""


def test_messages_are_appended_and_an_answer_is_begun(page: Page) -> None:
    found = page.evaluate(APPEND)
    few = len(prompt_of("hello", "yes"))
    assert found["begun"] == [few, few]
    assert (found["nothing"], found["still"], found["appended"]) == (None, few, None)
    prompt = prompt_of("hello", "yes", "more")
    assert found["usage"] == len(prompt)
    tokenizer = capstan.Tokenizer(capstan.Model(str(FOLDER)))
    said_before = zip(("user", "assistant", "user", "assistant"), ("hello", "yes", "more", "Once"), strict=True)
    messages = [{"role": role, "content": content} for role, content in said_before]
    prefixed = tokenizer.encode(tokenizer.apply_chat_template(messages, continue_final_message=True))
    picked = oracle.drive(FOLDER, [("append", prefixed), ("generate", NEW)]).picked
    assert found["answer"] == oracle.text(FOLDER, picked)
    assert found["next"] == answer("hello", "yes", "more", "Once" + found["answer"], "why")
    assert found["system"][0] == found["system"][1] > 0
    assert found["twice"][0] == "TypeError"
    text = "<|im_start|>system\nbe<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    ids = capstan.Tokenizer(capstan.Model(str(FOLDER))).encode(text)
    wanted = oracle.drive(FOLDER, [("append", ids), ("generate", NEW)]).picked
    assert found["told"] == oracle.text(FOLDER, wanted)


CONSTRAIN = """async () => {
  use("nano-qwen2", { runOptions: { maxTokens: 40 } });
  const session = await LanguageModel.create();
  const found = {};
  const schema = { type: "object", properties: { rating: { enum: [1, 2, 3] } }, required: ["rating"],
    additionalProperties: false };
  const bare = { responseConstraint: schema, omitResponseConstraintInput: true };
  found.usage = [await session.measureContextUsage("rate"), await session.measureContextUsage("rate", bare),
    await session.measureContextUsage("rate", { responseConstraint: schema })];
  found.json = JSON.parse(await session.prompt("rate", { responseConstraint: schema }));
  const expressions = [/^[ab]{3}$/, /Y(es)?!|no/gi];
  found.texts = [];
  for (const responseConstraint of expressions)
    found.texts.push(await session.prompt("say", { responseConstraint, omitResponseConstraintInput: true }));
  const parts = await all(session.promptStreaming("rate", bare));
  found.streamed = JSON.parse(parts.join(""));
  const { contextUsage } = session;
  const failing = [{ type: "string", minLength: 500 }, { type: "array", contains: {} }, /a/m, [], "a", 5];
  found.failures = [];
  for (const responseConstraint of failing)
    found.failures.push(await failure(() => session.prompt("say", { responseConstraint })));
  found.failures.push(await failure(() => session.prompt("say", { omitResponseConstraintInput: true })));
  found.same = session.contextUsage === contextUsage;
  session.destroy();
  use("nano-qwen2");
  return found;
}"""


def test_responses_fit_their_constraints_and_what_cannot_be_is_refused(page: Page) -> None:
    found = page.evaluate(CONSTRAIN)
    plain, bare, told = found["usage"]
    assert plain == bare < told
    assert found["json"]["rating"] in (1, 2, 3)
    assert found["streamed"]["rating"] in (1, 2, 3)
    one, other = found["texts"]
    assert len(one) == 3
    assert set(one) <= set("ab")
    assert other.lower() in ("y!", "yes!", "no")
    names = [name for name, _ in found["failures"]]
    assert names == [
        *("DOMException SyntaxError", "DOMException NotSupportedError", "DOMException NotSupportedError"),
        *(["TypeError"] * 4),
    ]
    messages = [message for _, message in found["failures"]]
    assert messages[0].endswith("the answer is as long as it may be")
    assert "contains" in messages[1]
    assert 'flags "m"' in messages[2]
    assert found["same"], "what failed left nothing in the session"


OVERFLOW = """async () => {
  const initialPrompts = [{ role: "system", content: "be" }];
  const session = await LanguageModel.create({ initialPrompts });
  const events = [];
  session.addEventListener("contextoverflow", ({ type }) => events.push(type));
  session.oncontextoverflow = () => events.push("handler");
  session.onquotaoverflow = () => events.push("old handler");
  const found = { events, handler: typeof session.oncontextoverflow };
  const word = "again ".repeat(20);
  await session.prompt(word);
  found.silent = events.length;
  const second = [{ role: "user", content: "hello" }, { role: "assistant", content: await session.prompt("hello") }];
  const { contextUsage } = session;
  const long = word.repeat(1 + (session.contextWindow - contextUsage) / (await session.measureContextUsage(word)));
  found.wanted = await session.measureContextUsage([...initialPrompts, ...second, { role: "user", content: long }]);
  found.answer = typeof (await session.prompt(long));
  found.usage = session.contextUsage;
  found.window = session.contextWindow;
  try {
    await session.append(word.repeat(200));
  } catch (error) {
    found.own = error instanceof QuotaExceededError;
    found.error = [error.name, error.requested, error.quota];
  }
  found.kept = session.contextUsage === found.usage;
  const tooLong = [{ role: "user", content: word.repeat(200) }];
  found.initial = (await failure(() => LanguageModel.create({ initialPrompts: tooLong })))[0];
  session.oncontextoverflow = "nothing";
  found.handlers = session.oncontextoverflow;
  session.destroy();
  return found;
}"""


def test_the_oldest_turns_leave_a_full_context_and_too_long_prompts_are_refused(page: Page) -> None:
    found = page.evaluate(OVERFLOW)
    assert (found["silent"], found["handler"], found["answer"]) == (0, "function", "string")
    assert found["events"] == ["contextoverflow", "handler", "old handler"]
    assert found["window"] == 512
    assert 0 < found["usage"] - found["wanted"] <= NEW, "the first turn is gone, the system message is there"
    name, requested, quota = found["error"]
    assert (name, quota, found["own"], found["kept"]) == ("QuotaExceededError", 512, True, True)
    assert requested > 512
    assert found["initial"] == "DOMException QuotaExceededError"
    assert found["handlers"] is None


ABORT = """async () => {
  use("nano-qwen2", { runOptions: {} });
  const told = new Error("enough");
  const found = {};
  const session = await LanguageModel.create();
  await session.prompt("hello", { responseConstraint: /a/, omitResponseConstraintInput: true });
  const methods = {
    create: (signal) => LanguageModel.create({ signal }),
    prompt: (signal) => session.prompt("hello", { signal }),
    append: (signal) => session.append("hello", { signal }),
    measureContextUsage: (signal) => session.measureContextUsage("hello", { signal }),
    clone: (signal) => session.clone({ signal }),
    promptStreaming: async (signal) => all(session.promptStreaming("hello", { signal })),
  };
  for (const [name, method] of Object.entries(methods)) {
    const stop = new AbortController();
    const under = failure(() => method(stop.signal));
    stop.abort();
    const reason = new AbortController();
    const given = method(reason.signal).catch((error) => error === told);
    reason.abort(told);
    found[name] = [(await under)[0], (await failure(() => method(stop.signal)))[0], await given,
      await method(reason.signal).catch((error) => error === told)];
  }
  found.thrown = await failure(() => session.promptStreaming("hello", { signal: AbortSignal.abort() }));
  const midway = new AbortController();
  const reader = session.promptStreaming("hello").getReader();
  found.part = typeof (await reader.read()).value;
  await reader.cancel();
  const long = session.promptStreaming("hello", { signal: midway.signal });
  const waiting = failure(() => session.prompt("next", { signal: midway.signal }));
  for await (const part of long) break;
  midway.abort();
  found.queued = (await waiting)[0];
  const last = session.prompt("hello", { responseConstraint: /b/, omitResponseConstraintInput: true });
  found.last = await last;
  const hello = { role: "user", content: "hello" };
  found.usage = session.contextUsage;
  found.wanted = await session.measureContextUsage([hello, { role: "assistant", content: "a" }, hello]);
  const pending = Object.values(methods).slice(1).map((method) => failure(() => method()));
  found.destroyed = typeof session.destroy();
  const after = Object.values(methods).slice(1).map((method) => failure(() => method()));
  found.ended = (await Promise.all([...pending, ...after])).map(([name]) => name);
  session.destroy();
  const owner = new AbortController();
  const other = await LanguageModel.create({ signal: owner.signal });
  const lost = other.prompt("hello").catch((error) => error === told);
  owner.abort(told);
  found.owner = [await lost, await other.prompt("hello").catch((error) => error === told)];
  use("nano-qwen2");
  return found;
}"""


def test_signals_and_destroy_end_what_is_under_way_and_the_session_stays_usable(page: Page) -> None:
    found = page.evaluate(ABORT)
    for method in ("create", "prompt", "append", "measureContextUsage", "clone", "promptStreaming"):
        assert found[method] == ["DOMException AbortError", "DOMException AbortError", True, True], method
    assert found["thrown"][0] == "DOMException AbortError"
    assert (found["part"], found["queued"], found["last"]) == ("string", "DOMException AbortError", "b")
    assert 0 < found["usage"] - found["wanted"] <= 2, "what was aborted left nothing in the session"
    assert found["destroyed"] == "undefined"
    assert found["ended"] == ["DOMException AbortError"] * 10
    assert found["owner"] == [True, True]


REFUSE = """async () => {
  const session = await LanguageModel.create();
  const part = (type, value, role = "user") => [{ role, content: [{ type, value }] }];
  const begun = { role: "assistant", content: "a", prefix: true };
  const tool = { name: "a", description: "b", inputSchema: { type: "object" }, execute: async () => "" };
  const create = (options) => () => LanguageModel.create(options);
  const prompt = (input, options) => () => session.prompt(input, options);
  const error = new Error("of a monitor");
  const cases = [
    ["TypeError", create(5)],
    ["TypeError", create({ signal: {} })],
    ["TypeError", create({ monitor: 5 })],
    ["Error", create({ monitor: () => { throw error; } })],
    ["TypeError", create({ samplingMode: "wild" })],
    ["TypeError", create({ samplingMode: "creative", topK: 3 })],
    ["RangeError", create({ topK: 0 })],
    ["RangeError", create({ temperature: -1 })],
    ["TypeError", create({ temperature: NaN })],
    ["TypeError", create({ expectedInputs: 5 })],
    ["TypeError", create({ expectedInputs: [{ type: "smell" }] })],
    ["RangeError", create({ expectedInputs: [{ type: "text", languages: ["not a tag"] }] })],
    ["NotSupportedError", create({ expectedInputs: [{ type: "image" }] })],
    ["NotSupportedError", create({ expectedInputs: [{ type: "audio" }] })],
    ["NotSupportedError", create({ expectedOutputs: [{ type: "image" }] })],
    ["NotSupportedError", create({ thinking: { effort: "high" } })],
    ["TypeError", create({ initialPrompts: "hello" })],
    ["TypeError", create({ initialPrompts: [{ role: "user", content: "a" }, { role: "system", content: "b" }] })],
    ["NotSupportedError", create({ initialPrompts: [begun] })],
    ["TypeError", create({ tools: [{ ...tool, name: "" }] })],
    ["TypeError", create({ tools: [{ ...tool, description: "" }] })],
    ["TypeError", create({ tools: [{ ...tool, inputSchema: {} }] })],
    ["TypeError", create({ tools: [{ ...tool, inputSchema: { type: "object", required: "a" } }] })],
    ["TypeError", create({ tools: [{ ...tool, execute: undefined }] })],
    ["TypeError", create({ tools: [tool, tool] })],
    ["TypeError", prompt([5])],
    ["TypeError", prompt([{ role: "user" }])],
    ["TypeError", prompt([{ role: "tool", content: "a" }])],
    ["TypeError", prompt(part("text"))],
    ["TypeError", prompt(part("text", new Blob([])))],
    ["TypeError", prompt([{ role: "user", content: "a" }, { role: "system", content: "b" }])],
    ["SyntaxError", prompt([{ ...begun, role: "user" }])],
    ["SyntaxError", prompt([begun, { role: "user", content: "b" }])],
    ["NotSupportedError", prompt(part("image", new Blob([]), "assistant"))],
    ["NotSupportedError", prompt(part("image", new Blob([])))],
    ["NotSupportedError", prompt(part("audio", new Blob([])))],
    ["NotSupportedError", prompt(part("tool-response", "a"))],
    ["TypeError", () => session.measureContextUsage("a", { omitResponseConstraintInput: true })],
    ["NotSupportedError", () => session.append([begun])],
    ["NotSupportedError", () => all(session.promptStreaming(part("image", 5)))],
  ];
  const found = [];
  for (const [wanted, work] of cases) {
    const [name, message] = await failure(work);
    const whole = /Type|Range|^Error/.test(wanted) ? wanted : `DOMException ${wanted}`;
    if (name !== whole || !message) found.push([String(work), wanted, name, message]);
  }
  const states = [];
  for (const type of ["text", "image", "audio"])
    states.push(await LanguageModel.availability({ expectedInputs: [{ type, languages: ["en", "de"] }] }));
  const raw = await LanguageModel.create({ topK: 1e9, temperature: 0.5 });
  const mode = await LanguageModel.create({ samplingMode: "most-predictable" });
  const sampled = [raw.topK, raw.temperature, raw.samplingMode, mode.samplingMode, mode.temperature];
  const params = await LanguageModel.params();
  for (const each of [session, raw, mode]) each.destroy();
  return { found, count: cases.length, states, sampled, params };
}"""


def test_bad_input_is_refused_by_the_names_of_the_specification(page: Page) -> None:
    found = page.evaluate(REFUSE)
    assert found["found"] == []
    assert found["states"] == ["available", "unavailable", "unavailable"]
    assert found["sampled"] == [128, 0.5, None, "most-predictable", 0]
    assert found["params"] == {"defaultTopK": 50, "maxTopK": 128, "defaultTemperature": 1, "maxTemperature": 2}


SEE = """async (url) => {
  use("sees", { inputs: ["image"], runOptions: { maxTokens: 6 } });
  const blob = await (await fetch(url)).blob();
  const bitmap = await createImageBitmap(blob);
  const canvas = Object.assign(document.createElement("canvas"), { width: bitmap.width, height: bitmap.height });
  canvas.getContext("2d").drawImage(bitmap, 0, 0);
  const image = new Image();
  image.src = url;
  await image.decode();
  const bytes = await blob.arrayBuffer();
  const offset = new Uint8Array(bytes.byteLength + 9);
  offset.set(new Uint8Array(bytes), 9);
  const frame = new VideoFrame(bitmap, { timestamp: 1 });
  const values = { blob, bitmap, canvas, image, bytes, view: offset.subarray(9), data: new DataView(bytes), frame };
  const expectedInputs = [{ type: "image" }];
  const found = { answers: {}, state: await LanguageModel.availability({ expectedInputs }) };
  const session = await LanguageModel.create({ expectedInputs });
  const ask = (value) => [{ role: "user", content: [
    { type: "text", value: "A " }, { type: "image", value }, { type: "text", value: "?" }] }];
  for (const [name, value] of Object.entries(values)) {
    const one = await session.clone();
    found.answers[name] = await one.prompt(ask(value));
    found.usage = one.contextUsage;
    one.destroy();
  }
  frame.close();
  await session.append(ask(blob));
  found.appended = session.contextUsage;
  found.failures = [
    await failure(() => session.prompt(ask(5))),
    await failure(() => session.prompt(ask(offset.slice(3)))),
    await failure(() => session.measureContextUsage(ask(blob))),
  ];
  const events = [];
  session.oncontextoverflow = () => events.push("overflow");
  await session.prompt([{ role: "assistant", content: "" , prefix: true }]);
  for (let turn = 0; turn < 2; turn++) await session.prompt(ask(blob));
  found.events = events;
  found.full = session.contextUsage;
  session.destroy();
  use("nano-qwen2");
  return found;
}"""


def test_pictures_are_seen_in_every_form(page: Page, sees: Path) -> None:
    found = page.evaluate(SEE, "data:image/png;base64," + b64encode(PICTURE).decode())
    model = capstan.Model(str(sees), device="cpu")
    _, wanted = said(begun(model), user("A ", image(PICTURE), "?"))
    text = capstan.Tokenizer(model).decode(wanted)
    assert set(found["answers"]) == {"blob", "bitmap", "canvas", "image", "bytes", "view", "data", "frame"}
    assert set(found["answers"].values()) == {text}
    assert found["state"] == "downloadable"
    assert found["appended"] == found["usage"] - 6 > 256
    assert [name for name, _ in found["failures"]] == [
        *("TypeError", "DOMException EncodingError", "DOMException NotSupportedError")
    ]
    assert len(found["events"]) == 1, "of 640 places a picture takes 256"
    assert found["full"] < 640


OWN = """async () => {
  const own = class {};
  window.LanguageModel = own;
  const found = { stays: [api.install({ model: "/models/nano-llama/", options: { device: "wasm" } }),
    window.LanguageModel === own] };
  found.base = await failure(() => api.LanguageModel.create());
  found.forced = [use("nano-qwen2", { force: true }), window.LanguageModel === api.LanguageModel];
  found.refused = [];
  for (const given of [{ modle: "a" }, { force: 1 }, { unloadAfter: -1 }, { inputs: ["audio"] }])
    found.refused.push(await failure(() => api.install(given)).then(([name, message]) => `${name}: ${message}`));
  use("missing");
  found.missing = (await failure(() => LanguageModel.create()))[0];
  use("nano-qwen2", { unloadAfter: 0 });
  const session = await LanguageModel.create();
  const states = [await LanguageModel.availability()];
  session.destroy();
  await new Promise((go) => setTimeout(go, 50));
  states.push(await LanguageModel.availability());
  const again = await LanguageModel.create();
  found.again = await again.prompt("hello");
  again.destroy();
  use("nano-qwen2");
  return { ...found, states };
}"""


def test_a_browsers_own_stays_unless_it_is_forced_and_the_model_is_given_back(page: Page) -> None:
    found = page.evaluate(OWN)
    assert (found["stays"], found["forced"]) == ([False, True], [True, True])
    assert found["base"][0] == "DOMException NotSupportedError"
    assert "no chat template" in found["base"][1]
    assert found["refused"] == [
        "CapstanError: modle is no option of install; leave it out",
        "CapstanError: force is 1; it must be a boolean",
        "CapstanError: unloadAfter is -1; it must be milliseconds from 0",
        'CapstanError: inputs is audio; it may have "image"',
    ]
    assert found["missing"] == "DOMException NetworkError"
    assert found["states"] == ["available", "available"], "loaded, then stored"
    assert found["again"] == answer("hello")


FORGET = """async () => {
  use("nano-qwen2", { unloadAfter: 0 });
  await (async () => {
    const session = await LanguageModel.create();
    session.oncontextoverflow = () => session;
    window.kept = await session.clone();
    await session.prompt("hello");
  })();
}"""


def test_sessions_that_a_page_forgets_are_given_back(page: Page) -> None:
    def workers() -> list[str]:
        page.request_gc()
        page.wait_for_timeout(100)
        return [worker.url for worker in page.workers if worker.url.endswith("worker.js")]

    page.evaluate(FORGET)
    for _ in range(30):  # those that told which models are stored end after two seconds
        found = workers()
    assert len(found) == 1, "that of the clone; other models had no session when this one was installed"
    page.evaluate("() => void delete window.kept")
    for _ in range(50):
        if not (found := workers()):
            break
    assert found == []
    page.evaluate('() => use("nano-qwen2")')
