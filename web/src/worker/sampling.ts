// Samplers and beam searches that take turns with steps of tapes, in bursts of one submit each.

import type { PyProxy } from "pyodide/ffi";
import type { BoundSessions } from "./bound_sessions";
import { copyBytes } from "./crossing";
import type { SamplingCalls } from "./engine_calls";
import { BeamSearch, RECORDED } from "./gpu/beam_search";
import type { BufferPart, WatchedDevice } from "./gpu/device";
import { type BurstResult, RingReader } from "./gpu/ring";
import { Sampler, type SamplerTargets } from "./gpu/sampler";
import type { SamplerProgram } from "./gpu/sampler_program";
import { operationTimes, stepTime } from "./gpu/timing";
import { TracedStep } from "./gpu/traced_step";
import { Handles } from "./handles";
import { type PartSpec, partOf, type Tapes } from "./tapes";
import { tracer } from "./trace";

interface SamplerSpec {
  logits: number;
  logits_type: "float32" | "float16";
  vocab: number;
  rows: number;
  state: PartSpec;
  ring: PartSpec;
  ring_capacity: number;
  input_ids: number;
  mask: number;
  max_length: number;
  position_ids: number | null;
  owner: string;
}

interface BeamSpec {
  logits: number;
  logits_type: "float32" | "float16";
  vocab: number;
  rows: number;
  beams: number;
  looked: number;
  ends: number[];
  state: PartSpec;
  input_ids: number;
  table: number;
  scores: number;
  capacity: number;
  owner: string;
}

export class Sampling implements SamplingCalls {
  private readonly samplers = new Handles<{ sampler: Sampler; reader: RingReader; owner: string }>("sampler");
  private readonly searches = new Handles<{ search: BeamSearch; reader: RingReader }>("beam search");

  constructor(
    private readonly watched: WatchedDevice,
    private readonly buffers: Handles<GPUBuffer>,
    private readonly sessions: BoundSessions,
    private readonly tapes: Tapes,
  ) {}

  makeSampler(spec: string): number {
    const s = JSON.parse(spec) as SamplerSpec;
    const ring = partOf(this.buffers, s.ring);
    const targets: SamplerTargets = {
      logits: this.buffers.get(s.logits),
      logitsType: s.logits_type,
      vocab: s.vocab,
      rows: s.rows,
      state: partOf(this.buffers, s.state),
      ring,
      ringCapacity: s.ring_capacity,
      inputIds: this.buffers.get(s.input_ids),
      mask: this.buffers.get(s.mask),
      maxLength: s.max_length,
      ...(s.position_ids === null ? {} : { positionIds: this.buffers.get(s.position_ids) }),
    };
    const { watched } = this;
    const write = (buffer: GPUBuffer, words: Uint32Array<ArrayBuffer>, offset = 0): void =>
      watched.write(buffer, offset, new Uint8Array(words.buffer, words.byteOffset, words.byteLength));
    const sampler = watched.attribute("kernels", s.owner, () => new Sampler(watched.device, targets, write));
    const reader = new RingReader(this.watched, ring, s.ring_capacity, s.owner, s.rows);
    return this.samplers.add({ sampler, reader, owner: s.owner });
  }

  /** `program` is a SamplerProgram in JSON. */
  setSampling(handle: number, words: PyProxy, table: PyProxy, program: string): void {
    const { sampler, owner } = this.samplers.get(handle);
    const given = JSON.parse(program) as SamplerProgram;
    this.watched.attribute("kernels", owner, () => sampler.setProgram(wordsOf(words), wordsOf(table), given));
  }

  /** The tokens that a row's next pick may take: a bit each, in u32 words. */
  setAllowed(handle: number, mask: PyProxy, row: number): void {
    this.samplers.get(handle).sampler.setAllowed(wordsOf(mask), row);
  }

  /** Sets a stage's own words in a row's memory. */
  setSamplerOwn(handle: number, words: PyProxy, row: number): void {
    this.samplers.get(handle).sampler.setOwn(wordsOf(words), row);
  }

  setSamplerMemory(handle: number, rows: PyProxy, row: number): void {
    this.samplers.get(handle).sampler.setMemory(wordsOf(rows), row);
  }

  destroySampler(handle: number): void {
    const held = this.samplers.take(handle);
    held?.sampler.destroy();
    held?.reader.destroy();
  }

  makeBeamSearch(spec: string): number {
    const s = JSON.parse(spec) as BeamSpec;
    const { watched } = this;
    const search = watched.attribute("kernels", s.owner, () => {
      return new BeamSearch(watched, s.owner, {
        logits: this.buffers.get(s.logits),
        logitsType: s.logits_type,
        vocab: s.vocab,
        rows: s.rows,
        beams: s.beams,
        looked: s.looked,
        ends: s.ends,
        state: partOf(this.buffers, s.state),
        inputIds: this.buffers.get(s.input_ids),
        table: this.buffers.get(s.table),
        scores: this.buffers.get(s.scores),
        capacity: s.capacity,
      });
    });
    const reader = new RingReader(watched, search.records, RECORDED, s.owner, 1, search.words);
    return this.searches.add({ search, reader });
  }

  destroyBeamSearch(handle: number): void {
    const held = this.searches.take(handle);
    held?.search.destroy();
    held?.reader.destroy();
  }

  /** As `burst`, with choices of a beam search in the place of picks, and the words of their records in that of ids. */
  beamBurst(
    tape: number,
    handle: number,
    picks: number,
    chooseFirst: boolean,
    length: number,
    cursor: number,
  ): Promise<Float64Array> {
    const { search, reader } = this.searches.get(handle);
    const step = this.steps(tape, search, picks, chooseFirst, length);
    return this.finishBurst(step, reader, cursor, picks, "beam burst");
  }

  /**
   * Submit `picks` sampling steps in one command buffer, each after one step of the tape (the first of them without,
   * if `sampleFirst`), and read the picked ids back. `length` is the number of valid positions the first tape step
   * sees, `cursor` the ring index of the first pick. Resolves to [submitted, done, readable, host ms, ids row by row].
   */
  burst(
    tape: number,
    sampler: number,
    picks: number,
    sampleFirst: boolean,
    length: number,
    cursor: number,
  ): Promise<Float64Array> {
    const { sampler: picker, reader } = this.samplers.get(sampler);
    const step = this.steps(tape, picker, picks, sampleFirst, length);
    return this.finishBurst(step, reader, cursor, picks, "burst");
  }

  /**
   * Let the sampler take steps with drafts, over a tape of this number of positions with these input ids and logits. The
   * drafts are picks of the sampler `drafter`, or found in the sequence if that is 0. `states` is a JSON list of
   * [buffer of a state, buffer of the state after each position, bytes of the state]. `head` is a JSON list of the
   * buffers of a multi-token-prediction head's hidden states, empty for other draft models.
   */
  setDrafts(
    sampler: number,
    inputIds: number,
    logits: number,
    positions: number,
    drafter: number,
    states: string,
    head: string,
  ): void {
    const part = (handle: number, size: number): BufferPart => ({ buffer: this.buffers.get(handle), offset: 0, size });
    const [rows, row, read, bytes] = JSON.parse(head) as number[];
    this.samplers.get(sampler).sampler.setDrafts({
      inputIds: this.buffers.get(inputIds),
      logits: this.buffers.get(logits),
      positions,
      drafter: drafter ? this.samplers.get(drafter).sampler : null,
      head:
        rows === undefined
          ? null
          : { rows: this.buffers.get(rows), row: this.buffers.get(row!), read: part(read!, bytes!) },
      states: (JSON.parse(states) as [number, number, number][]).map(([past, kept, bytes]) => ({
        past: part(past, bytes),
        kept: part(kept, positions * bytes),
      })),
    });
  }

  /**
   * Submit `steps` steps of a tape over `positions` positions in one command buffer: each finds drafts, runs, and picks at
   * each position in turn. `length` is what the valid positions are at most before the first, `cursor` the ring index of
   * its first pick. `pairTape` and `drafterTape` are the draft model's steps over two tokens and over one, or 0. Resolves
   * as `burst` does, with `positions` ids a step.
   */
  draftedBurst(
    tape: number,
    sampler: number,
    steps: number,
    positions: number,
    length: number,
    cursor: number,
    pairTape: number,
    drafterTape: number,
  ): Promise<Float64Array> {
    const played = this.tapes.playable(tape);
    const [pair, one] = [pairTape, drafterTape].map((handle) => (handle ? this.tapes.playable(handle) : null));
    const held = this.samplers.get(sampler);
    const step = TracedStep.begin(this.watched);
    for (let valid = length; valid < length + steps * positions; valid += positions) {
      held.sampler.encodeDrafted(
        () => step.pass,
        (picks) => (picks === 0 ? pair! : one!).encode(step, valid + picks),
        () => played.encode(step, valid + positions),
      );
    }
    return this.finishBurst(step, held.reader, cursor, steps * positions, "drafted burst");
  }

  /** Pick one token from the logits that are there, after ORT's own run over `valid` positions unless `binding` is 0. */
  async eagerBurst(
    binding: number,
    valid: number,
    sampler: number,
    cursor: number,
    base: number,
  ): Promise<Float64Array> {
    const start = performance.now();
    if (binding) await this.sessions.run(binding, valid, 1, base);
    const held = this.samplers.get(sampler);
    const step = TracedStep.begin(this.watched);
    held.sampler.encode(step.pass);
    return this.finishBurst(step, held.reader, cursor, 1, "pick", start);
  }

  /**
   * Measures `steps` tape steps and picks when nothing but this loop drives them: bursts of `picks`, `inFlight` of them
   * under way, each read back like those of `burst`. Milliseconds a pick, from the first burst's ids to the last one's.
   */
  async replay(
    tape: number,
    sampler: number,
    steps: number,
    picks: number,
    length: number,
    cursor: number,
    inFlight: number,
  ): Promise<number> {
    const flight: Promise<Float64Array>[] = [];
    const readable: number[] = [];
    try {
      for (let at = 0; at < steps || flight.length;) {
        for (; at < steps && flight.length < inFlight; at += picks)
          flight.push(this.burst(tape, sampler, Math.min(picks, steps - at), false, length + at, cursor + at));
        readable.push((await flight.shift()!)[2]!);
      }
    } finally {
      await Promise.allSettled(flight);
    }
    return (readable[readable.length - 1]! - readable[0]!) / (steps - picks);
  }

  /** Milliseconds of GPU time a step, over `steps` of them from `length` valid positions on; see gpu/timing.ts. */
  stepTime(tape: number, sampler: number, steps: number, length: number): Promise<number> {
    return stepTime(this.watched, this.tapes.playable(tape), this.samplers.get(sampler).sampler, steps, length);
  }

  /** Milliseconds of GPU time of each dispatch of a step, as a JSON list of OperationTime; see gpu/timing.ts. */
  async operationTimes(tape: number, sampler: number, length: number): Promise<string> {
    const { sampler: picks } = this.samplers.get(sampler);
    return JSON.stringify(await operationTimes(this.watched, this.tapes.playable(tape), picks, length));
  }

  /** Encode `picks` picks, each after one step of a tape, the first of them without if `pickFirst`. */
  private steps(
    tape: number,
    picker: Sampler | BeamSearch,
    picks: number,
    pickFirst: boolean,
    length: number,
  ): TracedStep {
    const played = this.tapes.playable(tape);
    const step = TracedStep.begin(this.watched);
    let valid = length;
    for (let i = 0; i < picks; i++) {
      if (i > 0 || !pickFirst) played.encode(step, valid++);
      picker.encode(step.pass);
    }
    return step;
  }

  private async finishBurst(
    step: TracedStep,
    reader: RingReader,
    cursor: number,
    picks: number,
    name: string,
    start = step.begun,
  ): Promise<Float64Array> {
    step.endPass();
    const read = reader.encodeCopy(step.encoder, cursor, picks);
    const end = step.submit();
    const reading: Promise<BurstResult> = read();
    if (tracer.on) step.trace(name, end, reading, { picks });
    const { ids, submitted, done, readable } = await reading;
    return Float64Array.of(submitted, done, readable, end - start, ...ids);
  }
}

/** u32 words of Python's bytes. */
function wordsOf(bytes: PyProxy): Uint32Array<ArrayBuffer> {
  const copied = copyBytes(bytes);
  return new Uint32Array(copied.buffer, 0, copied.byteLength / 4);
}
