// Readbacks: bytes of a buffer of ours, through mappable staging memory, with the wait and the copy timed apart.

import { EngineError } from "../errors";
import type { WatchedDevice } from "./device";

/** What became of a readback; times in milliseconds. */
export interface ReadTimes {
  /** Until the work queued before the readback was done. */
  waiting: number;
  /** From then until the bytes were where they were wanted. */
  copying: number;
}

/** A staging buffer up to this size is kept for the next readback. */
const KEPT_BYTES = 1 << 20;
/** Copies on the GPU take offsets and sizes that are multiples of this. */
const GRAIN = 4;
/** A mapped range starts at a multiple of this. */
const MAP_GRAIN = 8;

export class Staging {
  /** The one buffer that is kept, when no readback uses it. */
  private free: GPUBuffer | null = null;
  private closed = false;

  constructor(private readonly watched: WatchedDevice) {}

  /**
   * Read `bytes` bytes from `offset` of a buffer, any alignment, and hand them to `take` while they are mapped. No more
   * than the span, rounded to multiples of 4, leaves the GPU.
   */
  async read(source: GPUBuffer, offset: number, bytes: number, take: (mapped: Uint8Array) => void): Promise<ReadTimes> {
    if (this.watched.info(source).usage & GPUBufferUsage.MAP_READ) return this.map(source, offset, bytes, take);
    const start = performance.now();
    const from = offset - (offset % GRAIN);
    const size = Math.max(GRAIN, Math.ceil((offset + bytes - from) / GRAIN) * GRAIN);
    const staging = this.take(size);
    try {
      // Both are asked for before either is awaited: telling the times apart costs no round trip.
      const before = this.watched.device.queue.onSubmittedWorkDone().then(() => performance.now());
      const encoder = this.watched.encoder();
      encoder.copyBufferToBuffer(source, from, staging, 0, size);
      this.watched.submit([encoder.finish()]);
      await staging.mapAsync(GPUMapMode.READ, 0, size);
      this.watched.assertHealthy();
      const idle = Math.min(await before, performance.now());
      take(new Uint8Array(staging.getMappedRange(0, size), offset - from, bytes));
      staging.unmap();
      this.keep(staging);
      return { waiting: idle - start, copying: performance.now() - idle };
    } catch (error) {
      staging.destroy();
      if (this.closed) throw new EngineError("ClosedError", "the device was closed while a buffer was read");
      throw await this.watched.explain(error);
    }
  }

  /** Staging memory itself: no copy on the GPU. */
  private async map(
    buffer: GPUBuffer,
    offset: number,
    bytes: number,
    take: (mapped: Uint8Array) => void,
  ): Promise<ReadTimes> {
    const start = performance.now();
    const from = offset - (offset % MAP_GRAIN);
    const size = Math.ceil((offset + bytes - from) / GRAIN) * GRAIN;
    try {
      await buffer.mapAsync(GPUMapMode.READ, from, size);
    } catch (error) {
      throw await this.watched.explain(error);
    }
    const mapped = performance.now();
    try {
      this.watched.assertHealthy();
      take(new Uint8Array(buffer.getMappedRange(from, size), offset - from, bytes));
    } finally {
      buffer.unmap();
    }
    return { waiting: mapped - start, copying: performance.now() - mapped };
  }

  destroy(): void {
    this.closed = true;
    this.free?.destroy();
    this.free = null;
  }

  private take(size: number): GPUBuffer {
    const kept = this.free;
    if (kept && kept.size >= size) {
      this.free = null;
      return kept;
    }
    // Powers of two, so that readbacks of like sizes find it large enough.
    const rounded = size <= KEPT_BYTES ? 2 ** Math.ceil(Math.log2(Math.max(size, 256))) : size;
    const usage = GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST;
    return this.watched.buffer("staging", "readbacks", { label: "readback", size: rounded, usage });
  }

  private keep(staging: GPUBuffer): void {
    if (this.closed || staging.size > KEPT_BYTES || (this.free && this.free.size >= staging.size)) staging.destroy();
    else {
      this.free?.destroy();
      this.free = staging;
    }
  }
}
