// Beam search on the GPU: shortlists of all beams' logits, then a kernel that chooses the next tokens of each prompt's beams.

import shader from "../shaders/sampler/beams.wgsl";
import type { BufferPart, WatchedDevice } from "./device";
import { MAX_BURST, MAX_IN_FLIGHT } from "./ring";
import { Shortlist } from "./shortlist";

/** Steps whose records are kept until they are read. */
export const RECORDED = MAX_BURST * MAX_IN_FLIGHT;

/** Buffers that a search reads and writes, and their shapes; rows are the beams of all prompts. */
export interface BeamTargets {
  /** [rows, vocab]. */
  logits: GPUBuffer;
  logitsType: "float32" | "float16";
  vocab: number;
  rows: number;
  /** Beams of a prompt. */
  beams: number;
  /** The number of continuations of each beam that compete. */
  looked: number;
  /** End-of-sequence ids. */
  ends: readonly number[];
  /** u32 [rows, 8]: length and cursor first. */
  state: BufferPart;
  /** int64 [rows]. */
  inputIds: GPUBuffer;
  /** u32 [rows, capacity]: the row whose caches hold a position. */
  table: GPUBuffer;
  /** float32 [rows]. */
  scores: GPUBuffer;
  capacity: number;
}

/** The search of one generator's beams; owns what it finds, not the targets. */
export class BeamSearch {
  /** u32 [RECORDED, prompts, recordWords] as beams.wgsl has them. */
  readonly records: BufferPart;
  /** Words of a step's records. */
  readonly words: number;
  private readonly shortlist: Shortlist;
  private readonly pipeline: GPUComputePipeline;
  private readonly group: GPUBindGroup;

  constructor(
    watched: WatchedDevice,
    owner: string,
    private readonly targets: BeamTargets,
  ) {
    const { device } = watched;
    const { logits, logitsType, vocab, rows, beams, looked } = targets;
    this.words = (rows / beams) * (2 + 5 * beams);
    const size = 4 * RECORDED * this.words;
    const buffer = watched.buffer("kernels", owner, {
      label: "beam records",
      size,
      usage: GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC,
    });
    this.records = { buffer, offset: 0, size };
    this.shortlist = new Shortlist(
      watched,
      owner,
      { buffer: logits, start: 0, rows, vocab, dtype: logitsType },
      looked,
    );
    const module = device.createShaderModule({ label: "beams", code: `${constants(targets)}\n${shader}` });
    this.pipeline = device.createComputePipeline({
      label: "beams",
      layout: "auto",
      compute: { module, entryPoint: "main" },
    });
    const { state, inputIds, table, scores } = targets;
    const bound = [this.shortlist.result, state, inputIds, table, scores, buffer];
    const entries = bound.map((item, binding) => ({ binding, resource: "buffer" in item ? item : { buffer: item } }));
    this.group = device.createBindGroup({ layout: this.pipeline.getBindGroupLayout(0), entries });
  }

  /** Encodes the choice of the next tokens from the logits that are there. */
  encode(pass: GPUComputePassEncoder): void {
    this.shortlist.encode(pass);
    pass.setPipeline(this.pipeline);
    pass.setBindGroup(0, this.group);
    pass.dispatchWorkgroups(this.targets.rows / this.targets.beams);
  }

  destroy(): void {
    this.shortlist.destroy();
    this.records.buffer.destroy();
  }
}

/** The constants in front of the text of beams.wgsl. */
function constants({ beams, looked, rows, capacity, ends }: BeamTargets): string {
  const numbers = { BEAMS: beams, LOOKED: looked, PROMPTS: rows / beams, CAPACITY: capacity, STEPS: RECORDED };
  const listed = ends.length > 0 ? ends : [0];
  return [
    ...Object.entries(numbers).map(([name, value]) => `const ${name} = ${value}u;`),
    `const END_COUNT = ${ends.length}u;`,
    `const ENDS = array<u32, ${listed.length}>(${listed.map((end) => `${end}u`).join(", ")});`,
  ].join("\n");
}
