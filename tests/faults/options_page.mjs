// Calls of the JavaScript API with arguments of every kind, over a worker that answers: `node FILE SEED COUNT PART PARTS`
// prints the outcome of each case of that part as a line of JSON, and the request where one was sent.

import { Capstan, CapstanError, Client } from "../../web/src/capstan.ts";

const [seed, count, part, parts] = process.argv.slice(2).map(Number);
/** Milliseconds after which a call counts as hanging. */
const LIMIT_MS = 20_000;
const LOADED = {
  device: "wasm",
  adapter: "cpu",
  context_length: 64,
  can_chat: true,
  begin_token_id: 0,
  load_times: {},
};
const ANSWER = { text: "ab", token_ids: [1, 2], finish_reason: "eos", prompt_tokens: 5, kept_tokens: 3 };

let sent = [];

class AnsweringWorker {
  postMessage(message) {
    // A browser clones what is posted, and throws for what it cannot.
    const { tag, id, request } = structuredClone(message);
    const send = (data) => setTimeout(() => this.onmessage?.({ data }));
    if (tag === "boot") return send({ tag: "booted", id: 0, ready_ms: 5, python: "snapshot" });
    sent.push(JSON.stringify(request));
    const result = request.kind === "load" ? LOADED : request.kind === "exec" ? { status: 0 } : ANSWER;
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

/** Numbers from 0 to 1 by a seed (mulberry32). */
let state = seed >>> 0;
function random() {
  state = (state + 0x6d2b79f5) >>> 0;
  let mixed = Math.imul(state ^ (state >>> 15), state | 1);
  mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
  return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
}
const below = (limit) => Math.floor(random() * limit);
const one = (list) => list[below(list.length)];

const thrown = [
  () => new Error("a\nb"),
  () => null,
  () => Symbol("s"),
  () => Object.create(null),
  () => "x".repeat(1e5),
];
const raise = (make) => () => {
  throw make();
};
const cycle = (made) => {
  made.self = made[0] = made;
  return made;
};
const deep = (levels) => {
  let made = [];
  for (let level = 0; level < levels; level++) made = level % 2 ? [made] : { made };
  return made;
};
const throwing = (make) => Object.defineProperty({ role: "user" }, "content", { enumerable: true, get: raise(make) });
const revoked = (target) => {
  const { proxy, revoke } = Proxy.revocable(target, {});
  revoke();
  return proxy;
};
class Odd {
  role = "user";
  get content() {
    return "odd";
  }
}
/** Values of every kind, made anew each time. */
const VALUES = [
  ...[undefined, null, true, false, 0, -0, -1, 1.5, 1e308, NaN, Infinity, 2 ** 53 + 2, 10n, 2n ** 80n].map(
    (value) => () => value,
  ),
  ...["", "x", "\ud800", "\0", "a\u2028b\nc", "__proto__", "constructor", "toString", "9".repeat(400)].map(
    (value) => () => value,
  ),
  ...[() => "x".repeat(1e6), () => Symbol("s"), () => Symbol.iterator, () => () => 1, () => class {}, () => new Odd()],
  ...[() => [], () => ({}), () => [[]], () => [null], () => [, 1], () => Array(1e5), () => Object.create(null)],
  ...[
    () => new Date(NaN),
    () => new Map([[1, 2]]),
    () => new Set([1]),
    () => /x/g,
    () => new Error("e"),
    () => new Promise(() => {}),
  ],
  ...[
    () => new Uint8Array(3),
    () => new BigInt64Array(2),
    () => new ArrayBuffer(4),
    () => new DataView(new ArrayBuffer(4)),
  ],
  ...[() => new File(["x"], "genai_config.json"), () => [new File(["x"], "a")], () => new URL("http://h.test/m/")],
  ...[() => cycle([]), () => cycle({}), () => deep(100), () => deep(3_500), () => deep(50_000)],
  ...thrown.flatMap((make) => [
    () => throwing(make),
    () => ({ toJSON: raise(make) }),
    () => ({ toString: raise(make), valueOf: raise(make) }),
    () => ({ [Symbol.toPrimitive]: raise(make) }),
    () => ({ length: 1, [Symbol.iterator]: raise(make) }),
    () => new Proxy({}, { get: raise(make) }),
    () => new Proxy([1], { get: raise(make) }),
    () => new Proxy({}, { ownKeys: raise(make) }),
    () => new Proxy({}, { getPrototypeOf: raise(make), has: raise(make) }),
  ]),
  ...[() => revoked({}), () => revoked([]), () => ({ toJSON: () => undefined }), () => ({ toJSON: () => 5n })],
  ...[() => Object.create({ role: "user", content: "inherited" }), () => JSON.parse('{"__proto__": {"content": "x"}}')],
  ...[() => ({ then: raise(thrown[0]) }), () => AbortSignal.abort(), () => ({ aborted: false, addEventListener: 1 })],
];

const MESSAGES = [
  { role: "system", content: "Be brief." },
  { role: "user", content: "hello" },
];
const TOOL = { type: "function", function: { name: "look", description: "Looks.", parameters: { type: "object" } } };
const SCHEMA = { type: "object", properties: { a: { type: "integer" } } };
const RUN = { temperature: 0.5, topK: 3, seed: 1, stop: ["x"], maxTokens: 4, search: { min_length: 1 } };
const load = { dtype: "q4", device: "wasm", capture: "off", runAhead: 2, recoveries: 1, prefixCache: 0, trace: false };
/** The entrances, with good arguments. */
const CALLS = {
  load: [
    ["/m/", { ...load, verifyAfter: 5, cancelDeadline: 9, snapshot: true, onEvent: () => {} }],
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
        messages: [
          ...MESSAGES,
          {
            role: "assistant",
            tool_calls: [{ id: "1", type: "function", function: { name: "look", arguments: "{}" } }],
          },
          { role: "user", content: [{ type: "text", text: "a" }] },
        ],
        temperature: 0.5,
        top_p: 1,
        stop: "x",
        max_tokens: 3,
        logit_bias: { 5: 1 },
        tools: [TOOL],
        tool_choice: "auto",
        response_format: { type: "json_schema", json_schema: { name: "n", schema: SCHEMA } },
      },
      {},
    ],
    (given, llm) => llm.chat.completions.create(...given),
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

/** [holder, key] of every value in a tree of plain values. */
function* places(tree) {
  for (const key of Object.keys(tree)) {
    yield [tree, key];
    if (typeof tree[key] === "object" && tree[key] !== null) yield* places(tree[key]);
  }
}

/** Good arguments with one to three values replaced, left out, or added under another name; and what was done. */
function mutated(good) {
  const given = { given: copyOf(good) };
  const all = [...places(given)].filter(([, key]) => key !== "given");
  const done = [];
  for (let left = 1 + below(3); left > 0; left--) {
    const [holder, key] = one(all);
    const which = below(VALUES.length);
    const to = random() < 0.9 || Array.isArray(holder) ? key : one(["x", "__proto__", "toString", "topk", Symbol("s")]);
    done.push(`${String(key)}:${String(to)}=${which}`);
    if (random() < 0.1) delete holder[key];
    else holder[to] = VALUES[which]();
  }
  return [given.given, done.join(" ")];
}

function copyOf(tree) {
  if (Array.isArray(tree)) return tree.map(copyOf);
  if (typeof tree !== "object" || tree === null) return tree;
  return Object.fromEntries(Object.entries(tree).map(([key, value]) => [key, copyOf(value)]));
}

/** The reason why an error is none of ours with a short message; null if it is one. */
function faultOf(error) {
  if (!(error instanceof CapstanError))
    return `${typeof error}: ${error instanceof Error ? error.stack.slice(0, 300) : "?"}`;
  if (error.code !== "OptionError") return `${error.code}: ${error.message.slice(0, 200)}`;
  if (error.message.length > 2000) return `a message of ${error.message.length} characters`;
  return /[\n\r]/.test(error.message) ? `a message of several lines: ${error.message.slice(0, 200)}` : null;
}

let unhandled = null;
process.on("unhandledRejection", (error) => (unhandled = error));
process.on("uncaughtException", (error) => (unhandled = error));
const print = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);
const [llm, client] = [await Capstan.load("/m/"), await Client.start()];
for (let number = 0; number < count; number++) {
  const name = one(Object.keys(CALLS));
  const [good, call] = CALLS[name];
  const [given, done] = mutated(good);
  if (number % parts !== part - 1) continue;
  const about = { call: name, number, done };
  sent = [];
  unhandled = null;
  let timer;
  const late = new Promise((resolve) => (timer = setTimeout(resolve, LIMIT_MS, "late")));
  try {
    const outcome = await Promise.race([late, (async () => call(given, llm, client))().then(() => "taken")]);
    print({ ...about, outcome, requests: sent });
  } catch (error) {
    const why = faultOf(error);
    // An aborted signal's own reason is what a page expects.
    const own = error instanceof DOMException && error.name === "AbortError";
    print({ ...about, outcome: why === null || own ? "refused" : why, requests: [] });
  }
  clearTimeout(timer);
  await new Promise((resolve) => setTimeout(resolve));
  if (unhandled !== null)
    print({ ...about, outcome: `nobody handles ${unhandled?.stack ?? typeof unhandled}`, requests: [] });
  if (number % (20 * parts) < parts) {
    sent = [];
    const { text } = await llm.chat(MESSAGES, { maxTokens: 2 }).result;
    const { messages } = JSON.parse(sent[0]);
    if (text !== "ab" || JSON.stringify(messages) !== JSON.stringify(MESSAGES))
      print({ ...about, outcome: "the next good call is not answered rightly", requests: [] });
  }
}
process.exit(0);
