// Holds submits back, and reads parts of buffers, for tests/browser/test_held_submit.py; inside error scopes.

import { WatchedDevice } from "../../web/src/worker/gpu/device";
import { Staging } from "../../web/src/worker/gpu/staging";
import { decode } from "./encoding";

const STORAGE = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
const MAPPABLE = GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST;

let opened: Promise<WatchedDevice> | undefined;

async function guarded<T>(work: (watched: WatchedDevice) => Promise<T>): Promise<T> {
  const watched = await (opened ??= WatchedDevice.open());
  const { device } = watched;
  for (const scope of ["validation", "out-of-memory", "internal"] as const) device.pushErrorScope(scope);
  const errors: string[] = [];
  try {
    return await work(watched);
  } finally {
    for (let scope = 0; scope < 3; scope++) {
      const error = await device.popErrorScope();
      if (error) errors.push(error.message);
    }
    if (errors.length) throw new Error(errors.join("; "));
  }
}

function made(watched: WatchedDevice, label: string, bytes: Uint8Array<ArrayBuffer>, usage = STORAGE): GPUBuffer {
  const buffer = watched.buffer("user", "test", { label, size: bytes.length, usage });
  watched.write(buffer, 0, bytes);
  return buffer;
}

const word = (number: number): Uint8Array<ArrayBuffer> => new Uint8Array(Int32Array.of(number).buffer);

interface HeldResult {
  /** Submits while it is held back, and after what came next. */
  held: number;
  after: number;
  /** The number that the commands held back had copied. */
  copied: number;
}

/** A copy of 1 is submitted as onnxruntime-web does it, and held back; then comes `next`, after which 2 would be copied. */
async function holdBack(next: string): Promise<HeldResult> {
  return guarded(async (watched) => {
    const { device } = watched;
    const [source, other] = [made(watched, "source", word(1)), made(watched, "other", word(2))];
    const target = made(watched, "target", word(0), MAPPABLE);
    const copy = (from: GPUBuffer, to: GPUBuffer): GPUCommandBuffer[] => {
      const encoder = device.createCommandEncoder();
      encoder.copyBufferToBuffer(from, 0, to, 0, 4);
      return [encoder.finish()];
    };
    const [theirs, later] = [copy(source, target), copy(other, source)];
    const read = async (): Promise<number> => {
      await target.mapAsync(GPUMapMode.READ);
      const [found] = new Int32Array(target.getMappedRange());
      target.unmap();
      return found!;
    };
    const before = watched.counters.submits;
    const count = (): number => watched.counters.submits - before;
    watched.held.begin();
    device.queue.submit(theirs);
    const held = count();
    let copied: number | null = null;
    const comes: Record<string, () => unknown> = {
      "our write": () => watched.write(source, 0, word(2)),
      "our poison": () => watched.poison(source),
      "their write": () => device.queue.writeBuffer(source, 0, word(2)),
      "their submit": () => device.queue.submit(later),
      "our submit": () => watched.submit(later),
      "the end of a buffer": () => source.destroy(),
      "the end of the run": () => watched.held.end(),
      "a wait for the queue": () => device.queue.onSubmittedWorkDone(),
      "a map": async () => (copied = await read()),
      "an encoder": () => device.createCommandEncoder(),
      "an error scope": async () => {
        device.pushErrorScope("validation");
        await device.popErrorScope();
      },
    };
    const coming = comes[next]!();
    const after = count();
    await coming;
    watched.held.end();
    copied ??= await read();
    for (const buffer of [source, other, target]) buffer.destroy();
    return { held, after, copied };
  });
}

interface Reading {
  /** The contents of the buffers, base64; sizes are multiples of 4. */
  buffers: string[];
  /** Those in staging memory, by index. */
  staging: number[];
  /** [buffer, offset, bytes] */
  parts: [number, number, number][];
  /** Parts that are read before, through the same staging memory. */
  before?: [number, number, number][][];
  limit?: number;
}

/** The bytes of each reading in base64, with its cost; the parts are read twice. */
async function readParts({ buffers, staging, parts, before: earlier = [], limit }: Reading): Promise<unknown[]> {
  return guarded(async (watched) => {
    const sources = buffers.map((text, i) => {
      const bytes = decode(text);
      return made(watched, `buffer ${i}`, bytes, staging.includes(i) ? MAPPABLE : STORAGE);
    });
    const reader = new Staging(watched, limit);
    const found: unknown[] = [];
    for (const asked of [...earlier, parts, parts]) {
      const before = { ...watched.counters };
      let read: string[] = [];
      const maps = await reader.begin(asked.map(([i, offset, bytes]) => ({ buffer: sources[i]!, offset, bytes })))(
        (mapped) => (read = mapped.map((bytes) => btoa(String.fromCharCode(...bytes)))),
      );
      const { submits, readbacks, create_buffer } = watched.counters;
      found.push({
        ...{ read, maps, submits: submits - before.submits, readbacks: readbacks - before.readbacks },
        create_buffer: create_buffer - before.create_buffer,
      });
    }
    reader.destroy();
    for (const buffer of sources) buffer.destroy();
    const left = watched.ledger().length;
    if (left) throw new Error(`${left} kinds of buffers are left`);
    return found;
  });
}

Object.assign(globalThis, { holdBack, readParts });
