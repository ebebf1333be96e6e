// A program of the sampler: the dispatches that its passes are, and their pipelines with the text of its stages.

import advanceSource from "../shaders/sampler/advance.wgsl";
import banSource from "../shaders/sampler/ban.wgsl";
import constrainSource from "../shaders/sampler/constrain.wgsl";
import blockMaxSource from "../shaders/sampler/block_max.wgsl";
import blockSumsSource from "../shaders/sampler/block_sums.wgsl";
import cutSource from "../shaders/sampler/cut.wgsl";
import draftSource from "../shaders/sampler/draft.wgsl";
import drafterPairSource from "../shaders/sampler/drafter_pair.wgsl";
import drafterPicksSource from "../shaders/sampler/drafter_picks.wgsl";
import drafterStartSource from "../shaders/sampler/drafter_start.wgsl";
import drawSource from "../shaders/sampler/draw.wgsl";
import greedySource from "../shaders/sampler/greedy.wgsl";
import headHiddenSource from "../shaders/sampler/head_hidden.wgsl";
import headPairSource from "../shaders/sampler/head_pair.wgsl";
import headStartSource from "../shaders/sampler/head_start.wgsl";
import histogramSource from "../shaders/sampler/histogram.wgsl";
import keysSource from "../shaders/sampler/keys.wgsl";
import prefixSource from "../shaders/sampler/prefix.wgsl";
import settleSource from "../shaders/sampler/settle.wgsl";
import sharedSource from "../shaders/sampler/sampler.wgsl";

/** A Python SamplerProgram. */
export interface SamplerProgram {
  passes: readonly string[];
  wgsl: string;
  banWgsl: string;
  maskWgsl: string;
  endWgsl: string;
  /** u32 words of the sampler's memory for each row; 0 if no stage uses the sequence. */
  rowWords: number;
  /** The offset of the mask in a row; null if no stage uses one. */
  allowedAt: number | null;
  /** The offset of a stage's own words; null if no stage has any. */
  ownAt: number | null;
  /** The number of drafts that fit into the memory; 0 without drafts. */
  drafts: number;
}

/** Kernels that cut a row by its sums, one after another. */
export const ROUNDS = 8;

const KERNELS = {
  constrain: [sharedSource, constrainSource],
  ban: [sharedSource, banSource],
  draft: [sharedSource, draftSource],
  drafterStart: [sharedSource, drafterStartSource],
  drafterPair: [sharedSource, drafterPairSource],
  drafterPicks: [sharedSource, drafterPicksSource],
  headStart: [sharedSource, headStartSource],
  headPair: [sharedSource, headPairSource],
  headHidden: [sharedSource, headHiddenSource],
  settle: [sharedSource, settleSource],
  blockMax: [sharedSource, blockMaxSource],
  histogram: [sharedSource, prefixSource, cutSource, histogramSource],
  blockSums: [sharedSource, prefixSource, cutSource, blockSumsSource],
  draw: [sharedSource, prefixSource, cutSource, advanceSource, drawSource],
  greedy: [sharedSource, advanceSource, greedySource],
} as const;

export type Kernel = keyof typeof KERNELS;

/** A binding's access, its name and its type in WGSL. */
type Binding = readonly [GPUBufferBindingType, string, string];

const words = (access: GPUBufferBindingType, ...names: string[]): Binding[] =>
  names.map((name) => [access, name, "array<u32>"]);
const SHARED: readonly Binding[] = [
  ["uniform", "params", "Params"],
  ...words("read-only-storage", "logits"),
  ["storage", "scratch", "array<atomic<u32>>"],
];
const ROUND: Binding = ["uniform", "which", "vec4<u32>"];
/** The bindings of each kind of kernels, by number: declared in front of their texts. */
const BINDINGS = {
  pass: [...SHARED, ...words("read-only-storage", "state"), ROUND, ...words("read-only-storage", "memory")],
  before: [...SHARED, ...words("read-only-storage", "state"), ROUND, ...words("storage", "memory")],
  draft: [...SHARED, ...words("storage", "state", "inputs", "memory")],
  drafterStart: [
    ...SHARED,
    ...words("read-only-storage", "state", "memory"),
    ...words("storage", "drafter_state", "drafter_inputs", "drafter_mask"),
  ],
  drafterPair: [...SHARED, ...words("read-only-storage", "state", "memory"), ...words("storage", "drafter_state")],
  drafterPicks: [
    ...SHARED,
    ...words("storage", "state", "inputs", "memory"),
    ...words("read-only-storage", "drafter_ring"),
  ],
  headStart: [
    ...SHARED,
    ...words("read-only-storage", "state", "memory"),
    ...words("storage", "drafter_state", "drafter_inputs"),
  ],
  headPair: [...SHARED, ...words("read-only-storage", "state", "memory"), ...words("storage", "drafter_state")],
  headHidden: [
    ...SHARED,
    ...words("read-only-storage", "state", "memory", "hidden_rows"),
    ...words("storage", "hidden_row"),
  ],
  settle: [...SHARED, ...words("read-only-storage", "state", "memory", "states"), ...words("storage", "past")],
  end: [
    ...SHARED,
    ...words("storage", "state"),
    ["uniform", "sizes", "Sizes"],
    ...words("storage", "ring", "input_ids", "mask", "position_ids", "memory"),
  ],
} satisfies Record<string, readonly Binding[]>;

function kindOf(kernel: Kernel): keyof typeof BINDINGS {
  if (ENDS.has(kernel)) return "end";
  if (kernel in BINDINGS) return kernel as keyof typeof BINDINGS;
  return BEFORE.has(kernel) ? "before" : "pass";
}

const SPACES = { uniform: "uniform", storage: "storage, read_write", "read-only-storage": "storage, read" };

function declared(kernel: Kernel): string[] {
  return BINDINGS[kindOf(kernel)].map(
    ([access, name, type], place) => `@group(0) @binding(${place}) var<${SPACES[access]}> ${name}: ${type};`,
  );
}

export interface Blocking {
  WG: number;
  BLOCK: number;
  BLOCKS: number;
}

/** A kernel, and which of the rounds of a cut it is (0 for the others). */
export interface SamplerDispatch {
  kernel: Kernel;
  round: number;
}

/** The dispatches of each pass that a program may name. */
const rounds = (from: number): SamplerDispatch[] =>
  Array.from({ length: ROUNDS / 2 }, (_, index) => ({ kernel: "histogram", round: from + index }));
const PASSES: Readonly<Record<string, readonly SamplerDispatch[]>> = {
  constrain: [{ kernel: "constrain", round: 0 }],
  ban: [{ kernel: "ban", round: 0 }],
  max: [{ kernel: "blockMax", round: 0 }],
  count: rounds(0),
  weight: rounds(ROUNDS / 2),
  sums: [{ kernel: "blockSums", round: 0 }],
  draw: [{ kernel: "draw", round: 0 }],
  greedy: [{ kernel: "greedy", round: 0 }],
};
export const ENDS = new Set<Kernel>(["draw", "greedy"]);
/** Those that write the memory and do not end a step. */
export const BEFORE = new Set<Kernel>(["constrain", "ban"]);

/** How a row is divided: one small workgroup up to 4096 tokens, else blocks of 2048 or more, at most 256 of them. */
export function blocking(vocab: number): Blocking {
  const WG = vocab <= 4096 ? 64 : 256;
  const least = vocab <= 4096 ? vocab : Math.max(2048, Math.ceil(vocab / 256));
  const BLOCK = Math.ceil(least / WG) * WG;
  return { WG, BLOCK, BLOCKS: Math.ceil(vocab / BLOCK) };
}

/** Pipelines of one device, made once for each vocabulary size, logits type and text of the stages. */
export class SamplerPipelines {
  private static readonly perDevice = new WeakMap<GPUDevice, SamplerPipelines>();

  private readonly layouts = new Map<string, GPUBindGroupLayout>();
  private readonly modules = new Map<string, GPUShaderModule>();
  private readonly pipelines = new Map<string, GPUComputePipeline>();

  static of(device: GPUDevice): SamplerPipelines {
    let found = SamplerPipelines.perDevice.get(device);
    if (found === undefined) {
      found = new SamplerPipelines(device);
      SamplerPipelines.perDevice.set(device, found);
    }
    return found;
  }

  /** A device that is closed needs them no more, and may be kept by others. */
  static forget(device: GPUDevice): void {
    SamplerPipelines.perDevice.delete(device);
  }

  private constructor(private readonly device: GPUDevice) {}

  layout(kernel: Kernel): GPUBindGroupLayout {
    const kind = kindOf(kernel);
    let found = this.layouts.get(kind);
    if (found === undefined) {
      const entries = BINDINGS[kind].map(([type], binding) => {
        return { binding, visibility: GPUShaderStage.COMPUTE, buffer: { type } };
      });
      found = this.device.createBindGroupLayout({ label: `sampler ${kind}`, entries });
      this.layouts.set(kind, found);
    }
    return found;
  }

  get(kernel: Kernel, vocab: number, half: boolean, stages: string, positions = 1): GPUComputePipeline {
    const key = `${kernel} ${vocab} ${half} ${positions} ${stages}`;
    let found = this.pipelines.get(key);
    if (found === undefined) {
      found = this.device.createComputePipeline({
        label: `sampler ${kernel} ${vocab} ${half}`,
        layout: this.device.createPipelineLayout({
          bindGroupLayouts: [this.layout(kernel)],
        }),
        compute: {
          module: this.module(kernel, stages),
          entryPoint: "main",
          constants: { ...blocking(vocab), VOCAB: vocab, HALF: half ? 1 : 0, POSITIONS: positions },
        },
      });
      this.pipelines.set(key, found);
    }
    return found;
  }

  private module(kernel: Kernel, stages: string): GPUShaderModule {
    const key = `${kernel} ${stages}`;
    let found = this.modules.get(key);
    if (found === undefined) {
      const code = [...declared(kernel), keysSource, ...KERNELS[kernel], stages].join("\n");
      found = this.device.createShaderModule({ label: `sampler ${kernel}`, code });
      this.modules.set(key, found);
    }
    return found;
  }
}

/** The text of the stages in a kernel. */
export function textOf(kernel: Kernel, program: SamplerProgram): string {
  if (ENDS.has(kernel)) return program.wgsl + program.endWgsl;
  if (kernel === "constrain") return program.wgsl + program.maskWgsl;
  return kernel === "ban" ? program.wgsl + program.banWgsl : program.wgsl;
}

/** Throws RangeError for a pass that there is not. */
export function dispatchesOf(program: SamplerProgram): SamplerDispatch[] {
  return program.passes.flatMap((name) => {
    const found = PASSES[name];
    if (found === undefined) throw new RangeError(`sampler: there is no pass ${JSON.stringify(name)}`);
    return found;
  });
}
