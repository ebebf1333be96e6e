// The CPU execution provider: where there is no WebGPU, or only a software adapter. Weights stay initializers here
// (onnxruntime-web would copy them into its heap at every run), and Python samples from the logits.

import type { Assets } from "./assets";
import type { PyProxy } from "pyodide/ffi";
import { copyBytes } from "./crossing";
import { EngineError } from "./errors";
import { fromHalf } from "./half";
import { createSession, exclusively, loadOrt, type Ort } from "./ort";
import type { Memory } from "./storage/memory";
import { tracer } from "./trace";
import { widened, type WideWeight } from "./wide_weights";

/** The graph's names of its inputs and outputs, and the shapes of its caches. */
interface SequenceSpec {
  ids: string;
  mask: string;
  /** null where the graph has no position ids. */
  positions: string | null;
  logits: string;
  /** Caches; they begin without positions if they grow with each run. */
  caches: StateSpec[];
  /** The states that each run overwrites as a whole. */
  states: StateSpec[];
}

type StateSpec = [input: string, output: string, dtype: "float32" | "float16", dims: number[]];

/** The array types of adapters' tensors. */
const ARRAYS = {
  ...{ float32: Float32Array, float16: Uint16Array, uint8: Uint8Array, int8: Int8Array },
  ...{ int32: Int32Array, uint32: Uint32Array, int16: Int16Array, uint16: Uint16Array },
} as const;

const BYTES = { float32: 4, float16: 2 };

/** Messages wait no longer than this and a step. */
const BREATH_MS = 25;

/** The input that says from which position on logits are computed; capstan.device.wasm.model adds it to graphs. */
const FIRST_LOGITS = "capstan_first_logits";

/** One session; each sequence is a WasmDecoder on it. */
export class WasmEngine {
  private closed = false;

  private constructor(
    private readonly ort: typeof Ort,
    private readonly session: Ort.InferenceSession,
  ) {}

  /**
   * `paths` is a JSON array with the name of each file of `external`, as the graph names it, `wide` one of WideWeight: the
   * files to be made of these.
   */
  static async open(
    assets: Assets,
    model: PyProxy,
    paths: string,
    wide: string,
    external: Memory[],
  ): Promise<WasmEngine> {
    const bytes = copyBytes(model);
    const given = (JSON.parse(paths) as string[]).map((path, i) => ({ path, data: external[i]!.bytes }));
    const read = new Map(given.map(({ path, data }) => [path, data]));
    const begun = performance.now();
    const made = (JSON.parse(wide) as WideWeight[]).map((each) => ({ path: each.location, data: widened(each, read) }));
    if (made.length) tracer.add("load", "widen weights", begun);
    const files = [...given, ...made];
    const ort = await loadOrt(assets, "cpu");
    return new WasmEngine(ort, await exclusively(() => createSession(ort, bytes, "wasm", files)));
  }

  decoder(spec: string): WasmDecoder {
    const cut = this.session.inputNames.includes(FIRST_LOGITS);
    return new WasmDecoder(this.ort, JSON.parse(spec) as SequenceSpec, cut, (feeds) => this.run(feeds));
  }

  close(): Promise<void> {
    this.closed = true;
    return exclusively(() => this.session.release());
  }

  private run(feeds: Record<string, Ort.Tensor>): Promise<Ort.InferenceSession.OnnxValueMapType> {
    return exclusively(async () => {
      if (this.closed) throw new EngineError("ClosedError", "the model of this generator was closed; load it again");
      try {
        return await this.session.run(feeds);
      } catch (error) {
        throw new EngineError(
          "ValidationError",
          `onnxruntime-web could not run the model on the CPU: ${String(error)}`,
        );
      }
    });
  }
}

/** One sequence's KV cache, kept as CPU tensors of the full max_length or of the positions that there are, and its other
 * states. */
export class WasmDecoder {
  private cache: Record<string, Ort.Tensor>;
  /** The inputs that LoRA adapters fill. */
  private adapter: Record<string, Ort.Tensor> = {};
  /** Snapshots by slot. A run makes new tensors, so the earlier ones are snapshots without a copy. */
  private readonly snapshots = new Map<number, Record<string, Ort.Tensor>>();

  constructor(
    private readonly ort: typeof Ort,
    private readonly spec: SequenceSpec,
    private readonly cut: boolean,
    private readonly run: (feeds: Record<string, Ort.Tensor>) => Promise<Ort.InferenceSession.OnnxValueMapType>,
  ) {
    this.cache = this.zeros([...spec.caches, ...spec.states]);
  }

  /** The bytes of a cache or state, by the name of the input that reads it. */
  carried(name: string): Uint8Array {
    const { buffer, byteOffset, byteLength } = this.cache[name]!.data as Float32Array;
    return new Uint8Array(buffer, byteOffset, byteLength);
  }

  keepStates(slot: number): void {
    this.snapshots.set(slot, Object.fromEntries(this.spec.states.map(([input]) => [input, this.cache[input]!])));
  }

  /** A slot below 0: the states before the first token. */
  bringStates(slot: number): void {
    Object.assign(this.cache, slot < 0 ? this.zeros(this.spec.states) : this.snapshots.get(slot)!);
  }

  /** Feed these from now on, in place of what was set before: a JSON array of [name, dtype, dims], and the bytes of all,
   * one behind the other. */
  setAdapter(tensors: string, data: PyProxy): void {
    const bytes = copyBytes(data);
    let at = 0;
    this.adapter = {};
    for (const [name, dtype, dims] of JSON.parse(tensors) as [string, keyof typeof ARRAYS, number[]][]) {
      const kind = ARRAYS[dtype];
      const length = dims.reduce((product, dim) => product * dim, kind.BYTES_PER_ELEMENT);
      const values = new kind(bytes.slice(at, at + length).buffer);
      this.adapter[name] = new this.ort.Tensor(dtype, values as never, dims);
      at += length;
    }
  }

  /** Become what another sequence of the same model is: a run makes new tensors, so that both may have the old ones. */
  copyFrom(other: WasmDecoder): void {
    this.cache = { ...other.cache };
  }

  /**
   * Run the model on `ids` (int64 [n]) after `past` positions, under a mask int64 [max_length or past + n];
   * resolves to the last `kept` positions' logits as float32 [kept, vocab].
   */
  async step(ids: PyProxy, mask: PyProxy, past: number, kept: number): Promise<Float32Array> {
    this.rewind(past);
    const tokens = new BigInt64Array(copyBytes(ids).buffer);
    const valid = new BigInt64Array(copyBytes(mask).buffer);
    const int64 = (data: BigInt64Array): Ort.Tensor => new this.ort.Tensor("int64", data, [1, data.length]);
    const { ids: idsName, mask: maskName, positions } = this.spec;
    const feeds: Record<string, Ort.Tensor> = {
      ...{ [idsName]: int64(tokens), [maskName]: int64(valid) },
      ...this.cache,
      ...this.adapter,
    };
    if (positions !== null) feeds[positions] = int64(tokens.map((_, i) => BigInt(past + i)));
    if (this.cut) feeds[FIRST_LOGITS] = new this.ort.Tensor("int64", BigInt64Array.of(BigInt(-kept)), [1]);
    await breathe();
    const results = await this.run(feeds);
    const carried = [...this.spec.caches, ...this.spec.states];
    this.cache = Object.fromEntries(carried.map(([input, output]) => [input, results[output]!]));
    const logits = results[this.spec.logits]!;
    const vocab = logits.dims[logits.dims.length - 1]!;
    return lastElements(logits, kept * vocab);
  }

  /** Make the first `length` positions of the caches those of another sequence, whose caches may be of another size. */
  adopt(other: WasmDecoder, length: number): void {
    for (const [input, , dtype, dims] of this.spec.caches) {
      const [batch, heads, positions, size] = dims as [number, number, number, number];
      // Caches that grow have exactly the present positions.
      const room = positions === 0 ? length : positions;
      const made = this.positionsOf(other.cache[input]!, dtype, batch * heads, size, length, room);
      this.cache[input] = this.tensor(dtype, made, [batch, heads, room, size]);
    }
  }

  /** Let caches that grow have no more than the first `past` positions. */
  private rewind(past: number): void {
    for (const [input, , dtype, dims] of this.spec.caches) {
      const [batch, heads, positions, size] = dims as [number, number, number, number];
      const tensor = this.cache[input]!;
      const length = tensor.dims[2]!;
      if (positions !== 0 || length === past) continue;
      const kept = this.positionsOf(tensor, dtype, batch * heads, size, past, past);
      this.cache[input] = this.tensor(dtype, kept, [batch, heads, past, size]);
    }
  }

  /** The first `count` positions of each head of a cache, at the start of `room` positions each. */
  private positionsOf(
    cache: Ort.Tensor,
    dtype: "float32" | "float16",
    heads: number,
    size: number,
    count: number,
    room: number,
  ): ArrayBuffer {
    const { buffer, byteOffset } = cache.data as Float32Array;
    const row = size * BYTES[dtype];
    const length = cache.dims[2]!;
    const made = new Uint8Array(heads * room * row);
    for (let head = 0; head < heads; head++)
      made.set(new Uint8Array(buffer, byteOffset + head * length * row, count * row), head * room * row);
    return made.buffer;
  }

  private zeros(specs: StateSpec[]): Record<string, Ort.Tensor> {
    return Object.fromEntries(
      specs.map(([input, , dtype, dims]) => {
        const bytes = dims.reduce((product, dim) => product * dim, BYTES[dtype]);
        return [input, this.tensor(dtype, new ArrayBuffer(bytes), dims)];
      }),
    );
  }

  private tensor(dtype: "float32" | "float16", data: ArrayBuffer, dims: number[]): Ort.Tensor {
    return dtype === "float32"
      ? new this.ort.Tensor("float32", new Float32Array(data), dims)
      : new this.ort.Tensor("float16", new Uint16Array(data), dims);
  }
}

let breathed = 0;

/**
 * Let the worker take messages. Python's tasks follow one another through a MessageChannel; where each computes for some
 * time, Chromium keeps the worker's messages and timers waiting for twenty of them and more, so that a cancel comes too
 * late. Behind a timer they have their turn.
 */
async function breathe(): Promise<void> {
  if (performance.now() - breathed < BREATH_MS) return;
  await new Promise((resolve) => setTimeout(resolve));
  breathed = performance.now();
}

function lastElements(logits: Ort.Tensor, count: number): Float32Array {
  const { data } = logits;
  if (data instanceof Float32Array) return data.slice(data.length - count);
  if (data instanceof Uint16Array) return Float32Array.from(data.subarray(data.length - count), fromHalf);
  const halves = data as unknown as ArrayLike<number> & { length: number };
  return Float32Array.from({ length: count }, (_, i) => halves[halves.length - count + i]!);
}
