// Tapes of recordings: made, stored and made again, compared with the truth, played once.

import type { PyProxy } from "pyodide/ffi";
import type { BoundSessions } from "./bound_sessions";
import { copyBytes } from "./crossing";
import type { Json, TapesCalls } from "./engine_calls";
import { EngineError } from "../wire/errors";
import { countsByLength, countsOfStep } from "./gpu/counts";
import type { BufferPart, WatchedDevice } from "./gpu/device";
import { FusedKernels, type FusedSpec } from "./gpu/fused";
import { FusedPipelines } from "./gpu/kernels";
import { type PlayedOp, Tape } from "./gpu/player";
import type { Staging } from "./gpu/staging";
import {
  fromBase64,
  RecordedPipelines,
  restoredObjects,
  type StoredTape,
  storedTape,
  type TapeSource,
} from "./gpu/stored_tape";
import { submitTimes, TracedStep } from "./gpu/traced_step";
import { witness, type WitnessSpec } from "./gpu/witness";
import { Handles } from "./handles";
import { tracer } from "./trace";

/** Part of a buffer, by [handle, offset, bytes]. */
export type PartSpec = [number, number, number];

export function partOf(buffers: Handles<GPUBuffer>, [handle, offset, size]: PartSpec): BufferPart {
  return { buffer: buffers.get(handle), offset, size };
}

export class Tapes implements TapesCalls {
  private readonly tapes = new Handles<Tape>("tape");
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
    await this.tapes.get(tape).giveScratch(parts?.map((each) => partOf(this.buffers, each)) ?? null);
  }

  closeTape(handle: number): void {
    this.tapes.take(handle)?.close();
    this.sources.delete(handle);
  }

  /** Encode one step of a tape and nothing else; `length` is the number of valid positions it sees. */
  playOnce(tape: number, length: number): void {
    const played = this.playable(tape);
    const step = TracedStep.begin(this.watched);
    played.encode(step, length);
    const end = step.submit();
    if (tracer.on) step.trace("replay", end, submitTimes(this.watched.device), { length });
  }

  /** A tape that can be played now. */
  playable(tape: number): Tape {
    this.watched.assertHealthy();
    const found = this.tapes.get(tape);
    found.assertPlayable();
    return found;
  }
}
