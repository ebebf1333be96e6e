// Calls of the JavaScript API with arguments of every kind, over a worker that answers: `node FILE SEED COUNT PART PARTS FIRST`
// prints each case of that part from number FIRST on as a line of JSON, and then its outcome, with the request where one was sent. A value that is
// taken must show in the request: one that changes nothing of it was ignored.

import { capstanModel } from "../../web/src/page/ai.ts";
import { Capstan, CapstanError, Client } from "../../web/src/page/capstan.ts";
import { raise, randomBy, tryEach, VALUES } from "./hostile.mjs";

const numbers = process.argv.slice(2).map(Number);
const [seed] = numbers;
const LOADED = {
  device: "wasm",
  adapter: "cpu",
  context_length: 64,
  can_chat: true,
  begin_token_id: 0,
  load_times: {},
};
const ANSWER = { text: "ab", token_ids: [1, 2], finish_reason: "stop", prompt_tokens: 5, kept_tokens: 3 };

const FILE = {
  content: "c",
  sources: ["http://page.test/models/m/model.onnx.data"],
  size: 1,
  stored_bytes: 1,
  suspect: [],
};
/** The worker's answers by the kind of their request; ANSWER is that to all others. */
const RESULTS = {
  load: LOADED,
  exec: { status: 0 },
  plan: { fits: true, bytes: 9, draft_bytes: 4, max_length: 64, context_length: 64, largest_max_length: 64 },
  tokenizer: { text: "ab", ids: [1, 2] },
  models: { store: "opfs", files: [FILE], freed: 1 },
  load_embedder: { device: "wasm", pooling: "mean", max_tokens: 64 },
  embed: { vectors: "", dimensions: 0, tokens: [] },
  load_reranker: { device: "wasm", max_tokens: 64 },
  rerank: [
    { index: 1, score: 0.9 },
    { index: 0, score: 0.1 },
  ],
  score: { sequences: [{ token_ids: [], log_probabilities: [], greedy: [], texts: [] }] },
};

let sent = [];

class AnsweringWorker {
  postMessage(message) {
    // A browser clones what is posted, and throws for what it cannot.
    const { tag, id, request } = structuredClone(message);
    const send = (data) => setTimeout(() => this.onmessage?.({ data }));
    if (tag === "boot") return send({ tag: "booted", id: 0, ready_ms: 5, python: "snapshot" });
    sent.push(JSON.stringify(request));
    const result = RESULTS[request.kind] ?? ANSWER;
    if (request.kind === "chat" || request.kind === "generate")
      send({ tag: "event", id, event: { kind: "text", text: "ab", token_id: 1 } });
    send({ tag: "reply", id, reply: { ok: true, result } });
  }
  terminate() {
    this.onmessage = null;
  }
}
globalThis.Worker = AnsweringWorker;
globalThis.location = { href: "http://page.test/index.html", origin: "http://page.test" };

const { random, below, one } = randomBy(seed);

const MESSAGES = [
  { role: "system", content: "Be brief." },
  { role: "user", content: "hello" },
];
const TOOL = { type: "function", function: { name: "look", description: "Looks.", parameters: { type: "object" } } };
const OTHER = { type: "function", function: { name: "take", parameters: { type: "object" } } };
const SCHEMA = { type: "object", properties: { a: { type: "integer" } } };
const RUN = { temperature: 0.5, topK: 3, seed: 1, stop: ["end"], maxTokens: 4, search: { min_length: 1 } };
const CALLED = {
  role: "assistant",
  tool_calls: [{ id: "1", type: "function", function: { name: "look", arguments: "{}" } }],
};
const PROMPT = [{ role: "user", content: [{ type: "text", text: "hello" }] }];
const AI_TOOL = { type: "function", name: "look", description: "Looks.", inputSchema: { type: "object" } };
const load = { dtype: "q4", device: "wasm", capture: "off", runAhead: 2, recoveries: 1, prefixCache: 0, trace: false };
/** The entrances, with good arguments. */
const CALLS = {
  load: [
    ["/m/", { ...load, draftModel: "/s/", verifyAfter: 5, cancelDeadline: 9, snapshot: true, onEvent: () => {} }],
    (given) => Capstan.load(...given).then((llm) => llm.close()),
  ],
  hub: [
    ["o/n", { hub: "http://hub.test", revision: "main", token: "t" }],
    (given) => Capstan.load(...given).then((llm) => llm.close()),
  ],
  start: [
    [{ base: "/capstan/", trace: true, expected: { model: "/m/", dtype: "q4" } }],
    (given) => Client.start(...given).then((client) => client.close()),
  ],
  chat: [[MESSAGES, { ...RUN, jsonSchema: SCHEMA, tools: [TOOL] }], (given, llm) => llm.chat(...given).result],
  complete: [["once", { ...RUN, regex: "a+", maxLength: 9 }], (given, llm) => llm.complete(...given).result],
  ids: [[[1, 2, 3], RUN], (given, llm) => llm.complete(...given).result],
  create: [
    [
      {
        messages: [...MESSAGES, CALLED, { role: "user", content: [{ type: "text", text: "a" }] }],
        temperature: 0.5,
        top_p: 0.5,
        top_k: 3,
        n: 2,
        seed: 3,
        stop: "end",
        max_tokens: 3,
        logit_bias: { 5: 1 },
        logprobs: true,
        top_logprobs: 2,
        frequency_penalty: 0.5,
        tools: [TOOL],
        response_format: { type: "json_schema", json_schema: { name: "n", schema: SCHEMA } },
      },
      {},
    ],
    (given, llm) => llm.chat.completions.create(...given),
  ],
  // With one tool alone "required" would be the same.
  forced: [
    [{ messages: MESSAGES, tools: [TOOL, OTHER], tool_choice: { type: "function", function: { name: "look" } } }],
    (given, llm) => llm.chat.completions.create(...given),
  ],
  generate: [
    [
      {
        prompt: PROMPT,
        temperature: 0.5,
        topP: 0.5,
        seed: 1,
        stopSequences: ["x"],
        maxOutputTokens: 3,
        tools: [AI_TOOL],
        toolChoice: { type: "required" },
        providerOptions: { capstan: { thinking: true } },
      },
    ],
    (given, llm) => capstanModel(llm).doGenerate(...given),
  ],
  json: [
    [{ prompt: PROMPT, responseFormat: { type: "json", schema: SCHEMA, name: "n" } }],
    (given, llm) => capstanModel(llm).doGenerate(...given),
  ],
  template: [[MESSAGES, { tools: [TOOL], thinking: true }], (given, llm) => llm.tokenizer.template(...given)],
  decode: [[[1, 2, 3]], (given, llm) => llm.tokenizer.decode(...given)],
  count: [["once"], (given, llm) => llm.tokenizer.count(...given)],
  score: [["once", { context: "there", maxLength: 9 }], (given, llm) => llm.score(...given)],
  fits: [
    ["/m/", { dtype: "q4", device: "wasm", kvCacheDtype: "int8", draftModel: "/s/" }],
    (given) => Capstan.fits(...given),
  ],
  size: [["/models/m/", { hub: "http://hub.test" }], (given) => Capstan.models.size(...given)],
  remove: [
    ["/models/m/", { hub: "http://hub.test" }],
    async (given) => {
      await Capstan.models.delete(...given);
      if (given[0] !== "*" && sent.some((request) => /"action":"evict","which":null/.test(request)))
        throw new Error("all models were removed");
    },
  ],
  embedder: [
    ["/m/", { dtype: "q4", device: "wasm", pooling: "cls" }],
    (given) => Capstan.loadEmbedder(...given).then((embedder) => embedder.close()),
  ],
  embed: [
    [{ input: ["a", "b"], model: "m", encoding_format: "float" }],
    async (given, llm, client, embedder) => embedder.embeddings.create(...given),
  ],
  reranker: [
    ["/m/", { dtype: "q4", device: "wasm" }],
    (given) => Capstan.loadReranker(...given).then((reranker) => reranker.close()),
  ],
  rerank: [
    ["a", ["b", "c"], { topN: 1, returnDocuments: true, instruction: "i" }],
    async (given, llm, client, embedder, reranker) => reranker.rerank(...given),
  ],
  stream: [
    [{ messages: MESSAGES, stream: true, stream_options: { include_usage: true } }],
    async (given, llm) => {
      const found = await llm.chat.completions.create(...given);
      if (Symbol.asyncIterator in found) for await (const chunk of found) void chunk;
    },
  ],
  python: [["1", ["a"]], (given, llm) => llm.python(...given)],
  session: [
    [MESSAGES, "hello", RUN],
    ([messages, said, options], llm) => llm.session(messages).send(said, options).result,
  ],
  edit: [
    [0, "other", RUN],
    async ([place, said, options], llm) => llm.session(MESSAGES).edit(place, said, options).result,
  ],
  request: [
    [{ kind: "exec", source: "1", filename: "x.py", argv: [], models: { a: "/m/" }, files: {} }],
    async (given, llm, client) => {
      const reply = await client.request(...given);
      if (!reply.ok) throw new CapstanError(reply.error);
    },
  ],
};

/** Calls whose values all show in what is sent, but those of UNSEEN. */
const SHOWN = ["chat", "complete", "ids", "create", "forced", "session", "edit", "template", "decode", "score", "fits"];
/** A schema's name changes nothing; the options of `create` are a signal; no tools are the same as an empty list of them. */
const UNSEEN = [/json_schema\.name$/, /^create\.1/, /^template\.1\.tools$/];

/** [holder, key, path] of every value in a tree of plain values. */
function* places(tree, path = "") {
  for (const key of Object.keys(tree)) {
    yield [tree, key, path ? `${path}.${key}` : key];
    if (typeof tree[key] === "object" && tree[key] !== null) yield* places(tree[key], path ? `${path}.${key}` : key);
  }
}

/** Whether a value is too long for its JSON. */
function isLong(value) {
  return value != null && (typeof value === "string" || Array.isArray(value)) && value.length > 1e6;
}

/** Whether JSON has a value at all; one whose fields cannot be read has one. */
function hasJson(value) {
  try {
    return isLong(value) || (value != null && JSON.stringify(value) !== undefined);
  } catch {
    return true;
  }
}

/** A field's value, past a prototype that throws. */
function own(holder, key) {
  return Object.hasOwn(holder, key) ? holder[key] : undefined;
}

/** A value's JSON, without a session's number; null for one that has none. */
function jsonOf(value) {
  try {
    return isLong(value) ? null : (JSON.stringify(value)?.replace(/session \d+/, "session") ?? null);
  } catch {
    return null;
  }
}

/**
 * Good arguments with one to three values replaced, left out, or added under another name; what was done, and whether
 * that must show in the request.
 */
function mutated(name, good) {
  const given = { given: copyOf(good) };
  const all = [...places(given.given)];
  const done = [];
  let shows = false;
  for (let left = 1 + below(3); left > 0; left--) {
    const [holder, key, path] = one(all);
    const which = below(VALUES.length);
    const to = random() < 0.9 || Array.isArray(holder) ? key : one(["x", "__proto__", "toString", "topk", Symbol("s")]);
    done.push(`${path}:${String(to)}=${which}`);
    const before = own(holder, key);
    if (random() < 0.1) delete holder[key];
    else holder[to] = VALUES[which]();
    // Prototypes and symbols are no data.
    const after = own(holder, to);
    const data = typeof to === "string" && to !== "__proto__" && (to === key || hasJson(after));
    const same = to === key && jsonOf(after) !== null && jsonOf(after) === jsonOf(before);
    shows ||= data && !same && !UNSEEN.some((unseen) => unseen.test(`${name}.${path}`));
  }
  // A later one of several changes may undo an earlier one.
  return [given.given, done.join(" "), shows && done.length === 1 && SHOWN.includes(name)];
}

function copyOf(tree) {
  if (Array.isArray(tree)) return tree.map(copyOf);
  if (typeof tree !== "object" || tree === null) return tree;
  return Object.fromEntries(Object.entries(tree).map(([key, value]) => [key, copyOf(value)]));
}

const [llm, client] = [await Capstan.load("/m/"), await Client.start()];
const [embedder, reranker] = [await Capstan.loadEmbedder("/m/"), await Capstan.loadReranker("/m/")];
/** The requests of the good calls, of those that say what is ignored. */
const usual = {};
for (const name of SHOWN) {
  sent = [];
  await CALLS[name][1](copyOf(CALLS[name][0]), llm, client, embedder, reranker);
  usual[name] = jsonOf(sent);
}
/** The fault of the answer to a good call; null if it has none. */
async function good() {
  sent = [];
  const { text } = await llm.chat(MESSAGES, { maxTokens: 2 }).result;
  const { messages } = JSON.parse(sent[0]);
  const right = text === "ab" && JSON.stringify(messages) === JSON.stringify(MESSAGES);
  return right ? null : "the next good call is not answered rightly";
}

await tryEach({ numbers, good }, () => {
  const name = one(Object.keys(CALLS));
  const [good, call] = CALLS[name];
  const [given, done, shows] = mutated(name, good);
  const run = () => {
    sent = [];
    return call(given, llm, client, embedder, reranker);
  };
  // A value that is taken must show.
  const fault = () => (shows && jsonOf(sent) === usual[name] ? "a value was ignored" : null);
  return { about: { call: name, done }, run, fault, requests: () => sent.filter(({ length }) => length < 1e7) };
});
