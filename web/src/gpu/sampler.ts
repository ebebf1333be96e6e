// The sampler on the GPU: picks a token for each row from the logits and advances the rows' state, in one pass.
//
// py_src/capstan/sampling.py defines the result, id for id; py_src/capstan/search.py makes the parameter words.
// A step is 2 dispatches greedy, 3 with temperature alone, 7 with top_k or top_p, 11 with both. Nothing is carried over
// in the scratch buffer from one step to the next, so any number of steps can be encoded one after another.

import advanceSource from "../shaders/advance.wgsl";
import blockMaxSource from "../shaders/block_max.wgsl";
import blockSumsSource from "../shaders/block_sums.wgsl";
import cutSource from "../shaders/cut.wgsl";
import drawSource from "../shaders/draw.wgsl";
import greedySource from "../shaders/greedy.wgsl";
import histogramSource from "../shaders/histogram.wgsl";
import prefixSource from "../shaders/prefix.wgsl";
import sharedSource from "../shaders/sampler.wgsl";

/** A part of a buffer; the offset is a multiple of minStorageBufferOffsetAlignment. Bytes. */
export interface Span {
  buffer: GPUBuffer;
  offset: number;
  size: number;
}

/** Buffers that a sampler reads and writes, and their shapes; see "GPU state layout" in docs/design.md. */
export interface SamplerTargets {
  /** [rows, vocab], contiguous: the last position only. */
  logits: GPUBuffer;
  logitsType: "float32" | "float16";
  vocab: number;
  rows: number;
  /** u32 [rows, 8]: length, cursor, done, picked id, four reserved. */
  state: GPUBuffer | Span;
  /** u32 [rows, ringCapacity]. */
  ring: GPUBuffer | Span;
  ringCapacity: number;
  /** int64 [rows, 1]. */
  inputIds: GPUBuffer;
  /** int64 [rows, maxLength]. */
  mask: GPUBuffer;
  maxLength: number;
  /** int64 [rows, 1]. */
  positionIds?: GPUBuffer | undefined;
}

/** Length and layout version of the parameter words (`SAMPLER_WORDS`, `WORDS_VERSION` in search.py). */
export const SAMPLER_WORDS = 28;
const WORDS_VERSION = 1;
const WORD_MODE = 0;
const WORD_TOP_K = 1;
const WORD_TOP_P = 2;
const WORD_VERSION = 10;
const MODE_SAMPLE = 1;

const MAX_VOCAB = 1 << 24;
const MAX_ROWS = 65535;
const STATE_STRIDE = 8;
const ROUNDS = 8;
// Words of scratch a row and a block: BLOCK_RECORDS and BLOCK_STRIDE in sampler.wgsl.
const ROW_SCRATCH = 1600;
const BLOCK_SCRATCH = 8;

const KERNELS = {
  blockMax: [sharedSource, blockMaxSource],
  histogram: [sharedSource, prefixSource, cutSource, histogramSource],
  blockSums: [sharedSource, prefixSource, cutSource, blockSumsSource],
  draw: [sharedSource, prefixSource, cutSource, advanceSource, drawSource],
  greedy: [sharedSource, advanceSource, greedySource],
} as const;

type Kernel = keyof typeof KERNELS;

interface Blocking {
  WG: number;
  BLOCK: number;
  BLOCKS: number;
}

interface Dispatch {
  kernel: Kernel;
  bindGroup: GPUBindGroup;
  blocks: number;
}

/** How a row is divided: one small workgroup up to 4096 tokens, else blocks of 2048 or more, at most 256 of them. */
function blocking(vocab: number): Blocking {
  const WG = vocab <= 4096 ? 64 : 256;
  const least = vocab <= 4096 ? vocab : Math.max(2048, Math.ceil(vocab / 256));
  const BLOCK = Math.ceil(least / WG) * WG;
  return { WG, BLOCK, BLOCKS: Math.ceil(vocab / BLOCK) };
}

/** Pipelines of one device, made once for each vocabulary size and logits type. */
class SamplerPipelines {
  private static readonly perDevice = new WeakMap<GPUDevice, SamplerPipelines>();

  readonly passLayout: GPUBindGroupLayout;
  readonly endLayout: GPUBindGroupLayout;
  private readonly modules = new Map<Kernel, GPUShaderModule>();
  private readonly pipelines = new Map<string, GPUComputePipeline>();

  static of(device: GPUDevice): SamplerPipelines {
    let found = SamplerPipelines.perDevice.get(device);
    if (found === undefined) {
      found = new SamplerPipelines(device);
      SamplerPipelines.perDevice.set(device, found);
    }
    return found;
  }

  private constructor(private readonly device: GPUDevice) {
    const layout = (label: string, types: GPUBufferBindingType[]): GPUBindGroupLayout =>
      device.createBindGroupLayout({
        label,
        entries: types.map((type, binding) => ({ binding, visibility: GPUShaderStage.COMPUTE, buffer: { type } })),
      });
    const shared: GPUBufferBindingType[] = ["uniform", "read-only-storage", "storage"];
    this.passLayout = layout("sampler pass", [...shared, "read-only-storage", "uniform"]);
    this.endLayout = layout("sampler end", [
      ...shared,
      "storage",
      "uniform",
      "storage",
      "storage",
      "storage",
      "storage",
    ]);
  }

  get(kernel: Kernel, vocab: number, half: boolean): GPUComputePipeline {
    const key = `${kernel} ${vocab} ${half}`;
    let found = this.pipelines.get(key);
    if (found === undefined) {
      const ends = kernel === "draw" || kernel === "greedy";
      found = this.device.createComputePipeline({
        label: `sampler ${key}`,
        layout: this.device.createPipelineLayout({ bindGroupLayouts: [ends ? this.endLayout : this.passLayout] }),
        compute: {
          module: this.module(kernel),
          entryPoint: "main",
          constants: { ...blocking(vocab), VOCAB: vocab, HALF: half ? 1 : 0 },
        },
      });
      this.pipelines.set(key, found);
    }
    return found;
  }

  private module(kernel: Kernel): GPUShaderModule {
    let found = this.modules.get(kernel);
    if (found === undefined) {
      found = this.device.createShaderModule({ label: `sampler ${kernel}`, code: KERNELS[kernel].join("\n") });
      this.modules.set(kernel, found);
    }
    return found;
  }
}

/** Puts words at the start of a buffer. */
type Write = (buffer: GPUBuffer, words: Uint32Array<ArrayBuffer>) => void;

/** Samples and advances all rows of one generator; owns its parameter and scratch buffers, not the targets. */
export class Sampler {
  private readonly params: GPUBuffer;
  private readonly owned: GPUBuffer[] = [];
  private readonly rounds: readonly Dispatch[];
  private readonly blockMax: Dispatch;
  private readonly blockSums: Dispatch;
  private readonly draw: Dispatch;
  private readonly greedy: Dispatch;
  private readonly rows: number;
  private plan: readonly { dispatch: Dispatch; pipeline: GPUComputePipeline }[] = [];

  /**
   * Makes every buffer and bind group it will use. Throws RangeError where a target does not fit. `write` uploads at
   * once, also while a recorder watches the queue: what the sampler uploads is no part of a step.
   */
  constructor(
    private readonly device: GPUDevice,
    private readonly targets: SamplerTargets,
    private readonly write: Write = (buffer, words) => device.queue.writeBuffer(buffer, 0, words),
  ) {
    checkTargets(device, targets);
    const { BLOCKS } = blocking(targets.vocab);
    const pipelines = SamplerPipelines.of(device);

    this.params = this.buffer("sampler params", SAMPLER_WORDS * 4, GPUBufferUsage.UNIFORM);
    const scratch = this.buffer("sampler scratch", scratchBytes(targets), GPUBufferUsage.STORAGE);
    const positions =
      targets.positionIds ?? this.buffer("sampler no positions", targets.rows * 8, GPUBufferUsage.STORAGE);
    const stride = device.limits.minUniformBufferOffsetAlignment;
    const round = this.buffer("sampler rounds", stride * ROUNDS, GPUBufferUsage.UNIFORM);
    const roundWords = new Uint32Array((stride * ROUNDS) / 4);
    for (let index = 0; index < ROUNDS; index++) roundWords[(index * stride) / 4] = index;
    this.write(round, roundWords);
    const sizes = this.buffer("sampler sizes", 8, GPUBufferUsage.UNIFORM);
    this.write(sizes, new Uint32Array([targets.ringCapacity, targets.maxLength]));

    const group = (layout: GPUBindGroupLayout, buffers: (GPUBuffer | Span)[]): GPUBindGroup =>
      device.createBindGroup({
        layout,
        entries: buffers.map((item, binding) => ({ binding, resource: "buffer" in item ? item : { buffer: item } })),
      });
    const pass = (kernel: Kernel, index: number): Dispatch => ({
      kernel,
      bindGroup: group(pipelines.passLayout, [
        this.params,
        targets.logits,
        scratch,
        targets.state,
        { buffer: round, offset: index * stride, size: 16 },
      ]),
      blocks: BLOCKS,
    });
    this.rounds = Array.from({ length: ROUNDS }, (_, index) => pass("histogram", index));
    this.blockMax = pass("blockMax", 0);
    this.blockSums = pass("blockSums", 0);
    const bindGroup = group(pipelines.endLayout, [
      this.params,
      targets.logits,
      scratch,
      targets.state,
      sizes,
      targets.ring,
      targets.inputIds,
      targets.mask,
      positions,
    ]);
    this.draw = { kernel: "draw", bindGroup, blocks: 1 };
    this.greedy = { kernel: "greedy", bindGroup, blocks: 1 };
    this.rows = targets.rows;
  }

  /**
   * Takes the words of `SearchOptions.sampler_words()`; later steps use them. Pipelines that no sampler of this shape
   * needed before on the device are made here. Throws RangeError for other words.
   */
  setParams(words: Uint32Array): void {
    if (words.length !== SAMPLER_WORDS || words[WORD_VERSION] !== WORDS_VERSION) {
      throw new RangeError(
        `sampler parameters: ${words.length} words of version ${words[WORD_VERSION]}; ` +
          `expected ${SAMPLER_WORDS} words of version ${WORDS_VERSION}`,
      );
    }
    const copy = words.slice();
    if (copy[WORD_TOP_K]! >= this.targets.vocab) copy[WORD_TOP_K] = 0;
    this.write(this.params, copy);
    const pipelines = SamplerPipelines.of(this.device);
    const half = this.targets.logitsType === "float16";
    this.plan = this.dispatches(copy).map((dispatch) => ({
      dispatch,
      pipeline: pipelines.get(dispatch.kernel, this.targets.vocab, half),
    }));
  }

  private dispatches(words: Uint32Array): Dispatch[] {
    if (words[WORD_MODE] !== MODE_SAMPLE) return [this.blockMax, this.greedy];
    const byCount = words[WORD_TOP_K] !== 0 ? this.rounds.slice(0, 4) : [];
    const byWeight = words[WORD_TOP_P] !== 0 ? this.rounds.slice(4) : [];
    return [this.blockMax, ...byCount, ...byWeight, this.blockSums, this.draw];
  }

  /** Dispatches in one step, with the parameters that are set; 0 before `setParams`. */
  get dispatchCount(): number {
    return this.plan.length;
  }

  /** Encodes one step of all rows: sample, then advance. Throws before `setParams`. */
  encode(pass: GPUComputePassEncoder): void {
    this.encodeApart(() => pass);
  }

  /** The same, each dispatch in the pass that `passFor` gives for its pipeline. */
  encodeApart(passFor: (pipeline: GPUComputePipeline) => GPUComputePassEncoder): void {
    if (this.plan.length === 0) throw new Error("sampler: call setParams before encode");
    for (const { dispatch, pipeline } of this.plan) {
      const pass = passFor(pipeline);
      pass.setPipeline(pipeline);
      pass.setBindGroup(0, dispatch.bindGroup);
      pass.dispatchWorkgroups(dispatch.blocks, this.rows);
    }
  }

  /** Destroys the sampler's own buffers. */
  destroy(): void {
    for (const buffer of this.owned) buffer.destroy();
    this.plan = [];
  }

  private buffer(label: string, size: number, usage: GPUBufferUsageFlags): GPUBuffer {
    const made = this.device.createBuffer({ label, size, usage: usage | GPUBufferUsage.COPY_DST });
    this.owned.push(made);
    return made;
  }
}

function scratchBytes({ rows, vocab }: SamplerTargets): number {
  return rows * (ROW_SCRATCH + BLOCK_SCRATCH * blocking(vocab).BLOCKS) * 4;
}

function checkTargets(device: GPUDevice, targets: SamplerTargets): void {
  const { rows, vocab, ringCapacity, maxLength } = targets;
  const within = (name: string, value: number, high: number): void => {
    if (!Number.isInteger(value) || value < 1 || value > high) {
      throw new RangeError(`sampler: ${name} is ${value}; it must be an integer from 1 to ${high}`);
    }
  };
  within("vocab", vocab, MAX_VOCAB);
  within("rows", rows, MAX_ROWS);
  within("rows * vocab", rows * vocab, 2 ** 32 - 1);
  within("ringCapacity", ringCapacity, 2 ** 30);
  within("maxLength", maxLength, 2 ** 30);
  within("scratch bytes", scratchBytes(targets), device.limits.maxStorageBufferBindingSize);
  const atLeast = (name: string, buffer: GPUBuffer | Span | undefined, bytes: number): void => {
    if (buffer !== undefined && buffer.size < bytes) {
      throw new RangeError(`sampler: ${name} has ${buffer.size} bytes; it needs ${bytes}`);
    }
  };
  const elementBytes = targets.logitsType === "float16" ? 2 : 4;
  atLeast("logits", targets.logits, Math.ceil((rows * vocab * elementBytes) / 4) * 4);
  atLeast("state", targets.state, rows * STATE_STRIDE * 4);
  atLeast("ring", targets.ring, rows * ringCapacity * 4);
  atLeast("inputIds", targets.inputIds, rows * 8);
  atLeast("mask", targets.mask, rows * maxLength * 8);
  atLeast("positionIds", targets.positionIds, rows * 8);
}
