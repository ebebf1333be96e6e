// Sessions of any ONNX model. Tensors are GPU buffers of the engine, or memory of Python's heap where the session is on
// the CPU or the element type cannot be in a GPU buffer.

import type { PyBufferView, PyProxy } from "pyodide/ffi";
import { copyBytes, withBytes } from "./crossing";
import { EngineError } from "../wire/errors";
import type { HeldSubmit } from "./gpu/held_submit";
import type { Delivery, ReadPart, Staging } from "./gpu/staging";
import { submitTimes } from "./gpu/traced_step";
import { createSession, exclusively, type ExternalFile, type Ort, type Placement, releaseUnless } from "./ort";
import { submitPending } from "./ort_remedies";
import type { Memory } from "./storage/memory";
import { tracer } from "./trace";

/**
 * A tensor of a run: at `offset` of buffer `buffer` of the engine (0 but for staging memory), else in view `view` of the
 * call, else (a fetch) in new memory of Python's heap if it is for the host, else where onnxruntime-web leaves it.
 */
interface RunTensor {
  name: string;
  dtype: Ort.Tensor.Type;
  dims: number[];
  buffer?: number;
  offset?: number;
  view?: number;
  host?: boolean;
}

/** A result: in buffer `buffer`, in the array of this index that Python made, or in the fetch's place. */
interface ResultTensor {
  name: string;
  dtype: Ort.Tensor.Type;
  dims: readonly number[];
  buffer?: number;
  bytes?: number;
  data?: number;
}

/** A weight that is an input of the rewritten graph: a buffer of the engine that sessions share. */
interface Weight {
  name: string;
  dtype: Ort.Tensor.GpuBufferDataTypes;
  dims: number[];
  buffer: number;
}

/** The results of a run when its turn is over. */
interface RunOutcome {
  told: ResultTensor[];
  /** Bytes for Python's heap: there already, or the part of this index of what is read. */
  arrivals: { view: number | null; data: Uint8Array | number }[];
  /** Has the parts read; see Staging.begin. */
  finish: (take: (mapped: Uint8Array[]) => void) => Promise<number>;
}

/** The parts of the engine that a session on the GPU needs. */
export interface EngineSide {
  device: GPUDevice;
  staging: Staging;
  held: HeldSubmit;
  buffer(handle: number): GPUBuffer;
  /** A handle for a buffer that onnxruntime-web made; `free` gives it back. */
  adopt(buffer: GPUBuffer, free: () => void): number;
  exclusively<T>(owner: string, action: () => Promise<T>): Promise<T>;
  assertHealthy(): void;
}

type Constructor = new (buffer: ArrayBufferLike, offset: number, length: number) => Float32Array;

/** float16 is given as its bits; onnxruntime-common sees a Float16Array in them where there is one. */
const ELEMENTS: Record<string, { make: unknown; size: number }> = {
  float32: { make: Float32Array, size: 4 },
  float64: { make: Float64Array, size: 8 },
  float16: { make: Uint16Array, size: 2 },
  int64: { make: BigInt64Array, size: 8 },
  uint64: { make: BigUint64Array, size: 8 },
  int32: { make: Int32Array, size: 4 },
  uint32: { make: Uint32Array, size: 4 },
  int16: { make: Int16Array, size: 2 },
  uint16: { make: Uint16Array, size: 2 },
  int8: { make: Int8Array, size: 1 },
  uint8: { make: Uint8Array, size: 1 },
  bool: { make: Uint8Array, size: 1 },
};

/** Element types of tensors that onnxruntime-web accepts as GPU buffers. */
const IN_BUFFERS = new Set(["float32", "float16", "int32", "int64", "uint32", "uint8", "bool"]);

export class OnnxSession {
  /** Results in onnxruntime-web's memory that were not freed: the session must outlive them. */
  private held = 0;
  private released = false;

  private constructor(
    private readonly ort: typeof Ort,
    readonly session: Ort.InferenceSession,
    private readonly owner: string,
    private readonly engine: EngineSide | null,
    /** Inputs of every run that the caller does not know. */
    private readonly weights: Record<string, Ort.Tensor>,
  ) {}

  /** A session on the CPU; `locations` is a JSON list of names for the data `files`. */
  static async onCpu(
    loading: Promise<typeof Ort>,
    model: PyProxy,
    owner: string,
    locations: string,
    files: Memory[],
  ): Promise<OnnxSession> {
    const bytes = copyBytes(model);
    const external = (JSON.parse(locations) as string[]).map((path, i): ExternalFile => ({
      path,
      data: files[i]!.bytes,
    }));
    const ort = await loading;
    const session = await exclusively(() => createSession(ort, bytes, "wasm", external));
    return new OnnxSession(ort, session, owner, null, {});
  }

  /** A session on the engine's device, captured or not; `weights` is a JSON list of Weight. */
  static async onGpu(
    ort: typeof Ort,
    model: PyProxy,
    owner: string,
    weights: string,
    engine: EngineSide,
    capture: boolean,
  ): Promise<OnnxSession> {
    const bytes = copyBytes(model);
    const bound = (JSON.parse(weights) as Weight[]).map(({ name, dtype, dims, buffer }) => [
      name,
      ort.Tensor.fromGpuBuffer(engine.buffer(buffer), { dataType: dtype, dims }),
    ]);
    const make = async (): Promise<Ort.InferenceSession> => {
      const placement: Placement = { device: engine.device, capture };
      const session = await createSession(ort, bytes, placement);
      const outputs = session.outputMetadata.map((output) => [output.name, output.isTensor ? output.type : ""]);
      if (outputs.every(([, type]) => IN_BUFFERS.has(type!))) return session;
      // Known only now: some outputs cannot be in a GPU buffer.
      await session.release();
      const places = outputs.map(([name, type]) => [name, IN_BUFFERS.has(type!) ? "gpu-buffer" : "cpu"]);
      return createSession(ort, bytes, { ...placement, outputs: Object.fromEntries(places) });
    };
    const session = await engine.exclusively(owner, async () => {
      const made = await make();
      await releaseUnless(made, () => engine.assertHealthy());
      return made;
    });
    return new OnnxSession(ort, session, owner, engine, Object.fromEntries(bound) as Record<string, Ort.Tensor>);
  }

  /**
   * Inputs and outputs as JSON: [[[name, dtype, dims], ...], [...]]; a free dimension is its name or "". Weights are not
   * among the inputs.
   */
  specs(): string {
    const list = (all: readonly Ort.InferenceSession.ValueMetadata[]): unknown[] =>
      all
        .filter(({ name }) => !Object.hasOwn(this.weights, name))
        .map((value) => (value.isTensor ? [value.name, value.type, value.shape] : [value.name, "no tensor", []]));
    return JSON.stringify([list(this.session.inputMetadata), list(this.session.outputMetadata)]);
  }

  /**
   * Run once. `feeds` and `fetches` are JSON lists of RunTensor, `views` Python buffers. Results for the host come through
   * one staging buffer, copied in the run's own last submit. For results without a view `allocate` makes Python buffers:
   * it takes a JSON list of sizes and returns a list. Resolves to JSON: [RunResults, number of maps]. If a result has
   * another shape than the memory bound to it, nothing is written.
   */
  async run(feeds: string, fetches: string, allocate: PyProxy, ...views: PyProxy[]): Promise<string> {
    // The arguments' own proxies may end before this run has its turn.
    const held = [allocate, ...views].map((view) => view.copy());
    const [make, ...memory] = held;
    const inputs = JSON.parse(feeds) as RunTensor[];
    const wanted = JSON.parse(fetches) as RunTensor[];
    try {
      const { engine } = this;
      const { told, arrivals, finish } = await (engine
        ? engine.exclusively(this.owner, () => this.runOnGpu(engine, inputs, wanted, memory))
        : exclusively(async () => this.outcome(wanted, await this.runOnce(inputs, wanted, memory))));
      const maps = await finish((mapped) => {
        const begun = performance.now();
        arrive(arrivals, mapped, memory, make!);
        tracer.add("copy", "results of a run", begun);
      });
      return JSON.stringify([told, maps]);
    } finally {
      for (const proxy of held) proxy.destroy();
    }
  }

  private async runOnGpu(
    engine: EngineSide,
    inputs: RunTensor[],
    wanted: RunTensor[],
    memory: PyProxy[],
  ): Promise<RunOutcome> {
    engine.assertHealthy();
    for (const { buffer } of wanted) if (buffer !== undefined) engine.staging.requireUnmapped(engine.buffer(buffer));
    const begun = performance.now();
    if (wanted.some((tensor) => !this.isLeft(tensor))) engine.held.begin();
    try {
      return this.outcome(wanted, await this.runOnce(inputs, wanted, memory));
    } finally {
      engine.held.end();
      const end = performance.now();
      if (tracer.on) tracer.submit("onnxruntime-web's run", begun, end, submitTimes(engine.device), null);
    }
  }

  /** Release the session; results that are still held keep it until the last of them is freed. */
  async release(): Promise<void> {
    this.released = true;
    if (this.held === 0) await this.end();
  }

  private end(): Promise<void> {
    const action = (): Promise<void> => this.session.release();
    return this.engine ? this.engine.exclusively(this.owner, action) : exclusively(action);
  }

  /** Whether a result stays where the run leaves it. */
  private isLeft({ buffer, view, host }: RunTensor): boolean {
    if (buffer !== undefined) return !isMappable(this.engine!.buffer(buffer));
    return view === undefined && !host;
  }

  private async runOnce(
    inputs: RunTensor[],
    wanted: RunTensor[],
    held: PyProxy[],
  ): Promise<Ort.InferenceSession.OnnxValueMapType> {
    const fetches: Record<string, Ort.Tensor | null> = {};
    for (const tensor of wanted)
      fetches[tensor.name] = tensor.buffer !== undefined && this.isLeft(tensor) ? this.inBuffer(tensor) : null;
    // onnxruntime-web copies from views of Python's heap; growth of that heap detaches them, so then it gets copies.
    for (const copied of [false, true]) {
      const seen: PyBufferView[] = [];
      try {
        const feeds: Record<string, Ort.Tensor> = { ...this.weights };
        for (const tensor of inputs)
          feeds[tensor.name] =
            tensor.buffer === undefined ? this.inMemory(tensor, held, seen, copied) : this.inBuffer(tensor);
        return await this.session.run(feeds, fetches as Ort.InferenceSession.FetchesType);
      } catch (error) {
        this.engine?.assertHealthy();
        if (error instanceof EngineError) throw error;
        if (!copied && seen.some((view) => view.data.buffer.byteLength === 0)) continue;
        if (this.engine) await submitPending(this.ort, this.engine.device).catch(() => undefined);
        const code = /provided for output|shape verification failed/i.test(String(error))
          ? "BindingError"
          : "ValidationError";
        throw new EngineError(code, `onnxruntime-web could not run the model: ${String(error)}`);
      } finally {
        for (const view of seen) view.release();
      }
    }
    throw new EngineError("ValidationError", "onnxruntime-web could not run the model on copies of its inputs");
  }

  private inBuffer({ buffer, dtype, dims }: RunTensor): Ort.Tensor {
    const dataType = dtype as Ort.Tensor.GpuBufferDataTypes;
    return this.ort.Tensor.fromGpuBuffer(this.engine!.buffer(buffer!), { dataType, dims });
  }

  private inMemory(
    { dtype, dims, view }: RunTensor,
    held: PyProxy[],
    seen: PyBufferView[],
    copied: boolean,
  ): Ort.Tensor {
    const { make, size } = ELEMENTS[dtype]!;
    const found = (held[view!] as unknown as { getBuffer(type: "u8"): PyBufferView }).getBuffer("u8");
    seen.push(found);
    let bytes = found.data as Uint8Array;
    if (copied || bytes.byteOffset % size) bytes = bytes.slice();
    const data = new (make as Constructor)(bytes.buffer, bytes.byteOffset, bytes.length / size);
    return new this.ort.Tensor(dtype as "float32", data, dims);
  }

  /** Places each result, and queues the copies of those for the host. */
  private outcome(wanted: RunTensor[], results: Ort.InferenceSession.OnnxValueMapType): RunOutcome {
    const told: ResultTensor[] = [];
    const arrivals: RunOutcome["arrivals"] = [];
    const parts: ReadPart[] = [];
    const deliveries: Delivery[] = [];
    /** Tensors in memory of onnxruntime-web: to be kept, and of no use once they are copied. */
    const kept: [ResultTensor, Ort.Tensor][] = [];
    const passing = new Set<Ort.Tensor>();
    const fits = wanted.every(
      ({ name, dims, buffer, view }) =>
        (buffer === undefined && view === undefined) || dims.join() === results[name]!.dims.join(),
    );
    let arrays = 0;
    for (const { name, buffer, offset, view, host } of wanted) {
      const tensor = results[name] as Ort.Tensor;
      const { type: dtype, dims } = tensor;
      const result: ResultTensor = { name, dtype, dims };
      told.push(result);
      const target = buffer === undefined ? null : this.engine!.buffer(buffer);
      const source = tensor.location === "gpu-buffer" ? (tensor.gpuBuffer as unknown as GPUBuffer) : null;
      if (target && !isMappable(target)) continue;
      const stays = source && !target && view === undefined && !host;
      if (source && stays && fits) kept.push([result, tensor]);
      else if (source) passing.add(tensor);
      if (stays || !fits) continue;
      const bytes = dims.reduce((product, size) => product * size, ELEMENTS[dtype]!.size);
      if (target) {
        if (source && bytes) deliveries.push({ source, target, offset: offset ?? 0, bytes });
        continue;
      }
      const data = source ? parts.push({ buffer: source, offset: 0, bytes }) - 1 : bytesOf(tensor);
      arrivals.push({ view: view ?? null, data });
      if (view === undefined) result.data = arrays++;
    }
    try {
      const finish = this.engine?.staging.begin(parts, deliveries) ?? nothingToRead;
      for (const [result, tensor] of kept.splice(0)) Object.assign(result, this.adopt(tensor));
      return { told, arrivals, finish };
    } finally {
      for (const tensor of [...passing, ...kept.map(([, tensor]) => tensor)]) tensor.dispose();
    }
  }

  /** Take over a result in memory of onnxruntime-web; it goes back when its handle is destroyed. */
  private adopt(tensor: Ort.Tensor): { buffer: number; bytes: number } {
    const engine = this.engine!;
    const { gpuBuffer } = tensor;
    this.held++;
    const free = (): void => {
      const action = (): Promise<void> => {
        tensor.dispose();
        this.held--;
        return Promise.resolve();
      };
      void engine.exclusively(this.owner, action).then(() => {
        if (this.released && this.held === 0) return this.end();
        return undefined;
      });
    };
    return {
      buffer: engine.adopt(gpuBuffer as unknown as GPUBuffer, free),
      bytes: (gpuBuffer as unknown as GPUBuffer).size,
    };
  }
}

/** Whether a buffer is staging memory: no kernel can use it. */
function isMappable({ usage }: GPUBuffer): boolean {
  return (usage & GPUBufferUsage.MAP_READ) !== 0;
}

function nothingToRead(take: (mapped: Uint8Array[]) => void): Promise<number> {
  take([]);
  return Promise.resolve(0);
}

/** The bytes of a tensor in the host's memory. */
function bytesOf(tensor: Ort.Tensor): Uint8Array {
  const { buffer, byteOffset, byteLength } = tensor.data as Uint8Array;
  return new Uint8Array(buffer, byteOffset, byteLength);
}

/** Copy results to Python's heap: each to its view, the others to arrays that `allocate` makes for all of them. */
function arrive(arrivals: RunOutcome["arrivals"], mapped: Uint8Array[], memory: PyProxy[], allocate: PyProxy): void {
  const found = arrivals.map(({ view, data }) => ({ view, bytes: typeof data === "number" ? mapped[data]! : data }));
  const fresh = found.filter(({ view }) => view === null);
  // Before any view is looked at: Python's heap may grow.
  const made = fresh.length
    ? allocated(
        allocate,
        fresh.map(({ bytes }) => bytes.length),
      )
    : [];
  try {
    fresh.forEach(({ bytes }, i) => withBytes(made[i]!, (into) => into.set(bytes)));
    for (const { view, bytes } of found) if (view !== null) withBytes(memory[view]!, (into) => into.set(bytes));
  } finally {
    for (const array of made) array.destroy();
  }
}

function allocated(allocate: PyProxy, sizes: number[]): PyProxy[] {
  const list = (allocate as unknown as (sizes: string) => PyProxy & { get(index: number): PyProxy })(
    JSON.stringify(sizes),
  );
  const made = sizes.map((_, i) => list.get(i));
  list.destroy();
  return made;
}
