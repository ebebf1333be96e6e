// A model on the CPU as a program of our own kernels; capstan.device.wasm.cpu_program plans it.

import type { PyProxy } from "pyodide/ffi";
import type { Assets } from "../../wire/assets";
import { EngineError } from "../../wire/errors";
import { copyBytes } from "../crossing";
import { breathe } from "../messages";
import { withPeaks } from "../peaks";
import { ComingWeights, type WeightTarget } from "./coming_weights";
import { CpuMemory } from "./cpu_memory";
import { closeThreads, type RunArguments, runInThreads, startThreads } from "./cpu_threads";
import { compileKernels, instantiate, type Kernels } from "./kernels";
import type { CpuWeight } from "./packed_weights";

/** See capstan.device.wasm.cpu_program. */
interface CpuProgram {
  words: number[];
  weights: CpuWeight[];
  program: number;
  ids: number;
  logits: number;
  row: number;
  vocab: number;
  scores: number;
  score_bytes: number;
  position: number;
  growth: number;
  end: number;
  rows: number;
  kept: number;
}

/** The caches of a sequence, as capstan.device.wasm.wasm_model describes them. */
interface SequenceSpec {
  caches: [input: string, output: string, dtype: string, dims: [number, number, number, number]][];
}

const WORDS = 24;
/** Caches have room for a multiple of this number of positions. */
const ROOM = 256;

/** The caches of a sequence in the memory of the program; no room is no memory. */
interface Place {
  address: number;
  room: number;
}

/** One program; each sequence is a CpuSequence on it. */
export class CpuEngine {
  /** Why there is one thread where more were wanted. */
  alone = "";
  private closed = false;
  /** Frees the caches of sequences that were not closed. */
  private readonly dropped = new FinalizationRegistry<Place>((place) => this.give(place));

  private constructor(
    private readonly program: CpuProgram,
    readonly memory: CpuMemory,
    private readonly weights: ComingWeights,
    private readonly kernels: Kernels,
    private readonly workers: readonly Worker[],
    /** Whether the kernels have relaxed SIMD. */
    readonly relaxed: boolean,
  ) {}

  /** With `threads` above 1 memory is shared. Runs need the weights, which `target` takes. */
  static async open(assets: Assets, told: string, threads: number): Promise<CpuEngine> {
    const program = JSON.parse(told) as CpuProgram;
    let memory = threads > 1 ? sharedMemory(program) : null;
    const shared = memory !== null;
    memory ??= new CpuMemory(program.end, program.growth, false);
    const { module, relaxed } = await compileKernels(shared);
    const weights = new ComingWeights(program.weights, memory);
    new Uint32Array(memory.buffer, program.program).set(program.words);
    const workers = shared ? await startThreads(assets, module, memory.memory, threads) : [];
    const kernels = await instantiate(module, memory.memory);
    const found = new CpuEngine(program, memory, weights, kernels, workers, relaxed);
    if (found.threads < threads) found.alone = shared ? "a worker did not start" : "there is no shared memory for it";
    return found;
  }

  /** Takes a data file with weights of this program. */
  target(location: string): WeightTarget {
    return this.weights.target(location);
  }

  get threads(): number {
    return this.workers.length + 1;
  }

  decoder(spec: string): CpuSequence {
    const { caches } = JSON.parse(spec) as SequenceSpec;
    const place = { address: 0, room: 0 };
    const made = new CpuSequence(this, place, caches);
    this.dropped.register(made, place);
    return made;
  }

  /** Give caches room for this number of positions. */
  take(place: Place, room: number): void {
    place.address = this.memory.take(this.program.position * room);
    place.room = room;
  }

  give({ address, room }: Place): void {
    if (room) this.memory.give(address, this.program.position * room);
  }

  close(): Promise<void> {
    if (!this.closed && this.workers.length) closeThreads(this.memory.buffer, this.workers);
    this.closed = true;
    return Promise.resolve();
  }

  /** Run tokens after `past` positions of a cache; the logits of the last `kept` of them. */
  async run(tokens: BigInt64Array, past: number, kept: number, place: Readonly<Place>): Promise<Float32Array> {
    const { ids, logits, row, vocab, rows: most, kept: mostKept } = this.program;
    const found = new Float32Array(kept * vocab);
    for (let at = 0, given = 0; at < tokens.length;) {
      await breathe();
      if (this.closed || !place.room)
        throw new EngineError("ClosedError", "the model of this generator was closed; load it again");
      const first = tokens.length - kept;
      let rows = Math.min(most, tokens.length - at);
      let keeping = Math.max(0, at + rows - Math.max(first, at));
      if (keeping > mostKept) [rows, keeping] = [rows - (keeping - mostKept), mostKept];
      new Int32Array(this.memory.buffer, ids).set(Array.from(tokens.subarray(at, at + rows), Number));
      this.runRows(rows, past + at, keeping, place);
      for (let i = 0; i < keeping; i++, given++)
        found.set(new Float32Array(this.memory.buffer, logits + 4 * row * i, vocab), given * vocab);
      at += rows;
    }
    return found;
  }

  private runRows(rows: number, past: number, kept: number, { address, room }: Place): void {
    const { program, words, scores, score_bytes } = this.program;
    const given: RunArguments = [program, words.length / WORDS, rows, past, kept, address, room, scores, score_bytes];
    runInThreads(this.kernels, this.memory.buffer, given, this.threads);
  }
}

/** Memory for threads; none where the browser has too little. */
function sharedMemory({ end, growth }: CpuProgram): CpuMemory | null {
  try {
    return new CpuMemory(end, growth, true);
  } catch {
    return null;
  }
}

/** One sequence: all of its caches are in one part of the program's memory, each [heads, room, size]. */
export class CpuSequence {
  constructor(
    private readonly engine: CpuEngine,
    private readonly place: Place,
    private readonly caches: SequenceSpec["caches"],
  ) {}

  /** Run the model on `ids` (int64 [n]) after `past` positions; the last `kept` positions' logits, and their peaks. */
  async step(ids: PyProxy, past: number, kept: number): Promise<[logits: Float32Array, peaks: Float32Array]> {
    const tokens = new BigInt64Array(copyBytes(ids).buffer);
    this.makeRoom(past + tokens.length, past);
    return withPeaks(await this.engine.run(tokens, past, kept, this.place));
  }

  /** The bytes of a cache, by the name of the input that reads it. */
  carried(name: string): Uint8Array {
    let at = this.place.address;
    for (const [input, , , [, heads, , size]] of this.caches) {
      const bytes = 4 * heads * size * this.place.room;
      if (input === name) return new Uint8Array(this.engine.memory.buffer, at, bytes).slice();
      at += bytes;
    }
    throw new Error(`there is no cache ${name}`);
  }

  /** Make the first `length` positions of a cache these bytes, [heads, length, size]; called for each cache in turn. */
  write(name: string, data: PyProxy, length: number): void {
    this.makeRoom(length, 0);
    const given = copyBytes(data);
    const { address, room } = this.place;
    let at = address;
    for (const [input, , , [, heads, , size]] of this.caches) {
      if (input === name) {
        const bytes = new Uint8Array(this.engine.memory.buffer);
        const row = 4 * size;
        for (let head = 0; head < heads; head++)
          bytes.set(given.subarray(head * row * length, (head + 1) * row * length), at + head * row * room);
        return;
      }
      at += 4 * heads * size * room;
    }
    throw new Error(`there is no cache ${name}`);
  }

  copyFrom(other: CpuSequence): void {
    this.adopt(other, other.place.room);
  }

  /** Make the first `length` positions of the caches those of another sequence. */
  adopt(other: CpuSequence, length: number): void {
    this.makeRoom(length, 0);
    this.copy(other.place, length);
  }

  close(): void {
    this.engine.give(this.place);
    this.place.room = 0;
  }

  /** Let the caches have room for `length` positions, of which the first `past` are kept. */
  private makeRoom(length: number, past: number): void {
    const before = { ...this.place };
    if (before.room >= length) return;
    const most = this.caches[0]![3][2];
    // Twice the room at each growth, so that a long sequence is copied a few times only.
    const wanted = Math.max(Math.ceil(length / ROOM) * ROOM, 2 * before.room);
    this.engine.take(this.place, Math.max(length, Math.min(wanted, most)));
    this.copy(before, Math.min(past, before.room));
    this.engine.give(before);
  }

  /** Take the first `length` positions of the caches at a place. */
  private copy({ address, room }: Place, length: number): void {
    const bytes = new Uint8Array(this.engine.memory.buffer);
    let [from, to] = [address, this.place.address];
    for (const [, , , [, heads, , size]] of this.caches)
      for (let head = 0; head < heads; head++, from += 4 * size * room, to += 4 * size * this.place.room)
        bytes.copyWithin(to, from, from + 4 * size * length);
  }
}
