// Tapes of recordings, and the samplers that take turns with them.

import type { PyProxy } from "pyodide/ffi";
import type { BoundSessions } from "./bound_sessions";
import { copyBytes } from "./crossing";
import type { Json, TapesCalls } from "./engine_calls";
import { EngineError } from "../wire/errors";
import { BeamSearch, RECORDED } from "./gpu/beam_search";
import { countsByLength, countsOfStep } from "./gpu/counts";
import type { BufferPart, WatchedDevice } from "./gpu/device";
import { FusedKernels, type FusedSpec } from "./gpu/fused";
import { FusedPipelines } from "./gpu/kernels";
import { type PlayedOp, Tape } from "./gpu/player";
import { type BurstResult, RingReader } from "./gpu/ring";
import { Sampler, type SamplerTargets } from "./gpu/sampler";
import type { SamplerProgram } from "./gpu/sampler_program";
import type { Staging } from "./gpu/staging";
import {
  fromBase64,
  RecordedPipelines,
  restoredObjects,
  type StoredTape,
  storedTape,
  type TapeSource,
} from "./gpu/stored_tape";
import { operationTimes, stepTime } from "./gpu/timing";
import { submitTimes, TracedStep } from "./gpu/traced_step";
import { witness, type WitnessSpec } from "./gpu/witness";
import { Handles } from "./handles";
import { tracer } from "./trace";

/** Part of a buffer, by [handle, offset, bytes]. */
type PartSpec = [number, number, number];

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

export class Tapes implements TapesCalls {
  private readonly tapes = new Handles<Tape>("tape");
  private readonly samplers = new Handles<{ sampler: Sampler; reader: RingReader; owner: string }>("sampler");
  private readonly searches = new Handles<{ search: BeamSearch; reader: RingReader }>("beam search");
  /** The sources of tapes, by their handles. */
  private readonly sources = new Map<number, TapeSource>();
  private readonly fusedPipelines: FusedPipelines;
  private readonly recordedPipelines: RecordedPipelines;

  constructor(
    private readonly watched: WatchedDevice,
    private readonly staging: Staging,
    private readonly buffers: Handles<GPUBuffer>,
    private readonly sessions: BoundSessions,
  ) {
    this.fusedPipelines = new FusedPipelines(watched.device);
    this.recordedPipelines = new RecordedPipelines(watched.device);
  }

  /**
   * Make a tape of a recording; `written` lists the recorded ids of buffers that may change between replays, `fused`
   * is the FusedSpec of its kernels.
   */
  async makeTape(recording: number, played: string, written: string, fused: string): Promise<number> {
    const source: TapeSource = {
      objects: this.sessions.recordings.get(recording),
      played: JSON.parse(played) as PlayedOp[],
      fused: JSON.parse(fused) as FusedSpec,
      written: JSON.parse(written) as number[],
      tables: [],
    };
    return this.made(source, []);
  }

  /** A tape of a source; `owned` are buffers of its own, which are freed on failure too. */
  private async made(source: TapeSource, owned: GPUBuffer[]): Promise<number> {
    const { objects, played, fused, written } = source;
    let kernels: FusedKernels | null = null;
    try {
      const buffer = (handle: number): GPUBuffer => this.buffers.get(handle);
      kernels = await FusedKernels.make(this.watched, this.fusedPipelines, "scratch", fused, objects, buffer);
      const handle = this.tapes.add(new Tape(objects, played, new Set(written), kernels, owned));
      this.sources.set(handle, source);
      return handle;
    } catch (error) {
      kernels?.destroy();
      for (const buffer of owned) buffer.destroy();
      throw error;
    }
  }

  /** A tape as data, a StoredTape in JSON; `given` lists the recorded ids of buffers that it is to be given again. */
  async storeTape(handle: number, given: string): Promise<string> {
    const source = this.sources.get(handle);
    if (!source) throw new EngineError("ClosedError", `tape ${handle} was closed; load the model again`);
    const ids = new Set(JSON.parse(given) as number[]);
    return JSON.stringify(await storedTape(this.staging, source, ids));
  }

  /** Make a stored tape again; `given` has handles of buffers by their recorded ids. */
  async restoreTape(stored: Json, given: Json, owner: string): Promise<number> {
    const tape = JSON.parse(stored) as StoredTape;
    const buffers = new Map<number, GPUBuffer>();
    for (const [id, handle] of Object.entries(JSON.parse(given) as Record<string, number>))
      buffers.set(Number(id), this.buffers.get(handle));
    // All compile at once.
    const compiling = Promise.allSettled(tape.fused.kernels.map((kernel) => this.fusedPipelines.get(kernel)));
    const { objects, owned } = await restoredObjects(this.watched, this.recordedPipelines, tape, buffers, owner);
    await compiling;
    const { played, fused, written } = tape;
    const handle = await this.made({ objects, played, fused, written, tables: [] }, owned);
    for (const table of tape.tables) this.keepTable(handle, new Uint32Array(fromBase64(table).buffer));
    return handle;
  }

  /** Workgroup counts by sequence length for the next `table` number of a tape: u32 [length + 1, 3]. */
  addTable(tape: number, counts: PyProxy): void {
    const bytes = copyBytes(counts);
    this.keepTable(tape, new Uint32Array(bytes.buffer, 0, bytes.byteLength / 4));
  }

  private keepTable(tape: number, counts: Uint32Array<ArrayBuffer>): void {
    this.tapes.get(tape).addTable(counts);
    this.sources.get(tape)?.tables.push(counts);
  }

  /** Fill recorded buffers, and the tape's scratch, with bytes 0xFF, which no kernel takes for a finite float. */
  poison(tape: number, recording: number, buffers: string): void {
    this.tapes.get(tape).fused?.poison();
    const objects = this.sessions.recordings.get(recording);
    for (const id of JSON.parse(buffers) as number[]) {
      const buffer = objects.buffers.get(id);
      if (!buffer) throw new EngineError("TapeError", `buffer ${id} was not recorded`);
      this.watched.poison(buffer);
    }
  }

  /**
   * Carry out a WitnessSpec with a step of a tape that sees `length` positions, or without one if `tape` is 0; resolves to
   * what the spec reads back.
   */
  async witness(recording: number, tape: number, length: number, spec: string): Promise<Uint8Array> {
    const played = tape ? this.playable(tape) : null;
    const objects = this.sessions.recordings.get(recording);
    const asked = JSON.parse(spec) as WitnessSpec;
    const buffer = (handle: number): GPUBuffer => this.buffers.get(handle);
    return witness(this.watched, this.fusedPipelines, asked, objects, buffer, played, length);
  }

  /** For each sequence length, the counts `steps` leave in a recorded buffer: u32 [lengths, 3] as bytes. */
  async countsByLength(
    recording: number,
    steps: string,
    source: number,
    offset: number,
    mask: number,
    lengths: number,
  ): Promise<Uint8Array> {
    const objects = this.sessions.recordings.get(recording);
    const tape = new Tape(objects, JSON.parse(steps) as PlayedOp[], new Set(objects.infos.keys()));
    try {
      return await countsByLength(this.watched, tape, objects, { source, offset }, this.buffers.get(mask), lengths);
    } finally {
      tape.close();
    }
  }

  /** The counts that the indirect dispatches of a tape really get in a step at `length`: u32 [dispatches, 3] as bytes. */
  async countsOfStep(tape: number, length: number): Promise<Uint8Array> {
    return countsOfStep(this.watched, this.playable(tape), length);
  }

  /** Bytes of each scratch buffer of a tape's kernels, as a JSON list. */
  tapeScratch(tape: number): string {
    return JSON.stringify(this.tapes.get(tape).fused?.scratchSizes ?? []);
  }

  /** Have a tape's kernels work in parts of buffers, a JSON list of PartSpec, or in scratch of their own if it is null. */
  async giveScratch(tape: number, spans: string): Promise<void> {
    const parts = JSON.parse(spans) as PartSpec[] | null;
    await this.tapes.get(tape).giveScratch(parts?.map((each) => this.part(each)) ?? null);
  }

  closeTape(handle: number): void {
    this.tapes.take(handle)?.close();
    this.sources.delete(handle);
  }

  makeSampler(spec: string): number {
    const s = JSON.parse(spec) as SamplerSpec;
    const ring = this.part(s.ring);
    const targets: SamplerTargets = {
      logits: this.buffers.get(s.logits),
      logitsType: s.logits_type,
      vocab: s.vocab,
      rows: s.rows,
      state: this.part(s.state),
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
        state: this.part(s.state),
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

  /** Encode one step of a tape and nothing else; `length` is the number of valid positions it sees. */
  playOnce(tape: number, length: number): void {
    const played = this.playable(tape);
    const step = TracedStep.begin(this.watched);
    played.encode(step, length);
    const end = step.submit();
    if (tracer.on) step.trace("replay", end, submitTimes(this.watched.device), { length });
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

  /** Let the sampler take steps with drafts, over a tape of so many positions with these input ids and logits. */
  setDrafts(sampler: number, inputIds: number, logits: number, positions: number): void {
    const targets = { inputIds: this.buffers.get(inputIds), logits: this.buffers.get(logits), positions };
    this.samplers.get(sampler).sampler.setDrafts(targets);
  }

  /**
   * Submit `steps` steps of a tape over `positions` positions in one command buffer: each finds drafts, runs, and picks at
   * each position in turn. `length` is what the valid positions are at most before the first, `cursor` the ring index of
   * its first pick. Resolves as `burst` does, with `positions` ids a step.
   */
  draftedBurst(
    tape: number,
    sampler: number,
    steps: number,
    positions: number,
    length: number,
    cursor: number,
  ): Promise<Float64Array> {
    const played = this.playable(tape);
    const held = this.samplers.get(sampler);
    const step = TracedStep.begin(this.watched);
    for (let i = 1; i <= steps; i++) {
      held.sampler.encodeDrafted(
        () => step.pass,
        () => played.encode(step, length + i * positions),
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
    return stepTime(this.watched, this.playable(tape), this.samplers.get(sampler).sampler, steps, length);
  }

  /** Milliseconds of GPU time of each dispatch of a step, as a JSON list of OperationTime; see gpu/timing.ts. */
  async operationTimes(tape: number, sampler: number, length: number): Promise<string> {
    const { sampler: picks } = this.samplers.get(sampler);
    return JSON.stringify(await operationTimes(this.watched, this.playable(tape), picks, length));
  }

  private part([handle, offset, size]: PartSpec): BufferPart {
    return { buffer: this.buffers.get(handle), offset, size };
  }

  /** Encode `picks` picks, each after one step of a tape, the first of them without if `pickFirst`. */
  private steps(
    tape: number,
    picker: Sampler | BeamSearch,
    picks: number,
    pickFirst: boolean,
    length: number,
  ): TracedStep {
    const played = this.playable(tape);
    const step = TracedStep.begin(this.watched);
    let valid = length;
    for (let i = 0; i < picks; i++) {
      if (i > 0 || !pickFirst) played.encode(step, valid++);
      picker.encode(step.pass);
    }
    return step;
  }

  private playable(tape: number): Tape {
    this.watched.assertHealthy();
    const found = this.tapes.get(tape);
    found.assertPlayable();
    return found;
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
