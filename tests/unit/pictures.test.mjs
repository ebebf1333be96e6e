// Pictures in messages: the parts that are taken, what crosses to the worker, and what is refused.

import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";
import { Capstan } from "../../web/src/page/capstan.ts";
import { capstanModel } from "../../web/src/page/ai.ts";

const BYTES = new Uint8Array([137, 80, 78, 71]);
const URL_OF_BYTES = "data:image/png;base64,iVBORw==";
const LOADED = { device: "wasm", adapter: "cpu", context_length: 64, can_chat: true, load_times: {} };
const ANSWER = { text: "a", token_ids: [1], finish_reason: "stop", prompt_tokens: 5, kept_tokens: 3 };

/** The messages of each chat that was sent, and its attachments. */
let sent;
let transferred;
let dies = false;

class StandInWorker {
  terminate() {}
  say(data) {
    setTimeout(() => this.onmessage?.({ data }));
  }
  postMessage(message, transfer = []) {
    if (message.tag === "boot") return this.say({ tag: "booted", id: 0, ready_ms: 5, python: "snapshot" });
    const { id, request, attached } = message;
    if (request.kind === "chat") {
      sent.push([request.messages, structuredClone(attached)]);
      transferred.push(structuredClone(transfer, { transfer }).length);
    }
    const result = { load: LOADED, tokenizer: { text: "t", ids: [1, 2] } }[request.kind] ?? ANSWER;
    if (dies && request.kind === "chat") return;
    this.say({ tag: "reply", id, reply: { ok: true, result } });
  }
}

/** Stands in for a canvas, since Node has none. */
function canvas(width, height, fill = 7) {
  return {
    width,
    height,
    fill,
    get [Symbol.toStringTag]() {
      return "HTMLCanvasElement";
    },
  };
}

class StandInCanvas {
  constructor(width, height) {
    Object.assign(this, { width, height });
  }
  getContext() {
    let drawn = null;
    return {
      drawImage: (source) => (drawn = source.fill),
      getImageData: (_x, _y, width, height) => {
        if (drawn === "tainted") throw new Error("tainted by another origin");
        const data = new Uint8ClampedArray(4 * width * height).fill(drawn);
        return {
          width,
          height,
          data,
          get [Symbol.toStringTag]() {
            return "ImageData";
          },
        };
      },
    };
  }
}

beforeEach(() => {
  [sent, transferred, dies] = [[], [], false];
  globalThis.Worker = StandInWorker;
  globalThis.OffscreenCanvas = StandInCanvas;
  globalThis.location = { href: "http://page.test/folder/index.html", origin: "http://page.test" };
});
afterEach(() => {
  for (const name of ["Worker", "OffscreenCanvas", "location"]) delete globalThis[name];
});

const load = () => Capstan.load("../models/nano");
const user = (...content) => [{ role: "user", content }];
const text = (text) => ({ type: "text", text });
const file = { width: null, height: null, bytes: BYTES };
const pixels = (fill) => ({ width: 2, height: 1, bytes: new Uint8Array(8).fill(fill) });

test("every form of a picture crosses as bytes, by transfer, and its message has its number", async () => {
  const llm = await load();
  const blob = new Blob([BYTES], { type: "image/png" });
  const forms = [
    [{ type: "image", image: BYTES }, file],
    [{ type: "image", image: BYTES.buffer }, file],
    [{ type: "image", image: blob }, file],
    [{ type: "image", image: new URL(URL_OF_BYTES) }, file],
    [{ type: "image_url", image_url: { url: URL_OF_BYTES, detail: "auto" } }, file],
    [{ type: "image_url", image_url: URL.createObjectURL(blob) }, file],
    [{ type: "file", data: BYTES, mediaType: "image/png", filename: "a.png" }, file],
    [new File([BYTES], "a.png"), file],
    [canvas(2, 1), pixels(7)],
    [new StandInCanvas(2, 1).getContext().getImageData(0, 0, 2, 1), pixels(0)],
  ];
  await llm.chat(user(text("What?"), ...forms.map(([part]) => part))).result;
  const [[messages, attached]] = sent;
  const numbers = forms.map((_, picture) => ({ type: "image", picture }));
  assert.deepEqual(messages, user(text("What?"), ...numbers));
  assert.deepEqual(
    attached,
    forms.map(([, data]) => data),
  );
  assert.deepEqual(transferred, [forms.length]);
  assert.deepEqual([...BYTES], [137, 80, 78, 71], "the caller keeps its bytes");
});

test("texts cross as they were, with nothing attached", async () => {
  const llm = await load();
  const messages = [
    { role: "user", content: "a" },
    { role: "user", content: [text("b"), { type: "other", x: 1 }] },
  ];
  await llm.chat(messages).result;
  assert.deepEqual(sent, [[messages, null]]);
});

test("OpenAI's and the AI SDK's messages have pictures, in the order of their parts", async () => {
  const llm = await load();
  const image_url = { url: URL_OF_BYTES };
  const messages = user({ type: "image_url", image_url }, text("What?"));
  await llm.chat.completions.create({ messages });
  const wanted = [user({ type: "image", picture: 0 }, text("What?")), [file]];
  assert.deepEqual(sent.pop(), wanted);
  const datas = [
    ["v4", { type: "data", data: BYTES }],
    ["v4", { type: "data", data: "iVBORw==" }],
    ["v4", { type: "url", url: new URL(URL_OF_BYTES) }],
    ["v3", BYTES],
    ["v2", "iVBORw=="],
    ["v2", new URL(URL_OF_BYTES)],
  ];
  for (const [specification, data] of datas) {
    const prompt = user({ type: "file", mediaType: "image/png", data }, text("What?"));
    await capstanModel(llm, { specification }).doGenerate({ prompt });
    assert.deepEqual(sent.pop(), wanted);
  }
});

test("a session keeps what was drawn when it was said", async () => {
  const llm = await load();
  const session = llm.session();
  const drawn = canvas(2, 1, 3);
  await session.send({ role: "user", content: [drawn, { type: "image", image: drawn }] }).result;
  drawn.fill = 9;
  await session.send("more").result;
  assert.deepEqual(sent[1][1], [pixels(3), pixels(3)]);
});

test("what is no picture is refused with its place", async () => {
  const llm = await load();
  const wide = canvas(20_000, 1);
  for (const [part, code, message] of [
    [{ type: "input_audio", input_audio: {} }, "OptionError", /content\[0\].type is "input_audio": no model hears/],
    [{ type: "image" }, "OptionError", /content\[0\].image is undefined; it must be a Blob, a File/],
    [{ type: "image", image: 5 }, "OptionError", /content\[0\].image is 5/],
    [{ type: "image_url", image_url: {} }, "OptionError", /image_url.url is undefined; it must be an address/],
    [{ type: "image_url", image_url: { url: "file:///a.png" } }, "OptionError", /must begin with data:, blob:/],
    [{ type: "image_url", image_url: { url: "http://[" } }, "OptionError", /is no address of a picture/],
    [
      { type: "image_url", image_url: { url: URL_OF_BYTES, detail: "high" } },
      "OptionError",
      /detail is "high"; a model/,
    ],
    [{ type: "file", data: BYTES, mediaType: "application/pdf" }, "OptionError", /mediaType is "application\/pdf"/],
    ["cat.png", "OptionError", /content\[0\] is "cat.png"; it must be an object with a type/],
    [new Map(), "OptionError", /content\[0\] is \[object Map\]; it must be an object with a type/],
    [wide, "PictureError", /20000 x 1 pixels; a side may have 16384/],
    [canvas(0, 0), "PictureError", /0 x 0 pixels; give one that is open/],
    [canvas(1, 1, "tainted"), "PictureError", /its pixels cannot be read \(Error: tainted by another origin\)/],
  ])
    assert.throws(() => llm.chat(user(part)), { code, message });
  const audio = { messages: user({ type: "input_audio", input_audio: {} }) };
  const heard = llm.chat.completions.create(audio);
  await assert.rejects(heard, { code: "OptionError", message: /"input_audio".* no model hears in a chat/ });
  assert.deepEqual(sent, []);
});

test("an address that cannot be read rejects its run, and the next one goes on", async () => {
  const llm = await load();
  const gone = URL.createObjectURL(new Blob([BYTES]));
  URL.revokeObjectURL(gone);
  const run = llm.chat(user({ type: "image_url", image_url: { url: gone } }));
  await assert.rejects(run.result, {
    code: "PictureError",
    message: /messages\[0\].content\[0\]: blob:.* cannot be read/,
  });
  await llm.chat(user(text("a"))).result;
  assert.equal(sent.length, 1);
});

test("a run that is aborted while its picture is fetched ends without an error", async (context) => {
  const llm = await load();
  context.mock.method(
    globalThis,
    "fetch",
    (_, { signal }) => new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason))),
  );
  const run = llm.chat(user({ type: "image_url", image_url: { url: "https://far.test/a.png" } }));
  setTimeout(() => run.abort(), 10);
  assert.equal((await run.result).finishReason, "abort");
  const stop = new AbortController();
  stop.abort();
  const early = llm.chat(user({ type: "image_url", image_url: "https://far.test/a.png" }), { signal: stop.signal });
  assert.equal((await early.result).finishReason, "abort");
  assert.deepEqual(sent, []);
});

test("messages with pictures are rendered, and not counted", async () => {
  const llm = await load();
  const messages = user({ type: "image", image: BYTES });
  assert.equal(await llm.tokenizer.template(messages), "t");
  await assert.rejects(llm.tokenizer.count(messages), { code: "OptionError", message: /the messages have pictures/ });
});
