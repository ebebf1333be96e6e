// Uploads a data file into GPU buffers, one per weight, as it comes in, with a bounded number of bytes under way.

import { EngineError } from "../errors";
import type { Chunk } from "../storage/chunk";
import type { WatchedDevice } from "./device";

/** One weight in a data file and the buffer it goes to; offsets and lengths are in bytes. */
export interface WeightSpan {
  buffer: GPUBuffer;
  offset: number;
  length: number;
}

/** Bytes given to the queue before the GPU is waited for: until then the browser holds copies of them. */
const MOST_IN_FLIGHT = 8 << 20;

/** Bytes of one write: the browser copies a larger one once more on its way to the GPU process. */
const PIECE = 256 << 10;

/** Chunks come in ascending order and may leave out what no span wants. */
export class WeightUpload {
  private readonly writers: SpanWriter[];
  private first = 0;
  private inFlight = 0;

  constructor(
    private readonly watched: WatchedDevice,
    spans: WeightSpan[],
  ) {
    const sorted = [...spans].sort((a, b) => a.offset - b.offset);
    this.writers = sorted.map((span) => new SpanWriter(watched, span));
  }

  /** Upload the first `length` bytes of the chunk, which lie at `start` of the file. */
  async accept(chunk: Chunk, start: number, length: number): Promise<void> {
    const bytes = chunk.view(length);
    const { writers } = this;
    while (this.first < writers.length && writers[this.first]!.end <= start) this.first++;
    for (let i = this.first; i < writers.length && writers[i]!.span.offset < start + length; i++) {
      this.inFlight += writers[i]!.accept(start, bytes);
    }
    if (this.inFlight >= MOST_IN_FLIGHT) await this.settle();
  }

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

/** Writes what belongs to one weight; keeps back what is not a multiple of 4 bytes. */
class SpanWriter {
  readonly end: number;
  private seen = 0;
  private written = 0;
  private readonly held = new Uint8Array(4);
  private heldCount = 0;

  constructor(
    private readonly watched: WatchedDevice,
    readonly span: WeightSpan,
  ) {
    this.end = span.offset + span.length;
  }

  /** Returns the bytes of the chunk that were the weight's. */
  accept(position: number, chunk: Uint8Array<ArrayBuffer>): number {
    const from = Math.max(0, this.span.offset - position);
    const to = Math.min(chunk.length, this.end - position);
    if (to <= from) return 0;
    if (position + from !== this.span.offset + this.seen) {
      throw new EngineError("ModelFileError", `byte ${this.span.offset + this.seen} of the weights was left out`);
    }
    this.seen += to - from;
    let part = chunk.subarray(from, to);
    while (this.heldCount > 0 && part.length > 0) {
      this.held[this.heldCount++] = part[0]!;
      part = part.subarray(1);
      if (this.heldCount === 4) this.flushHeld();
    }
    const whole = part.length - (part.length % 4);
    for (let at = 0; at < whole; at += PIECE) {
      const piece = part.subarray(at, Math.min(whole, at + PIECE));
      this.watched.write(this.span.buffer, this.written, piece);
      this.written += piece.length;
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

  private flushHeld(): void {
    this.watched.write(this.span.buffer, this.written, this.held);
    this.written += 4;
    this.heldCount = 0;
  }
}
