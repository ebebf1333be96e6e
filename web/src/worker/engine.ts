// The engine that Python drives: buffers, sessions and tapes on one WebGPU device, by integer handles.
//
// Python decides and plans; this side holds the objects. Structured arguments cross as JSON, bytes as PEP 3118 buffers.

import type { Assets } from "../wire/assets";
import type { PyProxy } from "pyodide/ffi";
import { BoundSessions } from "./bound_sessions";
import { withBytes } from "./crossing";
import type { EngineCalls, Json } from "./engine_calls";
import { EngineError } from "../wire/errors";
import { Allocations } from "./gpu/allocations";
import { compareBuffers } from "./gpu/compare";
import { type Category, WatchedDevice } from "./gpu/device";
import { SamplerPipelines } from "./gpu/sampler_program";
import { Shortlist, Shortlists } from "./gpu/shortlist";
import { SpanOps, type SpanStep } from "./gpu/spans";
import { type ReadPart, Staging } from "./gpu/staging";
import { Rearranger } from "./gpu/rearranger";
import { type PieceFields, EarlyUpload, type UploadPlan } from "./gpu/early_upload";
import { WeightUpload } from "./gpu/weights";
import { Handles } from "./handles";
import { loadOrt, machineMemory, type Ort, PROVIDERS } from "./ort";
import { type EngineSide, OnnxSession } from "./onnx_sessions";
import { Sampling } from "./sampling";
import { Tapes } from "./tapes";
import type { DataFile } from "./storage/backing";
import { tracer } from "./trace";

/** The indices of the buffers in a step of `execute`. */
const BUFFER_PLACES: Record<SpanStep[0], number[]> = {
  copy: [1, 3],
  strided: [1, 4],
  zero: [1],
  cast: [1, 4],
  mask: [1],
  positions: [1],
};

/** JsGpuEngine calls this, and its `sessions`, `tapes` and `sampling`. */
export class GpuEngine implements EngineCalls {
  private readonly buffers = new Handles<GPUBuffer>("buffer");
  private readonly staging: Staging;
  private readonly spans: SpanOps;
  private readonly rearranger: Rearranger;
  private readonly shortlists: Shortlists;
  /** How to give back the buffers that onnxruntime-web made, by handle. */
  private readonly adopted = new Map<number, () => void>();
  /** Uploads that were started ahead, until a load takes them. */
  private early: EarlyUpload[] = [];
  private weightsRequested = false;
  /** Sessions bound to buffers, and what was recorded of them. */
  readonly sessions: BoundSessions;
  readonly tapes: Tapes;
  readonly sampling: Sampling;

  private constructor(
    private readonly ort: typeof Ort,
    private readonly watched: WatchedDevice,
  ) {
    this.staging = new Staging(watched);
    this.spans = new SpanOps(watched);
    this.rearranger = new Rearranger(watched);
    this.shortlists = new Shortlists(watched);
    this.sessions = new BoundSessions(ort, watched, this.buffers);
    this.tapes = new Tapes(watched, this.staging, this.buffers, this.sessions);
    this.sampling = new Sampling(watched, this.buffers, this.sessions, this.tapes);
  }

  static async open(assets: Assets): Promise<GpuEngine> {
    const begun = performance.now();
    const engine = new GpuEngine(await loadOrt(assets), await WatchedDevice.open());
    tracer.add("load", "open onnxruntime-web and the GPU", begun);
    return engine;
  }

  /** The adapter's summary, the runtime that computes on it, and the options of its execution provider. */
  adapter(): string {
    const runtime = `onnxruntime-web ${this.ort.env.versions.web}, ${navigator.userAgent}`;
    const machine_memory = machineMemory();
    return JSON.stringify({ ...this.watched.summary, runtime, machine_memory, provider: PROVIDERS.webgpu });
  }

  counters(): string {
    return JSON.stringify(this.watched.counters);
  }

  /** Whether nothing has gone wrong on the device since it was opened. */
  healthy(): boolean {
    try {
      this.watched.assertHealthy();
      return true;
    } catch {
      return false;
    }
  }

  /** Destroy everything on the device, and the device too unless it may serve the next engine. */
  close(): void {
    this.staging.destroy();
    this.spans.destroy();
    SamplerPipelines.forget(this.watched.device);
    Shortlist.forget(this.watched.device);
    this.watched.close();
  }

  /** A loss as the browser would report it, for tests and for pages that must free the GPU at once. */
  destroyDevice(): void {
    this.watched.device.destroy();
  }

  /** Live memory by category and owner, as JSON. */
  ledger(): string {
    return JSON.stringify(this.watched.ledger());
  }

  /** A storage buffer of at least `bytes`, rounded up to 16. */
  createBuffer(label: string, bytes: number, category: Category, owner: string): number {
    const limit = this.watched.device.limits.maxStorageBufferBindingSize;
    if (bytes > limit) {
      throw new EngineError(
        "OutOfMemoryError",
        `buffer '${label}' needs ${bytes} bytes and this adapter binds at most ${limit}; lower max_length`,
      );
    }
    const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
    const size = Math.max(16, Math.ceil(bytes / 16) * 16);
    return this.buffers.add(this.watched.buffer(category, owner, { label, size, usage }));
  }

  /** Buffers for a JSON list of [label, bytes, category], as one of handles, or OutOfMemoryError and none. */
  async createBuffers(requests: string, owner: string): Promise<string> {
    const wanted = JSON.parse(requests) as [string, number, Category][];
    if (wanted.some(([, , category]) => category === "weights")) {
      this.weightsRequested = true;
      const found = this.early.find((early) => !early.taken && early.makes(wanted, owner));
      if (found) {
        found.taken = true;
        const handles = await found.handles.catch(() => null);
        if (handles) return JSON.stringify(handles);
      } else {
        await this.dropEarly();
      }
    }
    return this.makeBuffers(requests, owner);
  }

  /**
   * Begin with an upload of a stored file as it was the last time, unless weights were requested already: a request for
   * the same buffers gets these. `told` is called with the bytes done so far, until then.
   */
  uploadEarly(plan: UploadPlan, open: () => Promise<DataFile | null>, told: (done: number) => void): void {
    if (this.weightsRequested) return;
    const create = (requests: string, owner: string): Promise<string> => this.makeBuffers(requests, owner);
    const early = new EarlyUpload(plan, open, create, (pieces) => this.makeUpload(pieces), told);
    this.early.push(early);
  }

  /** End the uploads that no load has taken, and free their buffers. */
  async dropEarly(): Promise<void> {
    const dropped = this.early.filter((early) => !early.taken);
    this.early = this.early.filter((early) => early.taken);
    for (const early of dropped) {
      await early.stop();
      for (const handle of await early.handles.catch(() => [])) this.destroyBuffer(handle);
    }
  }

  private async makeBuffers(requests: string, owner: string): Promise<string> {
    const wanted = JSON.parse(requests) as [string, number, Category][];
    const handles: number[] = [];
    const allocations = new Allocations(this.watched);
    try {
      allocations.during(() => {
        for (const [label, bytes, category] of wanted) handles.push(this.createBuffer(label, bytes, category, owner));
      });
      const total = wanted.reduce((sum, [, bytes]) => sum + bytes, 0);
      await allocations.require(`${total} bytes in ${wanted.length} buffers of ${owner}`);
    } catch (error) {
      for (const handle of handles) this.destroyBuffer(handle);
      throw error;
    }
    return JSON.stringify(handles);
  }

  destroyBuffer(handle: number): void {
    const free = this.adopted.get(handle);
    this.adopted.delete(handle);
    const buffer = this.buffers.take(handle);
    if (free) free();
    else buffer?.destroy();
  }

  /** Write a Python buffer to any byte offset; bytes that share a word with others go through a buffer of their own. */
  write(handle: number, offset: number, data: PyProxy): void {
    const buffer = this.buffers.get(handle);
    this.staging.requireUnmapped(buffer);
    withBytes(data, (bytes) => {
      if (offset % 4 === 0 && bytes.length % 4 === 0) return this.watched.write(buffer, offset, bytes);
      const size = Math.ceil(bytes.length / 4) * 4;
      const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
      const whole = this.watched.buffer("staging", "uploads", { label: "upload", size, usage });
      const padded = new Uint8Array(size);
      padded.set(bytes);
      this.watched.write(whole, 0, padded);
      this.spans.execute([["copy", whole, 0, buffer, offset, bytes.length]]);
      whole.destroy();
    });
  }

  /** Fill a buffer with one repeated byte. */
  fill(handle: number, byte: number): void {
    const buffer = this.buffers.get(handle);
    this.watched.write(buffer, 0, new Uint8Array(buffer.size).fill(byte));
  }

  /** A buffer that the host can map, and that nothing computes with: the end of a readback. */
  createStaging(label: string, bytes: number, owner: string): number {
    const limit = this.watched.device.limits.maxBufferSize;
    if (bytes > limit) {
      throw new EngineError(
        "OutOfMemoryError",
        `staging buffer '${label}' needs ${bytes} bytes and this adapter's buffers have at most ${limit}; read in parts`,
      );
    }
    const size = Math.max(16, Math.ceil(bytes / 16) * 16);
    const usage = GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST;
    return this.buffers.add(this.watched.buffer("staging", owner, { label, size, usage }));
  }

  /**
   * Fill each of `outs`, writable Python buffers, from the place of the JSON list [[buffer, offset], ...], by one submit
   * and one map; [waiting, copying] in milliseconds.
   */
  async readAll(places: string, ...outs: PyProxy[]): Promise<Float64Array> {
    const held = outs.map((out) => out.copy());
    try {
      const parts = (JSON.parse(places) as [number, number][]).map(([handle, offset], i): ReadPart => {
        const bytes = withBytes(held[i]!, (target) => target.length);
        return { buffer: this.buffers.get(handle), offset, bytes };
      });
      const { waiting, copying } = await this.staging.read(parts, (mapped) =>
        mapped.forEach((bytes, i) => withBytes(held[i]!, (target) => target.set(bytes))),
      );
      return Float64Array.of(waiting, copying);
    } finally {
      for (const out of held) out.destroy();
    }
  }

  /** Span operations in one submit, or an error and none; buffers by handle, see SpanStep in gpu/spans.ts. */
  execute(steps: string): void {
    const resolved = (JSON.parse(steps) as (number | string | number[])[][]).map((step) => {
      const places = BUFFER_PLACES[step[0] as SpanStep[0]];
      for (const place of places) {
        const buffer = this.buffers.get(step[place] as number);
        this.staging.requireUnmapped(buffer);
        (step as unknown[])[place] = buffer;
      }
      return step as unknown as SpanStep;
    });
    this.spans.execute(resolved);
  }

  /** Reads the best of rows of logits that begin at an element of a buffer; see Shortlists.read. */
  async shortlist(
    handle: number,
    dtype: "float32" | "float16",
    vocab: number,
    count: number,
    start: number,
    rows: number,
  ): Promise<Float64Array> {
    return this.shortlists.read({ buffer: this.buffers.get(handle), start, rows, vocab, dtype }, count);
  }

  /** Queues scores of tokens by rows of logits after `skipped` others; see Shortlists.score. */
  score(
    handle: number,
    dtype: "float32" | "float16",
    vocab: number,
    skipped: number,
    rows: number,
    slots: number,
    first: number,
  ): void {
    const [buffer, kept] = [handle, slots].map((each) => this.buffers.get(each)) as [GPUBuffer, GPUBuffer];
    this.shortlists.score({ buffer, start: skipped * vocab, rows, vocab, dtype }, kept, first);
  }

  /** performance.now() once the GPU has done what was submitted by now. */
  async workDone(): Promise<number> {
    await this.watched.device.queue.onSubmittedWorkDone();
    const done = performance.now();
    this.watched.assertHealthy();
    return done;
  }

  /** Compare pairs of buffers on the GPU: [[a, b, bytes, dtype]] -> JSON list of Difference. */
  async compare(pairs: Json): Promise<Json> {
    const parsed = JSON.parse(pairs) as [a: number, b: number, bytes: number, dtype: "float32" | "float16"][];
    const buffer = (handle: number): GPUBuffer => this.buffers.get(handle);
    const resolved = parsed.map(([a, b, bytes, dtype]) => ({ a: buffer(a), b: buffer(b), bytes, dtype }));
    return JSON.stringify(await compareBuffers(this.watched, resolved));
  }

  /**
   * Makes an upload that fills weight buffers from the chunks of a data file; see
   * capstan.device.webgpu.gpu_engine.WeightPiece.
   */
  uploadWeights(pieces: string): WeightUpload {
    const fields = JSON.parse(pieces) as PieceFields[];
    const upload = this.makeUpload(fields);
    upload.early = this.early.find((early) => early.isRequested(fields)) ?? null;
    this.early = this.early.filter((early) => early !== upload.early);
    return upload;
  }

  private makeUpload(pieces: PieceFields[]): WeightUpload {
    const resolved = pieces.map(([handle, offset, length, at, change]) => {
      return { buffer: this.buffers.get(handle), offset, length, at, change };
    });
    return new WeightUpload(this.watched, this.rearranger, resolved);
  }

  /** A session of any model; `weights` is a JSON list of the inputs that are bound to weight buffers. */
  openSession(model: PyProxy, capture: boolean, owner: string, weights: string): Promise<OnnxSession> {
    const side: EngineSide = {
      device: this.watched.device,
      staging: this.staging,
      held: this.watched.held,
      buffer: (handle) => this.buffers.get(handle),
      adopt: (buffer, free) => {
        const handle = this.buffers.add(buffer);
        this.adopted.set(handle, free);
        return handle;
      },
      exclusively: (whose, action) => this.sessions.exclusively(whose, action),
      assertHealthy: () => this.watched.assertHealthy(),
    };
    return OnnxSession.onGpu(this.ort, model, owner, weights, side, capture);
  }

  /** The recorded id of one of our buffers. */
  recordedId(handle: number): number {
    return this.watched.info(this.buffers.get(handle)).id;
  }
}
