// Finds the largest logits of each row on the GPU, with their tokens and the sum that makes probabilities of them, so that
// only these are copied to the CPU. Logits processors and beams read them.

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

/** Makes shortlists on one device. */
export class Shortlists {
  private pipelines: GPUComputePipeline[] | null = null;

  constructor(private readonly watched: WatchedDevice) {}

  /**
   * Reads for each row Σ exp(logit - largest), then `count` pairs of a logit and its token, largest first. The work is
   * queued when this returns. Throws RangeError for a count that is not from 1 to the vocabulary.
   */
  read({ buffer, start, rows, vocab, dtype }: Logits, count: number): Promise<Float64Array> {
    if (!Number.isInteger(count) || count < 1 || count > vocab) {
      throw new RangeError(`shortlist: count is ${count}; it must be an integer from 1 to ${vocab}`);
    }
    const { device } = this.watched;
    const [inBlocks, joined] = (this.pipelines ??= this.made());
    const make = (size: number, usage: number): GPUBuffer =>
      this.watched.buffer("kernels", "shortlist", { label: "shortlist", size, usage });
    const blocks = Math.ceil(vocab / BLOCK);
    const kept = Math.min(count, BLOCK);
    const size = 4 * rows * (1 + 2 * count);
    const params = make(32, GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST);
    const parts = make(4 * rows * blocks * (1 + 2 * kept), GPUBufferUsage.STORAGE);
    const result = make(size, GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC);
    const staging = make(size, GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST);
    const words = new Uint32Array([vocab, dtype === "float16" ? 1 : 0, count, start, blocks, kept, 0, 0]);
    this.watched.write(params, 0, new Uint8Array(words.buffer));
    const encoder = this.watched.encoder();
    const pass = encoder.beginComputePass({ label: "shortlist" });
    const run = (pipeline: GPUComputePipeline, bound: Record<number, GPUBuffer>, groups: [number, number?]): void => {
      const entries = Object.entries(bound).map(([at, each]) => ({ binding: Number(at), resource: { buffer: each } }));
      pass.setPipeline(pipeline);
      pass.setBindGroup(0, device.createBindGroup({ layout: pipeline.getBindGroupLayout(0), entries }));
      pass.dispatchWorkgroups(...groups);
    };
    run(inBlocks!, { 0: buffer, 1: parts, 3: params }, [blocks, rows]);
    run(joined!, { 1: parts, 2: result, 3: params }, [rows]);
    pass.end();
    encoder.copyBufferToBuffer(result, 0, staging, 0, size);
    this.watched.submit([encoder.finish()]);
    const made = [params, parts, result, staging];
    return this.take(staging, rows, count).finally(() => made.forEach((each) => each.destroy()));
  }

  private made(): GPUComputePipeline[] {
    const { device } = this.watched;
    const module = device.createShaderModule({ label: "shortlist", code: shader });
    return ["blocks", "join"].map((entryPoint) =>
      device.createComputePipeline({ label: "shortlist", layout: "auto", compute: { module, entryPoint } }),
    );
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
