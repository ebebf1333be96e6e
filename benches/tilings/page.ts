// Measures the GPU time of products for make.py, tiling by tiling; each dispatch reads other weights than the one before it.

import { FusedPipelines, type FusedPipeline } from "../../web/src/worker/gpu/kernels";

interface Variant {
  name: string;
  shader: string;
  constants: Record<string, number | boolean>;
  workgroups: [number, number, number];
}

interface Shape {
  name: string;
  /** Bytes of each binding; those of weights and scales are made again for each copy. */
  buffers: Record<string, number>;
  /** Bytes of weights and scales. */
  bytes: number;
  variants: Variant[];
}

interface Jobs {
  lanes: number;
  rounds: number;
  /** Dispatches of a pass. */
  turns: number;
  /** Bytes that the copies of the weights have together: more than the GPU's cache. */
  spread: number;
  shapes: Shape[];
}

type Ready = Variant & { fused: FusedPipeline; groups: GPUBindGroup[]; times: number[] };

/** The GPU's clock rises while it works, for so many milliseconds before a shape is measured. */
const WARM_MS = 700;
/** Passes that are submitted and not yet read. */
const UNDER_WAY = 6;
const COPIED = /^(weights|scales)/;

async function tell(found: unknown): Promise<void> {
  await fetch("found", { method: "POST", body: JSON.stringify(found) });
}

async function open(): Promise<GPUDevice> {
  const adapter = await navigator.gpu.requestAdapter({ powerPreference: "high-performance" });
  if (!adapter) throw new Error("there is no WebGPU adapter");
  const { maxComputeWorkgroupStorageSize, maxComputeWorkgroupSizeX, maxComputeInvocationsPerWorkgroup } =
    adapter.limits;
  const { maxStorageBufferBindingSize, maxBufferSize } = adapter.limits;
  await tell({ adapter: adapter.info.description });
  return adapter.requestDevice({
    requiredFeatures: [
      ...["shader-f16", "subgroups", "timestamp-query"],
      ...["chromium-experimental-subgroup-matrix"].filter((name) => adapter.features.has(name)),
    ] as GPUFeatureName[],
    requiredLimits: {
      ...{ maxComputeWorkgroupStorageSize, maxComputeWorkgroupSizeX, maxComputeInvocationsPerWorkgroup },
      ...{ maxStorageBufferBindingSize, maxBufferSize },
    },
  });
}

/** Passes with their times; some of them are always under way, so that the GPU's clock stays up. */
class Clock {
  private readonly free: { querySet: GPUQuerySet; resolved: GPUBuffer; staging: GPUBuffer }[];

  constructor(private readonly device: GPUDevice) {
    this.free = Array.from({ length: UNDER_WAY }, () => ({
      querySet: device.createQuerySet({ type: "timestamp", count: 2 }),
      resolved: device.createBuffer({ size: 16, usage: GPUBufferUsage.QUERY_RESOLVE | GPUBufferUsage.COPY_SRC }),
      staging: device.createBuffer({ size: 16, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST }),
    }));
  }

  /** Microseconds of one of so many dispatches in a pass; null where as many as may be are under way. */
  measure({ fused, groups, workgroups }: Ready, turns: number): Promise<number> | null {
    const kept = this.free.pop();
    if (!kept) return null;
    const { querySet, resolved, staging } = kept;
    const encoder = this.device.createCommandEncoder();
    const timestampWrites = { querySet, beginningOfPassWriteIndex: 0, endOfPassWriteIndex: 1 };
    const pass = encoder.beginComputePass({ timestampWrites });
    pass.setPipeline(fused.pipeline);
    for (let turn = 0; turn < turns; turn++) {
      pass.setBindGroup(0, groups[turn % groups.length]);
      pass.dispatchWorkgroups(...workgroups);
    }
    pass.end();
    encoder.resolveQuerySet(querySet, 0, 2, resolved, 0);
    encoder.copyBufferToBuffer(resolved, 0, staging, 0, 16);
    this.device.queue.submit([encoder.finish()]);
    return staging.mapAsync(GPUMapMode.READ).then(() => {
      const [begun, ended] = new BigUint64Array(staging.getMappedRange());
      staging.unmap();
      this.free.push(kept);
      return Number(ended! - begun!) / 1000 / turns;
    });
  }
}

async function measureShape(device: GPUDevice, clock: Clock, jobs: Jobs, shape: Shape): Promise<void> {
  const pipelines = new FusedPipelines(device);
  const fixed = new Map<string, GPUBuffer>();
  const made: GPUBuffer[] = [];
  const buffer = (size: number): GPUBuffer => {
    made.push(device.createBuffer({ size, usage: GPUBufferUsage.STORAGE }));
    return made.at(-1)!;
  };
  const bindings = Object.fromEntries(Object.keys(shape.buffers).map((name) => [name, name]));
  const copies = Array.from({ length: Math.max(2, Math.min(24, Math.ceil(jobs.spread / shape.bytes))) }, () =>
    Object.fromEntries(
      Object.entries(shape.buffers).map(([name, size]) => {
        const own = COPIED.test(name) ? buffer(size) : (fixed.get(name) ?? buffer(size));
        if (!COPIED.test(name)) fixed.set(name, own);
        return [name, own];
      }),
    ),
  );
  const make = async (one: Variant): Promise<Ready> => {
    const { shader, constants } = one;
    const kernel = { shader, constants, floats: ["EPSILON"], half: true, lanes: jobs.lanes, bindings };
    const fused = await pipelines.get(kernel);
    const groups = copies.map((copy) => {
      const entries = fused.names.map((name, binding) => ({ binding, resource: { buffer: copy[name]! } }));
      return device.createBindGroup({ layout: fused.layout, entries });
    });
    return { ...one, fused, groups, times: [] };
  };
  const refused = async (one: Variant, error: unknown): Promise<null> => {
    await tell({ failed: `${shape.name}, ${one.name}: ${String(error).slice(0, 300)}` });
    return null;
  };
  const all = await Promise.all(shape.variants.map((one) => make(one).catch((error: unknown) => refused(one, error))));
  const ready = all.filter((each) => each !== null);
  if (!ready.length) return;
  const waited: Promise<unknown>[] = [];
  const time = async (one: Ready, times: number[]): Promise<void> => {
    let took = clock.measure(one, jobs.turns);
    for (; !took; took = clock.measure(one, jobs.turns)) await waited.shift();
    waited.push(took.then((us) => times.push(us)));
  };
  const warm = performance.now() + WARM_MS;
  while (performance.now() < warm) await time(ready[0]!, []);
  for (let round = 0; round < jobs.rounds; round++) for (const one of ready) await time(one, one.times);
  await Promise.all(waited);
  for (const each of made) each.destroy();
  await tell({ shape: shape.name, bytes: shape.bytes, times: ready.map(({ name, times }) => [name, times]) });
}

async function run(): Promise<void> {
  const jobs = (await (await fetch("jobs.json")).json()) as Jobs;
  const device = await open();
  device.pushErrorScope("validation");
  const clock = new Clock(device);
  for (const shape of jobs.shapes) await measureShape(device, clock, jobs, shape);
  const error = await device.popErrorScope();
  if (error) throw new Error(error.message);
}

run().then(
  () => tell({ end: null }),
  (error: unknown) => tell({ end: String(error) }),
);
