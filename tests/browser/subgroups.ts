// Subgroups of any size on any adapter: the kernels' subgroup operations by way of workgroup memory and barriers.

import type { FusedPipeline } from "../../web/src/worker/gpu/kernels";
import { declaredBindings } from "../../web/src/worker/gpu/wgsl";

/** The one size of an adapter's subgroups; 0 if it has none, or several. */
export function subgroupSize(adapter: GPUAdapter): number {
  const { subgroupMinSize, subgroupMaxSize } = adapter.info;
  return adapter.features.has("subgroups") && subgroupMinSize === subgroupMaxSize ? subgroupMinSize : 0;
}

const OPERATIONS = `
var<private> own_thread: u32;
var<workgroup> all_floats: array<f32, WORKGROUP>;
var<workgroup> all_quads: array<vec4<f32>, WORKGROUP>;
fn float_of(value: f32, thread: u32) -> f32 {
  workgroupBarrier();
  all_floats[own_thread] = value;
  workgroupBarrier();
  return all_floats[thread];
}
fn quad_at(value: vec4<f32>, thread: u32) -> vec4<f32> {
  workgroupBarrier();
  all_quads[own_thread] = value;
  workgroupBarrier();
  return all_quads[thread];
}
fn first_of_subgroup() -> u32 { return own_thread / LANES * LANES; }
fn float_shuffle(value: f32, lane: u32) -> f32 { return float_of(value, first_of_subgroup() + lane); }
fn float_shuffle_xor(value: f32, mask: u32) -> f32 { return float_of(value, own_thread ^ mask); }
fn quad_shuffle_xor(value: vec4<f32>, mask: u32) -> vec4<f32> { return quad_at(value, own_thread ^ mask); }
fn float_sum(value: f32) -> f32 {
  var sum = float_of(value, first_of_subgroup());
  for (var i = 1u; i < LANES; i++) { sum += all_floats[first_of_subgroup() + i]; }
  return sum;
}
fn float_max(value: f32) -> f32 {
  var most = float_of(value, first_of_subgroup());
  for (var i = 1u; i < LANES; i++) { most = max(most, all_floats[first_of_subgroup() + i]); }
  return most;
}
`;

/** First arguments of subgroupShuffleXor that are vec4<f32>, by the kernel's name; all others are f32. */
const QUADS: Readonly<Record<string, string>> = {
  attention: String.raw`quad\b|select\(result`,
  few_rows_dense: String.raw`sums\b`,
  matvec_dense: String.raw`sums\b`,
};

/** The module of a kernel without subgroup operations, with the same results for subgroups of LANES threads. */
export function withoutSubgroups(shader: string, code: string): string {
  const quads = QUADS[shader];
  const plain = (quads ? code.replace(new RegExp(`subgroupShuffleXor\\((?=${quads})`, "g"), "quad_shuffle_xor(") : code)
    .replace("enable subgroups;", "")
    .replaceAll("subgroupShuffleXor(", "float_shuffle_xor(")
    .replaceAll("subgroupShuffle(", "float_shuffle(")
    .replaceAll("subgroupAdd(", "float_sum(")
    .replaceAll("subgroupMax(", "float_max(")
    .replace(/(@builtin\(local_invocation_index\) thread: u32,?\s*\) \{)/, "$1 own_thread = thread;");
  const left = /subgroup[A-Z]\w*/.exec(plain);
  if (left) throw new Error(`${shader} uses ${left[0]}, which has no stand-in`);
  if (!plain.includes("own_thread = thread;")) throw new Error(`${shader} has no parameter thread`);
  return plain + OPERATIONS;
}

const made = new WeakMap<GPUDevice, Map<string, Promise<FusedPipeline>>>();

/** The pipeline of a module that no template makes; a device compiles each once. */
export function pipelineOf(device: GPUDevice, code: string): Promise<FusedPipeline> {
  const pipelines = made.get(device) ?? new Map<string, Promise<FusedPipeline>>();
  made.set(device, pipelines);
  const found = pipelines.get(code) ?? compile(device, code);
  pipelines.set(code, found);
  return found;
}

async function compile(device: GPUDevice, code: string): Promise<FusedPipeline> {
  const names = declaredBindings(code).map(({ name }) => name);
  const module = device.createShaderModule({ code });
  const { messages } = await module.getCompilationInfo();
  const said = messages.filter(({ type }) => type === "error").map(({ lineNum, message }) => `${lineNum}: ${message}`);
  if (said.length > 0) throw new Error(`the kernel does not compile: ${said.join("; ")}`);
  const pipeline = await device.createComputePipelineAsync({ layout: "auto", compute: { module, entryPoint: "main" } });
  return { pipeline, layout: pipeline.getBindGroupLayout(0), names };
}
