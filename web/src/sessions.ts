// Sessions of any ONNX model. Tensors are GPU buffers of the engine, or memory of Python's heap where the session is on
// the CPU or the element type cannot be in a GPU buffer.

import type { PyBufferView, PyProxy } from "pyodide/ffi";
import { copyBytes, withBytes } from "./crossing";
import { EngineError } from "./errors";
import {
  createSession,
  exclusively,
  type ExternalFile,
  type Ort,
  type Placement,
  releaseUnless,
  submitPending,
} from "./ort";
import type { Memory } from "./storage/memory";

/** A tensor of a run: in buffer `buffer` of the engine, else in view `view` of the call, else (a fetch) in neither. */
interface RunTensor {
  name: string;
  dtype: Ort.Tensor.Type;
  dims: number[];
  buffer?: number;
  view?: number;
}

/** A result: in buffer `buffer`, in array `data` of the reply, or where the fetch said. */
interface RunResult {
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

/** What a session on the GPU needs of its engine. */
export interface EngineSide {
  device: GPUDevice;
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

/** What onnxruntime-web takes a GPU buffer for. */
const IN_BUFFERS = new Set(["float32", "float16", "int32", "int64", "uint32", "uint8", "bool"]);

export class ModelSession {
  /** Results of onnxruntime-web's own memory that nobody freed: the session must outlive them. */
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
  ): Promise<ModelSession> {
    const bytes = copyBytes(model);
    const external = (JSON.parse(locations) as string[]).map((path, i): ExternalFile => ({
      path,
      data: files[i]!.bytes,
    }));
    const ort = await loading;
    const session = await exclusively(() => createSession(ort, bytes, "wasm", external));
    return new ModelSession(ort, session, owner, null, {});
  }

  /** A session on the engine's device, captured or not; `weights` is a JSON list of Weight. */
  static async onGpu(
    ort: typeof Ort,
    model: PyProxy,
    owner: string,
    weights: string,
    engine: EngineSide,
    capture: boolean,
  ): Promise<ModelSession> {
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
    return new ModelSession(ort, session, owner, engine, Object.fromEntries(bound) as Record<string, Ort.Tensor>);
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
   * Run once. `feeds` and `fetches` are JSON lists of RunTensor, `views` Python buffers. Resolves to
   * [JSON list of RunResult, bytes, ...], where a result's `data` is the place of its bytes.
   */
  async run(feeds: string, fetches: string, ...views: PyProxy[]): Promise<(string | Uint8Array)[]> {
    // The arguments' own proxies may end before this run has its turn.
    const held = views.map((view) => view.copy());
    const inputs = JSON.parse(feeds) as RunTensor[];
    const wanted = JSON.parse(fetches) as RunTensor[];
    const action = async (): Promise<(string | Uint8Array)[]> => {
      this.engine?.assertHealthy();
      const results = await this.runOnce(inputs, wanted, held);
      return this.reply(wanted, results, held);
    };
    try {
      return await (this.engine ? this.engine.exclusively(this.owner, action) : exclusively(action));
    } finally {
      for (const view of held) view.destroy();
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

  private async runOnce(
    inputs: RunTensor[],
    wanted: RunTensor[],
    held: PyProxy[],
  ): Promise<Ort.InferenceSession.OnnxValueMapType> {
    const fetches: Record<string, Ort.Tensor | null> = {};
    for (const tensor of wanted) fetches[tensor.name] = tensor.buffer === undefined ? null : this.inBuffer(tensor);
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

  private reply(
    wanted: RunTensor[],
    results: Ort.InferenceSession.OnnxValueMapType,
    held: PyProxy[],
  ): (string | Uint8Array)[] {
    const arrays: Uint8Array[] = [];
    const told = wanted.map(({ name, dims: expected, buffer, view }): RunResult => {
      const tensor = results[name] as Ort.Tensor;
      const { type: dtype, dims } = tensor;
      if (buffer !== undefined) return { name, dtype, dims };
      if (tensor.location === "gpu-buffer") return { name, dtype, dims, ...this.adopt(tensor) };
      const { buffer: memory, byteOffset, byteLength } = tensor.data as Uint8Array;
      const bytes = new Uint8Array(memory, byteOffset, byteLength);
      if (view === undefined) return { name, dtype, dims, data: arrays.push(bytes) };
      if (dims.join() !== expected.join()) {
        throw new EngineError(
          "BindingError",
          `output '${name}' is bound to memory of shape [${expected}], the result has [${dims}]; bind one of that shape`,
        );
      }
      withBytes(held[view]!, (target) => target.set(bytes));
      return { name, dtype, dims };
    });
    return [JSON.stringify(told), ...arrays];
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
