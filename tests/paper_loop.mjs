// Runs the loop of web/src/worker/storage/weight_load.ts for paper_weights.py, which has the source, the stored file, the sink
// and the clock: one JSON array each way on a line, [run, name, ...]. Nothing ends a run without an answer.

import { createInterface } from "node:readline";
import { EngineError } from "../web/src/wire/errors.ts";
import { WeightLoad } from "../web/src/worker/storage/weight_load.ts";

/** The run under way, and who waits in it for the answer to a call, by its number. */
let running = 0;
let calls = 0;
const waiting = new Map();
/** The acts of the clocks that the run has set, which has no other timers. */
const clocks = new Map();
globalThis.setInterval = (act) => {
  const number = clocks.size + 1;
  clocks.set(number, act);
  return number;
};
globalThis.clearInterval = (number) => clocks.delete(number);

async function perform(run, { plan, source, file, spans, hashes }) {
  const send = (...message) => process.stdout.write(JSON.stringify([run, ...message]) + "\n");
  const call = async (name, ...message) => {
    const number = ++calls;
    send(name, number, ...message);
    const { result, error } = await new Promise((resolve) => waiting.set(number, resolve));
    if (error) throw new EngineError(error.code, error.message, error.wait ?? undefined);
    return result;
  };
  const base64 = (bytes) => Buffer.from(bytes).toString("base64");
  const fill = async (into, ...message) => {
    const bytes = Buffer.from(await call(...message), "base64");
    into(bytes.length).set(bytes);
    return bytes.length;
  };
  const remoteSource = {
    ...source,
    seek: async (start, end) => {
      await call("seek", start, end);
      Object.assign(remoteSource, { position: start, end });
    },
    expect: () => {},
    read: async (chunk, length) => {
      const found = await fill((count) => chunk.view(count), "stream", length);
      remoteSource.position += found;
      return found;
    },
    readAt: (chunk, start, length) => fill((count) => chunk.view(count), "fetch", start, length),
  };
  const read = (into, at) => fill((count) => into.subarray(0, count), "read", at, into.length);
  const direct = (into, at) => read(into, at).catch(() => 0);
  const remoteFile = file && {
    ...file,
    direct: file.direct ? direct : null,
    read: (chunk, start, length) => read(chunk.view(length), start),
    write: (chunk, start, length) => call("write", start, base64(chunk.view(length))),
    flush: async () => {},
  };
  const target = {
    closed: false,
    wants: (start, length) => spans.some(([at, size]) => at < start + length && start < at + size),
    put: async (start, length, from) => {
      const bytes = new Uint8Array(length);
      if ((await from(bytes, start)) < length) return false;
      await call("accept", start, base64(bytes));
      return true;
    },
  };
  const backing = { appendText: (name, text) => call("append", name, text) };
  const hash = hashes ? (start, bytes) => send("hash", start, base64(bytes)) : undefined;
  try {
    const told = (at) => send("told", at);
    const outcome = await new WeightLoad(plan, null, target, remoteFile, told, remoteSource, backing, hash).run();
    send("outcome", clocks.size, outcome);
  } catch (error) {
    send("thrown", clocks.size, String(error.stack));
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  const [run, what, ...about] = JSON.parse(line);
  if (what === "run") {
    // One that was left before goes on no more.
    running = run;
    waiting.clear();
    clocks.clear();
    void perform(run, ...about);
  } else if (run !== running) continue;
  else if (what === "tick") {
    for (const act of clocks.values()) act();
    // The calls that this makes at once are told before.
    setImmediate(() => process.stdout.write(JSON.stringify([run, "ticked"]) + "\n"));
  } else {
    const [number, answer] = about;
    waiting.get(number)(answer);
    waiting.delete(number);
  }
}
