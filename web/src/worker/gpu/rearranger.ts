// Rearranges weights on the GPU: what a data file has by columns into rows (shaders/memory/turn.wgsl), matrices next to one
// another (shaders/memory/beside.wgsl), float32 into float16 (shaders/memory/narrow.wgsl), and tensors of GGUF files into
// what products and tables hold (shaders/memory/unpack.wgsl).

import besideCode from "../shaders/memory/beside.wgsl";
import halfCode from "../shaders/memory/half.wgsl";
import narrowCode from "../shaders/memory/narrow.wgsl";
import turnCode from "../shaders/memory/turn.wgsl";
import unpackCode from "../shaders/memory/unpack.wgsl";
import type { Angles } from "../angle_tables";
import type { WatchedDevice } from "./device";

/** The kind and the fields of a capstan.graph.Change. */
export type Change =
  | [kind: "turn", rows: number, columns: number, bits: number, flipped: boolean]
  | [kind: "beside", row: number, stride: number]
  | [kind: "narrow"]
  | [
      kind: "unpack",
      type: number,
      what: (typeof THINGS)[number],
      rows: number,
      columns: number,
      bits: number,
      block: number,
      halves: number,
      shift: number,
      stride: number,
      between: number,
    ]
  | Angles;

/** The things that a buffer may have of a tensor of a GGUF file, each at its number in shaders/memory/unpack.wgsl. */
const THINGS = ["quants", "scales", "minima", "values"] as const;

const WORKGROUP = 64;
const MOST_WORKGROUPS = 65535;

export class Rearranger {
  private readonly pipelines = new Map<string, GPUComputePipeline>();

  constructor(private readonly watched: WatchedDevice) {}

  /** Encode what fills `into` from byte `at` on with the first `length` bytes of `source`, rearranged; returns a buffer
   * to destroy once that is submitted. */
  change(
    encoder: GPUCommandEncoder,
    change: Exclude<Change, Angles>,
    source: GPUBuffer,
    length: number,
    into: GPUBuffer,
    at: number,
  ): GPUBuffer {
    const encode = (
      code: string,
      words: number,
      told: (threads: number) => number[],
      constants: Record<string, number> = {},
    ): GPUBuffer => this.encode(encoder, this.pipeline(code, constants), words, told, source, into);
    switch (change[0]) {
      case "turn": {
        const [, rows, columns, bits, flipped] = change;
        const rowBytes = Math.ceil((rows * bits) / 8);
        const words = Math.ceil((columns * rowBytes) / 4);
        const flip = flipped ? 2 ** (bits - 1) : 0;
        return encode(turnCode, words, (threads) => [rows, columns, bits, flip, rowBytes, at, words, threads]);
      }
      case "beside": {
        const [, row, stride] = change;
        const words = length / 4;
        return encode(besideCode, words, (threads) => [words, row / 4, stride / 4, at / 4, threads, 0, 0, 0]);
      }
      case "narrow": {
        const words = length / 8;
        return encode(halfCode + narrowCode, words, (threads) => [words, at / 4, threads, 0, 0, 0, 0, 0]);
      }
      case "unpack": {
        const [, type, what, rows, columns, bits, block, halves, shift, stride, between] = change;
        const words = Math.ceil((rows * (columns / block) * bits) / 32);
        const sizes = [rows, columns, block, halves, stride, at, words];
        const told = (threads: number): number[] => [...sizes, threads, shift, between / 4];
        const constants = { KIND: type, WHAT: THINGS.indexOf(what), BITS: bits };
        return encode(halfCode + unpackCode, words, told, constants);
      }
    }
  }

  /** An invocation for each word; `told` are the parameters for that number of invocations in x. */
  private encode(
    encoder: GPUCommandEncoder,
    pipeline: GPUComputePipeline,
    words: number,
    told: (threads: number) => number[],
    source: GPUBuffer,
    into: GPUBuffer,
  ): GPUBuffer {
    const groups = Math.ceil(words / WORKGROUP);
    const x = Math.min(groups, MOST_WORKGROUPS);
    const { device } = this.watched;
    const usage = GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST;
    const values = Uint32Array.from(told(x * WORKGROUP));
    const size = values.byteLength;
    const params = this.watched.buffer("staging", "uploads", { label: "weights rearranged", size, usage });
    this.watched.write(params, 0, new Uint8Array(values.buffer));
    const layout = pipeline.getBindGroupLayout(0);
    const entries = [params, source, into].map((buffer, binding) => ({ binding, resource: { buffer } }));
    const group = this.watched.attribute("staging", "uploads", () => device.createBindGroup({ layout, entries }));
    const pass = encoder.beginComputePass();
    pass.setPipeline(pipeline);
    pass.setBindGroup(0, group);
    pass.dispatchWorkgroups(x, Math.ceil(groups / x));
    pass.end();
    return params;
  }

  private pipeline(code: string, constants: Record<string, number>): GPUComputePipeline {
    const key = code + Object.values(constants).join();
    const known = this.pipelines.get(key);
    if (known) return known;
    const { device } = this.watched;
    const label = "rearrange weights";
    const made = device.createComputePipeline({
      label,
      layout: "auto",
      compute: { module: device.createShaderModule({ label, code }), entryPoint: "main", constants },
    });
    this.pipelines.set(key, made);
    return made;
  }
}
