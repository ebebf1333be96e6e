// Executes span steps on buffers of its own for tests/browser/test_span_kernels.py, inside error scopes.

import { WatchedDevice } from "../../web/src/worker/gpu/device";
import { SpanOps, type SpanLimits, type SpanStep } from "../../web/src/worker/gpu/spans";
import { decode, encode } from "./encoding";

interface SpanRun {
  /** The initial contents of the buffers, base64; sizes are multiples of 4. */
  buffers: string[];
  /** Buffers that are not storage, by index. */
  staging?: number[];
  /** Steps of each call of `execute`, with indices of `buffers` for buffers. */
  calls: (string | number | number[])[][][];
  limits?: SpanLimits;
}

interface SpanResult {
  buffers: string[];
  /** For each call, its counts and the error that it threw. */
  calls: {
    submits: number;
    create_buffer: number;
    create_bind_group: number;
    dispatches: number;
    error: string | null;
  }[];
  /** Bytes of the largest storage that was bound. */
  most_bound: number;
  /** Ledger entries of category kernels after `destroy`. */
  left: number;
}

const USAGE = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
const STAGING = GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;

let opened: Promise<WatchedDevice> | undefined;
let dispatches = 0;
let mostBound = 0;

async function open(): Promise<WatchedDevice> {
  const watched = await WatchedDevice.open();
  const pass = GPUComputePassEncoder.prototype;
  const dispatch = Object.getOwnPropertyDescriptor(pass, "dispatchWorkgroups")!.value as (...args: number[]) => void;
  pass.dispatchWorkgroups = function (...args: number[]): undefined {
    dispatches++;
    dispatch.apply(this, args);
  };
  const createBindGroup = watched.device.createBindGroup.bind(watched.device);
  watched.device.createBindGroup = (descriptor) => {
    for (const { resource } of descriptor.entries)
      mostBound = Math.max(mostBound, (resource as GPUBufferBinding).size ?? 0);
    return createBindGroup(descriptor);
  };
  return watched;
}

async function guarded<T>({ device }: WatchedDevice, work: () => Promise<T>): Promise<T> {
  for (const scope of ["validation", "out-of-memory", "internal"] as const) device.pushErrorScope(scope);
  const errors: string[] = [];
  try {
    return await work();
  } finally {
    for (const scope of ["internal", "out-of-memory", "validation"]) {
      const error = await device.popErrorScope();
      if (error !== null) errors.push(`${scope} error: ${error.message}`);
    }
    if (errors.length > 0) throw new Error(errors.join("; "));
  }
}

async function read(watched: WatchedDevice, buffers: GPUBuffer[]): Promise<Uint8Array[]> {
  const total = buffers.reduce((sum, { size }) => sum + size, 0);
  const usage = GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST;
  const staging = watched.buffer("staging", "", { size: total, usage });
  const encoder = watched.encoder();
  let offset = 0;
  for (const buffer of buffers) {
    encoder.copyBufferToBuffer(buffer, 0, staging, offset, buffer.size);
    offset += buffer.size;
  }
  watched.submit([encoder.finish()]);
  await staging.mapAsync(GPUMapMode.READ);
  const all = new Uint8Array(staging.getMappedRange()).slice();
  staging.destroy();
  offset = 0;
  return buffers.map(({ size }) => all.subarray(offset, (offset += size)));
}

/** The step with buffers in the places where indices are: after the name, and where a second one comes. */
function resolved(step: (string | number | number[])[], buffers: GPUBuffer[]): SpanStep {
  const second = { copy: 3, strided: 4, bytes: 3, bounce: 3, cast: 4 }[step[0] as string];
  return step.map((value, i) => (i === 1 || i === second ? buffers[value as number]! : value)) as unknown as SpanStep;
}

async function runSpans(run: SpanRun): Promise<SpanResult> {
  const watched = await (opened ??= open());
  return guarded(watched, async () => {
    const buffers = run.buffers.map((text, i) => {
      const bytes = decode(text);
      const usage = run.staging?.includes(i) ? STAGING : USAGE;
      const buffer = watched.buffer("user", "test", { label: `buffer ${i}`, size: bytes.length, usage });
      watched.write(buffer, 0, bytes);
      return buffer;
    });
    const ops = new SpanOps(watched, run.limits);
    mostBound = 0;
    const calls = run.calls.map((steps) => {
      const before = { ...watched.counters };
      dispatches = 0;
      let error: string | null = null;
      try {
        ops.execute(steps.map((step) => resolved(step, buffers)));
      } catch (thrown) {
        error = String(thrown);
      }
      const { submits, create_buffer, create_bind_group } = watched.counters;
      return {
        submits: submits - before.submits,
        create_buffer: create_buffer - before.create_buffer,
        create_bind_group: create_bind_group - before.create_bind_group,
        dispatches,
        error,
      };
    });
    const contents = await read(watched, buffers);
    ops.destroy();
    const left = watched.ledger().filter(({ category }) => category === "kernels").length;
    for (const buffer of buffers) buffer.destroy();
    return { buffers: contents.map(encode), calls, most_bound: mostBound, left };
  });
}

interface LargeCheck {
  /** The first wrong word, or -1. */
  wrong: number;
  milliseconds: number;
}

/** Steps over more words than one row of workgroups takes, casts fewer: each result is checked here, word for word. */
async function runLarge(words: number, castWords: number): Promise<Record<string, LargeCheck>> {
  const watched = await (opened ??= open());
  return guarded(watched, async () => {
    const make = (label: string): GPUBuffer => watched.buffer("user", "test", { label, size: words * 4, usage: USAGE });
    const [source, destination] = [make("source"), make("destination")];
    const values = Uint32Array.from({ length: words }, (_, i) => Math.imul(i, 2654435761));
    watched.write(source, 0, new Uint8Array(values.buffer));
    const bytes = new Uint8Array(values.buffer);
    const ops = new SpanOps(watched);
    const results: Record<string, LargeCheck> = {};
    let previous: Uint32Array = new Uint32Array(words);
    const check = async (name: string, step: SpanStep, expected: (word: number) => number): Promise<void> => {
      const start = performance.now();
      ops.execute([step]);
      const got = new Uint32Array((await read(watched, [destination]))[0]!.buffer);
      let wrong = -1;
      for (let i = 0; i < words && wrong < 0; i++) if (got[i] !== expected(i) >>> 0) wrong = i;
      previous = got;
      results[name] = { wrong, milliseconds: performance.now() - start };
    };
    const size = words * 4;
    const all = 0xffffffff;
    const around = (word: number, inside: number): number =>
      word === 0 ? (inside & ~0xff) | 0xff : word === words - 1 ? (inside & 0xffff) | (all << 16) : inside;
    watched.write(destination, 0, new Uint8Array(size).fill(0xff));
    await check("bytes", ["copy", source, 3, destination, 1, size - 3], (word) => {
      const at = word * 4 + 2;
      return around(word, bytes[at]! | (bytes[at + 1]! << 8) | (bytes[at + 2]! << 16) | (bytes[at + 3]! << 24));
    });
    await check("cast", ["cast", source, 0, "uint32", destination, 0, "int32", castWords], (word) =>
      word < castWords ? values[word]! : previous[word]!,
    );
    await check("positions", ["positions", destination, 0, "int32", [-7], words], (word) => word - 7);
    await check("mask", ["mask", destination, 0, "int32", words, [words - 1], [1]], (word) =>
      word === 0 ? -7 : word === words - 1 ? word - 7 : 0,
    );
    ops.destroy();
    source.destroy();
    destination.destroy();
    return results;
  });
}

Object.assign(window, { runSpans, runLarge });
