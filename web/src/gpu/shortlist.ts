// The largest logits of a row with their tokens, and what makes probabilities of them, without reading the row.

import shader from "../shaders/shortlist.wgsl";
import type { WatchedDevice } from "./device";

export interface Logits {
  /** [vocab], from the start of the buffer. */
  buffer: GPUBuffer;
  dtype: "float32" | "float16";
  vocab: number;
}

/** Makes shortlists on one device. */
export class Shortlists {
  private pipeline: GPUComputePipeline | null = null;

  constructor(private readonly watched: WatchedDevice) {}

  /**
   * Σ exp(logit - largest), then `count` pairs of a logit and its token, largest first. The work is queued when this
   * returns. Throws RangeError for a count that is not from 1 to the vocabulary.
   */
  read({ buffer, dtype, vocab }: Logits, count: number): Promise<Float64Array> {
    if (!Number.isInteger(count) || count < 1 || count > vocab) {
      throw new RangeError(`shortlist: count is ${count}; it must be an integer from 1 to ${vocab}`);
    }
    const { device } = this.watched;
    this.pipeline ??= device.createComputePipeline({
      label: "shortlist",
      layout: "auto",
      compute: { module: device.createShaderModule({ label: "shortlist", code: shader }), entryPoint: "main" },
    });
    const make = (size: number, usage: number): GPUBuffer =>
      this.watched.buffer("kernels", "shortlist", { label: "shortlist", size, usage });
    const size = 4 * (1 + 2 * count);
    const params = make(16, GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST);
    const result = make(size, GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC);
    const staging = make(size, GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST);
    const words = new Uint32Array([vocab, dtype === "float16" ? 1 : 0, count, 0]);
    this.watched.write(params, 0, new Uint8Array(words.buffer));
    const bindGroup = device.createBindGroup({
      layout: this.pipeline.getBindGroupLayout(0),
      entries: [buffer, result, params].map((each, binding) => ({ binding, resource: { buffer: each } })),
    });
    const encoder = this.watched.encoder();
    const pass = encoder.beginComputePass({ label: "shortlist" });
    pass.setPipeline(this.pipeline);
    pass.setBindGroup(0, bindGroup);
    pass.dispatchWorkgroups(1);
    pass.end();
    encoder.copyBufferToBuffer(result, 0, staging, 0, size);
    this.watched.submit([encoder.finish()]);
    return this.take(staging, count).finally(() => [params, result, staging].forEach((each) => each.destroy()));
  }

  private async take(staging: GPUBuffer, count: number): Promise<Float64Array> {
    try {
      await staging.mapAsync(GPUMapMode.READ);
    } catch (error) {
      throw await this.watched.explain(error);
    }
    this.watched.assertHealthy();
    const mapped = staging.getMappedRange();
    const floats = new Float32Array(mapped);
    const tokens = new Uint32Array(mapped);
    const odd = (at: number): boolean => at > 0 && at % 2 === 0;
    return Float64Array.from({ length: 1 + 2 * count }, (_, at) => (odd(at) ? tokens[at]! : floats[at]!));
  }
}
