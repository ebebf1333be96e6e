// What Python drives: buffers, sessions, recordings, tapes and samplers on one WebGPU device, by integer handles.
//
// Python decides and plans; this side holds the objects. Structured arguments cross as JSON, bytes as PEP 3118 buffers.

import type { PyProxy } from "pyodide/ffi";
import { copyBytes, withBytes } from "./crossing";
import { EngineError } from "./errors";
import { compareBuffers } from "./gpu/compare";
import { countsByLength, countsOfStep } from "./gpu/counts";
import { type Category, WatchedDevice } from "./gpu/device";
import { type PlayedOp, StepEncoder, Tape } from "./gpu/player";
import { DryRecorder, type RecordingObjects } from "./gpu/recorder";
import { type BurstResult, RingReader } from "./gpu/ring";
import { Sampler, type SamplerTargets, type Span } from "./gpu/sampler";
import { SpanOps, type SpanStep } from "./gpu/spans";
import { Staging } from "./gpu/staging";
import { WeightUpload } from "./gpu/weights";
import { createSession, exclusively, keepRegistered, loadOrt, type Ort } from "./ort";
import { type EngineSide, ModelSession } from "./sessions";

/** One bound tensor: a whole buffer, seen with an ONNX dtype and dims. */
interface BoundTensor {
  name: string;
  buffer: number;
  dtype: Ort.Tensor.GpuBufferDataTypes;
  dims: number[];
}

interface Binding {
  session: number;
  feeds: Record<string, Ort.Tensor>;
  fetches: Record<string, Ort.Tensor>;
}

interface Session {
  ort: Ort.InferenceSession;
  /** Whose scratch its runs allocate. */
  owner: string;
}

/** Part of a buffer, by [handle, offset, bytes]. */
type SpanSpec = [number, number, number];

interface SamplerSpec {
  logits: number;
  logits_type: "float32" | "float16";
  vocab: number;
  state: SpanSpec;
  ring: SpanSpec;
  ring_capacity: number;
  input_ids: number;
  mask: number;
  max_length: number;
  position_ids: number | null;
  owner: string;
}

/** Where the buffers are in a step of `execute`. */
const BUFFER_PLACES: Record<SpanStep[0], number[]> = {
  copy: [1, 3],
  bytes: [1, 3],
  bounce: [1, 3],
  zero: [1],
  cast: [1, 4],
  mask: [1],
  positions: [1],
};

/** Integer handles for objects of one kind; an unknown handle is a use after close. */
class Handles<T> {
  private readonly objects = new Map<number, T>();
  private next = 1;

  constructor(private readonly what: string) {}

  add(object: T): number {
    this.objects.set(this.next, object);
    return this.next++;
  }

  get(handle: number): T {
    const object = this.objects.get(handle);
    if (object === undefined)
      throw new EngineError("ClosedError", `${this.what} ${handle} was closed; load the model again`);
    return object;
  }

  take(handle: number): T | undefined {
    const object = this.objects.get(handle);
    this.objects.delete(handle);
    return object;
  }

  *all(): Iterable<T> {
    yield* this.objects.values();
  }
}

export class GpuEngine {
  private readonly buffers = new Handles<GPUBuffer>("buffer");
  private readonly staging: Staging;
  private readonly spans: SpanOps;
  /** How to give back the buffers that onnxruntime-web made, by handle. */
  private readonly adopted = new Map<number, () => void>();
  private readonly sessions = new Handles<Session>("session");
  private readonly bindings = new Handles<Binding>("binding");
  private readonly recordings = new Handles<RecordingObjects>("recording");
  private readonly tapes = new Handles<Tape>("tape");
  private readonly samplers = new Handles<{ sampler: Sampler; reader: RingReader }>("sampler");

  private constructor(
    private readonly ort: typeof Ort,
    private readonly watched: WatchedDevice,
  ) {
    this.staging = new Staging(watched);
    this.spans = new SpanOps(watched);
  }

  static async open(base: string): Promise<GpuEngine> {
    return new GpuEngine(await loadOrt(base), await WatchedDevice.open());
  }

  adapter(): string {
    return JSON.stringify(this.watched.summary);
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

  /** Destroy the device and everything on it. */
  close(): void {
    this.staging.destroy();
    this.spans.destroy();
    this.watched.destroy();
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
    withBytes(data, (bytes) => {
      if (offset % 4 === 0 && bytes.length % 4 === 0) return this.watched.write(buffer, offset, bytes);
      const size = Math.ceil(bytes.length / 4) * 4;
      const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
      const whole = this.watched.buffer("staging", "uploads", { label: "upload", size, usage });
      const padded = new Uint8Array(size);
      padded.set(bytes);
      this.watched.write(whole, 0, padded);
      this.spans.execute([["bytes", whole, 0, buffer, offset, bytes.length]]);
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
    const size = Math.max(16, Math.ceil(bytes / 16) * 16);
    const usage = GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST;
    return this.buffers.add(this.watched.buffer("staging", owner, { label, size, usage }));
  }

  /** Fill `out`, a writable Python buffer, from byte `offset` of a buffer; [waiting, copying] in milliseconds. */
  async readInto(handle: number, offset: number, out: PyProxy): Promise<Float64Array> {
    const source = this.buffers.get(handle);
    const held = out.copy();
    try {
      const bytes = withBytes(held, (target) => target.length);
      const { waiting, copying } = await this.staging.read(source, offset, bytes, (mapped) =>
        withBytes(held, (target) => target.set(mapped)),
      );
      return Float64Array.of(waiting, copying);
    } finally {
      held.destroy();
    }
  }

  /** Span operations in one submit; buffers by handle, see SpanStep in gpu/spans.ts. */
  execute(steps: string): void {
    const resolved = (JSON.parse(steps) as (number | string | number[])[][]).map((step) => {
      const places = BUFFER_PLACES[step[0] as SpanStep[0]];
      for (const place of places) (step as unknown[])[place] = this.buffers.get(step[place] as number);
      return step as unknown as SpanStep;
    });
    this.spans.execute(resolved);
  }

  /** Compare pairs of buffers on the GPU: [{a, b, bytes, dtype}] -> JSON list of Difference. */
  async compare(pairs: string): Promise<string> {
    const parsed = JSON.parse(pairs) as { a: number; b: number; bytes: number; dtype: "float32" | "float16" }[];
    const resolved = parsed.map((pair) => ({ ...pair, a: this.buffers.get(pair.a), b: this.buffers.get(pair.b) }));
    return JSON.stringify(await compareBuffers(this.watched, resolved));
  }

  /** What fills weight buffers from the chunks of a data file: [[buffer, offset, length], ...] in the file. */
  uploadWeights(spans: string): WeightUpload {
    const parsed = JSON.parse(spans) as [number, number, number][];
    const resolved = parsed.map(([buffer, offset, length]) => ({ buffer: this.buffers.get(buffer), offset, length }));
    return new WeightUpload(this.watched, resolved);
  }

  createSession(model: PyProxy, capture: boolean, owner: string): Promise<number> {
    const bytes = copyBytes(model);
    return this.exclusively(owner, async () => {
      const session = await createSession(this.ort, bytes, { device: this.watched.device, capture });
      this.watched.assertHealthy();
      return this.sessions.add({ ort: session, owner });
    });
  }

  /** A session of any model; `locations` is a JSON list of names for the data `files`. */
  openSession(
    model: PyProxy,
    capture: boolean,
    owner: string,
    locations: string,
    ...files: PyProxy[]
  ): Promise<ModelSession> {
    const side: EngineSide = {
      device: this.watched.device,
      buffer: (handle) => this.buffers.get(handle),
      adopt: (buffer, free) => {
        const handle = this.buffers.add(buffer);
        this.adopted.set(handle, free);
        return handle;
      },
      exclusively: (whose, action) => this.exclusively(whose, action),
      assertHealthy: () => this.watched.assertHealthy(),
    };
    return ModelSession.open(this.ort, model, owner, locations, files, side, capture);
  }

  /** A handle of such a session, to bind and record it by. */
  sessionHandle(session: ModelSession, owner: string): number {
    return this.sessions.add({ ort: session.session, owner });
  }

  async releaseSession(handle: number): Promise<void> {
    const session = this.sessions.take(handle);
    if (session) await this.exclusively(session.owner, () => session.ort.release());
  }

  /** Bind a session's inputs and outputs to whole buffers. */
  bind(session: number, feeds: string, fetches: string): number {
    const tensors = (json: string): Record<string, Ort.Tensor> =>
      Object.fromEntries(
        (JSON.parse(json) as BoundTensor[]).map(({ name, buffer, dtype, dims }) => [
          name,
          this.ort.Tensor.fromGpuBuffer(this.buffers.get(buffer), { dataType: dtype, dims }),
        ]),
      );
    this.sessions.get(session);
    return this.bindings.add({ session, feeds: tensors(feeds), fetches: tensors(fetches) });
  }

  unbind(handle: number): void {
    this.bindings.take(handle);
  }

  /** Run a bound session; its results are in the bound buffers, in queue order. */
  run(handle: number): Promise<void> {
    const { session, feeds, fetches } = this.bindings.get(handle);
    return this.exclusively(this.sessions.get(session).owner, async () => {
      this.watched.assertHealthy();
      try {
        await this.sessions.get(session).ort.run(feeds, fetches);
      } catch (error) {
        this.watched.assertHealthy();
        throw error instanceof EngineError
          ? error
          : new EngineError("ValidationError", `onnxruntime-web could not run the model: ${String(error)}`);
      }
    });
  }

  /** Record the first run of a captured session without executing it; returns JSON with the recording's handle. */
  record(handle: number): Promise<string> {
    const { session, feeds, fetches } = this.bindings.get(handle);
    return this.exclusively(this.sessions.get(session).owner, async () => {
      const keep = (): void => keepRegistered([...Object.values(feeds), ...Object.values(fetches)], true);
      const recorder = new DryRecorder(this.watched, keep);
      try {
        await recorder.during(() => this.sessions.get(session).ort.run(feeds, fetches));
      } catch (error) {
        throw error instanceof EngineError
          ? error
          : new EngineError("TapeError", `onnxruntime-web could not capture the decode step: ${String(error)}`);
      }
      const data = recorder.data();
      return JSON.stringify({ handle: this.recordings.add(recorder.objects), ...data });
    });
  }

  /** Make a tape of a recording; `written` lists the recorded ids of buffers that may change between replays. */
  makeTape(recording: number, played: string, written: string): number {
    const objects = this.recordings.get(recording);
    const tape = new Tape(objects, JSON.parse(played) as PlayedOp[], new Set(JSON.parse(written) as number[]));
    return this.tapes.add(tape);
  }

  /** Workgroup counts by sequence length for the next `table` number of a tape: u32 [length + 1, 3]. */
  addTable(tape: number, counts: PyProxy): void {
    const bytes = copyBytes(counts);
    this.tapes.get(tape).addTable(new Uint32Array(bytes.buffer, 0, bytes.byteLength / 4));
  }

  /** Fill recorded buffers with bytes 0xFF, which no kernel takes for a finite float. */
  poison(recording: number, buffers: string): void {
    const objects = this.recordings.get(recording);
    for (const id of JSON.parse(buffers) as number[]) {
      const buffer = objects.buffers.get(id);
      if (!buffer) throw new EngineError("TapeError", `buffer ${id} was not recorded`);
      this.watched.poison(buffer);
    }
  }

  /** For each sequence length, the counts `steps` leave in a recorded buffer: u32 [lengths, 3] as bytes. */
  async countsByLength(
    recording: number,
    steps: string,
    source: number,
    offset: number,
    mask: number,
    lengths: number,
  ): Promise<Uint8Array> {
    const objects = this.recordings.get(recording);
    const tape = new Tape(objects, JSON.parse(steps) as PlayedOp[], new Set(objects.infos.keys()));
    try {
      return await countsByLength(this.watched, tape, objects, { source, offset }, this.buffers.get(mask), lengths);
    } finally {
      tape.close();
    }
  }

  /** The counts that the indirect dispatches of a tape really get in a step at `length`: u32 [dispatches, 3] as bytes. */
  async countsOfStep(tape: number, length: number): Promise<Uint8Array> {
    const played = this.tapes.get(tape);
    played.assertPlayable();
    return countsOfStep(this.watched, played, length);
  }

  /** A recorded binding will not be run by ORT again; its buffers need not stay registered. */
  retire(handle: number): void {
    const { feeds, fetches } = this.bindings.get(handle);
    keepRegistered([...Object.values(feeds), ...Object.values(fetches)], false);
  }

  closeTape(handle: number): void {
    this.tapes.take(handle)?.close();
  }

  dropRecording(handle: number): void {
    this.recordings.take(handle);
  }

  /** The recorded id of one of our buffers. */
  recordedId(handle: number): number {
    return this.watched.info(this.buffers.get(handle)).id;
  }

  makeSampler(spec: string): number {
    const s = JSON.parse(spec) as SamplerSpec;
    const span = ([handle, offset, size]: SpanSpec): Span => ({ buffer: this.buffers.get(handle), offset, size });
    const ring = span(s.ring);
    const targets: SamplerTargets = {
      logits: this.buffers.get(s.logits),
      logitsType: s.logits_type,
      vocab: s.vocab,
      rows: 1,
      state: span(s.state),
      ring,
      ringCapacity: s.ring_capacity,
      inputIds: this.buffers.get(s.input_ids),
      mask: this.buffers.get(s.mask),
      maxLength: s.max_length,
      ...(s.position_ids === null ? {} : { positionIds: this.buffers.get(s.position_ids) }),
    };
    const sampler = this.watched.attribute("kernels", s.owner, () => new Sampler(this.watched.device, targets));
    return this.samplers.add({ sampler, reader: new RingReader(this.watched, ring, s.ring_capacity, s.owner) });
  }

  setSampling(handle: number, words: PyProxy): void {
    const bytes = copyBytes(words);
    this.samplers.get(handle).sampler.setParams(new Uint32Array(bytes.buffer, 0, bytes.byteLength / 4));
  }

  destroySampler(handle: number): void {
    const held = this.samplers.take(handle);
    held?.sampler.destroy();
    held?.reader.destroy();
  }

  /** Encode one step of a tape and nothing else; `length` is the number of valid positions it sees. */
  playOnce(tape: number, length: number): void {
    const played = this.tapes.get(tape);
    played.assertPlayable();
    const step = new StepEncoder(this.watched);
    played.encode(step, length);
    this.watched.submit([step.finish()]);
  }

  /**
   * Submit `picks` sampling steps in one command buffer, each after one step of the tape (the first of them without,
   * if `sampleFirst`), and read the picked ids back. `length` is the number of valid positions the first tape step
   * sees, `cursor` the ring index of the first pick. Resolves to [submitted, readable, host ms, ids ...].
   */
  burst(
    tape: number,
    sampler: number,
    picks: number,
    sampleFirst: boolean,
    length: number,
    cursor: number,
  ): Promise<Float64Array> {
    const start = performance.now();
    this.watched.assertHealthy();
    const held = this.samplers.get(sampler);
    const step = new StepEncoder(this.watched);
    let valid = length;
    for (let i = 0; i < picks; i++) {
      if (i > 0 || !sampleFirst) {
        const played = this.tapes.get(tape);
        played.assertPlayable();
        played.encode(step, valid++);
      }
      held.sampler.encode(step.pass);
    }
    return this.finishBurst(step, held.reader, cursor, picks, start);
  }

  /** Pick one token from the logits that are there, through ORT's own run first if `binding` is not 0. */
  async eagerBurst(binding: number, sampler: number, cursor: number): Promise<Float64Array> {
    const start = performance.now();
    if (binding) await this.run(binding);
    const held = this.samplers.get(sampler);
    const step = new StepEncoder(this.watched);
    held.sampler.encode(step.pass);
    return this.finishBurst(step, held.reader, cursor, 1, start);
  }

  private async finishBurst(
    step: StepEncoder,
    reader: RingReader,
    cursor: number,
    picks: number,
    start: number,
  ): Promise<Float64Array> {
    step.endPass();
    const read = reader.encodeCopy(step.encoder, cursor, picks);
    this.watched.submit([step.finish()]);
    const host = performance.now() - start;
    const { ids, submitted, readable }: BurstResult = await read();
    return Float64Array.of(submitted, readable, host, ...ids);
  }

  /** A turn of onnxruntime-web; the buffers it allocates meanwhile are `owner`'s. */
  private exclusively<T>(owner: string, action: () => Promise<T>): Promise<T> {
    return exclusively(async () => {
      this.watched.scratchOwner = owner;
      try {
        return await action();
      } finally {
        this.watched.scratchOwner = "";
      }
    });
  }
}
