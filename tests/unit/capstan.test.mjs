// The page's side of Capstan.load, chat and complete, over a worker that answers as each test says.

import assert from "node:assert/strict";
import { getEventListeners } from "node:events";
import { afterEach, beforeEach, test } from "node:test";
import { Capstan, Client } from "../../web/src/page/capstan.ts";
import { pickedFolder } from "../../web/src/page/arguments.ts";

const PAGE = "http://page.test/folder/index.html";
const LOADED = {
  device: "wasm",
  adapter: "cpu",
  context_length: 64,
  max_length: 48,
  can_chat: true,
  begin_token_id: 0,
  load_times: { read: [0, 2] },
};
const ANSWER = {
  text: "ab",
  token_ids: [1, 2],
  finish_reason: "stop",
  prompt_tokens: 5,
  kept_tokens: 3,
  tokens_per_second: 10,
  time_to_first_token_ms: 7,
  waiting_ms: 6,
  copying_ms: 0.5,
};

/** The requests to the worker, without those with which each load begins. */
let asked;
let boots;
let ended;
/** The worker's handler of chat and generate requests: `say(event)` and `reply(reply)`. */
let behaviour;
let bootReply;
let loadReply;

/** The ends of workers that wait for another question, in place of waits by the clock. */
let inVain = [];
const { setTimeout: byTheClock } = globalThis;
globalThis.setTimeout = (work, milliseconds, ...given) => {
  if (milliseconds === 2000) return inVain.push(() => work(...given));
  const timer = byTheClock(work, milliseconds, ...given);
  // Node waits for no deadline of a cancelled request.
  return milliseconds >= 10_000 ? timer.unref() : timer;
};
async function unrequested() {
  for (const work of inVain.splice(0)) work();
  await new Promise((go) => byTheClock(go));
}

class StandInWorker {
  constructor(url) {
    StandInWorker.last = this;
    this.url = String(url);
  }
  terminate() {
    if (!this.over) ended++;
    this.over = true;
  }
  send(data) {
    setTimeout(() => this.onmessage({ data }));
  }
  postMessage(message) {
    if (message.tag === "boot") {
      boots.push({ url: this.url, ...message });
      const data = bootReply ?? { tag: "booted", id: 0, ready_ms: 5, python: "snapshot" };
      if (data === "broken") setTimeout(() => this.onerror({}));
      else if (data !== "never") this.send(data);
      return;
    }
    const { id, request } = message;
    asked.push(request);
    const reply = (reply) => this.send({ tag: "reply", id, reply });
    const good = (result) => reply({ ok: true, result });
    if (request.kind === "cancel") good(null);
    else if (request.kind === "load" && loadReply !== "never") reply(loadReply ?? { ok: true, result: LOADED });
    behaviour({ request, good, reply, say: (event) => this.send({ tag: "event", id, event }) });
  }
}

/** A signal that aborts after some milliseconds; Node does not wait for those of AbortSignal.timeout. */
function abortAfter(milliseconds) {
  const stop = new AbortController();
  setTimeout(() => stop.abort(), milliseconds);
  return stop.signal;
}

const text = (text, token_id) => ({ kind: "text", text, token_id });

beforeEach(() => {
  asked = [];
  boots = [];
  ended = 0;
  bootReply = null;
  loadReply = null;
  behaviour = ({ request, good, say }) => {
    if (request.kind !== "chat" && request.kind !== "generate") return;
    say(text("a", 1));
    say(text("b", 2));
    good(ANSWER);
  };
  globalThis.Worker = StandInWorker;
  globalThis.location = { href: PAGE, origin: "http://page.test" };
  globalThis.origin = "http://page.test";
});
afterEach(async () => {
  await unrequested();
  delete globalThis.Worker;
  delete globalThis.location;
  delete globalThis.origin;
});

const load = (options) => Capstan.load("../models/nano", options);
const MESSAGES = [{ role: "user", content: "hello" }];

async function failure(promise) {
  try {
    await promise;
  } catch (error) {
    return error;
  }
  throw new Error("it did not fail");
}

test("a page gives no option that it does not care about", async () => {
  const llm = await load();
  await llm.chat(MESSAGES).result;
  const model = "http://page.test/models/nano/";
  const rest = { max_new_tokens: null };
  assert.deepEqual(boots[0].expected, { model, dtype: null, device: "auto" });
  assert.deepEqual(asked[1], {
    ...{ kind: "chat", model, ...rest, search: {}, guidance: null },
    ...{ messages: MESSAGES, max_length: null },
  });
});

test("variables of the chat template are passed on", async () => {
  const llm = await load();
  const chatTemplateKwargs = { reasoning_effort: "low", dates: [null, { day: 1 }] };
  await llm.chat(MESSAGES, { chatTemplateKwargs, thinking: true }).result;
  assert.deepEqual([asked[1].chat_template_kwargs, asked[1].thinking], [chatTemplateKwargs, true]);
  await llm.session().send("hello", { chatTemplateKwargs }).result;
  assert.deepEqual(asked[2].chat_template_kwargs, chatTemplateKwargs);
  for (const [options, message] of [
    [{ chatTemplateKwargs: "low" }, /^chatTemplateKwargs is "low"; it must be an object/],
    [{ chatTemplateKwargs: { budget: NaN } }, /^chatTemplateKwargs.budget is NaN; it must be a value that JSON has/],
  ])
    assert.throws(() => llm.chat(MESSAGES, options), { code: "OptionError", message });
  const given = { chatTemplateKwargs };
  assert.throws(() => llm.complete("", given), { message: /^chatTemplateKwargs: no such option; / });
});

test("the text comes in parts, and the result says how it ended and what was kept", async () => {
  const llm = await load();
  const run = llm.chat(MESSAGES);
  const parts = [];
  for await (const part of run) parts.push(part);
  assert.deepEqual(parts, ["a", "b"]);
  const { requestId, ...result } = await run.result;
  const answer = {
    text: "ab",
    reasoning: "",
    answer: "ab",
    toolCalls: [],
    logprobs: null,
    tokenIds: [1, 2],
    finishReason: "stop",
    contextFull: false,
  };
  assert.deepEqual(result, {
    ...answer,
    choices: [answer],
    ...{ promptTokens: 5, keptTokens: 3, restored: null },
    ...{ tokensPerSecond: 10, timeToFirstTokenMs: 7, waitingMs: 6, copyingMs: 0.5, counters: null },
  });
  assert.equal(typeof requestId, "number");
  const stats = llm.stats();
  assert.deepEqual(
    [stats.runs, stats.tokens, stats.lastRun.text, stats.pythonMs, stats.contextLength],
    [1, 2, "ab", 5, 64],
  );
});

test("events carry the id of the request that they belong to", async () => {
  const seen = [];
  const llm = await load({ onEvent: (event, id) => seen.push([id, event.text]) });
  const first = await llm.chat(MESSAGES).result;
  const second = await llm.chat(MESSAGES).result;
  assert.notEqual(first.requestId, second.requestId);
  assert.deepEqual(seen, [
    [first.requestId, "a"],
    [first.requestId, "b"],
    [second.requestId, "a"],
    [second.requestId, "b"],
  ]);
});

test("options are the worker's search options, and drawing ones have tokens drawn", async () => {
  const llm = await load({
    dtype: "q4",
    device: "wasm",
    runAhead: 4,
    recoveries: 0,
    prefixCache: 64,
    disableFileMappedWeights: true,
    draftModel: "models/small/",
  });
  const drawn = { temperature: 0.7, topK: 5, topP: 0.9, minP: 0.1, seed: 3, stop: "\n", maxTokens: 9, maxLength: 30 };
  await llm.chat(MESSAGES, drawn).result;
  await llm.complete([7, 8], { temperature: 0, repetitionPenalty: 1.1, search: { min_length: 2 }, maxLength: 20 })
    .result;
  await llm.complete("once", { jsonSchema: { type: "object" }, logitsProcessor: "mine" }).result;
  const [, chat, greedy, guided] = asked;
  assert.deepEqual(chat.search, {
    ...{ top_k: 5, top_p: 0.9, min_p: 0.1, random_seed: 3, do_sample: true, temperature: 0.7, stop_strings: ["\n"] },
  });
  assert.deepEqual([chat.dtype, chat.device, chat.run_ahead], ["q4", "wasm", 4]);
  assert.deepEqual([chat.recoveries, chat.prefix_cache, chat.disable_file_mapped_weights], [0, 64, true]);
  assert.equal(chat.draft_model, "http://page.test/folder/models/small/");
  assert.deepEqual([chat.max_new_tokens, chat.max_length], [9, 30]);
  assert.deepEqual(greedy.search, { repetition_penalty: 1.1, do_sample: false, min_length: 2, max_length: 20 });
  assert.deepEqual([greedy.prompt, greedy.prompt_ids], [null, [7, 8]]);
  assert.equal(guided.logits_processor, "mine");
  assert.deepEqual([guided.prompt, guided.guidance], ["once", { type: "json_schema", data: '{"type":"object"}' }]);
});

test("chat.completions.create asks for a chat, and tools are given to its template", async () => {
  const llm = await load();
  const tool = { type: "function", function: { name: "weather" } };
  const found = await llm.chat.completions.create({ messages: MESSAGES, tools: [tool], max_tokens: 3 });
  assert.equal(found.choices[0].message.content, "ab");
  const { kind, messages, tools, max_new_tokens } = asked[1];
  assert.deepEqual([kind, messages, tools, max_new_tokens], ["chat", MESSAGES, [tool], 3]);
  assert.throws(() => llm.complete("", { tools: [tool] }), {
    code: "OptionError",
    message: /^tools: no such option; /,
  });
});

test("an aborted run ends its loop, keeps its text, and leaves the next run alone", async () => {
  let current = null;
  behaviour = ({ request, reply, good, say }) => {
    if (request.kind === "cancel")
      current?.reply({ ok: false, error: { type: "KeyboardInterrupt", message: "stopped" } });
    if (request.kind === "generate") {
      current = { reply };
      say(text("a", 1));
    } else if (request.kind === "chat") {
      current = null;
      good(ANSWER);
    }
  };
  const llm = await load();
  const stop = new AbortController();
  const run = llm.complete("once", { signal: stop.signal });
  const next = llm.chat(MESSAGES);
  const parts = [];
  for await (const part of run) {
    parts.push(part);
    stop.abort();
  }
  assert.deepEqual(parts, ["a"]);
  const result = await run.result;
  assert.deepEqual([result.text, result.tokenIds, result.finishReason], ["a", [1], "abort"]);
  assert.equal((await next.result).finishReason, "stop");
  stop.abort();
  assert.deepEqual(
    asked.map(({ kind }) => kind),
    ["load", "generate", "cancel", "chat"],
  );
});

test("an aborted run ends while its worker computes on, and the next one waits for that", async (t) => {
  const timer = t.mock.method(globalThis, "setTimeout");
  let late = null;
  behaviour = ({ request, good, say }) => {
    if (request.kind === "generate") {
      say(text("a", 1));
      late = { good, say };
    } else if (request.kind === "chat") good(ANSWER);
  };
  const llm = await load();
  const stop = new AbortController();
  const run = llm.complete("once", { signal: stop.signal });
  const next = llm.chat(MESSAGES);
  for await (const part of run) {
    assert.equal(part, "a");
    stop.abort();
  }
  assert.ok(timer.mock.calls.some((call) => call.arguments[1] === 50));
  const kinds = () => asked.map(({ kind }) => kind);
  assert.deepEqual(kinds(), ["load", "generate", "cancel"]);
  late.say(text("b", 2));
  late.good({ ...ANSWER, finish_reason: "abort" });
  const result = await run.result;
  assert.deepEqual([result.text, result.tokenIds, result.finishReason], ["a", [1], "abort"]);
  assert.equal((await next.result).finishReason, "stop");
  assert.deepEqual(kinds(), ["load", "generate", "cancel", "chat"]);
});

test("a chat that was cancelled tells what the worker has of it", async () => {
  behaviour = ({ request, good }) => {
    if (request.kind === "chat") globalThis.answer = good;
    if (request.kind === "cancel") globalThis.answer({ ...ANSWER, finish_reason: "abort" });
  };
  const llm = await load();
  const run = llm.chat(MESSAGES, { signal: abortAfter(20) });
  const result = await run.result;
  assert.deepEqual([result.finishReason, result.text, result.promptTokens], ["abort", "ab", 5]);
});

test("leaving the loop ends the run", async () => {
  behaviour = ({ request, good, say }) => {
    if (request.kind === "chat") {
      globalThis.answer = good;
      say(text("a", 1));
    }
    if (request.kind === "cancel") globalThis.answer({ ...ANSWER, finish_reason: "abort" });
  };
  const llm = await load();
  const run = llm.chat(MESSAGES);
  for await (const part of run) {
    assert.equal(part, "a");
    break;
  }
  assert.equal((await run.result).finishReason, "abort");
});

test("a run that has ended listens to no signal", async () => {
  const llm = await load();
  const { signal } = new AbortController();
  await llm.chat(MESSAGES, { signal }).result;
  assert.deepEqual(getEventListeners(signal, "abort"), []);
});

test("runs wait for one another, and one that is aborted before its turn is never sent", async () => {
  const waiting = [];
  behaviour = ({ request, good }) => {
    if (request.kind === "chat") waiting.push(() => good({ ...ANSWER, text: request.messages[0].content }));
  };
  const llm = await load();
  const say = (content, options) => llm.chat([{ role: "user", content }], options).result;
  const first = say("first");
  const stop = new AbortController();
  const second = say("second", { signal: stop.signal });
  const third = say("third");
  await new Promise((resolve) => setTimeout(resolve, 20));
  assert.equal(waiting.length, 1);
  stop.abort();
  const early = await second;
  assert.deepEqual([early.finishReason, early.text, early.requestId], ["abort", "", null]);
  waiting.shift()();
  assert.equal((await first).text, "first");
  while (!waiting.length) await new Promise((resolve) => setTimeout(resolve));
  waiting.shift()();
  assert.equal((await third).text, "third");
  assert.ok(!asked.some(({ kind }) => kind === "cancel"));
});

test("an error of a run has the class of Python's, the traceback and the request's id, and the next run goes on", async () => {
  let bad = true;
  behaviour = ({ request, reply, good, say }) => {
    if (request.kind !== "chat") return;
    say({ kind: "status", text: "generating" });
    const error = { type: "PromptError", message: "too long", traceback: "where" };
    if (bad) reply({ ok: false, error });
    else good(ANSWER);
    bad = false;
  };
  const llm = await load();
  const run = llm.chat(MESSAGES);
  const error = await failure(
    (async () => {
      for await (const _ of run);
    })(),
  );
  assert.deepEqual(
    [error.name, error.code, error.message, error.traceback],
    ["CapstanError", "PromptError", "too long", "where"],
  );
  assert.equal(typeof error.requestId, "number");
  assert.equal((await llm.chat(MESSAGES).result).text, "ab");
});

test("closing rejects what is under way and what is asked later", async () => {
  behaviour = () => {};
  const llm = await load();
  const run = llm.chat(MESSAGES);
  await new Promise((resolve) => setTimeout(resolve, 10));
  llm.close();
  assert.equal((await failure(run.result)).code, "ClosedError");
  assert.equal((await failure(llm.chat(MESSAGES).result)).code, "ClosedError");
  assert.equal((await failure(llm.memory())).code, "ClosedError");
  assert.equal(ended, 1);
});

test("a load is aborted before, during the start and during the load, and ends its worker", async () => {
  assert.equal((await failure(load({ signal: AbortSignal.abort() }))).name, "AbortError");
  assert.equal(boots.length, 0);
  const twice = new AbortController();
  const first = failure(load({ signal: twice.signal }));
  twice.abort();
  assert.equal((await first).name, "AbortError");
  assert.equal(boots.length, 0, "as React's StrictMode does, which mounts twice");
  bootReply = "never";
  assert.equal((await failure(load({ signal: abortAfter(10) }))).name, "AbortError");
  assert.deepEqual([boots.length, ended], [1, 1]);
  bootReply = null;
  loadReply = "never";
  const stop = new AbortController();
  const loading = load({ signal: stop.signal, onEvent: () => {} });
  while (!asked.length) await new Promise((resolve) => setImmediate(resolve));
  stop.abort(new Error("enough"));
  assert.equal((await failure(loading)).message, "enough");
  assert.equal(ended, 2);
});

test("a load that fails ends its worker and tells the remedy", async () => {
  bootReply = {
    tag: "reply",
    id: 0,
    reply: { ok: false, error: { type: "Error", message: "no python.json", traceback: "" } },
  };
  const error = await failure(load({ assetsUrl: "/assets" }));
  assert.deepEqual([error.name, error.code, ended], ["CapstanError", "StartError", 1]);
  assert.match(error.message, /^no python\.json; .*npx capstan-webgpu copy/);
  assert.deepEqual(
    [boots[0].url, boots[0].assets.base],
    ["http://page.test/assets/worker.js", "http://page.test/assets/"],
  );
});

for (const [answer, reason] of [
  [() => new Response("", { status: 404 }), "HTTP 404); serve the whole folder"],
  [
    () => new Response("<html>", { headers: { "Content-Type": "text/html" } }),
    "the server answers with an HTML page, as for addresses that it does not know); serve the whole folder",
  ],
  [
    () => new Response("", { headers: { "Content-Type": "text/plain" } }),
    "the server calls it text/plain); have it send text/javascript as the Content-Type",
  ],
  [
    () => new Response("", { headers: { "Content-Type": "text/javascript" } }),
    "it is there, but the browser refused it); see the console, and the page's Content-Security-Policy",
  ],
  [
    () => Promise.reject(new TypeError("refused")),
    "TypeError: refused); check that the server of this page runs, and that no browser extension blocks the request",
  ],
]) {
  test(`a worker that does not start is told with its file and the reason: ${reason}`, async () => {
    bootReply = "broken";
    const { fetch } = globalThis;
    globalThis.fetch = async () => answer();
    try {
      const error = await failure(load({ assetsUrl: "/assets/" }));
      const told = `the worker failed: http://page.test/assets/worker.js cannot be loaded (${reason}`;
      assert.deepEqual([error.code, error.message.slice(0, told.length), ended], ["StartError", told, 1]);
    } finally {
      globalThis.fetch = fetch;
    }
  });
}

test("a worker of another origin is imported by one of the page's own", async () => {
  await load({ assetsUrl: "http://cdn.test/capstan/" });
  assert.match(boots[0].url, /^blob:/);
  const { resolveObjectURL } = await import("node:buffer");
  assert.equal(await resolveObjectURL(boots[0].url).text(), 'import "http://cdn.test/capstan/worker.js";');
});

test("a model that cannot be loaded ends its worker and is told with the class of Python's error", async () => {
  loadReply = { ok: false, error: { type: "ModelFileError", message: "nothing there", traceback: "where" } };
  const error = await failure(load());
  assert.deepEqual(
    [error.name, error.code, error.message, ended],
    ["CapstanError", "ModelFileError", "nothing there", 1],
  );
});

test("memory and scripts wait for the runs before them", async () => {
  let answer;
  behaviour = ({ request, good }) => {
    if (request.kind === "chat") answer = good;
    else if (request.kind === "memory") good({ bytes: 0, entries: [] });
  };
  const llm = await load();
  const run = llm.chat(MESSAGES);
  const memory = llm.memory();
  await new Promise((resolve) => setTimeout(resolve, 10));
  assert.deepEqual(
    asked.map(({ kind }) => kind),
    ["load", "chat"],
  );
  answer(ANSWER);
  await run.result;
  assert.deepEqual(await memory, { bytes: 0, entries: [] });
});

test("what is told while a model is loaded, is told as progress until it is there", async () => {
  const told = [];
  const send = StandInWorker.prototype.postMessage;
  StandInWorker.prototype.postMessage = function (message) {
    if (message.request?.kind === "load") {
      this.send({ tag: "event", id: message.id, event: { kind: "status", text: "loading" } });
      this.send({ tag: "event", id: message.id, event: { kind: "progress", what: "model.onnx", done: 1, total: 2 } });
      this.send({ tag: "event", id: message.id, event: { kind: "bytes", done: 3, total: 4, whole: true } });
    }
    send.call(this, message);
  };
  try {
    await load({ onProgress: (progress) => told.push(progress) });
    await load();
  } finally {
    StandInWorker.prototype.postMessage = send;
  }
  assert.deepEqual(
    boots.map(({ bytes }) => bytes),
    [true, false],
    "bytes are counted if somebody wants to hear of them",
  );
  const nothing = { fraction: 0, bytes: 0, totalBytes: null, secondsLeft: null };
  const reading = { status: "reading model.onnx", file: "model.onnx", loaded: 1, total: 2 };
  const some = { fraction: 0.75, bytes: 3, totalBytes: 4, secondsLeft: null };
  assert.deepEqual(told, [
    { status: "loading", file: null, loaded: 0, total: 0, ...nothing },
    { ...reading, ...nothing },
    { ...reading, ...some },
    { status: "ready", file: null, loaded: 0, total: 0, ...some, fraction: 1, secondsLeft: 0 },
  ]);
});

test("a trace begins with the worker, or later, and ends behind the runs before it", async () => {
  const trace = { traceEvents: [], displayTimeUnit: "ms", otherData: {} };
  const order = [];
  behaviour = ({ request, good }) => {
    if (request.kind === "chat") setTimeout(() => good(ANSWER), 5);
    if (request.kind === "trace") good(request.action === "stop" ? trace : null);
  };
  const llm = await load({ trace: true });
  assert.equal(boots[0].trace, true);
  void llm.chat(MESSAGES).result.then(() => order.push("answer"));
  assert.deepEqual(await llm.trace().finally(() => order.push("trace")), trace);
  assert.deepEqual(order, ["answer", "trace"]);
  assert.equal(await llm.trace.start(), undefined);
  assert.deepEqual(
    asked.filter(({ kind }) => kind === "trace"),
    [
      { kind: "trace", action: "stop" },
      { kind: "trace", action: "start" },
    ],
  );
  await load();
  assert.equal(boots[1].trace, false);
});

test("a worker that replaces another is traced from its start if that one was", async () => {
  behaviour = ({ request, good }) => request.kind === "trace" && good({});
  const client = await Client.start({ trace: true });
  const die = () => StandInWorker.last.onmessage({ data: { tag: "fatal", reason: "it ended" } });
  die();
  await client.request({ kind: "trace", action: "stop" });
  die();
  await client.request({ kind: "trace", action: "start" });
  die();
  assert.deepEqual(
    boots.map(({ trace }) => trace),
    [true, true, false, true],
  );
});

test("a hub's repository is named by its id and the hub's address", async () => {
  await Capstan.load("owner/name", { hub: "https://hub.test", revision: "v1", dtype: "q4" });
  const model = { repository: "owner/name", hub: "https://hub.test/", revision: "v1", token: null };
  assert.deepEqual(boots[0].expected, { model, dtype: "q4", device: "auto" });
  assert.deepEqual(asked[0].model, model);
});

test("an id without another hub is one of the Hugging Face hub, and an address is none", async () => {
  for (const id of ["owner/name", "owner/name-GGUF:model.gguf", "owner/name:Q4_0/model-00001-of-00002.gguf"]) {
    await Capstan.load(id, { revision: "v1" });
    const model = { repository: id, hub: "https://huggingface.co/", revision: "v1", token: null };
    assert.deepEqual(asked.at(-1).model, model);
    assert.deepEqual(boots.at(-1).expected.model, model);
  }
  for (const model of ["owner/name/", "./owner/name", "owner/model.gguf", "https://a.test/owner/name:model.gguf"]) {
    await Capstan.load(model, { hub: null });
    assert.equal(typeof asked.at(-1).model, "string", model);
  }
});

test("a known model is loaded by its id and dtype, and the list is the caller's own", async () => {
  const known = Capstan.models();
  for (const { id, dtype, contextLength, licence } of known) {
    await Capstan.load(id, { dtype });
    assert.deepEqual([asked.at(-1).model.repository, asked.at(-1).dtype], [id, dtype]);
    assert.ok(contextLength >= 8192 && licence, id);
  }
  assert.deepEqual(known.map(({ dtype }) => dtype).filter(Boolean), ["q4f16", "q4f16"]);
  assert.deepEqual(known.map(({ bytes }) => bytes).filter(Boolean), [98362432, 3111069636]);
  known.length = 0;
  assert.ok(Capstan.models().length > 3);
});

const HUB = "https://huggingface.co";
const file = (sources, size, more = {}) => ({ content: "c", sources, size, stored_bytes: size, suspect: [], ...more });
const FILES = [
  file([`${HUB}/owner/name/resolve/main/onnx/model_q4f16.onnx_data`], 10),
  file([`${HUB}/owner/name/resolve/main/onnx/model_q4f16.onnx_data_1`], 20, { stored_bytes: 5, content: null }),
  file([`${HUB}/owner/files/resolve/main/a.gguf`], 30, { suspect: [0, 3] }),
  file([`${HUB}/owner/files/resolve/main/b.gguf`, "http://page.test/models/nano/model.onnx.data"], 40),
];

/** The worker keeps FILES, and removes nothing. */
function keeping() {
  behaviour = ({ request, good }) => {
    if (request.kind === "models") good({ store: "opfs", files: FILES, freed: request.action === "evict" ? 7 : 0 });
  };
}

test("stored models are listed by the names by which they are loaded", async () => {
  keeping();
  assert.deepEqual(await Capstan.models.list({ assetsUrl: "/here" }), [
    { model: "owner/name", bytes: 30, storedBytes: 15, damaged: 0 },
    { model: "owner/files:a.gguf", bytes: 30, storedBytes: 30, damaged: 2 },
    { model: "owner/files:b.gguf", bytes: 40, storedBytes: 40, damaged: 0 },
    { model: "http://page.test/models/nano/", bytes: 40, storedBytes: 40, damaged: 0 },
  ]);
  assert.deepEqual([boots.length, ended, boots[0].url], [1, 0, "http://page.test/here/worker.js"]);
  await unrequested();
  assert.equal(ended, 1);
  const sizes = await Promise.all(
    [undefined, "owner/name", "owner/files:a.gguf", "../models/nano", "owner/other"].map((model) =>
      Capstan.models.size(model),
    ),
  );
  assert.deepEqual(sizes, [85, 15, 30, 40, 0]);
  assert.equal((await Capstan.models.list()).length, 4);
  assert.deepEqual([boots.length, ended], [2, 1], "one worker answers all of a page's questions");
  await Capstan.models.list({ signal: new AbortController().signal });
  assert.deepEqual([boots.length, ended], [3, 2], "who may give up has a worker of its own");
  await unrequested();
  assert.equal(ended, 3);
});

test("a model is removed and verified by that name", async () => {
  keeping();
  const asking = async (promise) => {
    asked = [];
    const found = await promise;
    return [found, ...asked.filter(({ action }) => action !== "list").map(({ action, which }) => [action, which])];
  };
  const name = ["evict", `${HUB}/owner/name`];
  const gguf = ["evict", `${HUB}/owner/files/resolve/main/a.gguf`];
  assert.deepEqual(await asking(Capstan.models.delete("owner/name")), [7, name]);
  assert.deepEqual(await asking(Capstan.models.delete("owner/files:a.gguf")), [7, gguf]);
  assert.deepEqual(await asking(Capstan.models.delete()), [7, ["evict", null]]);
  assert.deepEqual(await asking(Capstan.models.delete("*", {})), [7, ["evict", null]]);
  for (const slip of [undefined, null, ""])
    assert.match(
      (await asking(failure(Capstan.models.delete(slip))))[0].message,
      /^the model is .*; it must be an address/,
    );
  for (const around of ["../..", "../../", "./", "/", "../models/", "../models/nano/model", "../mod"])
    assert.equal(await Capstan.models.size(around), 0, around);
  assert.deepEqual(await asking(Capstan.models.delete("owner/files:c.gguf")), [0]);
  const [found, done] = await asking(Capstan.models.verify("owner/files:a.gguf"));
  assert.deepEqual(found, [{ model: "owner/files:a.gguf", bytes: 30, storedBytes: 30, damaged: 2 }]);
  assert.deepEqual(done, ["verify", gguf[1]]);
});

test("a store that refuses is told, and its worker ends", async () => {
  const error = { type: "StorageError", message: "another tab has it open", traceback: "" };
  behaviour = ({ reply }) => reply({ ok: false, error });
  const { code, message } = await failure(Capstan.models.delete("owner/name"));
  await unrequested();
  assert.deepEqual([code, message, ended], ["StorageError", error.message, 1]);
  assert.match((await failure(Capstan.models.list({ folder: "x" }))).message, /^folder: no such option/);
  assert.match(
    (await failure(Capstan.models.size("name", { hub: HUB }))).message,
    /a hub's repository is named OWNER\/NAME/,
  );
});

test("whether a model fits is told before it is loaded", async () => {
  const told = { fits: false, reason: "too large", tight: "", device: "webgpu", bytes: 9, exact: true };
  const split = [{ name: "table", bytes: 8, parts: 0, why: "a node reads it whole" }];
  const plan = { ...told, draft_bytes: 4, pools: {}, split };
  behaviour = ({ request, good }) => {
    if (request.kind === "plan") good({ ...plan, max_length: 64, context_length: 128, largest_max_length: null });
  };
  assert.deepEqual(await Capstan.fits("owner/name", { dtype: "q4f16", device: "webgpu" }), {
    ...told,
    ...{ draftBytes: 4, maxLength: 64, contextLength: 128, largestMaxLength: null, split },
  });
  const [{ model, ...request }] = asked;
  assert.deepEqual([model.repository, request], ["owner/name", { kind: "plan", dtype: "q4f16", device: "webgpu" }]);
  await unrequested();
  assert.equal(ended, 1);
  await Capstan.fits("owner/name", { draftModel: "owner/small", hub: HUB });
  const { draft_model: draft } = asked.at(-1);
  assert.deepEqual([draft.repository, draft.hub], ["owner/small", `${HUB}/`]);
});

test("the tokenizer is the loaded model's", async () => {
  behaviour = ({ request, good }) => {
    if (request.kind === "tokenizer")
      good(request.action === "decode" ? { text: "ab" } : { text: request.text ?? "<user>", ids: [1, 2, 3] });
  };
  const { tokenizer } = await load({ dtype: "q4", prefixCache: 64, disableFileMappedWeights: true });
  assert.deepEqual(await tokenizer.encode("abc"), [1, 2, 3]);
  const model = { model: "http://page.test/models/nano/", dtype: "q4" };
  const same = { prefix_cache: 64, disable_file_mapped_weights: true };
  assert.deepEqual(asked.at(-1), { kind: "tokenizer", ...model, ...same, action: "encode", text: "abc" });
  assert.equal(await tokenizer.decode(new Uint32Array([1, 2])), "ab");
  assert.deepEqual(asked.at(-1).ids, [1, 2]);
  assert.equal(await tokenizer.count("abc"), 3);
  assert.equal(await tokenizer.count(MESSAGES), 3);
  assert.equal(await tokenizer.template(MESSAGES, { tools: [{ type: "function" }], thinking: false }), "<user>");
  const { action, messages, tools, thinking } = asked.at(-1);
  assert.deepEqual([action, messages, tools, thinking], ["template", MESSAGES, [{ type: "function" }], false]);
  const chatTemplateKwargs = { reasoning_effort: "low", dates: [null, { day: 1 }] };
  assert.equal(await tokenizer.count(MESSAGES, { chatTemplateKwargs }), 3);
  assert.deepEqual(asked.at(-1).chat_template_kwargs, chatTemplateKwargs);
  for (const [refused, message] of [
    [tokenizer.encode(5), /^the text is 5; it must be a string/],
    [tokenizer.decode("ab"), /^ids is "ab"; it must be a list of token ids/],
    [tokenizer.template("hello"), /^messages is "hello"; it must be a list/],
    [tokenizer.count(MESSAGES, { deep: true }), /^deep: no such option; there are tools, thinking/],
  ])
    assert.match((await failure(refused)).message, message);
});

/** Float32s as the worker sends them. */
const packed = (...numbers) => Buffer.from(new Float32Array(numbers).buffer).toString("base64");

test("an encoder's vectors are OpenAI's embeddings", async () => {
  loadReply = null;
  behaviour = ({ request, good }) => {
    if (request.kind === "load_embedder") good({ device: "webgpu", pooling: "cls", max_tokens: 64 });
    if (request.kind === "embed")
      good({ vectors: packed(0.6, 0.8, 0, 1).slice(0), dimensions: 2, tokens: request.texts.map(() => 3) });
  };
  const options = {
    dtype: "fp16",
    device: "webgpu",
    pooling: "cls",
    assetsUrl: "/here",
    disableFileMappedWeights: true,
  };
  const embedder = await Capstan.loadEmbedder("owner/name", options);
  const { model, ...request } = asked.at(-1);
  assert.equal(model.repository, "owner/name");
  assert.deepEqual(request, {
    ...{ kind: "load_embedder", dtype: "fp16", device: "webgpu", pooling: "cls", disable_file_mapped_weights: true },
  });
  assert.deepEqual(embedder.stats, { device: "webgpu", pooling: "cls", maxTokens: 64 });
  const [first, second] = await embedder.embed(["a", "b"]);
  assert.deepEqual([[...first], [...second]], [[...new Float32Array([0.6, 0.8])], [0, 1]]);
  const both = await embedder.embeddings.create({ input: ["a", "b"], model: "any", dimensions: 1 });
  assert.deepEqual(both, {
    ...{ object: "list", model: "any", usage: { prompt_tokens: 6, total_tokens: 6 } },
    data: [
      { object: "embedding", index: 0, embedding: [1] },
      { object: "embedding", index: 1, embedding: [0] },
    ],
  });
  const { data } = await embedder.embeddings.create({ input: ["a", "b"], encoding_format: "base64" });
  assert.equal(data[0].embedding, packed(0.6, 0.8));
  for (const [refused, message] of [
    [() => embedder.embed("a"), /^texts is "a"; it must be a list of texts/],
    [() => embedder.embed([5]), /^texts\[0\] is 5; it must be a string/],
    [() => embedder.embeddings.create({ input: ["a", "b"], dimensions: 3 }), /^dimensions is 3; .* from 1 to 2/],
    [
      () => embedder.embeddings.create({ input: ["a"], encoding_format: "hex" }),
      /^encoding_format is "hex"; it must be/,
    ],
    [() => embedder.embeddings.create({ text: "a" }), /^text: no such option; there are input,/],
    [() => Capstan.loadEmbedder("./m/", { capture: "off" }), /^capture: no such option/],
  ])
    assert.match((await failure(refused())).message, message);
  embedder.close();
  assert.equal((await failure(embedder.embed(["a"]))).code, "ClosedError");
});

test("a reranker gives the documents in their order", async () => {
  loadReply = null;
  const ranked = [
    { index: 2, score: 0.9 },
    { index: 0, score: 0.25 },
    { index: 1, score: 0.1 },
  ];
  behaviour = ({ request, good }) => {
    if (request.kind === "load_reranker") good({ device: "wasm", max_tokens: 512 });
    if (request.kind === "rerank") good(ranked);
  };
  const reranker = await Capstan.loadReranker("owner/name", { dtype: "q8", device: "wasm" });
  const { model, ...request } = asked.at(-1);
  assert.equal(model.repository, "owner/name");
  assert.deepEqual(request, { kind: "load_reranker", dtype: "q8", device: "wasm" });
  assert.deepEqual(reranker.stats, { device: "wasm", maxTokens: 512 });
  assert.deepEqual(await reranker.rerank("q", ["a", "b", "c"]), ranked);
  assert.deepEqual(asked.at(-1), { kind: "rerank", query: "q", documents: ["a", "b", "c"], instruction: null });
  const best = await reranker.rerank("q", ["a", "b", "c"], { topN: 1, returnDocuments: true, instruction: "i" });
  assert.deepEqual(best, [{ index: 2, score: 0.9, document: "c" }]);
  assert.equal(asked.at(-1).instruction, "i");
  for (const [refused, message] of [
    [() => reranker.rerank(["q"], ["a"]), /^the query is \["q"\]; it must be a string/],
    [() => reranker.rerank("q", "a"), /^documents is "a"; it must be a list of texts/],
    [() => reranker.rerank("q", ["a", 5]), /^documents\[1\] is 5; it must be a string/],
    [() => reranker.rerank("q", []), /^documents is an empty list; give 1 document or more/],
    [() => reranker.rerank("q", ["a"], { topN: 2 }), /^topN is 2; it must be from 1 to 1, the number of documents/],
    [() => reranker.rerank("q", ["a"], { topN: 0 }), /^topN is 0; it must be a whole number from 1/],
    [() => reranker.rerank("q", ["a"], { top_n: 1 }), /^top_n: no such option; there are topN,/],
    [() => Capstan.loadReranker("./m/", { pooling: "cls" }), /^pooling: no such option/],
  ])
    assert.match((await failure(refused())).message, message);
  reranker.close();
  assert.equal((await failure(reranker.rerank("q", ["a"]))).code, "ClosedError");
});

test("log probabilities come with the tokens, and reasoning apart from the answer", async () => {
  const likely = { token_id: 1, text: "<think>Hm.</think>", log_probability: -0.5 };
  const other = { token_id: 9, text: "\ufffd", log_probability: -1 };
  behaviour = ({ request, good, say }) => {
    if (request.kind !== "chat") return;
    const parts = [{ kind: "reasoning", text: "Hm." }];
    say({ ...text(likely.text, 1), parts, log_probability: { ...likely, top: [likely, other] } });
    say(text("Yes", 2));
    good({ ...ANSWER, text: `${likely.text}Yes`, reasoning: "Hm.", answer: "Yes", tool_calls: [] });
  };
  const llm = await load();
  const run = llm.chat(MESSAGES, { logprobs: true, topLogprobs: 2, thinking: true });
  const { logprobs, reasoning, answer } = await run.result;
  assert.deepEqual([reasoning, answer], ["Hm.", "Yes"]);
  const token = { tokenId: 1, token: likely.text, logprob: -0.5, bytes: [...new TextEncoder().encode(likely.text)] };
  const part = { tokenId: 9, token: "\ufffd", logprob: -1, bytes: null };
  assert.deepEqual(logprobs, [{ ...token, topLogprobs: [token, part] }]);
  assert.deepEqual([asked.at(-1).log_probabilities, asked.at(-1).thinking], [2, true]);
  for (const [options, message] of [
    [{ logprobs: true, topLogprobs: 21 }, /^topLogprobs is 21; it must be a whole number from 0 to 20/],
    [{ topLogprobs: 2 }, /^topLogprobs is 2 without logprobs; set logprobs to true/],
  ])
    assert.throws(() => llm.chat(MESSAGES, options), { message });
  behaviour = ({ request, good, say }) => {
    if (request.kind !== "chat") return;
    const told = [
      { kind: "reasoning", text: "Hm." },
      { kind: "answer", text: "Yes" },
    ];
    say({ ...text("<think>Hm.</think>Yes", 1), parts: told });
    good({ ...ANSWER, text: "<think>Hm.</think>Yes" });
  };
  const parts = [];
  for await (const part of llm.chat(MESSAGES).split()) parts.push(part);
  assert.deepEqual(parts, [
    { kind: "reasoning", text: "Hm.", choice: 0 },
    { kind: "answer", text: "Yes", choice: 0 },
  ]);
});

test("calls of tools are parts of an answer, also of one that is aborted, and messages of a session", async () => {
  const call = { id: "a1b2c3d4e", type: "function", function: { name: "time", arguments: "{}" } };
  const parts = [
    { kind: "reasoning", text: "Hm." },
    { kind: "call", text: "[time()]", call },
  ];
  behaviour = ({ request, good, say }) => {
    if (request.kind !== "chat") return;
    say({ ...text("<think>Hm.</think>[time()]", 1), parts });
    const told = { reasoning: "Hm.", answer: "", tool_calls: [call] };
    if (request.messages.length < 3) good({ ...ANSWER, text: "<think>Hm.</think>[time()]", ...told });
  };
  const llm = await load();
  const tools = [{ type: "function", function: { name: "time" } }];
  const session = llm.session();
  const { toolCalls, answer } = await session.send("Hi", {
    tools,
    toolChoice: { name: "time" },
    parallelToolCalls: false,
  }).result;
  assert.deepEqual([toolCalls, answer], [[call], ""]);
  const message = { role: "assistant", content: "", tool_calls: [call], reasoning_content: "Hm." };
  assert.deepEqual(session.messages.at(-1), message);
  assert.deepEqual([asked.at(-1).called, asked.at(-1).most_calls], [["time"], 1]);
  await llm.chat([{ role: "user", content: "Hi" }], { tools, strictTools: true }).result;
  assert.deepEqual([asked.at(-1).called, asked.at(-1).call_optional], [["time"], true]);
  await llm.chat([{ role: "user", content: "Hi" }], { tools, strictTools: true, toolChoice: "required" }).result;
  assert.deepEqual([asked.at(-1).called, asked.at(-1).call_optional], [["time"], undefined]);
  const aborted = session.send(
    { role: "tool", tool_call_id: call.id, content: "9" },
    { tools, toolChoice: "required" },
  );
  for await (const _ of aborted) break;
  assert.deepEqual((await aborted.result).toolCalls, [call]);
  assert.deepEqual(asked.findLast(({ kind }) => kind === "chat").called, ["time"]);
  assert.throws(() => llm.chat(MESSAGES, { tools, toolChoice: "time" }), {
    message: /^toolChoice is "time"; it must be/,
  });
});

test("a file that was picked is a model", async () => {
  const file = new File(["GGUF"], "model.gguf");
  await Capstan.load(file);
  assert.equal(asked.at(-1).model, file);
});

for (const [model, options, message] of [
  [
    "owner/name",
    { hub: null },
    '"owner/name" reads as the id of a hub\'s repository, and hub is null, so that no hub is asked: leave hub out, or write "./owner/name/" for a folder beside this page',
  ],
  [
    "name",
    { hub: "https://hub.test" },
    'the model is "name"; a hub\'s repository is named OWNER/NAME, a GGUF file of it OWNER/NAME:FILE.gguf',
  ],
  ["owner/name", { hub: 7 }, "hub is 7; it must be a string or null"],
  ["http://[", {}, 'the model is "http://["; it must be a URL'],
  [
    "file:///models/",
    {},
    'the model is "file:///models/"; a page can only read http: and https: addresses, so serve the files',
  ],
  [
    "./model/",
    { revision: "v1" },
    'revision and token are a hub\'s, but "./model/" is the address of a folder or file',
  ],
  ["", {}, 'the model is ""; it must be an address, a hub\'s id, or what was picked'],
  [undefined, {}, "the model is undefined; it must be an address, a hub's id, or what was picked"],
  [7, {}, "the model is 7; it must be an address, a hub's id, or what was picked"],
  ["./model/", { recoveries: Infinity }, "recoveries is Infinity; it must be a finite number"],
  ["./model/", { temprature: 1 }, /^temprature: no such option; there are hub, /],
]) {
  test(`the model ${model} with ${JSON.stringify(options)} is refused before a worker starts`, async () => {
    const error = await failure(Capstan.load(model, options));
    assert.equal(error.code, "OptionError");
    if (typeof message === "string") assert.equal(error.message, message);
    else assert.match(error.message, message);
    assert.equal(boots.length, 0);
  });
}

test("the address of a GGUF file stays a file's, whatever is behind it", async () => {
  for (const file of ["model.gguf", "a/MODEL.GGUF", "model.gguf?download=true", "model.gguf#x"]) {
    await Capstan.load(file);
    assert.equal(asked.at(-1).model, `http://page.test/folder/${file}`);
    assert.equal(boots.at(-1).expected.model, `http://page.test/folder/${file}`);
  }
  await Capstan.load("./gguf?file=model.gguf");
  assert.equal(asked.at(-1).model, "http://page.test/folder/gguf?file=model.gguf/");
});

test("files and folders that another window picked stay what they are", () => {
  for (const name of ["File", "FileSystemDirectoryHandle"]) {
    const picked = { [Symbol.toStringTag]: name };
    assert.equal(pickedFolder(picked), picked);
    assert.equal(pickedFolder([picked])[0] === picked, name === "File");
  }
});

test("an option of a run that there is not, and two grammars, are refused at the call", async () => {
  const llm = await load();
  assert.throws(() => llm.chat(MESSAGES, { max_tokens: 3 }), {
    code: "OptionError",
    message: /^max_tokens: no such option; /,
  });
  assert.throws(() => llm.complete("", { regex: "a", ebnf: "b" }), {
    ...{ code: "OptionError", message: "regex and ebnf: a run has one grammar; give one" },
  });
});

for (const [call, message] of [
  [(llm) => llm.chat([]), "messages is an empty list; give at least one message to answer"],
  [(llm) => llm.chat("hello"), 'messages is "hello"; it must be a list of objects with role and content'],
  [(llm) => llm.chat(null), "messages is null; it must be a list of objects with role and content"],
  [(llm) => llm.complete(), "the prompt is undefined; it must be a string or a list of token ids"],
  [(llm) => llm.complete({ a: 1 }), 'the prompt is {"a":1}; it must be a string or a list of token ids'],
  [(llm) => llm.chat(MESSAGES, { keep: "" }), 'keep is ""; it must be a string of 1 to 1000 characters'],
  [(llm) => llm.chat(MESSAGES, { temperature: NaN }), "temperature is NaN; it must be a finite number"],
  [(llm) => llm.complete("a", { maxTokens: Infinity }), "maxTokens is Infinity; it must be a finite number"],
  [
    (llm) => llm.complete("a", { search: { top_p: -Infinity } }),
    "search.top_p is -Infinity; it must be a value that JSON has",
  ],
  // As many rows would be made at once.
  [(llm) => llm.chat(MESSAGES, { n: 33 }), "n is 33; it must be a whole number from 1 to 32"],
  [(llm) => llm.chat(MESSAGES, { n: 5e6 }), "n is 5000000; it must be a whole number from 1 to 32"],
  [(llm) => llm.complete("a", { n: 2 ** 31 }), "n is 2147483648; it must be a whole number from 1 to 32"],
  [
    (llm) => llm.complete("a", { search: { num_return_sequences: 5e6 } }),
    "search.num_return_sequences is 5000000; it must be a whole number from 1 to 32",
  ],
  [(llm) => llm.complete(Array(2 ** 32 - 1)), "the prompt has 4294967295 items; it may have 16777216"],
  [(llm) => llm.chat(Array(2 ** 32 - 1)), "messages has 4294967295 items; it may have 16777216"],
  [(llm) => llm.complete("ab".repeat(2 ** 26)), "the prompt has 134217728 characters; it may have 67108864"],
  [(llm) => llm.complete("a", { stop: {} }), "stop is {}; it must be a string or a list of strings"],
  [(llm) => llm.complete("a", { stop: ["x", 5] }), "stop[1] is 5; it must be a string"],
  [(llm) => llm.complete("a", { regex: 1.5 }), "regex is 1.5; it must be a string"],
  [(llm) => llm.complete("a", { jsonSchema: [] }), "jsonSchema is []; it must be an object or a string"],
  [(llm) => llm.complete("a", { search: [] }), "search is []; it must be an object"],
  [(llm) => llm.complete("a", { search: new Map([["top_k", 5]]) }), "search is [object Map]; it must be an object"],
  [
    (llm) => llm.complete("a", { search: { top_k: () => 5 } }),
    "search.top_k is () => 5; it must be a value that JSON has",
  ],
  [(llm) => llm.complete("a", new Map()), "the options must be an object, not [object Map]"],
  [(llm) => llm.chat(MESSAGES, { tools: {} }), "tools is {}; it must be a list of objects"],
  [(llm) => llm.chat(MESSAGES, { tools: [5] }), "tools[0] is 5; it must be an object"],
  [(llm) => llm.chat(["hello"]), 'messages[0] is "hello"; it must be an object'],
  [(llm) => llm.session("hello"), 'messages is "hello"; it must be a list of objects with role and content'],
]) {
  test(`${call} is refused, and nothing is asked of the worker`, async () => {
    const llm = await load();
    assert.throws(() => call(llm), { name: "CapstanError", code: "OptionError", message });
    assert.deepEqual(
      asked.map(({ kind }) => kind),
      ["load"],
    );
  });
}

test("Python's output and exit status are the result of a script", async () => {
  behaviour = ({ request, good, say }) => {
    if (request.kind !== "exec") return;
    say({ kind: "stdout", text: request.source });
    say({ kind: "stderr", text: request.argv.join() });
    good({ status: 3 });
  };
  const llm = await load();
  assert.deepEqual(await llm.python("print(1)", ["x"]), { status: 3, stdout: "print(1)", stderr: "script.py,x" });
  assert.equal((await failure(llm.python("1", "xy"))).message, 'argv is "xy"; it must be a list of strings');
});

test("a session sends its answers back without their reasoning", async () => {
  const llm = await Capstan.load("model/");
  const told = { ...ANSWER, text: "<think>hm</think>\n\nab", reasoning: "hm", answer: "ab", tool_calls: [] };
  behaviour = ({ request, good }) => request.kind === "chat" && good(told);
  const session = llm.session();
  assert.equal((await session.send("one").result).text, "<think>hm</think>\n\nab");
  await session.send("two").result;
  assert.deepEqual(
    asked.at(-1).messages.map(({ content }) => content),
    ["one", "ab", "two"],
  );
});

test("a session takes several messages at once, and an answer that continues one is a part of it", async () => {
  const llm = await load();
  assert.equal(llm.stats().maxLength, 48);
  const session = llm.session();
  const begun = { role: "assistant", content: "Well, " };
  const messages = [{ role: "user", content: "one" }, { role: "user", content: "two" }, begun];
  assert.equal((await session.send(messages, { continueFinalMessage: true }).result).answer, "ab");
  assert.deepEqual([asked.at(-1).messages, asked.at(-1).continue_final_message], [messages, true]);
  assert.deepEqual(session.messages, [...messages.slice(0, 2), { role: "assistant", content: "Well, ab" }]);
  const parts = { role: "assistant", content: [{ type: "text", text: "So " }] };
  await session.send(parts, { continueFinalMessage: true }).result;
  assert.deepEqual(session.messages.at(-1).content, [...parts.content, { type: "text", text: "ab" }]);
});
