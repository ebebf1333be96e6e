// Reads picked token ids, or the records of beams, back: a small pool of mappable buffers, so that several bursts can be under way.

import { EngineError } from "../../wire/errors";
import type { BufferPart, WatchedDevice } from "./device";
import { whenDone } from "./staging";

/** Most decode steps in one submit. */
export const MAX_BURST = 64;
/** Bursts that may be under way at once. */
export const MAX_IN_FLIGHT = 4;

export interface BurstResult {
  /** Row by row; of beams, the words of each step's records. */
  ids: Uint32Array;
  /** performance.now() when the queue took the burst, when the GPU had done it, and when its ids were readable. */
  submitted: number;
  done: number;
  readable: number;
}

export class RingReader {
  private readonly staging: readonly GPUBuffer[];
  private readonly free: GPUBuffer[];
  private closed = false;

  constructor(
    private readonly watched: WatchedDevice,
    private readonly ring: BufferPart,
    private readonly capacity: number,
    owner: string,
    private readonly rows = 1,
    /** Words of the ring for each pick. */
    private readonly words = 1,
  ) {
    this.staging = Array.from({ length: MAX_IN_FLIGHT }, () =>
      watched.buffer("staging", owner, {
        label: "ring staging",
        size: 4 * MAX_BURST * rows * words,
        usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST,
      }),
    );
    this.free = [...this.staging];
  }

  /** Encode the copy of `count` picks of each row that start at `cursor`; returns what reads them once submitted. */
  encodeCopy(encoder: GPUCommandEncoder, cursor: number, count: number): () => Promise<BurstResult> {
    const staging = this.free.pop();
    if (!staging)
      throw new EngineError("TapeError", `more than ${MAX_IN_FLIGHT} bursts were submitted without being read`);
    const first = cursor % this.capacity;
    const head = Math.min(count, this.capacity - first);
    const { buffer, offset } = this.ring;
    const each = 4 * this.words;
    for (let row = 0; row < this.rows; row++) {
      const from = offset + each * row * this.capacity;
      const to = each * row * count;
      encoder.copyBufferToBuffer(buffer, from + each * first, staging, to, each * head);
      if (head < count) encoder.copyBufferToBuffer(buffer, from, staging, to + each * head, each * (count - head));
    }
    return () => this.read(staging, count * this.rows * this.words);
  }

  destroy(): void {
    this.closed = true;
    for (const buffer of this.staging) buffer.destroy();
  }

  private async read(staging: GPUBuffer, count: number): Promise<BurstResult> {
    const submitted = this.watched.lastSubmit;
    const doneBy = whenDone(this.watched);
    try {
      await staging.mapAsync(GPUMapMode.READ, 0, 4 * count);
    } catch (error) {
      if (this.closed) throw new EngineError("ClosedError", "the model of this generator was closed; load it again");
      throw await this.watched.explain(error);
    }
    const readable = performance.now();
    const done = doneBy(readable);
    this.watched.assertHealthy();
    const ids = new Uint32Array(staging.getMappedRange(0, 4 * count).slice(0));
    staging.unmap();
    this.free.push(staging);
    return { ids, submitted, done, readable };
  }
}
