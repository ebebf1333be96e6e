// Readbacks: bytes of buffers, through mappable staging memory. However many are read at a time, it is one submit and one
// map; the wait and the copy are timed apart.

import { EngineError } from "../../wire/errors";
import { tracer } from "../trace";
import type { WatchedDevice } from "./device";

/** The times of a readback, in milliseconds. */
export interface ReadTimes {
  /** Until the work queued before the readback was done. */
  waiting: number;
  /** From then until the bytes were where they were wanted. */
  copying: number;
}

/** Bytes to be read, at any alignment. */
export interface ReadPart {
  buffer: GPUBuffer;
  offset: number;
  bytes: number;
}

/**
 * Bytes from the start of a buffer that are copied to the caller's staging memory and stay there; `offset` is a
 * multiple of 4.
 */
export interface Delivery {
  source: GPUBuffer;
  target: GPUBuffer;
  offset: number;
  bytes: number;
}

/** Called once, with the bytes of each part while they are mapped. */
type Take = (mapped: Uint8Array[]) => void;

/** A range that is to be mapped, of a buffer of `Staging` (null until it exists) or of the caller's staging memory. */
interface Region {
  buffer: GPUBuffer | null;
  ours: boolean;
  from: number;
  to: number;
  /** [index of a part, where it begins in the buffer] */
  parts: [index: number, at: number][];
  /** Copies into the buffer: from a byte of a source to a byte of the buffer. */
  copies: [source: GPUBuffer, from: number, at: number, size: number][];
}

/** A staging buffer up to this size is kept for the next readback. */
const KEPT_BYTES = 1 << 20;
/** Copies on the GPU take offsets and sizes that are multiples of this. */
const GRAIN = 4;
/** A mapped range starts at a multiple of this. */
const MAP_GRAIN = 8;

/** Wait until the GPU has done the work submitted so far; the result is the time, at most `latest`. */
export function whenDone(watched: WatchedDevice): (latest: number) => number {
  let done = Infinity;
  void watched.device.queue.onSubmittedWorkDone().then(
    () => (done = performance.now()),
    () => undefined,
  );
  return (latest) => Math.min(done, latest);
}

export class Staging {
  /** The one buffer that is kept, when no readback uses it. */
  private free: GPUBuffer | null = null;
  private closed = false;
  /** Staging buffers of other owners with a map under way. */
  private readonly inUse = new Set<GPUBuffer>();

  /** `limit`: most bytes of one staging buffer. Larger readings use several, filled by the same submit. */
  constructor(
    private readonly watched: WatchedDevice,
    private readonly limit = watched.device.limits.maxBufferSize,
  ) {}

  /**
   * Read parts of buffers and hand them to `take`. No more than the parts, rounded to multiples of 4, leaves the GPU.
   * Parts in staging memory are mapped where they are, once for each buffer.
   */
  async read(parts: readonly ReadPart[], take: Take): Promise<ReadTimes> {
    const start = performance.now();
    // Asked for before the copies are: telling the times apart costs no round trip.
    const doneBy = whenDone(this.watched);
    let done = 0;
    await this.begin(parts)((mapped) => {
      done = doneBy(performance.now());
      take(mapped);
    });
    const end = performance.now();
    if (tracer.on) {
      const given = { bytes: parts.reduce((sum, { bytes }) => sum + bytes, 0) };
      tracer.add("wait", "readback", start, done, given);
      tracer.add("copy", "readback", done, end, given);
    }
    return { waiting: done - start, copying: end - done };
  }

  /**
   * Queue the copies of all parts and deliveries, in one submit with what the device holds back, and ask for the map. The
   * caller must call the result: it hands the bytes to `take` and resolves to the number of maps. The sources may be
   * gone by then.
   */
  begin(parts: readonly ReadPart[], deliveries: readonly Delivery[] = []): (take: Take) => Promise<number> {
    for (const { buffer } of parts) this.requireUnmapped(buffer);
    for (const { target } of deliveries) this.requireUnmapped(target);
    const regions = this.plan(parts);
    try {
      for (const region of regions) region.buffer ??= this.buffer(region.to);
      this.copy(regions, deliveries);
    } catch (error) {
      for (const { ours, buffer } of regions) if (ours) buffer?.destroy();
      throw error;
    }
    for (const { buffer, ours } of regions) if (!ours) this.inUse.add(buffer!);
    const mapping = Promise.allSettled(
      regions.map(({ buffer, from, to }) => buffer!.mapAsync(GPUMapMode.READ, from, to - from)),
    );
    return (take) => this.finish(parts, regions, mapping, take);
  }

  private plan(parts: readonly ReadPart[]): Region[] {
    const regions: Region[] = [];
    const inPlace = new Map<GPUBuffer, Region>();
    let room: Region | null = null;
    const added = (buffer: GPUBuffer | null): Region => {
      const region: Region = { buffer, ours: !buffer, from: buffer ? Infinity : 0, to: 0, parts: [], copies: [] };
      regions.push(region);
      return region;
    };
    parts.forEach(({ buffer, offset, bytes }, index) => {
      if (bytes === 0) return;
      const from = offset - (offset % GRAIN);
      const size = wholeWords(offset + bytes - from);
      if (this.watched.info(buffer).usage & GPUBufferUsage.MAP_READ) {
        const region = inPlace.get(buffer) ?? added(buffer);
        inPlace.set(buffer, region);
        region.from = Math.min(region.from, offset - (offset % MAP_GRAIN));
        region.to = Math.max(region.to, from + size);
        region.parts.push([index, offset]);
      } else {
        if (!room || room.to + size > this.limit) room = added(null);
        room.parts.push([index, room.to + offset - from]);
        room.copies.push([buffer, from, room.to, size]);
        room.to += size;
      }
    });
    return regions;
  }

  /** Throw for a buffer that is being read: WebGPU forbids its use until then. */
  requireUnmapped(buffer: GPUBuffer): void {
    if (!this.inUse.has(buffer)) return;
    const { label } = this.watched.info(buffer);
    throw new EngineError(
      "MemoryTypeError",
      `buffer '${label}' is WebGPU_Staging memory that is mapped, as it is being read, expected WebGPU_Buffer, or ` +
        "WebGPU_Staging that is not being read; wait for the read before you use the buffer again",
    );
  }

  private copy(regions: readonly Region[], deliveries: readonly Delivery[]): void {
    if (!deliveries.length && !regions.some(({ copies }) => copies.length)) return;
    const encoder = this.watched.encoder();
    for (const { source, target, offset, bytes } of deliveries)
      encoder.copyBufferToBuffer(source, 0, target, offset, wholeWords(bytes));
    for (const { buffer, copies } of regions)
      for (const [source, from, at, size] of copies) encoder.copyBufferToBuffer(source, from, buffer!, at, size);
    this.watched.submit([encoder.finish()]);
  }

  private async finish(
    parts: readonly ReadPart[],
    regions: readonly Region[],
    mapping: Promise<PromiseSettledResult<undefined>[]>,
    take: Take,
  ): Promise<number> {
    const failed = (await mapping).find((result) => result.status === "rejected");
    let taken = false;
    try {
      if (failed && this.closed) throw new EngineError("ClosedError", "the device was closed while a buffer was read");
      if (failed) throw await this.watched.explain(failed.reason);
      this.watched.assertHealthy();
      const mapped = parts.map(() => new Uint8Array(0));
      for (const { buffer, from, to, parts: inside } of regions) {
        const range = buffer!.getMappedRange(from, to - from);
        for (const [index, at] of inside) mapped[index] = new Uint8Array(range, at - from, parts[index]!.bytes);
      }
      take(mapped);
      taken = true;
      return regions.length;
    } finally {
      for (const { buffer, ours } of regions) {
        if (ours && !taken) buffer!.destroy();
        else buffer!.unmap();
        this.inUse.delete(buffer!);
        if (ours && taken) this.keep(buffer!);
      }
    }
  }

  destroy(): void {
    this.closed = true;
    this.free?.destroy();
    this.free = null;
  }

  private buffer(size: number): GPUBuffer {
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

function wholeWords(bytes: number): number {
  return Math.ceil(bytes / GRAIN) * GRAIN;
}
