// Runs one fused kernel on buffers of its own, inside error scopes, for tests/browser/kernel_page.py.

import { FusedPipelines, kernelCode, type FusedPipeline, type KernelText } from "../../web/src/gpu/kernels";
import { declaredBindings } from "../../web/src/gpu/wgsl";

interface KernelRun {
  kernel: KernelText;
  /** Whether float32 stands in for float16 in what the kernel computes; what it unpacks from words stays float16. */
  widened: boolean;
  /** What the bindings hold at first, base64; sizes are multiples of 4. */
  buffers: string[];
  workgroups: [number, number, number];
  /** Which of the buffers to read afterwards. */
  read: number;
}

interface Opened {
  device: GPUDevice;
  pipelines: FusedPipelines;
}

let opened: Promise<Opened> | undefined;

/** With subgroups even where the engine does without because onnxruntime-web's kernels fail with them. */
async function open(): Promise<Opened> {
  const adapter = await navigator.gpu.requestAdapter();
  if (!adapter) throw new Error("there is no WebGPU adapter");
  const requiredFeatures = (["shader-f16", "subgroups"] as const).filter((name) => adapter.features.has(name));
  const { maxComputeWorkgroupStorageSize, maxStorageBuffersPerShaderStage } = adapter.limits;
  const requiredLimits = { maxComputeWorkgroupStorageSize, maxStorageBuffersPerShaderStage };
  const device = await adapter.requestDevice({ requiredFeatures, requiredLimits });
  return { device, pipelines: new FusedPipelines(device) };
}

function decode(text: string): Uint8Array<ArrayBuffer> {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

function encode(bytes: Uint8Array): string {
  const parts: string[] = [];
  for (let at = 0; at < bytes.length; at += 8192) parts.push(String.fromCharCode(...bytes.subarray(at, at + 8192)));
  return btoa(parts.join(""));
}

/** The text of a kernel for float16 as an adapter without it takes it. */
function widenedCode(kernel: KernelText): string {
  return kernelCode(kernel)
    .replace("enable f16;", "")
    .replace("element = f16", "element = f32")
    .replaceAll("bitcast<vec2<f16>>(", "unpack2x16float(")
    .replaceAll("bitcast<u32>(vec2<f16>(", "pack2x16float(vec2<f32>(")
    .replaceAll("vec2<f16>", "vec2<f32>")
    .replace(/\b([\d.]+)h\b/g, "$1");
}

async function widenedPipeline(device: GPUDevice, kernel: KernelText): Promise<FusedPipeline> {
  const code = widenedCode(kernel);
  const names = declaredBindings(code).map(({ name }) => name);
  const module = device.createShaderModule({ code });
  const pipeline = await device.createComputePipelineAsync({ layout: "auto", compute: { module, entryPoint: "main" } });
  return { pipeline, layout: pipeline.getBindGroupLayout(0), names };
}

/** The contents of buffer `read` after the kernel ran, base64. */
async function runKernel(run: KernelRun): Promise<string> {
  const { device, pipelines } = await (opened ??= open());
  for (const scope of ["validation", "out-of-memory", "internal"] as const) device.pushErrorScope(scope);
  const errors: string[] = [];
  const made: GPUBuffer[] = [];
  const buffer = (size: number, usage: number): GPUBuffer => {
    made.push(device.createBuffer({ size, usage }));
    return made.at(-1)!;
  };
  let contents = "";
  try {
    const { pipeline, layout } = await (run.widened ? widenedPipeline(device, run.kernel) : pipelines.get(run.kernel));
    const buffers = run.buffers.map((text) => {
      const bytes = decode(text);
      const filled = buffer(bytes.length, GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST);
      device.queue.writeBuffer(filled, 0, bytes);
      return filled;
    });
    const entries = buffers.map((resource, binding) => ({ binding, resource: { buffer: resource } }));
    const encoder = device.createCommandEncoder();
    const pass = encoder.beginComputePass();
    pass.setPipeline(pipeline);
    pass.setBindGroup(0, device.createBindGroup({ layout, entries }));
    pass.dispatchWorkgroups(...run.workgroups);
    pass.end();
    const source = buffers[run.read]!;
    const staging = buffer(source.size, GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST);
    encoder.copyBufferToBuffer(source, 0, staging, 0, source.size);
    device.queue.submit([encoder.finish()]);
    await staging.mapAsync(GPUMapMode.READ);
    contents = encode(new Uint8Array(staging.getMappedRange()));
  } finally {
    for (const each of made) each.destroy();
    for (const scope of ["internal", "out-of-memory", "validation"]) {
      const error = await device.popErrorScope();
      if (error !== null) errors.push(`${scope} error: ${error.message}`);
    }
  }
  if (errors.length > 0) throw new Error(errors.join("; "));
  return contents;
}

Object.assign(globalThis, { runKernel });
