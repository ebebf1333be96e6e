// Finds the largest logits of each row on the GPU, with their tokens and the sum that makes probabilities of them, so that
// only these are copied to the CPU. Logits processors and beams read them.

import keys from "../shaders/sampler/keys.wgsl";
import shader from "../shaders/sampler/shortlist.wgsl";
import type { WatchedDevice } from "./device";

/** Tokens that a workgroup looks at; BLOCK of shortlist.wgsl. */
const BLOCK = 4096;

export interface Logits {
  /** Logits [rows, vocab]; they begin at element `start` of the buffer. */
  buffer: GPUBuffer;
  start: number;
  rows: number;
  vocab: number;
  dtype: "float32" | "float16";
}

type Dispatch = { pipeline: GPUComputePipeline; group: GPUBindGroup; counts: [number, number] };

/** The shortlists of some logits, found as often as they are encoded; owns its buffers, not the logits. */
export class Shortlist {
  private static readonly pipelines = new WeakMap<GPUDevice, GPUComputePipeline[]>();

  /** For each row Σ exp(logit - largest) as a float32, then `count` pairs of a float32 logit and its token, largest first. */
  readonly result: GPUBuffer;
  /** Bytes of the result. */
  readonly size: number;
  private readonly owned: readonly GPUBuffer[];
  private readonly dispatches: readonly Dispatch[];

  /** A device that is closed needs the pipelines no more, and may be kept by others. */
  static forget(device: GPUDevice): void {
    Shortlist.pipelines.delete(device);
  }

  static of(device: GPUDevice): GPUComputePipeline[] {
    let found = Shortlist.pipelines.get(device);
    if (found === undefined) {
      const module = device.createShaderModule({ label: "shortlist", code: keys + shader });
      found = ["blocks", "join", "score"].map((entryPoint) =>
        device.createComputePipeline({ label: "shortlist", layout: "auto", compute: { module, entryPoint } }),
      );
      Shortlist.pipelines.set(device, found);
    }
    return found;
  }

  /** Throws RangeError for a count that is not from 1 to the vocabulary. */
  constructor(watched: WatchedDevice, owner: string, logits: Logits, count: number) {
    const { buffer, start, rows, vocab, dtype } = logits;
    if (!Number.isInteger(count) || count < 1 || count > vocab) {
      throw new RangeError(`shortlist: count is ${count}; it must be an integer from 1 to ${vocab}`);
    }
    const { device } = watched;
    const [inBlocks, joined] = Shortlist.of(device);
    const make = (size: number, usage: number): GPUBuffer =>
      watched.buffer("kernels", owner, { label: "shortlist", size, usage });
    const blocks = Math.ceil(vocab / BLOCK);
    const kept = Math.min(count, BLOCK);
    this.size = 4 * rows * (1 + 2 * count);
    const params = make(32, GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST);
    const parts = make(4 * rows * blocks * (1 + 2 * kept), GPUBufferUsage.STORAGE);
    this.result = make(this.size, GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC);
    this.owned = [params, parts, this.result];
    const words = new Uint32Array([vocab, dtype === "float16" ? 1 : 0, count, start, blocks, kept, 0, 0]);
    watched.write(params, 0, new Uint8Array(words.buffer));
    const bound = (
      pipeline: GPUComputePipeline,
      buffers: Record<number, GPUBuffer>,
      counts: [number, number],
    ): Dispatch => {
      const entries = Object.entries(buffers).map(([at, each]) => ({
        binding: Number(at),
        resource: { buffer: each },
      }));
      return { pipeline, group: device.createBindGroup({ layout: pipeline.getBindGroupLayout(0), entries }), counts };
    };
    this.dispatches = [
      bound(inBlocks!, { 0: buffer, 1: parts, 3: params }, [blocks, rows]),
      bound(joined!, { 1: parts, 2: this.result, 3: params }, [rows, 1]),
    ];
  }

  encode(pass: GPUComputePassEncoder): void {
    for (const { pipeline, group, counts } of this.dispatches) {
      pass.setPipeline(pipeline);
      pass.setBindGroup(0, group);
      pass.dispatchWorkgroups(...counts);
    }
  }

  destroy(): void {
    for (const buffer of this.owned) buffer.destroy();
  }
}

/** Makes shortlists on one device, and reads them. */
export class Shortlists {
  constructor(private readonly watched: WatchedDevice) {}

  /**
   * Reads for each row Σ exp(logit - largest), then `count` pairs of a logit and its token, largest first. The work is
   * queued when this returns. Throws RangeError for a count that is not from 1 to the vocabulary.
   */
  read(logits: Logits, count: number): Promise<Float64Array> {
    const { watched } = this;
    const made = new Shortlist(watched, "shortlist", logits, count);
    const staging = watched.buffer("kernels", "shortlist", {
      label: "shortlist",
      size: made.size,
      usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST,
    });
    const encoder = watched.encoder();
    const pass = encoder.beginComputePass({ label: "shortlist" });
    made.encode(pass);
    pass.end();
    encoder.copyBufferToBuffer(made.result, 0, staging, 0, made.size);
    watched.submit([encoder.finish()]);
    return this.take(staging, logits.rows, count).finally(() => {
      made.destroy();
      staging.destroy();
    });
  }

  /**
   * Queue the scores of the tokens in `slots`, of four words each, by a row of logits each; the first row's slot is the
   * `first`. See `score` in shortlist.wgsl.
   */
  score({ buffer, start, rows, vocab, dtype }: Logits, slots: GPUBuffer, first: number): void {
    const { watched } = this;
    const { device } = watched;
    const usage = GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST;
    const params = watched.buffer("kernels", "shortlist", { label: "score", size: 32, usage });
    const words = new Uint32Array([vocab, dtype === "float16" ? 1 : 0, first, start, 0, 0, 0, 0]);
    watched.write(params, 0, new Uint8Array(words.buffer));
    const pipeline = Shortlist.of(device)[2]!;
    const entries = [buffer, null, slots, params].flatMap((each, binding) =>
      each ? [{ binding, resource: { buffer: each } }] : [],
    );
    const group = device.createBindGroup({ layout: pipeline.getBindGroupLayout(0), entries });
    const encoder = watched.encoder();
    const pass = encoder.beginComputePass({ label: "score" });
    pass.setPipeline(pipeline);
    pass.setBindGroup(0, group);
    pass.dispatchWorkgroups(rows);
    pass.end();
    watched.submit([encoder.finish()]);
    params.destroy();
  }

  private async take(staging: GPUBuffer, rows: number, count: number): Promise<Float64Array> {
    try {
      await staging.mapAsync(GPUMapMode.READ);
    } catch (error) {
      throw await this.watched.explain(error);
    }
    this.watched.assertHealthy();
    const mapped = staging.getMappedRange();
    const floats = new Float32Array(mapped);
    const tokens = new Uint32Array(mapped);
    const size = 1 + 2 * count;
    const isToken = (at: number): boolean => at % size > 0 && (at % size) % 2 === 0;
    return Float64Array.from({ length: rows * size }, (_, at) => (isToken(at) ? tokens[at]! : floats[at]!));
  }
}
