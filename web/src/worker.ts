// The worker: boots Python, gives it the host object below, and passes requests on to capstan.page.page.

import type { PyodideInterface } from "pyodide";
import type { PyCallable, PyProxy } from "pyodide/ffi";
import { type Assets, here, startWorker } from "./assets";
import { GpuEngine } from "./engine";
import { EngineError } from "./errors";
import { requestAdapter, summarize } from "./gpu/adapter";
import { makeHost } from "./host";
import { holdLife } from "./life";
import type {
  CapstanEvent,
  Expected,
  FromWorker,
  HubRepository,
  ModelFolder,
  Reply,
  Request,
  ToWorker,
} from "./protocol";
import { hashShards } from "./storage/hashing";
import { adopt } from "./storage/picked";
import { openAhead } from "./storage/opfs";
import { dropPrefetched, prefetch } from "./storage/prefetch";
import { dropExpected } from "./storage/source";
import { expectWeights, FOLDER } from "./storage/weights_ahead";
import { onFatalError, warmUpOrt } from "./ort";
import { startPython } from "./python";
import { tracer } from "./trace";
import { unpackPieces } from "./unpack";

type Handler = PyCallable & {
  (request: string, id: number): Promise<string>;
  callPromising(request: string, id: number): Promise<string>;
};

/** Whether Python can wait within a call (JavaScript Promise Integration); it awaits in every browser. */
const CAN_WAIT = "Suspending" in WebAssembly;

type Page = PyProxy & {
  handle: Handler;
  cancel: PyCallable;
  look_after_weights(milliseconds: number): void;
  begin_trace(): void;
};
type Start = PyProxy & { begin(refused: string | undefined, vendored: string): void };

let handler: Handler | null = null;
let cancel: PyCallable | null = null;
/** The page writes a signal's number here to interrupt Python. */
let signal: Uint8Array | null = null;
/** The request being answered; events carry its id. */
let current = 0;

/** Why no request is begun any more. */
let spent: string | null = null;
let answering = false;

function spend(reason: string): void {
  spent = reason;
  if (!answering) post({ tag: "spent", reason });
}

function post(message: FromWorker): void {
  (postMessage as (message: FromWorker) => void)(message);
}

function emit(event: CapstanEvent): void {
  post({ tag: "event", id: current, event });
}

/** A GPU that was opened ahead. */
let gpuAhead: Promise<GpuEngine> | null = null;

function openGpu(assets: Assets): Promise<GpuEngine> {
  const opened = gpuAhead ?? GpuEngine.open(assets);
  gpuAhead = null;
  return opened;
}

/** Python's file system, once Python is there. */
let fileSystem: PyodideInterface["FS"] | null = null;

/** Put a file of the server into Python's file system; it is read when it is opened. */
function mountFile(folder: string, name: string, url: string): void {
  (fileSystem as unknown as LazyFiles).createLazyFile(folder, name, new URL(url, here()).href, true, false);
}

/** The part of Emscripten's file system that Pyodide's types leave out. */
interface LazyFiles {
  createLazyFile(folder: string, name: string, url: string, canRead: boolean, canWrite: boolean): unknown;
}

let giveLine: (line: string | null) => void = () => {};

/** The next line of a script's input, null at its end. */
function readLine(): Promise<string | null> {
  return new Promise((resolve) => {
    giveLine = resolve;
    post({ tag: "input" });
  });
}

function forward(kind: "stdout" | "stderr"): { write: (bytes: Uint8Array) => number } {
  const decoder = new TextDecoder();
  return {
    write: (bytes) => {
      const text = decoder.decode(bytes, { stream: true });
      if (text) emit({ kind, text });
      return bytes.length;
    },
  };
}

/**
 * A promise that rejects with the first rejection nobody handles: where one of its files cannot be fetched, Pyodide
 * leaves `loadPyodide` pending for ever.
 */
function unhandledRejection(): { promise: Promise<never>; stop: () => void } {
  let stop = (): void => {};
  const promise = new Promise<never>((_, reject) => {
    const listen = (event: PromiseRejectionEvent): void => reject(describe(event.reason));
    self.addEventListener("unhandledrejection", listen);
    stop = () => self.removeEventListener("unhandledrejection", listen);
  });
  return { promise, stop };
}

/** Anything thrown, as an error with a message. */
function describe(thrown: unknown): Error {
  if (thrown instanceof Error) return thrown;
  const text = typeof thrown === "object" ? JSON.stringify(thrown) : String(thrown);
  return new Error(text === "{}" ? "Pyodide failed to start and gave no reason; is a file of it missing?" : text);
}

/**
 * Warm onnxruntime-web up in a worker of its own first. A browser compiles a function of it when it is first called, in
 * the thread that calls, which would keep Python waiting; what one worker compiled serves the others of the page. If
 * there can be no such worker, everything is compiled here.
 */
async function warmUpBeside(assets: Assets): Promise<void> {
  const begun = performance.now();
  let helper: Worker | null = null;
  try {
    const started = (helper = startWorker(assets));
    await new Promise<void>((resolve) => {
      started.onmessage = started.onerror = () => resolve();
      started.postMessage({ tag: "warm up", assets } satisfies ToWorker);
    });
  } catch {
    // It is warmed up here alone.
  }
  await warmUpOrt(assets);
  tracer.add("load", "compile onnxruntime-web in a second worker", begun);
  // Its compiled code is kept as long as somebody uses it.
  helper?.terminate();
}

/** Tell the page that this worker is of no use any more. */
function died(what: string, error: unknown): void {
  post({ tag: "fatal", reason: `${what} ended by a fatal error, ${String(error)}` });
}

/** The part of Pyodide that its types leave out. */
interface WithFatal {
  _api: { on_fatal?: (error: unknown) => void };
}

type Boot = Extract<ToWorker, { tag: "boot" }>;

/** Begin with what the first request needs and Python does not. */
async function prepare(assets: Assets, { model, dtype, device }: Expected): Promise<void> {
  // Whoever asks for the model hears of a failure.
  const plans = prefetch(model, dtype)
    .then((files) => Promise.all(files.map(async (url) => ({ url, plan: await expectWeights(url) }))))
    .catch(() => []);
  if (device === "wasm") return;
  const adapter = await requestAdapter();
  if (!adapter || (device === "auto" && summarize(adapter).software)) return;
  const opening = (gpuAhead = GpuEngine.open(assets));
  // Whoever asks for it hears of a failure.
  const engine = (aheadOn = await opening.catch(() => null));
  for (const { url, plan } of await plans) {
    if (!plan || firstUseOver) continue;
    const what = decodeURIComponent(url.slice(url.lastIndexOf("/") + 1));
    const told = (done: number): void => emit({ kind: "progress", what, done, total: plan.load.end });
    engine?.uploadAhead(plan, () => openAhead(FOLDER, plan.data, plan.load.end), told);
  }
}

/** The engine on which weights are uploaded before they are requested. */
let aheadOn: GpuEngine | null = null;
/** Whether a request that can use a model has ended. */
let firstUseOver = false;

/** Drop work that was started ahead and that no request took. */
function dropAhead(): void {
  firstUseOver = true;
  dropPrefetched();
  dropExpected();
  void aheadOn?.dropAhead();
}

async function boot({ assets, interrupt, snapshot, expected, life, verifyAfter, trace }: Boot): Promise<void> {
  if (trace) tracer.begin();
  tracer.add("load", "start the worker", 0);
  onFatalError((error) => died("onnxruntime-web", error));
  if (life) void holdLife(life).then(() => post({ tag: "alive" }));
  emit({ kind: "status", text: "starting Python" });
  const host = {
    ...makeHost(assets),
    emit: (event: string) => emit(JSON.parse(event) as CapstanEvent),
    readLine,
    mountFile,
    openGpu: () => openGpu(assets),
    spent: spend,
  };
  const begun = performance.now();
  const starting = startPython(assets, host, snapshot);
  // Both take their time, and nearly everything that Python is asked for needs them.
  void (expected?.device === "wasm" || !navigator.gpu ? warmUpOrt(assets, "cpu") : warmUpBeside(assets));
  (expected ? prepare(assets, expected) : requestAdapter()).catch(() => undefined);
  const { pyodide, from, vendored, refused } = await starting;
  tracer.add("load", "start Python", begun, performance.now(), { from });
  const started = performance.now();
  fileSystem = pyodide.FS;
  (pyodide as unknown as WithFatal)._api.on_fatal = (error) => died("Python", error);
  if (interrupt) pyodide.setInterruptBuffer((signal = new Uint8Array(interrupt)));
  pyodide.setStdout(forward("stdout"));
  pyodide.setStderr(forward("stderr"));
  (pyodide.pyimport("capstan._js.start") as Start).begin(refused, JSON.stringify(vendored));
  const page = pyodide.pyimport("capstan.page.page") as Page;
  page.look_after_weights(verifyAfter);
  if (trace) page.begin_trace();
  tracer.add("load", "import capstan", started);
  handler = page.handle;
  cancel = page.cancel;
  post({ tag: "booted", id: 0, ready_ms: performance.now(), python: from });
}

/** The last request under way; requests wait for one another, `cancel` does not. */
let turn: Promise<void> = Promise.resolve();

/** A model folder as Python knows it. */
type ModelName = string | HubRepository;

/** The request as Python reads it: picked folders by the names they are adopted under. */
async function prepared(request: Request): Promise<string> {
  const name = (folder: ModelFolder): ModelName | Promise<ModelName> =>
    typeof folder !== "object" || folder === null || "repository" in folder ? folder : adopt(folder);
  if (typeof request !== "object" || request === null) return JSON.stringify(request ?? null);
  if ("model" in request) return JSON.stringify({ ...request, model: await name(request.model) });
  if (request.kind !== "exec" || !request.models) return JSON.stringify(request);
  const models: Record<string, ModelName> = {};
  for (const [key, folder] of Object.entries(request.models)) models[key] = await name(folder);
  return JSON.stringify({ ...request, models });
}

async function answer(id: number, request: Request): Promise<void> {
  if (spent !== null) return;
  current = id;
  answering = true;
  // A signal that came too late for the request before is not meant for this one.
  if (signal) signal[0] = 0;
  const reply = await replyOf(id, request);
  answering = false;
  if (!reply) return;
  post({ tag: "reply", id, reply });
  if (spent !== null) post({ tag: "spent", reason: spent });
  if (request?.kind !== "models" && request?.kind !== "memory" && request?.kind !== "plan" && request?.kind !== "trace")
    dropAhead();
}

/** Python's reply; null if Python ended, or has no memory left. Any other error of Python's own is a reply as well. */
async function replyOf(id: number, request: Request): Promise<Reply | null> {
  let asked: string;
  try {
    asked = await prepared(request);
  } catch (error) {
    return failure(error);
  }
  try {
    return JSON.parse(await (CAN_WAIT ? handler!.callPromising(asked, id) : handler!(asked, id))) as Reply;
  } catch (error) {
    const { name, type } = error as { name?: string; type?: string };
    if (name === "PythonError" && type !== "MemoryError") return failure(error);
    died("Python", error);
    return null;
  }
}

function failure(error: unknown): Reply {
  const { name, message, stack } = describe(error);
  const type = error instanceof EngineError ? error.code : name;
  return { ok: false, error: { type, message, traceback: stack ?? "" } };
}

self.onmessage = (message: MessageEvent<ToWorker>): void => {
  const { data } = message;
  if (data.tag === "warm up") {
    void warmUpOrt(data.assets).then(() => (postMessage as (message: string) => void)("warm"));
  } else if (data.tag === "unpack") {
    void unpackPieces(data.pieces, data.url, data.bytes);
  } else if (data.tag === "hash") {
    hashShards(data.shards);
  } else if (data.tag === "boot") {
    const unhandled = unhandledRejection();
    Promise.race([boot(data), unhandled.promise])
      .catch((error: unknown) => post({ tag: "reply", id: 0, reply: failure(error) }))
      .finally(unhandled.stop);
  } else if (data.tag === "input") {
    giveLine(data.line);
  } else if (data.request?.kind === "cancel") {
    if (data.stops !== null) cancel!(data.stops);
    post({ tag: "reply", id: data.id, reply: { ok: true, result: null } });
  } else {
    turn = turn.then(() => answer(data.id, data.request));
  }
};
