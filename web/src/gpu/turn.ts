// Turns weights that a data file has by columns into rows, on the GPU: shaders/turn.wgsl.

import code from "../shaders/turn.wgsl";
import type { WatchedDevice } from "./device";

/** As capstan.graph.Turn: a matrix [rows, columns] of the file that a buffer is to hold as [columns, rows]. */
export interface Turn {
  rows: number;
  columns: number;
  bits: number;
  flipped: boolean;
}

const WORKGROUP = 64;
const MOST_WORKGROUPS = 65535;

export class Turner {
  private pipeline: GPUComputePipeline | null = null;

  constructor(private readonly watched: WatchedDevice) {}

  /** Encode what fills `into` from byte `at` on with what `source` holds, turned; returns a buffer to destroy once that
   * is submitted. */
  encode(encoder: GPUCommandEncoder, turn: Turn, source: GPUBuffer, into: GPUBuffer, at: number): GPUBuffer {
    const { rows, columns, bits, flipped } = turn;
    const rowBytes = Math.ceil((rows * bits) / 8);
    const words = Math.ceil((columns * rowBytes) / 4);
    const groups = Math.ceil(words / WORKGROUP);
    const x = Math.min(groups, MOST_WORKGROUPS);
    const flip = flipped ? 2 ** (bits - 1) : 0;
    const { device } = this.watched;
    const usage = GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST;
    const params = this.watched.buffer("staging", "uploads", { label: "weights turned", size: 32, usage });
    const told = new Uint32Array([rows, columns, bits, flip, rowBytes, at, words, x * WORKGROUP]);
    this.watched.write(params, 0, new Uint8Array(told.buffer));
    this.pipeline ??= device.createComputePipeline({
      label: "turn weights",
      layout: "auto",
      compute: { module: device.createShaderModule({ label: "turn weights", code }), entryPoint: "main" },
    });
    const layout = this.pipeline.getBindGroupLayout(0);
    const entries = [params, source, into].map((buffer, binding) => ({ binding, resource: { buffer } }));
    const group = this.watched.attribute("staging", "uploads", () => device.createBindGroup({ layout, entries }));
    const pass = encoder.beginComputePass();
    pass.setPipeline(this.pipeline);
    pass.setBindGroup(0, group);
    pass.dispatchWorkgroups(x, Math.ceil(groups / x));
    pass.end();
    return params;
  }
}
