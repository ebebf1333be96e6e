// The only importer of onnxruntime-web: its unmodified files are loaded from ./ort/ next to the worker, or from where the
// page has them.

import type * as Ort from "onnxruntime-web";
import { dependencies } from "../../../package.json";
import { type Assets, findAsset } from "../wire/assets";
import { loadFailure } from "../wire/load_failure";
import { EngineError } from "../wire/errors";
import { countSession, borrowedDevice } from "./gpu/kept_device";
import { fetchedBytes } from "./fetched_bytes";

export type { Ort };

/**
 * Its native-WebGPU build, or the one for the CPU alone: half its size, with calls that never wait inside, and with
 * threads where the page is cross-origin isolated. Each has a heap of its own.
 */
export type Build = "webgpu" | "cpu";

const FILES: Record<Build, { module: string; runtime: string }> = {
  webgpu: { module: "ort.webgpu.min.mjs", runtime: "ort-wasm-simd-threaded.asyncify" },
  cpu: { module: "ort.wasm.min.mjs", runtime: "ort-wasm-simd-threaded" },
};
/** The files of a build, by their names among the package's. */
export function ortFiles(build: Build): string[] {
  const { module, runtime } = FILES[build];
  return [module, `${runtime}.mjs`, `${runtime}.wasm`].map((name) => `ort/${name}`);
}

/** The version whose undocumented behaviour is known here; see ort_remedies.ts. */
const VERSION = dependencies["onnxruntime-web"];
/** More threads than this gain little: a decode step reads all weights once, at the memory's pace. */
const MOST_THREADS = 4;

/** The file through which the WebGPU build gets its runtime, where the page has that file. */
const RUNTIME = "ort_runtime.js";
type OwnRuntime = typeof import("./ort_runtime");
let ownRuntime: OwnRuntime | null = null;

const loaded = new Map<Build, Promise<typeof Ort>>();

/** How many threads the CPU build computes with: one where there is no shared memory. */
export function cpuThreads(): number {
  return typeof SharedArrayBuffer === "undefined" ? 1 : Math.min(navigator.hardwareConcurrency || 1, MOST_THREADS);
}

/** Bytes of memory of the machine, from Chromium's number of GiB; 0 in other browsers. */
export function machineMemory(): number {
  const { deviceMemory = 0 } = navigator as { deviceMemory?: number };
  return deviceMemory * 2 ** 30;
}

/** Load a build of onnxruntime-web once. */
export function loadOrt(assets: Assets, build: Build = "webgpu"): Promise<typeof Ort> {
  let loading = loaded.get(build);
  if (!loading) loaded.set(build, (loading = load(assets, build)));
  return loading;
}

/** Refuse if a build was loaded: it cannot be changed any more. */
export function requireUnloaded(): void {
  if (loaded.size)
    throw new EngineError(
      "OptionError",
      "ort_url was given after onnxruntime-web was loaded; call capstan.configure before anything is computed",
    );
}

async function load(assets: Assets, build: Build): Promise<typeof Ort> {
  try {
    return await imported(assets, build);
  } catch (error) {
    loaded.delete(build);
    throw error;
  }
}

async function imported(assets: Assets, build: Build): Promise<typeof Ort> {
  const { module, runtime } = FILES[build];
  const at = (name: string): string => findAsset(assets, `ort/${name}`) ?? ofThePage(name);
  const url = at(module);
  const files = { mjs: at(`${runtime}.mjs`), wasm: at(`${runtime}.wasm`) };
  const own = build === "webgpu" ? findAsset(assets, RUNTIME) : null;
  const imports = [url, ...(own === null ? [] : [own]), files.mjs];
  if (own !== null) files.mjs = `${own}?runtime=${encodeURIComponent(files.mjs)}`;
  let ort: typeof Ort;
  try {
    const [library, wrapper] = await Promise.all([import(url), own === null ? null : import(files.mjs)]);
    ort = library as typeof Ort;
    if (wrapper) ownRuntime = wrapper as OwnRuntime;
  } catch (error) {
    const why = (await firstMissing(imports)) ?? (await loadFailure(url));
    throw new EngineError("DeviceUnavailableError", `onnxruntime-web could not be loaded: ${why}; ${String(error)}`);
  }
  const found = ort.env.versions.web;
  if (found !== VERSION)
    throw new EngineError(
      "VersionError",
      `${url} is of onnxruntime-web ${found}, but this version of Capstan needs ${VERSION}: take its files`,
    );
  // Imports of modules cannot be counted.
  for (const file of [module, `${runtime}.mjs`]) fetchedBytes.whole(at(file));
  ort.env.wasm.wasmPaths = files;
  ort.env.wasm.numThreads = build === "cpu" ? cpuThreads() : 1;
  ort.env.logLevel = "error";
  return ort;
}

/** A file's address beside the script by which the page itself loads onnxruntime-web. */
function ofThePage(name: string): string {
  const scripts = [...((globalThis.document as Document | undefined)?.scripts ?? [])];
  const own = scripts.find(({ src }) => /\/ort(\.\w+)*\.m?js$/.test(src));
  if (own) return new URL(name, own.src).href;
  throw new EngineError(
    "DeviceUnavailableError",
    `${name}: it is not known where this page has onnxruntime-web; call capstan.configure(ort_url="...") with the address ` +
      `of a folder that has the files of dist/ of npm's onnxruntime-web ${VERSION}`,
  );
}

/** The last run, recording or session creation under way. */
let turn: Promise<unknown> = Promise.resolve();

/** onnxruntime-web is not re-entrant, whatever its sessions and devices: what uses it takes turns. */
export function exclusively<T>(action: () => Promise<T>): Promise<T> {
  const result = turn.then(action);
  // A failed turn must not poison the ones after it.
  turn = result.catch(() => undefined);
  return result;
}

/** An ONNX model with nothing in it but y = Identity(x), float32 [1]. */
export const IDENTITY = Uint8Array.from([
  ...[0x08, 0x08], // ir_version 8
  ...[0x3a, 0x37], // graph
  ...[0x0a, 0x10, 0x0a, 0x01, 0x78, 0x12, 0x01, 0x79, 0x22, 0x08, ...new TextEncoder().encode("Identity")], // node
  ...[0x12, 0x01, 0x67], // name "g"
  ...[0x5a, 0x0f, 0x0a, 0x01, 0x78, 0x12, 0x0a, 0x0a, 0x08, 0x08, 0x01, 0x12, 0x04, 0x0a, 0x02, 0x08, 0x01], // input x
  ...[0x62, 0x0f, 0x0a, 0x01, 0x79, 0x12, 0x0a, 0x0a, 0x08, 0x08, 0x01, 0x12, 0x04, 0x0a, 0x02, 0x08, 0x01], // output y
  ...[0x42, 0x02, 0x10, 0x0d], // opset 13
]);

/**
 * Load and compile it before it is requested; its compilation starts with its first session. A failure shows where it
 * is needed.
 */
export async function warmUpOrt(assets: Assets, build: Build = "webgpu"): Promise<void> {
  try {
    const ort = await loadOrt(assets, build);
    await exclusively(async () => (await createSession(ort, IDENTITY, "wasm")).release());
  } catch {
    // A caller that needs it gets the same failure.
  }
}

/** The end of onnxruntime-web's compilation in another worker, if there is one: see warmUpBeside. */
let compiledBeside: Promise<void> = Promise.resolve();
let firstMade = (): void => {};
/** The end of this worker's first session creation. */
const firstSession = new Promise<void>((resolve) => (firstMade = resolve));

/** Let this worker's first session wait for a compilation in another worker. Resolves once that session was made. */
export async function waitForCompilation(compiled: Promise<void>): Promise<void> {
  compiledBeside = compiled;
  await firstSession;
}

let reportFatal: (error: unknown) => void = () => {};

/** Call `tell` with an error that makes a heap of onnxruntime-web unusable. */
export function onFatalError(tell: (error: unknown) => void): void {
  reportFatal = tell;
}

/**
 * In errors without stack or heap left, as the engines and onnxruntime-web word them. Other RangeErrors are of a call, or
 * of JavaScript's own memory.
 */
const SPENT =
  /bad_alloc|failed to allocate a buffer|call stack size|too much recursion|offset is out of bounds|WebAssembly\.Memory/;

/** Whether WebAssembly code ended in its midst (by a trap, by abort(), without stack left), or its heap is full. */
function isFatal(error: unknown): boolean {
  return error instanceof WebAssembly.RuntimeError || SPENT.test(String(error));
}

/** The result of a call to onnxruntime-web; its fatal errors are reported. */
async function watched<T>(answer: Promise<T>): Promise<T> {
  try {
    return await answer;
  } catch (error) {
    if (isFatal(error)) reportFatal(error);
    throw error;
  }
}

/**
 * The result of `create`, and an error if a thread of onnxruntime-web does not start: it would never stop waiting for
 * that one.
 */
async function withThreads<T>(create: () => Promise<T>): Promise<T> {
  const Plain = globalThis.Worker as typeof Worker | undefined;
  if (!Plain) return create();
  let fail = (_error: Error): void => {};
  const failed = new Promise<never>((_, reject) => (fail = reject));
  failed.catch(() => undefined);
  globalThis.Worker = class extends Plain {
    constructor(url: string | URL, options?: WorkerOptions) {
      super(url, options);
      this.addEventListener("error", ({ message }) => {
        const why = message ? Promise.resolve(message) : loadFailure(String(url));
        void why.then((told) => {
          const error = new EngineError("DeviceUnavailableError", `a thread of onnxruntime-web did not start: ${told}`);
          reportFatal(error);
          fail(error);
        });
      });
    }
  };
  try {
    return await Promise.race([create(), failed]);
  } finally {
    globalThis.Worker = Plain;
  }
}

/** How a session is placed: our own device with or without ORT's graph capture, or the CPU. */
export type Placement =
  | {
      device: GPUDevice;
      capture: boolean;
      outputs?: Record<string, "gpu-buffer" | "cpu">;
      /** Bits of an element of the key/value caches, 4 or 8; 0 for those of the graph. */
      cacheBits?: number;
    }
  | "wasm";

/**
 * The options that every session gives its execution provider; those on WebGPU get our device besides. Devices in Python
 * report these.
 */
export const PROVIDERS = {
  // validationMode is ORT's own error scopes around every run; Dawn's uncaptured errors reach us all the same.
  webgpu: { name: "webgpu", validationMode: "disabled" },
  wasm: { name: "wasm" },
} as const;

export interface ExternalFile {
  path: string;
  data: Uint8Array;
}

/** How an ONNX file begins that names Capstan as its producer: ir_version 10, then producer_name. */
const OURS = [0x08, 10, 0x12, 7, ...new TextEncoder().encode("capstan")];

/**
 * Whether onnxruntime is to optimize a graph. It finds nothing to do in those that Capstan wrote for GGUF files
 * (capstan/graph/gguf/builder.py), and V8 would compile its optimizers for that: 0.4 s of a session's second.
 */
function optimized(model: Uint8Array): boolean {
  return OURS.some((byte, i) => model[i] !== byte);
}

/** Create a session; ORT's message is kept in the typed error, which names what was being created. */
export async function createSession(
  ort: typeof Ort,
  model: Uint8Array,
  placement: Placement,
  external: ExternalFile[] = [],
): Promise<Ort.InferenceSession> {
  const common: Ort.InferenceSession.SessionOptions = {
    // Errors only: it warns of the shape nodes it keeps on the CPU on purpose, as console errors.
    logSeverityLevel: 3,
    ...(optimized(model) ? {} : { graphOptimizationLevel: "disabled" }),
    ...(external.length ? { externalData: external } : {}),
  };
  const webgpu = (device: GPUDevice): Ort.InferenceSession.ExecutionProviderConfig =>
    ({ ...PROVIDERS.webgpu, device }) as Ort.InferenceSession.ExecutionProviderConfig;
  const options: Ort.InferenceSession.SessionOptions =
    placement === "wasm"
      ? { ...common, executionProviders: [PROVIDERS.wasm] }
      : {
          ...common,
          executionProviders: [webgpu(borrowedDevice(placement.device))],
          preferredOutputLocation: placement.outputs ?? "gpu-buffer",
          ...(placement.capture ? { enableGraphCapture: true } : {}),
        };
  const count = (change: 1 | -1): void => {
    if (placement !== "wasm") countSession(placement.device, change);
  };
  const cacheBits = placement === "wasm" ? 0 : (placement.cacheBits ?? 0);
  if (cacheBits && !ownRuntime)
    throw new EngineError(
      "UnsupportedModelError",
      `caches of ${cacheBits} bits need ${RUNTIME}, which this page does not have: serve the files of capstan-webgpu's ` +
        "dist/, or load the model without kv_cache_dtype",
    );
  await compiledBeside;
  count(1);
  try {
    ownRuntime?.setCacheBits(cacheBits);
    const session = await watched(withThreads(() => ort.InferenceSession.create(model, options)));
    const run = session.run.bind(session) as (...given: unknown[]) => Promise<Ort.InferenceSession.ReturnType>;
    session.run = (...given: unknown[]) => watched(run(...given));
    const release = session.release.bind(session);
    session.release = async () => {
      await watched(release());
      count(-1);
    };
    firstMade();
    return session;
  } catch (error) {
    count(-1);
    if (error instanceof EngineError) throw error;
    const missing = await missingRuntime(ort, error);
    if (missing) throw new EngineError("DeviceUnavailableError", `onnxruntime-web could not start: ${missing}`);
    const where = placement === "wasm" ? "the wasm execution provider" : placement.capture ? "graph capture" : "WebGPU";
    throw new EngineError(
      "UnsupportedModelError",
      `onnxruntime-web could not create a session for ${where}: ${String(error)}`,
    );
  }
}

/** Release a session that was made in vain, and throw what `check` throws. */
export async function releaseUnless(session: Ort.InferenceSession, check: () => void): Promise<void> {
  try {
    check();
  } catch (error) {
    await session.release().catch(() => undefined);
    throw error;
  }
}

/** Which of its own files onnxruntime-web did not get, if that is why there is no session. */
async function missingRuntime(ort: typeof Ort, error: unknown): Promise<string | null> {
  if (!/no available backend/.test(String(error))) return null;
  const { mjs, wasm } = ort.env.wasm.wasmPaths as { mjs: string; wasm: string };
  return firstMissing([mjs, wasm]);
}

/** The failure of the first file that cannot be fetched; null if there is none. */
async function firstMissing(urls: string[]): Promise<string | null> {
  for (const url of urls) {
    try {
      const response = await fetch(url);
      void response.body?.cancel();
      if (!response.ok || /html/i.test(response.headers.get("Content-Type") ?? "")) return loadFailure(url);
    } catch {
      return loadFailure(url);
    }
  }
  return null;
}
