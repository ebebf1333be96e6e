// The CPU execution provider: where there is no WebGPU, or only a software adapter. Weights stay initializers here
// (onnxruntime-web would copy them into its heap at every run), and Python samples from the logits.

import type { PyProxy } from "pyodide/ffi";
import { copyBytes } from "./crossing";
import { EngineError } from "./errors";
import { createSession, exclusively, loadOrt, type Ort } from "./ort";
import type { Memory } from "./storage/memory";

/** What the graph calls its inputs and outputs, and what its caches are like. */
interface SequenceSpec {
  ids: string;
  mask: string;
  /** null where the graph has no position ids. */
  positions: string | null;
  logits: string;
  /** [input name, output name] of each past/present pair. */
  pairs: [string, string][];
  dtype: "float32" | "float16";
  /** Of the caches at first; of no positions if they grow with each run. */
  dims: number[];
}

const BYTES = { float32: 4, float16: 2 };

/** One session; each sequence is a WasmDecoder on it. */
export class WasmEngine {
  private constructor(
    private readonly ort: typeof Ort,
    private readonly session: Ort.InferenceSession,
  ) {}

  /** `paths` is a JSON array with the name of each file of `external`, as the graph names it. */
  static async open(base: string, model: PyProxy, paths: string, external: Memory[]): Promise<WasmEngine> {
    const bytes = copyBytes(model);
    const files = (JSON.parse(paths) as string[]).map((path, i) => ({ path, data: external[i]!.bytes }));
    const ort = await loadOrt(base);
    return new WasmEngine(ort, await exclusively(() => createSession(ort, bytes, "wasm", files)));
  }

  decoder(spec: string): WasmDecoder {
    return new WasmDecoder(this.ort, JSON.parse(spec) as SequenceSpec, (feeds) => this.run(feeds));
  }

  close(): Promise<void> {
    return exclusively(() => this.session.release());
  }

  private run(feeds: Record<string, Ort.Tensor>): Promise<Ort.InferenceSession.OnnxValueMapType> {
    return exclusively(() => this.session.run(feeds));
  }
}

/** One sequence's KV cache, kept as CPU tensors of the full max_length, or of the positions that there are. */
export class WasmDecoder {
  private cache: Record<string, Ort.Tensor>;

  constructor(
    private readonly ort: typeof Ort,
    private readonly spec: SequenceSpec,
    private readonly run: (feeds: Record<string, Ort.Tensor>) => Promise<Ort.InferenceSession.OnnxValueMapType>,
  ) {
    const bytes = spec.dims.reduce((product, dim) => product * dim, BYTES[spec.dtype]);
    this.cache = Object.fromEntries(spec.pairs.map(([input]) => [input, this.cacheTensor(new ArrayBuffer(bytes))]));
  }

  /**
   * Run the model on `ids` (int64 [n]) after `past` positions, under a mask int64 [max_length or past + n];
   * resolves to the last position's logits as float32 [vocab].
   */
  async step(ids: PyProxy, mask: PyProxy, past: number): Promise<Float32Array> {
    this.rewind(past);
    const tokens = new BigInt64Array(copyBytes(ids).buffer);
    const valid = new BigInt64Array(copyBytes(mask).buffer);
    const int64 = (data: BigInt64Array): Ort.Tensor => new this.ort.Tensor("int64", data, [1, data.length]);
    const { ids: idsName, mask: maskName, positions } = this.spec;
    const feeds: Record<string, Ort.Tensor> = { [idsName]: int64(tokens), [maskName]: int64(valid), ...this.cache };
    if (positions !== null) feeds[positions] = int64(tokens.map((_, i) => BigInt(past + i)));
    let results: Ort.InferenceSession.OnnxValueMapType;
    try {
      results = await this.run(feeds);
    } catch (error) {
      throw new EngineError("ValidationError", `onnxruntime-web could not run the model on the CPU: ${String(error)}`);
    }
    this.cache = Object.fromEntries(this.spec.pairs.map(([input, output]) => [input, results[output]!]));
    const logits = results[this.spec.logits]!;
    const vocab = logits.dims[logits.dims.length - 1]!;
    return lastRow(logits, vocab);
  }

  /** Let caches that grow have no more than the first `past` positions. */
  private rewind(past: number): void {
    const [batch, heads, , size] = this.spec.dims as [number, number, number, number];
    const growing = this.spec.dims[2] === 0;
    for (const [input, tensor] of Object.entries(this.cache)) {
      const length = tensor.dims[2]!;
      if (!growing || length === past) continue;
      const { buffer, byteOffset } = tensor.data as Float32Array;
      const row = size * BYTES[this.spec.dtype];
      const kept = new Uint8Array(batch * heads * past * row);
      for (let head = 0; head < batch * heads; head++)
        kept.set(new Uint8Array(buffer, byteOffset + head * length * row, past * row), head * past * row);
      this.cache[input] = this.cacheTensor(kept.buffer, [batch, heads, past, size]);
    }
  }

  private cacheTensor(data: ArrayBuffer, dims = this.spec.dims): Ort.Tensor {
    return this.spec.dtype === "float32"
      ? new this.ort.Tensor("float32", new Float32Array(data), dims)
      : new this.ort.Tensor("float16", new Uint16Array(data), dims);
  }
}

function lastRow(logits: Ort.Tensor, vocab: number): Float32Array {
  const { data } = logits;
  if (data instanceof Float32Array) return data.slice(data.length - vocab);
  if (data instanceof Uint16Array) return Float32Array.from(data.subarray(data.length - vocab), fromHalf);
  const halves = data as unknown as ArrayLike<number> & { length: number };
  return Float32Array.from({ length: vocab }, (_, i) => halves[halves.length - vocab + i]!);
}

/** A float16 given by its bits, as a number (IEEE 754-2008, 3.6). */
function fromHalf(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 0x1f;
  const fraction = bits & 0x3ff;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? Number.NaN : sign * Number.POSITIVE_INFINITY;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}
