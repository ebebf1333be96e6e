// The scripts of a page whose model is in a worker that other pages share: they run in a worker of the page's own.

import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";
import { Capstan } from "../../web/src/page/capstan.ts";

const LOADED = {
  device: "webgpu",
  adapter: "gpu",
  context_length: 64,
  can_chat: true,
  begin_token_id: 0,
  load_times: {},
};
const ANSWER = { text: "a", token_ids: [1], finish_reason: "stop", prompt_tokens: 1, kept_tokens: 0 };

/** The requests that each kind of worker got, and the workers that were started and ended. */
let asked;
let started;
let ended;
/** The models, which are closed at the end: Node waits for their channels. */
let loaded;
/** Whether a script ends. */
let ends;
/** Whether a worker of the page's own starts. */
let starts;

function answer(kind, message, send) {
  if (message.tag === "boot") {
    if (kind === "own" && !starts)
      return send({ tag: "reply", id: 0, reply: { ok: false, error: { type: "X", message: "no" } } });
    return send({ tag: "booted", id: 0, ready_ms: 5, python: "snapshot" });
  }
  const { id, request } = message;
  asked.push([kind, request.kind, id]);
  const good = (result) => send({ tag: "reply", id, reply: { ok: true, result } });
  if (request.kind === "load") good(LOADED);
  else if (request.kind === "chat" || request.kind === "generate") good(ANSWER);
  else if (request.kind === "exec" && ends) {
    send({ tag: "event", id, event: { kind: "stdout", text: "said" } });
    good({ status: 0 });
  }
}

class OwnWorker {
  constructor() {
    started.push("own");
  }
  postMessage(message) {
    answer("own", message, (data) => setTimeout(() => this.onmessage({ data })));
  }
  terminate() {
    ended.push("own");
  }
}

class SharedWorkerOfPages {
  constructor() {
    started.push("shared");
    this.port = {
      postMessage: (message) => answer("shared", message, (data) => setTimeout(() => this.port.onmessage?.({ data }))),
      close: () => ended.push("shared"),
    };
  }
}

const locks = {
  request: async (name, ...rest) => rest.at(-1)({ name }),
  query: async () => ({ held: [] }),
};

beforeEach(() => {
  [asked, started, ended] = [[], [], []];
  [ends, starts, loaded] = [true, true, []];
  globalThis.Worker = OwnWorker;
  globalThis.SharedWorker = SharedWorkerOfPages;
  globalThis.location = { href: "http://page.test/", origin: "http://page.test" };
  globalThis.origin = "http://page.test";
  Object.defineProperty(globalThis, "navigator", { value: { locks }, configurable: true });
});
afterEach(() => {
  for (const llm of loaded) llm.close();
  for (const name of ["Worker", "SharedWorker", "location", "origin", "navigator"]) delete globalThis[name];
});

const load = async (options) => {
  loaded.push(await Capstan.load("/models/nano", { assetsUrl: "http://page.test/capstan/", ...options }));
  return loaded.at(-1);
};
const kinds = () => asked.map(([worker, kind]) => `${worker} ${kind}`);

test("the scripts of a page never reach the worker that pages share", async () => {
  const llm = await load({ shared: true });
  assert.equal(llm.stats().shared, true);
  assert.deepEqual(await llm.python("print('said')"), { status: 0, stdout: "said", stderr: "" });
  await llm.complete("a").result;
  await llm.python("again");
  assert.deepEqual(kinds(), ["shared load", "own exec", "shared generate", "own exec"]);
  assert.deepEqual(started, ["shared", "own"], "one worker has all scripts of the page");
  assert.equal(new Set(asked.map(([, , id]) => id)).size, asked.length, "each request has a number of its own");
  llm.close();
  await new Promise((go) => setTimeout(go));
  assert.deepEqual(ended.sort(), ["own", "shared"]);
});

test("a script that never ends keeps a page's own runs waiting until the model is closed, and nobody else", async () => {
  const llm = await load({ shared: true });
  const other = await load({ shared: true });
  ends = false;
  const script = llm.python("while True: pass").catch(({ code }) => code);
  assert.equal((await other.complete("a").result).text, "a");
  llm.close();
  assert.equal(await script, "ClosedError");
  assert.equal(await llm.python("1").catch(({ code }) => code), "ClosedError");
  assert.deepEqual(
    started.filter((kind) => kind === "own"),
    ["own"],
    "no worker is started for a closed model",
  );
});

test("a worker for scripts that does not start is tried again", async () => {
  const llm = await load({ shared: true });
  starts = false;
  assert.equal((await llm.python("1").catch((error) => error)).message, "no");
  starts = true;
  assert.equal((await llm.python("1")).status, 0);
});

test("a logits processor, which is a script's, is refused where pages share", async () => {
  const llm = await load({ shared: true });
  for (const run of [
    () => llm.complete("a", { logitsProcessor: "mine" }),
    () => llm.session().send("a", { logitsProcessor: "mine" }),
  ]) {
    assert.throws(run, {
      code: "OptionError",
      message: /logitsProcessor is "mine", but .*load the model without shared/,
    });
  }
  const alone = await load();
  await alone.complete("a", { logitsProcessor: "mine" }).result;
  assert.deepEqual(kinds(), ["shared load", "own load", "own generate"]);
});

test("without sharing scripts are in the model's worker", async () => {
  const llm = await load();
  await llm.python("1");
  assert.deepEqual(kinds(), ["own load", "own exec"]);
  assert.deepEqual(started, ["own"]);
});
