// The GPU adapter: its description, and the device that it makes.

import { EngineError } from "./errors";

export interface AdapterSummary {
  vendor: string;
  architecture: string;
  description: string;
  software: boolean;
  /** Features of the device; on an adapter that was not opened, of the adapter. */
  features: string[];
  /** The size of every subgroup; 0 if subgroups are not to be used, or come in several sizes. */
  subgroup_size: number;
  /** Rows, columns and inner elements of the device's operations on subgroup matrices of float16 with sums in float32. */
  subgroup_matrices: [number, number, number][];
  /** Why a feature of the adapter's is left out. */
  without: Record<string, string>;
  /** Limits of a workgroup: threads, and bytes of memory. */
  max_workgroup_threads: number;
  max_workgroup_bytes: number;
  max_buffer_size: number;
  max_storage_buffer_binding_size: number;
  /** Storage buffers that a kernel may bind. */
  max_storage_buffers: number;
  min_storage_buffer_offset_alignment: number;
}

/** The description of an adapter that reports nothing about itself. */
export const UNNAMED = "an adapter that the browser does not name";

const LIMITS = [
  "maxBufferSize",
  "maxStorageBufferBindingSize",
  "maxStorageBuffersPerShaderStage",
  "maxComputeWorkgroupStorageSize",
  "maxComputeInvocationsPerWorkgroup",
  "maxComputeWorkgroupSizeX",
  "maxComputeWorkgroupSizeY",
  "maxComputeWorkgroupSizeZ",
  "maxComputeWorkgroupsPerDimension",
  "maxBindGroups",
] as const;

/**
 * Features that the device requests if the adapter has them. The last is experimental, after browser flags, and not in
 * the types yet: onnxruntime-web's int4 products of long prompts take 1.4 times as long without it on an H200, and the
 * device that onnxruntime-web makes itself asks for it as well.
 */
const FEATURES = [
  "shader-f16",
  "subgroups",
  "timestamp-query",
  "chromium-experimental-subgroup-matrix" as GPUFeatureName,
] as const;

/** Properties of an adapter with subgroup matrices that the types lack. */
interface WithSubgroupMatrices {
  readonly subgroupMatrixConfigs?: Iterable<{
    componentType: string;
    resultComponentType: string;
    M: number;
    N: number;
    K: number;
  }>;
}

/** Features that are requested only with subgroup sizes for which onnxruntime-web computes correctly. */
const WITH_SUBGROUPS: readonly GPUFeatureName[] = [
  "subgroups",
  "chromium-experimental-subgroup-matrix" as GPUFeatureName,
];

/**
 * The smallest subgroup that onnxruntime-web's prefill attention (32 tokens and more) computes rightly with: its kernel
 * shuffles among 8 invocations at least. SwiftShader's subgroups have 4, and its results were wrong.
 */
const LEAST_SUBGROUP = 8;

/** Milliseconds after which an adapter that was there counts as gone for good, and between two requests for it. */
const COMING_BACK = 4000;
const ASK_AGAIN = 100;
let offered = false;
let noneSince: number | null = null;

/**
 * The adapter WebGPU offers, or null where there is none. A browser whose GPU process ended has no adapter until that
 * process is started again; if there was an adapter before, this waits.
 */
export async function requestAdapter(): Promise<GPUAdapter | null> {
  const gpu = (globalThis.navigator as Navigator | undefined)?.gpu;
  if (!gpu) {
    offered = false;
    return null;
  }
  for (;;) {
    const adapter = await gpu.requestAdapter({ powerPreference: "high-performance" });
    if (adapter) {
      offered = true;
      noneSince = null;
      return adapter;
    }
    noneSince ??= performance.now();
    if (!offered || performance.now() - noneSince > COMING_BACK) return null;
    await new Promise((resolve) => setTimeout(resolve, ASK_AGAIN));
  }
}

/** Whether Chromium's message says that the process on the other side of WebGPU is gone. */
export function isEndedProcess(message: string): boolean {
  return /instance (dropped|reference)/i.test(message);
}

export function summarize(adapter: GPUAdapter): AdapterSummary {
  const { info, features, limits } = adapter;
  const named = info.vendor || info.architecture || info.description || info.device;
  const text = `${info.vendor} ${info.architecture} ${info.device} ${info.description}`.toLowerCase();
  return {
    vendor: info.vendor,
    architecture: info.architecture,
    // Firefox reports nothing about the adapter.
    description: named ? info.description || info.device : UNNAMED,
    software: info.isFallbackAdapter === true || /swiftshader|llvmpipe|lavapipe|software|warp/.test(text),
    features: [...features].sort(),
    subgroup_size: 0,
    subgroup_matrices: [],
    without: {},
    max_workgroup_threads: Math.min(limits.maxComputeInvocationsPerWorkgroup, limits.maxComputeWorkgroupSizeX),
    max_workgroup_bytes: limits.maxComputeWorkgroupStorageSize,
    max_buffer_size: limits.maxBufferSize,
    max_storage_buffer_binding_size: limits.maxStorageBufferBindingSize,
    max_storage_buffers: limits.maxStorageBuffersPerShaderStage,
    min_storage_buffer_offset_alignment: limits.minStorageBufferOffsetAlignment,
  };
}

/**
 * The adapter that WebGPU offers. Throws DeviceUnavailableError where there is none, DeviceLostError where there was
 * one.
 */
export async function requireAdapter(): Promise<GPUAdapter> {
  const adapter = await requestAdapter();
  if (adapter) return adapter;
  if (offered) {
    throw new EngineError(
      "DeviceLostError",
      `the browser's GPU process ended and offered no adapter within ${COMING_BACK / 1000} s; reload the page or ` +
        "start the browser again, then load the model again; device='wasm' needs no GPU",
    );
  }
  throw new EngineError("DeviceUnavailableError", `the device "webgpu" was requested, but ${lack()}`);
}

/** Why there is no adapter, with the remedy. */
function lack(): string {
  const other = 'use the device "auto" or "wasm"';
  if ((globalThis.navigator as Navigator | undefined)?.gpu)
    return `this browser offers no GPU adapter; ${other}, or turn on graphics acceleration in the browser's settings`;
  if (globalThis.isSecureContext === false)
    return `a page of ${globalThis.origin} has no WebGPU; ${other}, or serve the page over https: or from localhost`;
  return `this browser has no WebGPU; ${other}, or a browser with WebGPU`;
}

/** Text that identifies an adapter: equal texts mean equal devices. */
export function identity({ info, features, limits }: GPUAdapter): string {
  const { vendor, architecture, device, description } = info;
  return JSON.stringify([vendor, architecture, device, description, [...features].sort(), limitsOf(limits)]);
}

function limitsOf(limits: GPUSupportedLimits): Record<string, number> {
  return Object.fromEntries(LIMITS.map((name) => [name, limits[name]]));
}

/** Opens a device with every feature and the highest limits of the adapter; returns it with a summary. */
export async function openDevice(adapter: GPUAdapter): Promise<{ device: GPUDevice; summary: AdapterSummary }> {
  const requiredLimits = limitsOf(adapter.limits);
  const subgroups = adapter.info.subgroupMinSize >= LEAST_SUBGROUP;
  const requiredFeatures = FEATURES.filter(
    (name) => adapter.features.has(name) && (subgroups || !WITH_SUBGROUPS.includes(name)),
  );
  let device: GPUDevice;
  try {
    device = await adapter.requestDevice({ requiredFeatures, requiredLimits });
  } catch (error) {
    throw new EngineError("DeviceUnavailableError", `the WebGPU adapter gave no device: ${String(error)}`);
  }
  const summary = summarize(adapter);
  summary.features = [...device.features].sort();
  // Not requested, so that every device has the standard's value.
  summary.min_storage_buffer_offset_alignment = device.limits.minStorageBufferOffsetAlignment;
  const { subgroupMinSize, subgroupMaxSize } = adapter.info;
  if (device.features.has("subgroups") && subgroupMinSize === subgroupMaxSize) summary.subgroup_size = subgroupMinSize;
  if (device.features.has("chromium-experimental-subgroup-matrix"))
    summary.subgroup_matrices = [...((adapter.info as WithSubgroupMatrices).subgroupMatrixConfigs ?? [])]
      .filter(({ componentType, resultComponentType }) => componentType === "f16" && resultComponentType === "f32")
      .map(({ M, N, K }) => [M, N, K]);
  if (adapter.features.has("subgroups") && !subgroups)
    summary.without["subgroups"] =
      `onnxruntime-web needs subgroups of ${LEAST_SUBGROUP}, the adapter's have ${adapter.info.subgroupMinSize}`;
  return { device, summary };
}
