// Uploads ranges of a data file into the weights' buffers as it comes in, with a bounded number of bytes under way.

import { EngineError } from "../errors";
import type { Chunk } from "../storage/chunk";
import { Allocations } from "./allocations";
import type { WatchedDevice } from "./device";
import type { Beside, Turn, Turner } from "./turn";
import type { ReadAt, UploadAhead } from "./upload_ahead";

/** A range of a data file and the buffer it goes to; offsets and lengths are in bytes. */
export interface WeightPiece {
  buffer: GPUBuffer;
  offset: number;
  length: number;
  /** Its offset in the buffer; a multiple of 4. */
  at: number;
  turn: Turn | null;
  beside: Beside | null;
  /** Whether it is float32 in the file and float16 in the buffer. */
  narrow: boolean;
}

/** Bytes given to the queue before the GPU is waited for: until then the browser holds copies of them. */
const MOST_IN_FLIGHT = 8 << 20;

/** Bytes of one write: the browser copies a larger one once more on its way to the GPU process. */
const PIECE = 256 << 10;

/** Windows of a stored file that are on their way at once, and how large they are unless a shard is larger. */
const WINDOWS = 3;
const WINDOW = 4 << 20;

/** Mapped memory that a window passes through; `ready` once it is mapped. */
interface Window {
  buffer: GPUBuffer;
  ready: Promise<undefined>;
}

/** Chunks come in ascending order and may leave out what no piece wants. */
export class WeightUpload {
  /** An upload into the same buffers that is under way or done; null once that is used or has ended. */
  ahead: UploadAhead | null = null;
  private readonly writers: PieceWriter[];
  private readonly allocations: Allocations;
  private first = 0;
  private inFlight = 0;

  constructor(
    private readonly watched: WatchedDevice,
    private readonly turner: Turner,
    pieces: WeightPiece[],
  ) {
    const sorted = [...pieces].sort((a, b) => a.offset - b.offset);
    this.writers = sorted.map((piece) => new PieceWriter(watched, piece));
    this.allocations = new Allocations(watched);
  }

  /** Upload the first `length` bytes of the chunk, which lie at `start` of the file. */
  async accept(chunk: Chunk, start: number, length: number): Promise<void> {
    await this.takeAhead()?.stop();
    const writers = this.within(start, length);
    await this.makeRoom(writers);
    const bytes = chunk.view(length);
    for (const writer of writers) this.inFlight += writer.accept(start, bytes, this.write);
    const turned = writers.filter((writer) => writer.turns);
    if (turned.length > 0) {
      const encoder = this.watched.encoder();
      this.turn(encoder, turned);
    }
    if (this.inFlight >= MOST_IN_FLIGHT) await this.settle();
  }

  /**
   * Upload `length` bytes from `start` of a file, which is read straight into memory that the GPU process shares.
   *
   * `start` is that of a shard, and shards are taken as a whole: returns the bytes before the first that could not be
   * read, of which nothing was uploaded. `told` is called with the bytes done so far.
   */
  async pour(
    read: ReadAt,
    start: number,
    length: number,
    shard: number,
    told: (done: number) => void,
  ): Promise<number> {
    const most = Math.max(1, Math.floor(WINDOW / shard)) * shard;
    const windows: Window[] = [];
    try {
      for (let done = 0, turn = 0; done < length;) {
        const size = Math.min(most, length - done);
        const writers = this.within(start + done, size);
        if (writers.length > 0) {
          await this.makeRoom(writers);
          const window = (windows[turn++ % WINDOWS] ??= this.window(most));
          await window.ready;
          this.requireOpen(writers);
          const bytes = new Uint8Array(window.buffer.getMappedRange(), 0, size);
          if (!filled(read, bytes, start + done)) return done;
          this.copy(writers, window, start + done, bytes);
        }
        done += size;
        told(done);
      }
      await Promise.all(windows.map(({ ready }) => ready));
      return length;
    } catch (error) {
      throw await this.watched.explain(error);
    } finally {
      for (const { buffer } of windows) buffer.destroy();
    }
  }

  /** The upload that is ahead of this one, for who uses it or ends it. */
  takeAhead(): UploadAhead | null {
    const { ahead } = this;
    this.ahead = null;
    return ahead;
  }

  /** The weights that have bytes there, in ascending order. */
  private within(start: number, length: number): PieceWriter[] {
    const { writers } = this;
    while (this.first < writers.length && writers[this.first]!.end <= start) this.first++;
    let last = this.first;
    while (last < writers.length && writers[last]!.piece.offset < start + length) last++;
    return writers.slice(this.first, last);
  }

  private window(size: number): Window {
    const usage = GPUBufferUsage.MAP_WRITE | GPUBufferUsage.COPY_SRC;
    const descriptor = { label: "weights on their way", size: Math.ceil(size / 4) * 4, usage };
    const buffer = this.watched.buffer("staging", "uploads", descriptor);
    return { buffer, ready: buffer.mapAsync(GPUMapMode.WRITE) };
  }

  /** Copy what a mapped window holds to the weights, on the GPU, and map it again once that is done. */
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
    window.ready = window.buffer.mapAsync(GPUMapMode.WRITE);
    // Awaited when its turn comes, which a failure elsewhere may forestall.
    window.ready.catch(() => undefined);
  }

  /** Memory for pieces that are rearranged on the GPU, each of which is whole there first. */
  private async makeRoom(writers: PieceWriter[]): Promise<void> {
    const waiting = writers.filter((writer) => writer.wantsRoom);
    if (waiting.length === 0) return;
    for (const writer of waiting) this.allocations.during(() => writer.makeRoom());
    await this.allocations.require("weights that are rearranged");
  }

  /** Submit what was encoded, and after it the rearranging of pieces that are whole. */
  private turn(encoder: GPUCommandEncoder, whole: PieceWriter[]): void {
    for (const writer of whole) writer.turn(encoder, this.turner);
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

  /** Wait until everything is on the GPU. */
  async finish(): Promise<void> {
    for (const writer of this.writers) writer.finish();
    await this.settle();
  }

  private async settle(): Promise<void> {
    this.inFlight = 0;
    // An empty submit hands the writes over to the GPU.
    this.watched.submit([]);
    await this.watched.device.queue.onSubmittedWorkDone();
    this.watched.assertHealthy();
  }
}

/** Whether all of `bytes` could be read; why not shows when the shard is read by itself. */
function filled(read: ReadAt, bytes: Uint8Array<ArrayBuffer>, at: number): boolean {
  try {
    return read(bytes, at) === bytes.length;
  } catch {
    return false;
  }
}

/** Puts bytes, a multiple of 4, into a buffer. */
type Send = (buffer: GPUBuffer, at: number, bytes: Uint8Array<ArrayBuffer>) => void;

/** Writes what belongs to one piece; keeps back what is not a multiple of 4 bytes. */
class PieceWriter {
  readonly end: number;
  private readonly rearranged: boolean;
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
    this.rearranged = piece.turn !== null || piece.beside !== null || piece.narrow;
    this.written = this.rearranged ? 0 : piece.at;
  }

  get wantsRoom(): boolean {
    return this.rearranged && this.room === null && this.seen < this.piece.length;
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

  turn(encoder: GPUCommandEncoder, turner: Turner): void {
    this.finish();
    const { turn, beside, buffer, at, length } = this.piece;
    if (turn) this.params = turner.turn(encoder, turn, this.room!, buffer, at);
    else if (beside) this.params = turner.beside(encoder, beside, this.room!, length, buffer, at);
    else this.params = turner.narrow(encoder, this.room!, length, buffer, at);
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
