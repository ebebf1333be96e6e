// Compares pairs of GPU buffers on the GPU and reads three words back for each pair.

import shader from "../shaders/compare.wgsl";
import type { WatchedDevice } from "./device";

export interface Difference {
  max_difference: number;
  max_magnitude: number;
  /** Elements that are finite in just one of the two buffers. */
  unlike: number;
}

const WORKGROUP = 64;
const ROW = 32768;

/** For each pair, how far the first `bytes` of `a` are from those of `b`, as floats of the given type. */
export async function compareBuffers(
  watched: WatchedDevice,
  pairs: { a: GPUBuffer; b: GPUBuffer; bytes: number; dtype: "float32" | "float16" }[],
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
    const staging = make(16 * pairs.length, GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST);
    const encoder = watched.encoder();
    for (const [i, { a, b, bytes, dtype }] of pairs.entries()) {
      const words = bytes / 4;
      const result = make(16, GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC);
      const params = make(16, GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST);
      watched.write(
        params,
        0,
        new Uint8Array(new Uint32Array([words, dtype === "float16" ? 1 : 0, ROW * WORKGROUP, 0]).buffer),
      );
      const buffers = [a, b, result, params];
      const group = device.createBindGroup({
        layout: pipeline.getBindGroupLayout(0),
        entries: buffers.map((buffer, binding) => ({ binding, resource: { buffer } })),
      });
      const pass = encoder.beginComputePass();
      pass.setPipeline(pipeline);
      pass.setBindGroup(0, group);
      const workgroups = Math.ceil(words / WORKGROUP);
      pass.dispatchWorkgroups(Math.min(workgroups, ROW), Math.ceil(workgroups / ROW));
      pass.end();
      encoder.copyBufferToBuffer(result, 0, staging, 16 * i, 16);
    }
    watched.submit([encoder.finish()]);
    await staging.mapAsync(GPUMapMode.READ);
    watched.assertHealthy();
    const view = new DataView(staging.getMappedRange());
    return pairs.map((_, i) => ({
      max_difference: view.getFloat32(16 * i, true),
      max_magnitude: view.getFloat32(16 * i + 4, true),
      unlike: view.getUint32(16 * i + 8, true),
    }));
  } catch (error) {
    throw await watched.explain(error);
  } finally {
    for (const buffer of temporary) buffer.destroy();
  }
}
