// Runs fused kernels on buffers of its own for the tests of the kernels, inside error scopes.

import { requestAdapter } from "../../web/src/wire/adapter";
import { FusedPipelines, kernelCode } from "../../web/src/worker/gpu/kernels";
import type { KernelText } from "../../web/src/worker/gpu/wgsl";
import { pipelineOf, subgroupSize, withoutSubgroups } from "./subgroups";

interface KernelRun {
  /** The initial contents of the buffers, base64, by the names of the bindings; sizes are multiples of 4. */
  buffers: Record<string, string>;
  /** Dispatches, in order, in one pass. */
  dispatches: { kernel: KernelText; workgroups: [number, number, number] }[];
  /** Names of the buffers to bring back. */
  wanted: string[];
  /** Whether subgroups of the kernels' size are made of workgroup memory. */
  emulated: boolean;
}

interface Opened {
  device: GPUDevice;
  pipelines: FusedPipelines;
  /** Whether kernels on float16 run here. */
  half: boolean;
  /** The one size of its subgroups; 0 if it has no subgroups. */
  lanes: number;
}

let opened: Promise<Opened> | undefined;

/** A device with subgroups of any size: the kernels ask for no least size. */
async function open(): Promise<Opened> {
  const adapter = await requestAdapter();
  if (!adapter) throw new Error("this browser offers no WebGPU adapter");
  const features = (["shader-f16", "subgroups"] as const).filter((name) => adapter.features.has(name));
  const { maxComputeWorkgroupStorageSize, maxStorageBuffersPerShaderStage } = adapter.limits;
  const device = await adapter.requestDevice({
    requiredFeatures: features,
    requiredLimits: { maxComputeWorkgroupStorageSize, maxStorageBuffersPerShaderStage },
  });
  const lanes = subgroupSize(adapter);
  return { device, pipelines: new FusedPipelines(device), half: features.includes("shader-f16"), lanes };
}

async function adapterOffers(): Promise<{ half: boolean; lanes: number }> {
  const { half, lanes } = await (opened ??= open());
  return { half, lanes };
}

async function runKernels(run: KernelRun): Promise<string[]> {
  const { device, pipelines } = await (opened ??= open());
  for (const scope of ["validation", "out-of-memory", "internal"] as const) device.pushErrorScope(scope);
  const errors: string[] = [];
  const made: GPUBuffer[] = [];
  const make = (size: number, usage: number): GPUBuffer => {
    made.push(device.createBuffer({ size, usage }));
    return made.at(-1)!;
  };
  try {
    const filled = Object.entries(run.buffers).map(([name, text]): [string, GPUBuffer] => {
      const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
      const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
      const buffer = make(bytes.length, usage);
      device.queue.writeBuffer(buffer, 0, bytes);
      return [name, buffer];
    });
    const buffers = Object.fromEntries(filled);
    const compiled = await Promise.all(
      run.dispatches.map(({ kernel }) =>
        run.emulated && /subgroup[A-Z]/.test(kernelCode(kernel))
          ? pipelineOf(device, withoutSubgroups(kernel.shader, kernelCode(kernel)))
          : pipelines.get(kernel),
      ),
    );
    const encoder = device.createCommandEncoder();
    const pass = encoder.beginComputePass();
    run.dispatches.forEach((dispatch, i) => {
      const { pipeline, layout, names } = compiled[i]!;
      const entries = names.map((name, binding) => ({ binding, resource: { buffer: buffers[name]! } }));
      pass.setPipeline(pipeline);
      pass.setBindGroup(0, device.createBindGroup({ layout, entries }));
      pass.dispatchWorkgroups(...dispatch.workgroups);
    });
    pass.end();
    const stagings = run.wanted.map((name) => {
      const { size } = buffers[name]!;
      const staging = make(size, GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST);
      encoder.copyBufferToBuffer(buffers[name]!, 0, staging, 0, size);
      return staging;
    });
    device.queue.submit([encoder.finish()]);
    return await Promise.all(
      stagings.map(async (staging) => {
        await staging.mapAsync(GPUMapMode.READ);
        return encode(new Uint8Array(staging.getMappedRange()));
      }),
    );
  } finally {
    for (const buffer of made) buffer.destroy();
    for (const scope of ["internal", "out-of-memory", "validation"]) {
      const error = await device.popErrorScope();
      if (error !== null) errors.push(`${scope} error: ${error.message}`);
    }
    if (errors.length > 0) throw new Error(errors.join("; "));
  }
}

function encode(bytes: Uint8Array): string {
  const parts: string[] = [];
  for (let at = 0; at < bytes.length; at += 8192) parts.push(String.fromCharCode(...bytes.subarray(at, at + 8192)));
  return btoa(parts.join(""));
}

Object.assign(window, { adapterOffers, runKernels });
