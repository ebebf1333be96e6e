// The CPU execution provider: where there is no WebGPU, or only a software adapter. Weights stay initializers here
// (onnxruntime-web would copy them into its heap at every run), and Python samples from the logits.

import type { Assets } from "../wire/assets";
import type { PyProxy } from "pyodide/ffi";
import { copyBytes } from "./crossing";
import { EngineError } from "../wire/errors";
import { fromHalf } from "./half";
import { breathe } from "./messages";
import { withPeaks } from "./peaks";
import { createSession, type ExternalFile, exclusively, loadOrt, type Ort } from "./ort";
import type { Memory } from "./storage/memory";
import { tracer } from "./trace";
import { unpack, type UnpackedWeight } from "./unpacked_weights";
import { widen, type WideWeight } from "./wide_weights";

/** The graph's names of its inputs and outputs, and the shapes of its caches. */
interface SequenceSpec {
  ids: string;
  idsType: "int64" | "int32";
  /** null where the graph has no mask. */
  mask: string | null;
  /** null where the graph has no position ids. */
  positions: string | null;
  logits: string;
  /** The output that a multi-token-prediction head reads; null for a model without a head. */
  hidden: string | null;
  /** Caches of the sequence's capacity, or without positions if they grow with each run. */
  caches: StateSpec[];
  /** The states that each run overwrites as a whole. */
  states: StateSpec[];
}

type StateSpec = [input: string, output: string, dtype: "float32" | "float16", dims: number[]];

/** The array types of inputs that Python makes. */
const ARRAYS = {
  int64: BigInt64Array,
  ...{ float32: Float32Array, float16: Uint16Array, uint8: Uint8Array, int8: Int8Array },
  ...{ int32: Int32Array, uint32: Uint32Array, int16: Int16Array, uint16: Uint16Array },
} as const;

const BYTES = { float32: 4, float16: 2 };

/**
 * Caches have room for a multiple of this number of positions. Each run copies them into onnxruntime-web's heap and
 * back: caches of the whole capacity would cost a short sequence more time than the model itself.
 */
const ROOM = 256;

/** The input that says from which position on logits are computed; capstan.device.wasm.wasm_model adds it to graphs. */
const FIRST_LOGITS = "capstan_first_logits";

/** One session; each sequence is a WasmDecoder on it. */
export class WasmEngine {
  private closed = false;

  private constructor(
    private readonly ort: typeof Ort,
    private readonly session: Ort.InferenceSession,
  ) {}

  /**
   * `paths` is a JSON array with the name of each file of `external`, as the graph names it, `made` one of the weights to
   * be made of these.
   */
  static async open(
    assets: Assets,
    model: PyProxy,
    paths: string,
    made: string,
    external: Memory[],
  ): Promise<WasmEngine> {
    const bytes = copyBytes(model);
    const given = (JSON.parse(paths) as string[]).map((path, i) => ({ path, data: external[i]!.bytes }));
    const read = new Map(given.map(({ path, data }) => [path, data]));
    const weights = (JSON.parse(made) as (WideWeight | UnpackedWeight)[]).map((each) =>
      "parts" in each
        ? { path: each.location, bytes: each.bytes, make: (into: ArrayBuffer) => unpack(each, read, into) }
        : { path: each.location, bytes: 4 * each.n * each.k, make: (into: ArrayBuffer) => widen(each, read, into) },
    );
    const files = [...given, ...madeLater(weights)];
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

/** One sequence's KV cache, kept as CPU tensors with room for its positions or with exactly these, and its other states. */
export class WasmDecoder {
  private cache: Record<string, Ort.Tensor>;
  /** The inputs that Python makes: those of LoRA adapters, rotary tables. */
  private readonly fed: Record<string, Ort.Tensor> = {};
  /** Snapshots by slot. A run makes new tensors, so the earlier ones are snapshots without a copy. */
  private readonly snapshots = new Map<number, Record<string, Ort.Tensor>>();
  /** The hidden states of all tokens of the last run. */
  private hidden: Ort.Tensor | undefined;

  constructor(
    private readonly ort: typeof Ort,
    private readonly spec: SequenceSpec,
    private readonly cut: boolean,
    private readonly run: (feeds: Record<string, Ort.Tensor>) => Promise<Ort.InferenceSession.OnnxValueMapType>,
  ) {
    this.cache = { ...this.zeros(spec.states), ...this.zeros(spec.caches.map((cache) => this.withRoom(cache, 0))) };
  }

  /** The bytes of a cache or state, by the name of the input that reads it. */
  carried(name: string): Uint8Array {
    return bytesOf(this.cache[name]!);
  }

  /** The bytes of the hidden states of all tokens of the last run. */
  hiddenStates(): Uint8Array {
    return bytesOf(this.hidden!);
  }

  keepStates(slot: number): void {
    this.snapshots.set(slot, Object.fromEntries(this.spec.states.map(([input]) => [input, this.cache[input]!])));
  }

  /** A slot below 0: the states before the first token. */
  bringStates(slot: number): void {
    Object.assign(this.cache, slot < 0 ? this.zeros(this.spec.states) : this.snapshots.get(slot)!);
  }

  /** Feed these from now on, in place of those of the same names: a JSON array of [name, dtype, dims], and the bytes of
   * all, one after the other. */
  feed(tensors: string, data: PyProxy): void {
    const bytes = copyBytes(data);
    let at = 0;
    for (const [name, dtype, dims] of JSON.parse(tensors) as [string, keyof typeof ARRAYS, number[]][]) {
      const kind = ARRAYS[dtype];
      const length = dims.reduce((product, dim) => product * dim, kind.BYTES_PER_ELEMENT);
      const values = new kind(bytes.slice(at, at + length).buffer);
      this.fed[name] = new this.ort.Tensor(dtype, values as never, dims);
      at += length;
    }
  }

  /** Become what another sequence of the same model is: a run makes new tensors, so that both may have the old ones. */
  copyFrom(other: WasmDecoder): void {
    this.cache = { ...other.cache };
    Object.assign(this.fed, other.fed);
  }

  /**
   * Run the model on `ids` (int64 [n]) after `past` positions; resolves to the last `kept` positions' logits as float32
   * [kept, vocab], with their peaks.
   */
  async step(ids: PyProxy, past: number, kept: number): Promise<[logits: Float32Array, peaks: Float32Array]> {
    const tokens = new BigInt64Array(copyBytes(ids).buffer);
    const length = past + tokens.length;
    const room = this.makeRoom(past, length);
    const int64 = (data: BigInt64Array): Ort.Tensor => new this.ort.Tensor("int64", data, [1, data.length]);
    const { ids: idsName, idsType, mask: maskName, positions } = this.spec;
    const feeds: Record<string, Ort.Tensor> = { ...this.cache, ...this.fed };
    feeds[idsName] =
      idsType === "int64"
        ? int64(tokens)
        : new this.ort.Tensor("int32", Int32Array.from(tokens, Number), [1, tokens.length]);
    // The mask has as many positions as the caches: attention reads their length from it.
    if (maskName !== null) feeds[maskName] = int64(new BigInt64Array(room).fill(1n, 0, length));
    if (positions !== null) feeds[positions] = int64(tokens.map((_, i) => BigInt(past + i)));
    if (this.cut) feeds[FIRST_LOGITS] = new this.ort.Tensor("int64", BigInt64Array.of(BigInt(-kept)), [1]);
    await breathe();
    const results = await this.run(feeds);
    const carried = [...this.spec.caches, ...this.spec.states];
    this.cache = Object.fromEntries(carried.map(([input, output]) => [input, results[output]!]));
    if (this.spec.hidden !== null) this.hidden = results[this.spec.hidden]!;
    const logits = results[this.spec.logits]!;
    const vocab = logits.dims[logits.dims.length - 1]!;
    return withPeaks(lastElements(logits, kept * vocab));
  }

  close(): void {
    /* The caches are freed with the last reference to them. */
  }

  /** Make the first `length` positions of a cache these bytes, [heads, length, size]. */
  write(name: string, data: PyProxy, length: number): void {
    const cache = this.spec.caches.find(([input]) => input === name)!;
    const [, , dtype, [batch, heads, , size]] = cache as [string, string, "float32" | "float16", number[]];
    const given = this.tensor(dtype, copyBytes(data).buffer, [batch!, heads!, length, size!]);
    this.cache[name] = this.copied(given, this.withRoom(cache, length), length);
  }

  /** Make the first `length` positions of the caches those of another sequence, whose caches may be of another size. */
  adopt(other: WasmDecoder, length: number): void {
    for (const cache of this.spec.caches)
      this.cache[cache[0]] = this.copied(other.cache[cache[0]]!, this.withRoom(cache, length), length);
  }

  /**
   * Let the caches have room for `length` positions, of which the first `past` are kept, or no more than these if they
   * grow. Returns the number of positions of the mask.
   */
  private makeRoom(past: number, length: number): number {
    let room = length;
    for (const cache of this.spec.caches) {
      const tensor = this.cache[cache[0]]!;
      const growing = cache[3][2] === 0;
      const wanted = this.withRoom(cache, growing ? past : length);
      // A cache that has more room keeps it: positions that were rewound are run again.
      const keeps = growing ? tensor.dims[2] === past : tensor.dims[2]! >= wanted[3][2]!;
      const made = keeps ? tensor : this.copied(tensor, wanted, past);
      this.cache[cache[0]] = made;
      if (!growing) room = made.dims[2]!;
    }
    return room;
  }

  /** A cache with room for `length` positions, exactly those if it grows. */
  private withRoom([input, output, dtype, dims]: StateSpec, length: number): StateSpec {
    const [batch, heads, capacity, size] = dims as [number, number, number, number];
    const room = capacity === 0 ? length : Math.min(capacity, Math.ceil(Math.max(length, 1) / ROOM) * ROOM);
    return [input, output, dtype, [batch, heads, room, size]];
  }

  /** A cache of the size of `spec` with the first `count` positions of another one. */
  private copied(cache: Ort.Tensor, [, , dtype, dims]: StateSpec, count: number): Ort.Tensor {
    const [batch, heads, room, size] = dims as [number, number, number, number];
    return this.tensor(dtype, this.positionsOf(cache, dtype, batch * heads, size, count, room), dims);
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

interface MadeWeight {
  path: string;
  bytes: number;
  /** Writes them to the start of a buffer. */
  make: (into: ArrayBuffer) => void;
}

/**
 * Files that are made when onnxruntime-web reads them: it asks for the size, then for all bytes by `subarray`, and copies
 * these into its heap before it asks for others. So one buffer serves all; every weight in float32 beside that heap would
 * need twice the memory.
 */
function madeLater(weights: MadeWeight[]): ExternalFile[] {
  const buffer = new ArrayBuffer(Math.max(0, ...weights.map(({ bytes }) => bytes)));
  return weights.map(({ path, bytes, make }) => {
    const subarray = (start: number, end: number): Uint8Array => {
      const begun = performance.now();
      make(buffer);
      tracer.add("load", "widen a weight", begun);
      return new Uint8Array(buffer, start, end - start);
    };
    const data = new Uint8Array(0);
    return {
      path,
      data: Object.defineProperties(data, { byteLength: { value: bytes }, subarray: { value: subarray } }),
    };
  });
}

function bytesOf(tensor: Ort.Tensor): Uint8Array {
  const { buffer, byteOffset, byteLength } = tensor.data as Float32Array;
  return new Uint8Array(buffer, byteOffset, byteLength);
}

function lastElements(logits: Ort.Tensor, count: number): Float32Array {
  const { data } = logits;
  if (data instanceof Float32Array) return data.slice(data.length - count);
  if (data instanceof Uint16Array) return Float32Array.from(data.subarray(data.length - count), fromHalf);
  const halves = data as unknown as ArrayLike<number> & { length: number };
  return Float32Array.from({ length: count }, (_, i) => halves[halves.length - count + i]!);
}
