// A submit whose times a trace has: those of its encoding, of the wait for it, and of the GPU by timestamp queries.

import { type Arguments, type GpuSpan, type SubmitTimes, tracer } from "../trace";
import type { WatchedDevice } from "./device";
import { StepEncoder } from "./player";

const QUERY_BYTES = 8;
const BYTES = 2 * QUERY_BYTES;
const NS_PER_MS = 1e6;
const OWNER = "trace";

/** Timestamps at the begin of an encoder's first compute pass and at the end of its last. */
class Stamps implements GpuSpan {
  private readonly set: GPUQuerySet;
  private readonly resolved: GPUBuffer;
  private readonly staging: GPUBuffer;
  private begun = false;

  constructor(readonly device: WatchedDevice) {
    const buffer = (category: "kernels" | "staging", usage: number): GPUBuffer =>
      device.buffer(category, OWNER, { label: "timestamps", size: BYTES, usage });
    this.set = device.device.createQuerySet({ type: "timestamp", count: 2 });
    this.resolved = buffer("kernels", GPUBufferUsage.QUERY_RESOLVE | GPUBufferUsage.COPY_SRC);
    this.staging = buffer("staging", GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST);
  }

  /** How to open the next pass: each writes the end again. */
  readonly next = (): GPUComputePassDescriptor => {
    const begin = this.begun ? {} : { beginningOfPassWriteIndex: 0 };
    this.begun = true;
    return { timestampWrites: { querySet: this.set, ...begin, endOfPassWriteIndex: 1 } };
  };

  resolve(encoder: GPUCommandEncoder): void {
    encoder.resolveQuerySet(this.set, 0, 2, this.resolved, 0);
    encoder.copyBufferToBuffer(this.resolved, 0, this.staging, 0, BYTES);
  }

  /** Called once: the queries and their buffers end with it. */
  async read(): Promise<readonly [number, number]> {
    try {
      await this.staging.mapAsync(GPUMapMode.READ);
      const [begin, end] = new BigUint64Array(this.staging.getMappedRange());
      return [Number(begin) / NS_PER_MS, Number(end) / NS_PER_MS];
    } finally {
      this.set.destroy();
      this.resolved.destroy();
      this.staging.destroy();
    }
  }
}

/** An encoder of tape steps. While a trace is taken its submit is traced; else it has no command more. */
export class TracedStep extends StepEncoder {
  readonly begun = performance.now();

  private constructor(
    private readonly watched: WatchedDevice,
    private readonly stamps: Stamps | null,
  ) {
    super(watched, stamps?.next ?? null);
  }

  static begin(watched: WatchedDevice): TracedStep {
    if (!tracer.on) return new TracedStep(watched, null);
    const has = watched.device.features.has("timestamp-query");
    if (!has) tracer.lacks("the adapter has no timestamp-query");
    return new TracedStep(watched, has ? new Stamps(watched) : null);
  }

  /** Submit it; the time at which that is over. */
  submit(): number {
    this.endPass();
    this.stamps?.resolve(this.encoder);
    this.watched.submit([this.finish()]);
    return performance.now();
  }

  /** Note it, once it was submitted. */
  trace(name: string, end: number, times: Promise<SubmitTimes>, given: Arguments): void {
    tracer.submit(name, this.begun, end, times, this.stamps, given);
  }
}

/** The times of what was just submitted and brings no bytes back. */
export async function submitTimes(device: GPUDevice): Promise<SubmitTimes> {
  const submitted = performance.now();
  await device.queue.onSubmittedWorkDone();
  return { submitted, done: performance.now() };
}
