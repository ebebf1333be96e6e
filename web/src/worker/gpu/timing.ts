// How long the GPU takes for decode steps, by timestamp queries around the compute passes.
//
// Browsers round timestamps to 0.1 ms unless they are started with developer features
// (--enable-webgpu-developer-features). The rounding hardly changes a time over many steps, but it does change that of
// a single dispatch noticeably.

import { EngineError } from "../../wire/errors";
import type { WatchedDevice } from "./device";
import { StepEncoder, type Tape } from "./player";
import type { Sampler } from "./sampler";
import { declaredBindings } from "./wgsl";

/** Most queries in one set, by the standard. */
const SET_QUERIES = 4096;
const QUERY_BYTES = 8;
const NS_PER_MS = 1e6;
const OWNER = "timing";

/** A binding of a dispatch: the buffer's label and category, and the number of bytes bound. */
export type Bound = [label: string, category: string, bytes: number];

/** The time of one dispatch: its place in the tape (the sampler's follow), its name, milliseconds, and
 *  its bindings (not for the sampler's). */
export type OperationTime = [index: number, label: string, milliseconds: number, bound: Bound[]];

/** Timestamps at the begin and the end of up to `most` compute passes; query sets and buffers live as long as this. */
class PassStamps {
  private readonly sets: GPUQuerySet[] = [];
  private readonly resolved: GPUBuffer;
  private readonly staging: GPUBuffer;
  private passes = 0;

  constructor(
    private readonly watched: WatchedDevice,
    most: number,
  ) {
    const size = 2 * most * QUERY_BYTES;
    for (let left = 2 * most; left > 0; left -= SET_QUERIES)
      this.sets.push(watched.device.createQuerySet({ type: "timestamp", count: Math.min(left, SET_QUERIES) }));
    this.resolved = watched.buffer("kernels", OWNER, {
      label: "timestamps",
      size,
      usage: GPUBufferUsage.QUERY_RESOLVE | GPUBufferUsage.COPY_SRC,
    });
    this.staging = watched.buffer("staging", OWNER, {
      label: "timestamps",
      size,
      usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST,
    });
  }

  /** How to open the next pass. */
  readonly next = (): GPUComputePassDescriptor => {
    const first = 2 * this.passes++;
    const querySet = this.sets[Math.floor(first / SET_QUERIES)]!;
    const at = first % SET_QUERIES;
    return { timestampWrites: { querySet, beginningOfPassWriteIndex: at, endOfPassWriteIndex: at + 1 } };
  };

  /** Submit the passes of an encoder; resolves to the milliseconds at each one's begin and end, from the first begin. */
  async submit(step: StepEncoder): Promise<Float64Array> {
    const { watched } = this;
    step.endPass();
    const count = 2 * this.passes;
    this.sets.forEach((set, i) => {
      const queries = Math.min(set.count, count - i * SET_QUERIES);
      if (queries > 0) step.encoder.resolveQuerySet(set, 0, queries, this.resolved, i * SET_QUERIES * QUERY_BYTES);
    });
    step.encoder.copyBufferToBuffer(this.resolved, 0, this.staging, 0, QUERY_BYTES * count);
    watched.submit([step.finish()]);
    try {
      await this.staging.mapAsync(GPUMapMode.READ, 0, QUERY_BYTES * count);
    } catch (error) {
      throw await watched.explain(error);
    }
    watched.assertHealthy();
    const stamps = new BigUint64Array(this.staging.getMappedRange(0, QUERY_BYTES * count));
    const start = stamps[0]!;
    return Float64Array.from(stamps, (stamp) => Number(stamp - start) / NS_PER_MS);
  }

  destroy(): void {
    for (const set of this.sets) set.destroy();
    this.resolved.destroy();
    this.staging.destroy();
  }
}

/**
 * Milliseconds the GPU takes for each of `steps` steps of a tape and its sampler, as they follow one another in one
 * submit: from the begin of the first one's first pass to the end of the last one's last, divided by their number.
 */
export async function stepTime(
  watched: WatchedDevice,
  tape: Tape,
  sampler: Sampler,
  steps: number,
  length: number,
): Promise<number> {
  const stamps = new PassStamps(watched, steps * tape.breakCount + 1);
  try {
    const step = new StepEncoder(watched, stamps.next);
    for (let i = 0; i < steps; i++) {
      tape.encode(step, length + i);
      sampler.encode(step.pass);
    }
    const times = await stamps.submit(step);
    const span = times[times.length - 1]!;
    if (!(span > 0))
      throw new EngineError("DeviceUnavailableError", `this adapter's timestamps give ${span} ms for ${steps} steps`);
    return span / steps;
  } finally {
    stamps.destroy();
  }
}

/** Play one step with each dispatch in a separate pass, and return each one's time. */
export async function operationTimes(
  watched: WatchedDevice,
  tape: Tape,
  sampler: Sampler,
  length: number,
): Promise<OperationTime[]> {
  const stamps = new PassStamps(watched, tape.operationCount + sampler.dispatchCount);
  try {
    const step = new StepEncoder(watched, stamps.next);
    const labels: [number, string, Bound[]][] = [];
    tape.encodeApart(step, length, ({ pipeline, groups }, index) =>
      labels.push([index, called(watched, pipeline), bound(watched, groups)]),
    );
    let index = tape.operationCount;
    sampler.encodeApart((pipeline) => {
      labels.push([index++, called(watched, pipeline), []]);
      step.endPass();
      return step.pass;
    });
    const times = await stamps.submit(step);
    return labels.map(([place, label, bound], i) => [place, label, times[2 * i + 1]! - times[2 * i]!, bound]);
  } finally {
    stamps.destroy();
  }
}

function bound(watched: WatchedDevice, groups: readonly GPUBindGroup[]): Bound[] {
  const entries = groups.flatMap((group) => watched.bindGroups.get(group)?.entries ?? []);
  return entries.map(({ buffer, size }) => [buffer.label, buffer.category, size]);
}

/** A pipeline's label; onnxruntime-web gives none, so there it is what the kernel's buffers are called. */
function called(watched: WatchedDevice, pipeline: GPUComputePipeline): string {
  if (pipeline.label) return pipeline.label;
  const bindings = declaredBindings(watched.pipelines.get(pipeline)?.code ?? "");
  const named = (writes: boolean): string =>
    bindings
      .filter(({ access }) => access !== "uniform" && (access === "read_write") === writes)
      .map(({ name }) => name)
      .join(", ");
  return `${named(false)} -> ${named(true)}`;
}
