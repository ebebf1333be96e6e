// Measures tilings of matvec_q4.wgsl for make.py: GPU time of a dispatch, each over other weights than the one before.

import { FusedPipelines, type FusedPipeline } from "../../web/src/worker/gpu/kernels";

interface Variant {
  name: string;
  constants: Record<string, number | boolean>;
  workgroups: number;
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

type Ready = { name: string; fused: FusedPipeline; groups: GPUBindGroup[]; workgroups: number; times: number[] };

/** The GPU's clock rises while it works, for so many milliseconds before a shape is measured. */
const WARM_MS = 700;
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
    requiredFeatures: ["shader-f16", "subgroups", "timestamp-query"],
    requiredLimits: {
      ...{ maxComputeWorkgroupStorageSize, maxComputeWorkgroupSizeX, maxComputeInvocationsPerWorkgroup },
      ...{ maxStorageBufferBindingSize, maxBufferSize },
    },
  });
}

class Clock {
  private readonly querySet: GPUQuerySet;
  private readonly resolved: GPUBuffer;
  private readonly staging: GPUBuffer;

  constructor(private readonly device: GPUDevice) {
    this.querySet = device.createQuerySet({ type: "timestamp", count: 2 });
    this.resolved = device.createBuffer({ size: 16, usage: GPUBufferUsage.QUERY_RESOLVE | GPUBufferUsage.COPY_SRC });
    this.staging = device.createBuffer({ size: 16, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST });
  }

  /** Microseconds of one of so many dispatches in a pass. */
  async measure({ fused, groups, workgroups }: Ready, turns: number): Promise<number> {
    const { querySet, resolved, staging } = this;
    const encoder = this.device.createCommandEncoder();
    const timestampWrites = { querySet, beginningOfPassWriteIndex: 0, endOfPassWriteIndex: 1 };
    const pass = encoder.beginComputePass({ timestampWrites });
    pass.setPipeline(fused.pipeline);
    for (let turn = 0; turn < turns; turn++) {
      pass.setBindGroup(0, groups[turn % groups.length]!);
      pass.dispatchWorkgroups(workgroups);
    }
    pass.end();
    encoder.resolveQuerySet(querySet, 0, 2, resolved, 0);
    encoder.copyBufferToBuffer(resolved, 0, staging, 0, 16);
    this.device.queue.submit([encoder.finish()]);
    await staging.mapAsync(GPUMapMode.READ);
    const [begun, ended] = new BigUint64Array(staging.getMappedRange());
    const took = Number(ended! - begun!) / 1000 / turns;
    staging.unmap();
    return took;
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
  const ready = await Promise.all(
    shape.variants.map(async ({ name, constants, workgroups }): Promise<Ready> => {
      const kernel = { shader: "matvec_q4", constants, floats: ["EPSILON"], half: true, lanes: jobs.lanes, bindings };
      const fused = await pipelines.get(kernel);
      const groups = copies.map((copy) => {
        const entries = fused.names.map((name, binding) => ({ binding, resource: { buffer: copy[name]! } }));
        return device.createBindGroup({ layout: fused.layout, entries });
      });
      return { name, fused, groups, workgroups, times: [] };
    }),
  );
  const warm = performance.now() + WARM_MS;
  while (performance.now() < warm) await clock.measure(ready[0]!, jobs.turns);
  for (let round = 0; round < jobs.rounds; round++)
    for (const one of ready) one.times.push(await clock.measure(one, jobs.turns));
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
