// Runs fused kernels on buffers of its own, inside error scopes, for tests/browser/kernel_page.py.

import { FusedPipelines, kernelCode, type FusedPipeline } from "../../web/src/worker/gpu/kernels";
import type { KernelText } from "../../web/src/worker/gpu/wgsl";
import { decode, encode } from "./encoding";
import { pipelineOf, subgroupSize, withoutSubgroups } from "./subgroups";

interface Dispatch {
  kernel: KernelText;
  workgroups: [number, number, number];
}

interface KernelRun {
  /** The initial contents of the buffers, base64, by the names of the bindings; sizes are multiples of 4. */
  buffers: Record<string, string>;
  /** In order, in one pass. */
  dispatches: Dispatch[];
  /** Names of the buffers to bring back. */
  wanted: string[];
  /** Whether float32 stands in for float16 in what the kernels compute; what they unpack from words stays float16. */
  widened: boolean;
  /** Whether subgroups of the kernels' size are made of workgroup memory, as those of another size than the adapter's. */
  emulated: boolean;
}

interface Opened {
  device: GPUDevice;
  pipelines: FusedPipelines;
  /** Whether kernels on float16 run here. */
  half: boolean;
  /** The one size of its subgroups; 0 if it has none, or several. */
  lanes: number;
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
  const half = requiredFeatures.includes("shader-f16");
  return { device, pipelines: new FusedPipelines(device), half, lanes: subgroupSize(adapter) };
}

async function adapterOffers(): Promise<{ half: boolean; lanes: number }> {
  const { half, lanes } = await (opened ??= open());
  return { half, lanes };
}

/** Subgroup matrices for an adapter without them: each thread holds whole matrices, and computes all of a product. */
const MATRICES = `
struct Left { held: array<f32, SIZE_M * SIZE_K> }
struct Right { held: array<f32, SIZE_K * SIZE_N> }
struct Result { held: array<f32, SIZE_M * SIZE_N> }
fn staged_half(octet: u32, i: u32) -> f32 {
  return unpack2x16float(staged[octet + i / 8u][i % 8u / 2u])[i % 2u];
}
fn left_by_rows(at: u32, stride: u32) -> Left {
  var made: Left;
  for (var i = 0u; i < SIZE_M * SIZE_K; i++) { made.held[i] = staged_half(at + i / SIZE_K * stride, i % SIZE_K); }
  return made;
}
fn right_by_rows(at: u32, stride: u32) -> Right {
  var made: Right;
  for (var i = 0u; i < SIZE_K * SIZE_N; i++) { made.held[i] = staged_half(at + i / SIZE_N * stride, i % SIZE_N); }
  return made;
}
fn right_by_columns(at: u32, stride: u32) -> Right {
  var made: Right;
  for (var i = 0u; i < SIZE_K * SIZE_N; i++) { made.held[i] = staged_half(at + i % SIZE_N * stride, i / SIZE_N); }
  return made;
}
fn multiplied(left: Left, right: Right, sums: Result) -> Result {
  var a = left; var b = right; var made = sums;
  for (var i = 0u; i < SIZE_M * SIZE_N; i++) {
    for (var k = 0u; k < SIZE_K; k++) { made.held[i] += a.held[i / SIZE_N * SIZE_K + k] * b.held[k * SIZE_N + i % SIZE_N]; }
  }
  return made;
}
fn result_by_rows(at: u32, stride: u32) -> Result {
  var made: Result;
  for (var i = 0u; i < SIZE_M * SIZE_N; i++) {
    made.held[i] = bitcast<vec4<f32>>(staged[at + i / SIZE_N * stride + i % SIZE_N / 4u])[i % 4u];
  }
  return made;
}
fn store_by_columns(at: u32, result: Result, stride: u32) {
  var r = result;
  for (var i = 0u; i < SIZE_M * SIZE_N; i += 4u) {
    let first = i % SIZE_M * SIZE_N + i / SIZE_M;
    let four = vec4<f32>(r.held[first], r.held[first + SIZE_N], r.held[first + 2u * SIZE_N], r.held[first + 3u * SIZE_N]);
    staged[at + i / SIZE_M * stride + i % SIZE_M / 4u] = bitcast<vec4<u32>>(four);
  }
}
fn store_by_rows(at: u32, result: Result, stride: u32) {
  var r = result;
  for (var i = 0u; i < SIZE_M * SIZE_N; i += 4u) {
    let four = vec4<f32>(r.held[i], r.held[i + 1u], r.held[i + 2u], r.held[i + 3u]);
    staged[at + i / SIZE_N * stride + i % SIZE_N / 4u] = bitcast<vec4<u32>>(four);
  }
}
`;

const WITH_MATRICES: readonly string[] = ["few_rows_matrices", "matmul_matrices", "prefill_attention"];

/** In loops, not unrolled: the software adapter takes minutes to compile that. */
function withoutMatrices(kernel: KernelText): string {
  const plain = kernelCode({ ...kernel, lanes: 0 }, false)
    .replace("const LANES: u32 = 0u;", `const LANES: u32 = ${kernel.lanes}u;`)
    .replace("enable chromium_experimental_subgroup_matrix;", "")
    .replace(/alias (Left|Right|Result) = subgroup_matrix_.*;\n/g, "")
    .replace(/@builtin\(subgroup_id\) warp: u32,\n\) \{/, ") { let warp = thread / LANES;")
    .replaceAll("subgroupMatrixLoad<Left, row_major>(&staged,", "left_by_rows(")
    .replaceAll("subgroupMatrixLoad<Right, row_major>(&staged,", "right_by_rows(")
    .replaceAll("subgroupMatrixLoad<Right, col_major>(&staged,", "right_by_columns(")
    .replaceAll("subgroupMatrixLoad<Result, row_major>(&staged,", "result_by_rows(")
    .replaceAll("subgroupMatrixMultiplyAccumulate(", "multiplied(")
    .replaceAll("subgroupMatrixStore<row_major>(&staged,", "store_by_rows(")
    .replaceAll("subgroupMatrixStore<col_major>(&staged,", "store_by_columns(");
  return plain + MATRICES;
}

/** The text of a kernel for float16 as an adapter without it takes it. */
function widenedCode(kernel: KernelText): string {
  const code = WITH_MATRICES.includes(kernel.shader) ? withoutMatrices(kernel) : kernelCode(kernel, false);
  return code
    .replace("enable f16;", "")
    .replace("element = f16", "element = f32")
    .replace(/vec([24])<f16>/g, "vec$1<f32>")
    .replace(/\b([\d.]+)h\b/g, "$1");
}

/** The pipeline of a kernel as the run asks for it. */
function pipelineFor({ device, pipelines, lanes }: Opened, run: KernelRun, kernel: KernelText): Promise<FusedPipeline> {
  const others = kernel.lanes > 0 && kernel.lanes !== lanes && !WITH_MATRICES.includes(kernel.shader);
  const code = run.widened ? widenedCode(kernel) : kernelCode(kernel);
  const emulated = (run.emulated || others) && /subgroup[A-Z]/.test(code);
  if (!run.widened && !emulated) return pipelines.get(kernel);
  return pipelineOf(device, emulated ? withoutSubgroups(kernel.shader, code) : code);
}

/** The contents of the wanted buffers after the kernels ran, base64. */
async function runKernels(run: KernelRun): Promise<string[]> {
  const page = await (opened ??= open());
  const { device } = page;
  for (const scope of ["validation", "out-of-memory", "internal"] as const) device.pushErrorScope(scope);
  const errors: string[] = [];
  const made: GPUBuffer[] = [];
  const make = (size: number, usage: number): GPUBuffer => {
    made.push(device.createBuffer({ size, usage }));
    return made.at(-1)!;
  };
  let contents: string[] = [];
  try {
    const filled = Object.entries(run.buffers).map(([name, text]): [string, GPUBuffer] => {
      const bytes = decode(text);
      const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
      const buffer = make(bytes.length, usage);
      device.queue.writeBuffer(buffer, 0, bytes);
      return [name, buffer];
    });
    const buffers = Object.fromEntries(filled);
    const compiled = await Promise.all(run.dispatches.map(({ kernel }) => pipelineFor(page, run, kernel)));
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
    await Promise.all(stagings.map((staging) => staging.mapAsync(GPUMapMode.READ)));
    contents = stagings.map((staging) => encode(new Uint8Array(staging.getMappedRange())));
  } finally {
    for (const buffer of made) buffer.destroy();
    for (const scope of ["internal", "out-of-memory", "validation"]) {
      const error = await device.popErrorScope();
      if (error !== null) errors.push(`${scope} error: ${error.message}`);
    }
  }
  if (errors.length > 0) throw new Error(errors.join("; "));
  return contents;
}

Object.assign(globalThis, { adapterOffers, runKernels });
