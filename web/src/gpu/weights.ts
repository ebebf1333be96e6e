// Streams a model's external data from the network into GPU buffers, one per weight, in bounded memory.

import { EngineError } from "../errors";
import type { WatchedDevice } from "./device";

/** One weight in a data file; entries come sorted by offset. Offsets and lengths are in bytes. */
export interface WeightSpan {
  name: string;
  offset: number;
  length: number;
}

/** Buffers are made this much larger than a multiple of, so that kernels may read whole vec4s. */
const ALIGNMENT = 16;

/** Fetch `url` once, front to back, and return one buffer per span. Nothing is left allocated if it fails. */
export async function streamWeights(
  watched: WatchedDevice,
  url: string,
  spans: WeightSpan[],
  progress: (done: number, total: number) => void,
): Promise<GPUBuffer[]> {
  const total = spans.reduce((end, span) => Math.max(end, span.offset + span.length), 0);
  const response = await fetch(url);
  if (!response.ok || !response.body) {
    throw new EngineError(
      "ModelFileError",
      `${url}: the weights cannot be read (HTTP ${response.status}); check the model folder`,
    );
  }
  const size = Number(response.headers.get("Content-Length") ?? Number.NaN);
  if (size < total) {
    await response.body.cancel();
    throw new EngineError("ModelFileError", truncated(url, size, total));
  }
  const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_DST | GPUBufferUsage.COPY_SRC;
  const buffers: GPUBuffer[] = [];
  try {
    for (const span of spans) {
      const bytes = Math.max(ALIGNMENT, Math.ceil(span.length / ALIGNMENT) * ALIGNMENT);
      buffers.push(watched.buffer("weights", url, { label: `weight ${span.name}`, size: bytes, usage }));
    }
    const writers = spans.map((span, i) => new SpanWriter(watched, span, buffers[i]!));
    let position = 0;
    let first = 0;
    const reader = response.body.getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const end = position + value.length;
      while (first < spans.length && spans[first]!.offset + spans[first]!.length <= position) first++;
      for (let i = first; i < spans.length && spans[i]!.offset < end; i++) writers[i]!.accept(position, value);
      position = end;
      progress(Math.min(position, total), total);
    }
    if (position < total) throw new EngineError("ModelFileError", truncated(url, position, total));
    for (const writer of writers) writer.finish();
    await watched.device.queue.onSubmittedWorkDone();
    watched.assertHealthy();
    return buffers;
  } catch (error) {
    for (const buffer of buffers) buffer.destroy();
    throw error;
  }
}

function truncated(url: string, size: number, total: number): string {
  return `${url}: ${size} bytes, but model.onnx names weights up to byte ${total}; copy the file again, whole`;
}

/** Writes the part of each network chunk that belongs to one weight; keeps back what is not a multiple of 4 bytes. */
class SpanWriter {
  private written = 0;
  private readonly held = new Uint8Array(4);
  private heldCount = 0;

  constructor(
    private readonly watched: WatchedDevice,
    private readonly span: WeightSpan,
    private readonly buffer: GPUBuffer,
  ) {}

  accept(position: number, chunk: Uint8Array<ArrayBuffer>): void {
    const from = Math.max(0, this.span.offset - position);
    const to = Math.min(chunk.length, this.span.offset + this.span.length - position);
    if (to <= from) return;
    let part = chunk.subarray(from, to);
    while (this.heldCount > 0 && part.length > 0) {
      this.held[this.heldCount++] = part[0]!;
      part = part.subarray(1);
      if (this.heldCount === 4) this.flushHeld();
    }
    const whole = part.length - (part.length % 4);
    if (whole > 0) {
      this.watched.write(this.buffer, this.written, part.subarray(0, whole));
      this.written += whole;
    }
    for (const byte of part.subarray(whole)) this.held[this.heldCount++] = byte;
  }

  finish(): void {
    if (this.heldCount > 0) {
      this.held.fill(0, this.heldCount);
      this.flushHeld();
    }
  }

  private flushHeld(): void {
    this.watched.write(this.buffer, this.written, this.held);
    this.written += 4;
    this.heldCount = 0;
  }
}
