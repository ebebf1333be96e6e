// Uploads ranges of a data file into the weights' buffers as it comes in, with a bounded number of bytes under way.

import { type Angles, angleTable } from "../angle_tables";
import { EngineError } from "../../wire/errors";
import type { ReadAt } from "../storage/chunk";
import type { EarlyLoad, Target } from "../storage/weight_load";
import { Allocations } from "./allocations";
import type { WatchedDevice } from "./device";
import type { Change, Rearranger } from "./rearranger";

/** A range of a data file and the buffer it goes to; offsets and lengths are in bytes. */
export interface WeightPiece {
  buffer: GPUBuffer;
  offset: number;
  length: number;
  /** Its offset in the buffer; a multiple of 4. */
  at: number;
  change: Change | null;
}

/** Bytes of one write: the browser copies a larger one once more on its way to the GPU process. */
const PIECE = 256 << 10;

/** Windows that are on their way at once. */
const WINDOWS = 3;

/** Mapped memory that a window passes through; `ready` once it is mapped. */
interface Window {
  buffer: GPUBuffer;
  ready: Promise<undefined> | null;
}

/** Map a window, which waits for the commands that use it. */
function map(window: Window): Window {
  window.ready = window.buffer.mapAsync(GPUMapMode.WRITE);
  // Awaited when its turn comes, which a failure elsewhere may forestall.
  window.ready.catch(() => undefined);
  return window;
}

export class WeightUpload implements Target {
  closed = false;
  /** An upload into the same buffers that is under way or done; null once that is used or has ended. */
  early: EarlyLoad | null = null;
  private readonly writers: PieceWriter[];
  private readonly allocations: Allocations;
  private readonly windows: Window[] = [];
  private first = 0;
  private next = 0;

  constructor(
    private readonly watched: WatchedDevice,
    private readonly rearranger: Rearranger,
    pieces: WeightPiece[],
  ) {
    const sorted = [...pieces].sort((a, b) => a.offset - b.offset);
    this.writers = sorted.map((piece) => new PieceWriter(watched, piece));
    this.allocations = new Allocations(watched);
  }

  wants(start: number, length: number): boolean {
    return this.within(start, length).length > 0;
  }

  /** The bytes pass through mapped memory that the GPU process shares. */
  async put(start: number, length: number, read: ReadAt): Promise<boolean> {
    const writers = this.within(start, length);
    if (writers.length === 0) return true;
    this.first = this.writers.indexOf(writers[0]!);
    try {
      await this.makeRoom(writers);
      const window = this.window(length);
      await window.ready;
      this.requireOpen(writers);
      const bytes = new Uint8Array(window.buffer.getMappedRange(), 0, length);
      if ((await read(bytes, start)) < length) {
        window.buffer.unmap();
        map(window);
        return false;
      }
      this.copy(writers, window, start, bytes);
      return true;
    } catch (error) {
      throw await this.watched.explain(error);
    }
  }

  /** The upload that is ahead of this one, for its user or the one that ends it. */
  takeEarly(): EarlyLoad | null {
    const { early } = this;
    this.early = null;
    return early;
  }

  /** The weights that have bytes there, in ascending order. */
  private within(start: number, length: number): PieceWriter[] {
    const { writers } = this;
    let { first } = this;
    while (first < writers.length && writers[first]!.end <= start) first++;
    let last = first;
    while (last < writers.length && writers[last]!.piece.offset < start + length) last++;
    return writers.slice(first, last);
  }

  /** The next window, made again if it is too small. */
  private window(size: number): Window {
    const turn = this.next++ % WINDOWS;
    const known = this.windows[turn];
    if (known && known.buffer.size >= size) return known;
    known?.buffer.destroy();
    const usage = GPUBufferUsage.MAP_WRITE | GPUBufferUsage.COPY_SRC;
    const descriptor = { label: "weights on their way", size: Math.ceil(size / 4) * 4, usage };
    const buffer = this.watched.buffer("staging", "uploads", descriptor);
    return map((this.windows[turn] = { buffer, ready: null }));
  }

  /** Copy what a mapped window holds to the weights, on the GPU, and map it again. */
  private copy(writers: PieceWriter[], window: Window, start: number, bytes: Uint8Array<ArrayBuffer>): void {
    const encoder = this.watched.encoder();
    const send: Send = (buffer, at, part) => {
      // Copies on the GPU begin at multiples of 4 bytes.
      if (part.byteOffset % 4 === 0) {
        encoder.copyBufferToBuffer(window.buffer, part.byteOffset, buffer, at, part.length);
      } else {
        this.write(buffer, at, part);
      }
    };
    for (const writer of writers) writer.accept(start, bytes, send);
    window.buffer.unmap();
    this.turn(
      encoder,
      writers.filter((writer) => writer.turns),
    );
    map(window);
  }

  /** Memory for pieces that are rearranged on the GPU; each is copied there whole first. */
  private async makeRoom(writers: PieceWriter[]): Promise<void> {
    const waiting = writers.filter((writer) => writer.wantsRoom);
    if (waiting.length === 0) return;
    for (const writer of waiting) this.allocations.during(() => writer.makeRoom());
    await this.allocations.require("weights that are rearranged");
  }

  /** Submit what was encoded, and after it the rearranging of pieces that are whole. */
  private turn(encoder: GPUCommandEncoder, whole: PieceWriter[]): void {
    for (const writer of whole) writer.rearrange(encoder, this.rearranger);
    this.watched.submit([encoder.finish()]);
    for (const writer of whole) writer.drop();
  }

  /** The load may have been given up meanwhile. */
  private requireOpen(writers: PieceWriter[]): void {
    this.watched.assertHealthy();
    if (writers.some(({ piece }) => this.watched.info(piece.buffer).destroyed)) {
      throw new EngineError("ClosedError", "the weights' buffers were freed while they were being loaded");
    }
  }

  private readonly write: Send = (buffer, at, bytes) => {
    for (let done = 0; done < bytes.length; done += PIECE) {
      this.watched.write(buffer, at + done, bytes.subarray(done, Math.min(bytes.length, done + PIECE)));
    }
  };

  async finish(): Promise<void> {
    for (const writer of this.writers) writer.finish();
    // An empty submit hands the writes over to the GPU.
    this.watched.submit([]);
    await this.watched.device.queue.onSubmittedWorkDone();
    this.watched.assertHealthy();
  }

  close(): void {
    this.closed = true;
    for (const { buffer } of this.windows.splice(0)) buffer.destroy();
  }
}

/** Puts bytes, a multiple of 4, into a buffer. */
type Send = (buffer: GPUBuffer, at: number, bytes: Uint8Array<ArrayBuffer>) => void;

/** Writes what belongs to one piece; keeps back what is not a multiple of 4 bytes. */
class PieceWriter {
  readonly end: number;
  private seen = 0;
  private written: number;
  /** Holds the bytes of a piece before they are rearranged. */
  private room: GPUBuffer | null = null;
  /** Buffers that are destroyed once the rearranging is submitted. */
  private params: GPUBuffer | null = null;
  private readonly held = new Uint8Array(4);
  private heldCount = 0;

  constructor(
    private readonly watched: WatchedDevice,
    readonly piece: WeightPiece,
  ) {
    this.end = piece.offset + piece.length;
    this.written = piece.change ? 0 : piece.at;
  }

  get wantsRoom(): boolean {
    return this.piece.change !== null && !this.angles && this.room === null && this.seen < this.piece.length;
  }

  /** The table in place of bytes of the file. */
  private get angles(): Angles | null {
    const { change } = this.piece;
    return change?.[0] === "angles" ? change : null;
  }

  /** Whether it is whole, and to be rearranged. */
  get turns(): boolean {
    return this.room !== null && this.seen === this.piece.length;
  }

  makeRoom(): void {
    const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_DST;
    const descriptor = { label: "weights to rearrange", size: Math.ceil(this.piece.length / 4) * 4, usage };
    this.room = this.watched.buffer("staging", "uploads", descriptor);
    // A load that is given up destroys the weights' buffers.
    this.watched.info(this.piece.buffer).onDestroy.add(() => {
      this.drop();
    });
  }

  rearrange(encoder: GPUCommandEncoder, rearranger: Rearranger): void {
    this.finish();
    const { change, buffer, at, length } = this.piece;
    this.params = rearranger.change(encoder, change as Exclude<Change, Angles>, this.room!, length, buffer, at);
  }

  /** Free what was made of the room, once what reads it is submitted. */
  drop(): void {
    for (const buffer of [this.room, this.params]) buffer?.destroy();
    this.room = this.params = null;
  }

  /**
   * Returns how many bytes of the chunk belong to the piece; `send` gets them, less the bytes that `held` rounds off.
   */
  accept(position: number, chunk: Uint8Array<ArrayBuffer>, send: Send): number {
    const from = Math.max(0, this.piece.offset - position);
    const to = Math.min(chunk.length, this.end - position);
    if (to <= from) return 0;
    if (position + from !== this.piece.offset + this.seen) {
      throw new EngineError("ModelFileError", `byte ${this.piece.offset + this.seen} of the weights was left out`);
    }
    this.seen += to - from;
    if (this.angles) {
      // It is no part of the mapped window.
      if (this.seen === this.piece.length)
        this.watched.write(this.piece.buffer, this.piece.at, angleTable(this.angles));
      return to - from;
    }
    let part = chunk.subarray(from, to);
    while (this.heldCount > 0 && part.length > 0) {
      this.held[this.heldCount++] = part[0]!;
      part = part.subarray(1);
      if (this.heldCount === 4) this.flushHeld();
    }
    const whole = part.length - (part.length % 4);
    if (whole > 0) {
      send(this.into, this.written, part.subarray(0, whole));
      this.written += whole;
    }
    for (const byte of part.subarray(whole)) this.held[this.heldCount++] = byte;
    return to - from;
  }

  finish(): void {
    if (this.heldCount > 0) {
      this.held.fill(0, this.heldCount);
      this.flushHeld();
    }
  }

  private get into(): GPUBuffer {
    return this.room ?? this.piece.buffer;
  }

  private flushHeld(): void {
    this.watched.write(this.into, this.written, this.held);
    this.written += 4;
    this.heldCount = 0;
  }
}
