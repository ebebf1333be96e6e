// Runs the sampler over whole batches for tests/browser/test_sampler.py: everything is poisoned first, every run is
// inside error scopes, and the buffers are returned unchanged.

import { Sampler } from "../../web/src/worker/gpu/sampler";
import type { SamplerProgram } from "../../web/src/worker/gpu/sampler_program";
import { decode } from "./encoding";

interface SamplerRun {
  rows: number;
  vocab: number;
  logitsType: "float32" | "float16";
  /** [rows, vocab], little-endian, base64. */
  logits: string;
  /** A program, its parameters, tables and rows of memory for each run; a run starts from `state` and these again. */
  programs: { words: number[]; table: number[]; memory: number[]; program: SamplerProgram }[];
  /** Steps in one pass, and passes, each submitted by itself. */
  steps: number;
  submits: number;
  /** u32 [rows, 8]. */
  state: number[];
  ringCapacity: number;
  maxLength: number;
  positions: boolean;
}

interface SamplerResult {
  dispatches: number;
  /** Pipelines that this run had to make. */
  pipelines: number;
  state: number[];
  ring: number[];
  inputIds: number[];
  mask: number[];
  positionIds: number[];
}

const POISON = 0xa5a5a5a5;
let shared: Promise<GPUDevice> | undefined;
let lost: string | undefined;
let pipelines = 0;

async function openDevice(): Promise<GPUDevice> {
  const adapter = await navigator.gpu.requestAdapter();
  if (adapter === null) throw new Error("no WebGPU adapter");
  // Default limits: a device that has no more must be able to run the sampler.
  const device = await adapter.requestDevice();
  void device.lost.then((info) => {
    lost = `${info.reason}: ${info.message}`;
  });
  const create = device.createComputePipeline.bind(device);
  device.createComputePipeline = (descriptor) => {
    pipelines += 1;
    return create(descriptor);
  };
  return device;
}

async function guarded<T>(device: GPUDevice, work: () => Promise<T>): Promise<T> {
  device.pushErrorScope("validation");
  device.pushErrorScope("out-of-memory");
  device.pushErrorScope("internal");
  const errors: string[] = [];
  try {
    return await work();
  } finally {
    for (const scope of ["internal", "out-of-memory", "validation"]) {
      const error = await device.popErrorScope();
      if (error !== null) errors.push(`${scope} error: ${error.message}`);
    }
    if (lost !== undefined) errors.push(`device lost: ${lost}`);
    if (errors.length > 0) throw new Error(errors.join("; "));
  }
}

async function runSampler(run: SamplerRun): Promise<SamplerResult[]> {
  const device = await (shared ??= openDevice());
  return guarded(device, async () => {
    const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
    const bytes = decode(run.logits);
    const padded = new Uint8Array(Math.ceil(bytes.length / 4) * 4).fill(0xa5);
    padded.set(bytes);
    const logits = device.createBuffer({ size: padded.length, usage });
    device.queue.writeBuffer(logits, 0, padded);
    const sizes = {
      state: run.rows * 32,
      ring: run.rows * run.ringCapacity * 4,
      inputIds: run.rows * 8,
      mask: run.rows * run.maxLength * 8,
      positionIds: run.rows * 8,
    };
    type Name = keyof typeof sizes;
    const names = Object.keys(sizes) as Name[];
    const buffers = Object.fromEntries(
      names.map((name) => [name, device.createBuffer({ label: name, size: sizes[name], usage })]),
    ) as Record<Name, GPUBuffer>;
    pipelines = 0;
    const sampler = new Sampler(device, {
      logits,
      logitsType: run.logitsType,
      vocab: run.vocab,
      rows: run.rows,
      state: buffers.state,
      ring: buffers.ring,
      ringCapacity: run.ringCapacity,
      inputIds: buffers.inputIds,
      mask: buffers.mask,
      maxLength: run.maxLength,
      positionIds: run.positions ? buffers.positionIds : undefined,
    });
    const results: SamplerResult[] = [];
    for (const { words, table, memory, program } of run.programs) {
      for (const name of names)
        device.queue.writeBuffer(buffers[name], 0, new Uint32Array(sizes[name] / 4).fill(POISON));
      device.queue.writeBuffer(buffers.state, 0, new Uint32Array(run.state));
      sampler.setProgram(new Uint32Array(words), new Uint32Array(table), program);
      const { rowWords } = program;
      for (let row = 0; row * rowWords < memory.length; row++)
        sampler.setMemory(new Uint32Array(memory.slice(row * rowWords, (row + 1) * rowWords)), row);
      for (let submit = 0; submit < run.submits; submit++) {
        const encoder = device.createCommandEncoder();
        const pass = encoder.beginComputePass();
        for (let step = 0; step < run.steps; step++) sampler.encode(pass);
        pass.end();
        device.queue.submit([encoder.finish()]);
      }
      const encoder = device.createCommandEncoder();
      const total = names.reduce((sum, name) => sum + sizes[name], 0);
      const staging = device.createBuffer({ size: total, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST });
      let offset = 0;
      for (const name of names) {
        encoder.copyBufferToBuffer(buffers[name], 0, staging, offset, sizes[name]);
        offset += sizes[name];
      }
      device.queue.submit([encoder.finish()]);
      await staging.mapAsync(GPUMapMode.READ);
      const all = new Uint32Array(staging.getMappedRange());
      offset = 0;
      const parts = names.map((name) => {
        const part = [...all.subarray(offset / 4, (offset + sizes[name]) / 4)];
        offset += sizes[name];
        return [name, part];
      });
      results.push({ ...Object.fromEntries(parts), dispatches: sampler.dispatchCount, pipelines } as SamplerResult);
      staging.destroy();
    }
    sampler.destroy();
    for (const buffer of [logits, ...Object.values(buffers)]) buffer.destroy();
    return results;
  });
}

interface DraftedRun {
  vocab: number;
  words: number[];
  table: number[];
  memory: number[];
  program: SamplerProgram;
  /** f32 [positions, vocab]: what the model makes of any inputs. */
  logits: number[];
  /** u32 [8]. */
  state: number[];
  maxLength: number;
  /** For each state its words, and those after each position. */
  states: { past: number[]; kept: number[] }[];
}

/** One step with drafts of a sequence, behind which the ring has room for one more id; the buffers after it. */
async function runDrafted(run: DraftedRun): Promise<Record<string, number[]>> {
  const device = await (shared ??= openDevice());
  return guarded(device, async () => {
    const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
    const positions = run.logits.length / run.vocab;
    const filled = (words: Uint32Array<ArrayBuffer>): GPUBuffer => {
      const buffer = device.createBuffer({ size: words.byteLength, usage });
      device.queue.writeBuffer(buffer, 0, words);
      return buffer;
    };
    const poisoned = (count: number): GPUBuffer => filled(new Uint32Array(count).fill(POISON));
    const logits = filled(new Uint32Array(new Float32Array(run.logits).buffer));
    const state = filled(new Uint32Array(run.state));
    const [ring, inputIds] = [poisoned(positions + 1), poisoned(2)];
    const [mask, drafted] = [poisoned(2 * run.maxLength), poisoned(2 * positions)];
    const states = run.states.map(({ past, kept }) => ({
      past: { buffer: filled(new Uint32Array(past)), offset: 0, size: 4 * past.length },
      kept: { buffer: filled(new Uint32Array(kept)), offset: 0, size: 4 * kept.length },
    }));
    const sizes = { vocab: run.vocab, rows: 1, ringCapacity: positions + 1, maxLength: run.maxLength };
    const sampler = new Sampler(device, { ...sizes, logits, logitsType: "float32", state, ring, inputIds, mask });
    sampler.setProgram(new Uint32Array(run.words), new Uint32Array(run.table), run.program);
    sampler.setMemory(new Uint32Array(run.memory));
    sampler.setDrafts({ inputIds: drafted, logits, positions, drafter: null, head: null, states });
    const encoder = device.createCommandEncoder();
    const pass = encoder.beginComputePass();
    sampler.encodeDrafted(
      () => pass,
      () => undefined,
      () => undefined,
    );
    pass.end();
    const read = {
      state,
      ring,
      drafted,
      ...Object.fromEntries(states.map(({ past }, i) => [`past ${i}`, past.buffer])),
    };
    const found: Record<string, number[]> = {};
    const staging = Object.entries(read).map(([name, buffer]) => {
      const copy = device.createBuffer({ size: buffer.size, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST });
      encoder.copyBufferToBuffer(buffer, 0, copy, 0, buffer.size);
      return [name, copy] as const;
    });
    device.queue.submit([encoder.finish()]);
    for (const [name, copy] of staging) {
      await copy.mapAsync(GPUMapMode.READ);
      found[name] = [...new Uint32Array(copy.getMappedRange())];
      copy.destroy();
    }
    sampler.destroy();
    return found;
  });
}

Object.assign(window, { runSampler, runDrafted });
