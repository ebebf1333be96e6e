// Compares pairs of GPU buffers on the GPU and reads a few words back for each pair.

import shader from "../shaders/truth/compare.wgsl";
import type { WatchedDevice } from "./device";

export interface Difference {
  max_difference: number;
  max_magnitude: number;
  /** Elements that are finite in just one of the two buffers. */
  unlike: number;
  /** Square root of the sum of the squares of the differences, over that of the second buffer's values; 0 for none. */
  relative: number;
}

const WORKGROUP = 64;
/** Most workgroups of a pair. */
const WORKGROUPS = 512;
const WORDS = 3;
const SUMS = 2;

/** The kinds of elements, as the kernel numbers them. */
const KINDS = { float32: 0, float16: 1, int8: 2, int4: 3 };

/**
 * For each pair, how far the first `bytes` of `a` are from those of `b`: floats of the given type, or rows of quantized
 * caches, "int8 17" for rows of 17 words.
 */
export async function compareBuffers(
  watched: WatchedDevice,
  pairs: { a: GPUBuffer; b: GPUBuffer; bytes: number; dtype: string }[],
): Promise<Difference[]> {
  const { device } = watched;
  const pipeline = device.createComputePipeline({
    label: "compare",
    layout: "auto",
    compute: { module: device.createShaderModule({ label: "compare", code: shader }), entryPoint: "main" },
  });
  const temporary: GPUBuffer[] = [];
  const make = (size: number, usage: number): GPUBuffer => {
    const buffer = watched.buffer("kernels", "tape check", { label: "compare", size, usage });
    temporary.push(buffer);
    return buffer;
  };
  try {
    const stride = 16 + 4 * SUMS * WORKGROUPS;
    const staging = make(stride * pairs.length, GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST);
    const encoder = watched.encoder();
    for (const [i, { a, b, bytes, dtype }] of pairs.entries()) {
      const words = Math.ceil(bytes / 4);
      const workgroups = Math.min(WORKGROUPS, Math.ceil(words / WORKGROUP));
      const result = make(16, GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC);
      const sums = make(4 * SUMS * WORKGROUPS, GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC);
      const params = make(16, GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST);
      const [kind, row] = dtype.split(" ") as [keyof typeof KINDS, string?];
      const numbers = new Uint32Array([words, KINDS[kind], workgroups * WORKGROUP, Number(row ?? bytes / 2)]);
      watched.write(params, 0, new Uint8Array(numbers.buffer));
      const buffers = [a, b, result, params, sums];
      const group = device.createBindGroup({
        layout: pipeline.getBindGroupLayout(0),
        entries: buffers.map((buffer, binding) => ({ binding, resource: { buffer } })),
      });
      const pass = encoder.beginComputePass();
      pass.setPipeline(pipeline);
      pass.setBindGroup(0, group);
      pass.dispatchWorkgroups(workgroups);
      pass.end();
      encoder.copyBufferToBuffer(result, 0, staging, stride * i, 16);
      encoder.copyBufferToBuffer(sums, 0, staging, stride * i + 16, stride - 16);
    }
    watched.submit([encoder.finish()]);
    await staging.mapAsync(GPUMapMode.READ);
    watched.assertHealthy();
    const read = staging.getMappedRange();
    return pairs.map((_, i) => {
      const [apart, largest] = new Float32Array(read, stride * i, WORDS);
      const [, , unlike] = new Uint32Array(read, stride * i, WORDS);
      const squares = [0, 0];
      new Float32Array(read, stride * i + 16, SUMS * WORKGROUPS).forEach((sum, at) => (squares[at % SUMS]! += sum));
      const relative = squares[0] ? Math.sqrt(squares[0] / squares[1]!) : 0;
      // Infinity and NaN are no JSON.
      const told = Number.isFinite(relative) ? relative : 1e30;
      return { max_difference: apart!, max_magnitude: largest!, unlike: unlike!, relative: told };
    });
  } catch (error) {
    throw await watched.explain(error);
  } finally {
    for (const buffer of temporary) buffer.destroy();
  }
}
