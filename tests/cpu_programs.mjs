// Answers lines of JSON: {program, threads, files, most} opens a program over data files (base64, by name) where
// shared memory may have so many pages; {ids, past, kept}
// runs tokens of its sequence and is answered by the logits, {image, words, given} runs words over a memory and is
// answered by that memory, both in base64; {whole} is answered by the memory of the program,
// {peaks} by those of the last logits.

import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { isMainThread, parentPort, Worker as Thread } from "node:worker_threads";
import { setFlagsFromString } from "node:v8";
import { CpuEngine } from "../web/src/worker/cpu/cpu_engine.ts";
import { compute } from "../web/src/worker/cpu/cpu_threads.ts";
import { compileKernels, instantiate } from "../web/src/worker/cpu/kernels.ts";

if (process.argv[2] === "relaxed") setFlagsFromString("--experimental-wasm-relaxed-simd");
const base64 = (array) => Buffer.from(array.buffer, array.byteOffset, array.byteLength).toString("base64");
const buffer = (array) => ({ getBuffer: () => ({ data: new Uint8Array(array.buffer), release() {} }) });
let engine, sequence, told, logits, peaks, reserved;
const PART = 10007;

const answers = {
  async program({ program, threads, files, spec, most }) {
    const { Memory } = WebAssembly;
    WebAssembly.Memory = class extends Memory {
      constructor(told) {
        if (told.shared && told.maximum > most) throw new RangeError("too few addresses");
        reserved = told.maximum;
        super(told);
      }
    };
    engine = await CpuEngine.open({ base: "file:///", places: {} }, program, threads);
    for (const [name, text] of Object.entries(files)) {
      const [data, target] = [Buffer.from(text, "base64"), engine.target(name)];
      // As a file comes: in parts that end anywhere, of which some are not wanted.
      for (let at = 0; at < data.length; at += PART) {
        const length = Math.min(PART, data.length - at);
        const read = (into, from) => data.copy(into, 0, from, from + into.length);
        if (target.wants(at, length)) await target.put(at, length, read);
      }
    }
    sequence = engine.decoder((told = spec));
    WebAssembly.Memory = Memory;
    return JSON.stringify({ threads: engine.threads, relaxed: engine.relaxed, alone: engine.alone, reserved });
  },
  async ids({ ids, past, kept }) {
    const given = BigInt64Array.from(ids, BigInt);
    [logits, peaks] = await sequence.step(buffer(given), past, kept);
    return base64(logits);
  },
  async peaks() {
    return base64(peaks);
  },
  async image({ image, words, given }) {
    const bytes = Buffer.from(image, "base64");
    const memory = new WebAssembly.Memory({ initial: Math.ceil((bytes.length + 4 * words.length) / 65536) });
    new Uint8Array(memory.buffer).set(bytes);
    new Uint32Array(memory.buffer, bytes.length).set(words);
    const { module } = await compileKernels(false);
    const { run } = await instantiate(module, memory);
    for (let thread = 3; thread--;) run(bytes.length, words.length / 24, ...given, thread, 3);
    return base64(new Uint8Array(memory.buffer, 0, bytes.length));
  },
  /** One thread runs the work of three, in this order, up to each wait. */
  async turns({ turns, past, kept, order }) {
    const { program, words, ids, logits, row, vocab, scores, score_bytes } = engine.program;
    new Int32Array(engine.memory.buffer, ids).set(turns);
    sequence.makeRoom(past + turns.length, past);
    const { address, room } = sequence.place;
    // The room of one thread for its scores is that of three for short sequences.
    const run = [turns.length, past, kept, address, room, scores, score_bytes / 4];
    let waits = 0;
    for (let from = 0, to = 24; to <= words.length; to += 24) {
      if (!(words[to - 2] & (turns.length > 1 ? 2 : 1))) continue;
      for (const thread of order) waits += engine.kernels.run(program + 4 * from, (to - from) / 24, ...run, thread, 3);
      from = to;
    }
    const found = Array.from({ length: kept }, (_, i) => [
      ...new Float32Array(engine.memory.buffer, logits + 4 * row * i, vocab),
    ]);
    return JSON.stringify({ waits: waits / 3, logits: base64(Float32Array.from(found.flat())) });
  },
  /** Another sequence takes so many positions over, and the first is closed. */
  async adopt({ adopt }) {
    const made = engine.decoder(told);
    made.adopt(sequence, adopt);
    sequence.close();
    sequence = made;
    return engine.memory.end;
  },
  async close() {
    await engine.close();
    return "closed";
  },
  async whole() {
    return base64(new Uint8Array(engine.memory.buffer));
  },
};

/** Workers as pages have them: each runs this program again, as a thread. */
globalThis.Worker = class {
  constructor() {
    this.thread = new Thread(fileURLToPath(import.meta.url), { argv: process.argv.slice(2) });
    this.thread.on("message", (data) => this.onmessage({ data }));
    this.thread.on("error", (error) => this.onerror(error));
    this.thread.unref();
  }
  postMessage(message) {
    this.thread.postMessage(message);
  }
  terminate() {
    void this.thread.terminate();
  }
};
if (!isMainThread)
  parentPort.once("message", ({ module, memory, thread, threads }) => {
    void compute(module, memory, thread, threads, () => parentPort.postMessage(true));
  });

for await (const line of isMainThread ? createInterface({ input: process.stdin }) : []) {
  const asked = JSON.parse(line);
  const kind = Object.keys(answers).find((name) => name in asked);
  process.stdout.write(`${await answers[kind](asked)}\n`);
}
