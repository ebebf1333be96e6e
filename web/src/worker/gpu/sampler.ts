// The sampler on the GPU: picks a token for each row from the logits and advances the rows' state, in one pass.
//
// py_src/capstan/stages/sampling.py defines the result, id for id; py_src/capstan/stages/program.py makes the parameters, says
// which kernels a step needs and writes what the stages do in them.
// A step is 2 dispatches greedy, 3 with temperature alone, 7 with top_k or top_p, 11 with both, and one more if stages
// ban tokens because of the sequence. Nothing is carried over in the scratch buffer from one step to the next, so any
// number of steps can be encoded one after another.

import type { BufferPart } from "./device";
import {
  BEFORE,
  blocking,
  dispatchesOf,
  ENDS,
  ROUNDS,
  SamplerPipelines,
  textOf,
  type Kernel,
  type SamplerProgram,
} from "./sampler_program";

/** Buffers that a sampler reads and writes, and their shapes; see "GPU state layout" in docs/design_sampler.md. */
export interface SamplerTargets {
  /** [rows, vocab], contiguous: the last position only. */
  logits: GPUBuffer;
  logitsType: "float32" | "float16";
  vocab: number;
  rows: number;
  /** u32 [rows, 8]: length, cursor, done, picked id, four reserved. */
  state: GPUBuffer | BufferPart;
  /** u32 [rows, ringCapacity]. */
  ring: GPUBuffer | BufferPart;
  ringCapacity: number;
  /** int64 [rows, 1]. */
  inputIds: GPUBuffer;
  /** int64 [rows, maxLength]. */
  mask: GPUBuffer;
  maxLength: number;
  /** int64 [rows, 1]. */
  positionIds?: GPUBuffer | undefined;
}

/**
 * The buffers of a step with drafts: input ids, int64 [positions], and logits [positions, vocab]; and the sampler of the
 * draft model whose picks are the drafts, null if they are found in the sequence. That sampler has steps of 2 positions.
 */
export interface DraftTargets {
  inputIds: GPUBuffer;
  logits: GPUBuffer;
  positions: number;
  drafter: Sampler | null;
  /** The hidden states of a multi-token-prediction head: `rows` of its step over all positions, `row` of its step over one, which takes `read`. */
  head: { rows: GPUBuffer; row: GPUBuffer; read: BufferPart } | null;
  /** The states of a model that has some: what the next step reads, and what a step keeps after each position. */
  states: readonly { past: BufferPart; kept: BufferPart }[];
}

const MAX_VOCAB = 1 << 24;
const MAX_ROWS = 65535;
const STATE_STRIDE = 8;
// Words of scratch a row and a block: BLOCK_RECORDS and BLOCK_STRIDE in sampler.wgsl.
const ROW_SCRATCH = 1600;
const BLOCK_SCRATCH = 8;

/** The kernels of a drafted step: around the draft model's steps, before and after the model's own. */
interface DraftPlans {
  start: Plan;
  pair: Plan;
  first: Plan;
  later: Plan;
  find: Plan;
  pick: Plan;
  settle: Plan;
}

type Plan = readonly { bindGroup: GPUBindGroup; pipeline: GPUComputePipeline; blocks: number }[];

/** Puts words into a buffer, from a byte offset on, 0 if none is given. */
type Write = (buffer: GPUBuffer, words: Uint32Array<ArrayBuffer>, offset?: number) => void;

/** Samples and advances all rows of one generator; owns its parameter and scratch buffers, not the targets. */
export class Sampler {
  private readonly owned: GPUBuffer[] = [];
  private readonly scratch: GPUBuffer;
  private readonly positions: GPUBuffer;
  private readonly roundIndices: GPUBuffer;
  private readonly sizes: GPUBuffer;
  private params: GPUBuffer;
  /** The stages' tables, then what each row's sequence is, u32: SamplerProgram in Python has the layout. */
  private memory: GPUBuffer;
  private memoryTable = 0;
  private rowWords = 0;
  private allowedAt: number | null = null;
  private ownAt: number | null = null;
  private bindGroups = new Map<string, GPUBindGroup>();
  private plan: Plan = [];
  private program: SamplerProgram | null = null;
  private drafts: (DraftTargets & DraftPlans) | null = null;

  /**
   * Makes every buffer it will use, but those that a program needs. Throws RangeError where a target does not fit.
   * `write` uploads at once, also while a recorder watches the queue: what the sampler uploads is no part of a step.
   */
  constructor(
    private readonly device: GPUDevice,
    private readonly targets: SamplerTargets,
    private readonly write: Write = (buffer, words, offset = 0) => device.queue.writeBuffer(buffer, offset, words),
  ) {
    checkTargets(device, targets);
    this.params = this.buffer("sampler params", 16, GPUBufferUsage.UNIFORM);
    this.memory = this.buffer("sampler memory", 4, GPUBufferUsage.STORAGE);
    this.scratch = this.buffer("sampler scratch", scratchBytes(targets), GPUBufferUsage.STORAGE);
    this.positions =
      targets.positionIds ?? this.buffer("sampler no positions", targets.rows * 8, GPUBufferUsage.STORAGE);
    const stride = device.limits.minUniformBufferOffsetAlignment;
    this.roundIndices = this.buffer("sampler rounds", stride * ROUNDS, GPUBufferUsage.UNIFORM);
    const roundWords = new Uint32Array((stride * ROUNDS) / 4);
    for (let index = 0; index < ROUNDS; index++) roundWords[(index * stride) / 4] = index;
    this.write(this.roundIndices, roundWords);
    this.sizes = this.buffer("sampler sizes", 8, GPUBufferUsage.UNIFORM);
    this.write(this.sizes, new Uint32Array([targets.ringCapacity, targets.maxLength]));
  }

  /**
   * Takes a program, its parameter words and its stages' tables; later steps use them. Pipelines that no sampler of this
   * shape needed before on the device are made here. Throws RangeError for a pass that there is not, or for tables and
   * rows that are more than the device binds.
   */
  setProgram(words: Uint32Array<ArrayBuffer>, table: Uint32Array<ArrayBuffer>, program: SamplerProgram): void {
    const { rows } = this.targets;
    dispatchesOf(program);
    this.params = this.atLeast(this.params, words.byteLength);
    const memory = table.byteLength + rows * program.rowWords * 4;
    const most = this.device.limits.maxStorageBufferBindingSize;
    if (memory > most) throw new RangeError(`sampler: the stages need ${memory} bytes; the device binds ${most}`);
    this.memory = this.atLeast(this.memory, memory);
    this.memoryTable = table.length;
    this.rowWords = program.rowWords;
    this.allowedAt = program.allowedAt;
    this.ownAt = program.ownAt;
    this.write(this.params, words);
    if (table.length > 0) this.write(this.memory, table);
    this.program = program;
    this.drafts = null;
    this.plan = this.planned(program, this.targets.logits, 1);
  }

  /**
   * Gives the program steps with drafts: of one row, whose memory has its sequence and the drafts. Throws RangeError where
   * it has not, or for buffers that are too small.
   */
  setDrafts(targets: DraftTargets): void {
    const { program } = this;
    const { logitsType, vocab, rows } = this.targets;
    const { positions, logits, inputIds } = targets;
    if (program === null || !program.drafts || rows !== 1 || program.drafts !== positions - 1) {
      throw new RangeError(
        `sampler: a step of ${positions} positions and ${rows} rows needs a program of one row with ${positions - 1} drafts, not ${program?.drafts ?? 0}`,
      );
    }
    if (logits.size < positions * vocab * (logitsType === "float16" ? 2 : 4) || inputIds.size < 8 * positions) {
      throw new RangeError(`sampler: the logits or ids of ${positions} positions do not fit their buffers`);
    }
    for (const key of this.bindGroups.keys()) if (key.startsWith("false")) this.bindGroups.delete(key);
    const pipelines = SamplerPipelines.of(this.device);
    const single = (kernel: Kernel, vocabulary: number, ...rest: (GPUBuffer | BufferPart)[]): Plan => {
      const bindGroup = this.group(pipelines.layout(kernel), [this.params, logits, this.scratch, ...rest]);
      const pipeline = pipelines.get(kernel, vocabulary, logitsType === "float16", program.wgsl, positions);
      return [{ bindGroup, pipeline, blocks: 1 }];
    };
    const copied = (plan: Plan, words: number): Plan =>
      plan.map((each) => ({ ...each, blocks: Math.ceil(words / blocking(vocab).WG) }));
    const { state } = this.targets;
    const found = [state, inputIds, this.memory] as const;
    const pick = this.planned(program, logits, positions);
    const settle = targets.states.flatMap(({ past, kept }) =>
      copied(single("settle", vocab, state, this.memory, kept, past), past.size / 4),
    );
    const alone = { start: [], pair: [], first: [], later: [], pick, settle };
    if (targets.drafter === null) {
      this.drafts = { ...targets, ...alone, find: single("draft", vocab, ...found) };
      return;
    }
    const { targets: other, drafts: pair } = targets.drafter;
    const { head } = targets;
    const together = head === null ? 2 : positions;
    if (pair?.positions !== together || other.ringCapacity < positions) {
      throw new RangeError(
        `sampler: a draft model with steps of ${pair?.positions ?? 1} positions and a ring of ${other.ringCapacity} ids cannot draft for ${positions} positions`,
      );
    }
    const find = single("drafterPicks", vocab, ...found, other.ring);
    if (head === null) {
      this.drafts = {
        ...targets,
        ...alone,
        start: single("drafterStart", other.vocab, state, this.memory, other.state, pair.inputIds, other.mask),
        pair: single("drafterPair", other.vocab, state, this.memory, other.state),
        find,
      };
      return;
    }
    const hidden = (rows: GPUBuffer, count: number): Plan => {
      const bindGroup = this.group(pipelines.layout("headHidden"), [
        ...[this.params, logits, this.scratch, state, this.memory, rows],
        head.read,
      ]);
      const pipeline = pipelines.get("headHidden", other.vocab, logitsType === "float16", program.wgsl, count);
      return copied([{ bindGroup, pipeline, blocks: 1 }], head.read.size / 4);
    };
    this.drafts = {
      ...targets,
      ...alone,
      start: single("headStart", other.vocab, state, this.memory, other.state, pair.inputIds),
      pair: single("headPair", other.vocab, state, this.memory, other.state),
      first: hidden(head.rows, positions),
      later: hidden(head.row, 1),
      find,
    };
  }

  private planned(program: SamplerProgram, logits: GPUBuffer, positions: number): Plan {
    const pipelines = SamplerPipelines.of(this.device);
    const { vocab, logitsType } = this.targets;
    const half = logitsType === "float16";
    const { BLOCKS, WG } = blocking(vocab);
    return dispatchesOf(program).map(({ kernel, round }) => {
      return {
        bindGroup: this.bindGroup(kernel, round, pipelines, logits),
        pipeline: pipelines.get(kernel, vocab, half, textOf(kernel, program), positions),
        blocks: ENDS.has(kernel) ? 1 : kernel === "constrain" ? Math.ceil(vocab / WG) : BLOCKS,
      };
    });
  }

  /**
   * Sets the sequences of the rows from `row`, each u32 [rowWords] of the program. Throws RangeError for other lengths.
   */
  setMemory(words: Uint32Array<ArrayBuffer>, row = 0): void {
    const { rowWords, targets } = this;
    if (rowWords === 0 || words.length % rowWords !== 0 || row * rowWords + words.length > targets.rows * rowWords) {
      throw new RangeError(`sampler: ${words.length} words do not fit from row ${row}; a row has ${rowWords}`);
    }
    this.write(this.memory, words, (this.memoryTable + row * rowWords) * 4);
  }

  /** The tokens that a row's next pick may take: a bit each. Throws RangeError for another size, or without a mask. */
  setAllowed(words: Uint32Array<ArrayBuffer>, row = 0): void {
    const size = Math.ceil(this.targets.vocab / 32);
    if (this.allowedAt === null || words.length !== size || row >= this.targets.rows) {
      throw new RangeError(
        `sampler: the mask for row ${row} has ${words.length} words; it needs ${this.allowedAt === null ? 0 : size}`,
      );
    }
    this.write(this.memory, words, (this.memoryTable + row * this.rowWords + this.allowedAt) * 4);
  }

  /** Sets a stage's own words in a row's memory, or the first of them. Throws RangeError if no stage has any. */
  setOwn(words: Uint32Array<ArrayBuffer>, row = 0): void {
    const { ownAt, rowWords, targets } = this;
    if (ownAt === null || ownAt + words.length > rowWords || row >= targets.rows) {
      throw new RangeError(`sampler: ${words.length} words of a stage do not fit row ${row}, which has ${rowWords}`);
    }
    this.write(this.memory, words, (this.memoryTable + row * rowWords + ownAt) * 4);
  }

  private bindGroup(kernel: Kernel, round: number, pipelines: SamplerPipelines, logits: GPUBuffer): GPUBindGroup {
    const { targets } = this;
    const end = ENDS.has(kernel);
    const key = `${logits === targets.logits} ${end} ${BEFORE.has(kernel)} ${round}`;
    let found = this.bindGroups.get(key);
    if (found === undefined) {
      const shared = [this.params, logits, this.scratch, targets.state];
      const stride = this.device.limits.minUniformBufferOffsetAlignment;
      const rest: (GPUBuffer | BufferPart)[] = end
        ? [this.sizes, targets.ring, targets.inputIds, targets.mask, this.positions, this.memory]
        : [{ buffer: this.roundIndices, offset: round * stride, size: 16 }, this.memory];
      found = this.group(pipelines.layout(kernel), [...shared, ...rest]);
      this.bindGroups.set(key, found);
    }
    return found;
  }

  private group(layout: GPUBindGroupLayout, items: readonly (GPUBuffer | BufferPart)[]): GPUBindGroup {
    const entries = items.map((item, binding) => ({ binding, resource: "buffer" in item ? item : { buffer: item } }));
    return this.device.createBindGroup({ layout, entries });
  }

  /** The buffer, or one of this size in its place. */
  private atLeast(buffer: GPUBuffer, size: number): GPUBuffer {
    if (buffer.size >= size) return buffer;
    this.bindGroups.clear();
    this.owned.splice(this.owned.indexOf(buffer), 1);
    buffer.destroy();
    return this.buffer(buffer.label, size, buffer.usage);
  }

  /** Dispatches in one step, with the parameters that are set; 0 before `setProgram`. */
  get dispatchCount(): number {
    return this.plan.length;
  }

  /** Encodes one step of all rows: sample, then advance. Throws before `setProgram`. */
  encode(pass: GPUComputePassEncoder): void {
    this.encodeApart(() => pass);
  }

  /** The same, each dispatch in the pass that `passFor` gives for its pipeline. */
  encodeApart(passFor: (pipeline: GPUComputePipeline) => GPUComputePassEncoder): void {
    if (this.plan.length === 0) throw new Error("sampler: call setProgram before encode");
    this.encodePlan(this.plan, passFor);
  }

  /**
   * Encodes a step with drafts: finds them, `run`s the model over all positions, and picks at each in turn. With a draft
   * model, `draft` runs it after that number of its picks in this step: first over the last two tokens (a head over the
   * last step's picks), then over its last pick.
   */
  encodeDrafted(passFor: () => GPUComputePassEncoder, draft: (picks: number) => void, run: () => void): void {
    const { drafts } = this;
    if (drafts === null) throw new Error("sampler: call setDrafts before encodeDrafted");
    this.encodePlan(drafts.start, passFor);
    for (let picks = 0; drafts.drafter !== null && picks + 1 < drafts.positions; picks++) {
      draft(picks);
      this.encodePlan(picks === 0 ? drafts.pair : [], passFor);
      drafts.drafter.encodePlan(picks === 0 ? drafts.drafter.drafts!.pick : drafts.drafter.plan, passFor);
      this.encodePlan(picks === 0 ? drafts.first : drafts.later, passFor);
    }
    this.encodePlan(drafts.find, passFor);
    run();
    for (let place = 0; place < drafts.positions; place++) this.encodePlan(drafts.pick, passFor);
    this.encodePlan(drafts.settle, passFor);
  }

  private encodePlan(plan: Plan, passFor: (pipeline: GPUComputePipeline) => GPUComputePassEncoder): void {
    for (const { bindGroup, pipeline, blocks } of plan) {
      const pass = passFor(pipeline);
      pass.setPipeline(pipeline);
      pass.setBindGroup(0, bindGroup);
      pass.dispatchWorkgroups(blocks, this.targets.rows);
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
  const atLeast = (name: string, buffer: GPUBuffer | BufferPart | undefined, bytes: number): void => {
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
