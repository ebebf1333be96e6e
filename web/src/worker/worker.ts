// The worker: boots Python, gives it the host object below, and passes requests on to capstan.page.request_handler.

import type { PyodideInterface } from "pyodide";
import type { PyCallable, PyProxy } from "pyodide/ffi";
import { dropUnused, openGpu, prepare } from "./before_python";
import { type Assets, assetUrl, here } from "../wire/assets";
import { loadFailure } from "../wire/load_failure";
import { EngineError } from "../wire/errors";
import { requestAdapter, summarize } from "../wire/adapter";
import { help, warmUpBeside } from "./helper";
import { makeHost } from "./host";
import { awaitEnd, holdLife, whileAlone } from "../wire/life";
import { countAssets, fetchedBytes } from "./fetched_bytes";
import type {
  Attached,
  CapstanEvent,
  Device,
  FromWorker,
  HubRepository,
  ModelFolder,
  Readiness,
  Reply,
  Request,
  ToWorker,
} from "../wire/protocol";
import { adopt } from "./storage/picked";
import { type Build, onFatalError, warmUpOrt } from "./ort";
import { knownFiles, startPython } from "./python";
import { readyMade } from "./ready_made";
import { type Asked, Tab, Tabs } from "./tabs";
import { tracer } from "./trace";
import { crossOriginFiles, PageFiles } from "../wire/cross_origin";
import { useCrossOrigin } from "./storage/cross_origin";
import { doorName } from "../wire/worker_link";

type Handler = PyCallable & {
  (request: string, id: number, attached?: Attached): Promise<string>;
  callPromising(request: string, id: number, attached?: Attached): Promise<string>;
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
const tabs = new Tabs();
const pageFiles = new PageFiles((asked) => tabs.ask({ tag: "cross-origin", ...asked }));
/** The number of the last request in Python; it is the page's own for a page that has the worker to itself. */
let number = 0;

/** Why no request is begun any more. */
let spent: string | null = null;

function spend(reason: string): void {
  spent = reason;
  if (!tabs.answering) endFor({ tag: "spent", reason });
}

/** Whether pages share this worker. */
const SHARED = "SharedWorkerGlobalScope" in self;

/** Report that this worker is useless now: its page ends it, or starts another one with the pages that share it. */
function endFor(message: FromWorker): void {
  if (SHARED) void leaveTo(() => tabs.post(message));
  else tabs.post(message);
}

/** End a worker that pages share, while none joins it. */
function leaveTo(before: () => boolean | void): Promise<void> {
  return whileAlone(doorName(self.name), async () => {
    if (before() === false) return;
    close();
    // The lock ends with the worker.
    await new Promise(() => {});
  });
}

/** The last load that succeeded: the pages that share this worker join it. */
let loaded: { request: string; reply: Reply } | null = null;
/** How decode steps run, as last reported. */
let ready: CapstanEvent | null = null;

/** End a shared worker that has no page. */
async function endUnused(): Promise<void> {
  if (tabs.count === 0) await leaveTo(() => tabs.count === 0);
}

function emit(event: CapstanEvent): void {
  if (event.kind === "ready") ready = event;
  tabs.tell(event);
}

/** Pass an event on, of Python or of a load ahead of it. */
function reportEvent(event: CapstanEvent): void {
  if (event.kind === "progress") fetchedBytes.reachedOf(event.what, event.done, event.total);
  emit(event);
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
    tabs.current?.tab?.post({ tag: "input" });
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
 * A promise that rejects with the first unhandled rejection: if one of its files cannot be fetched, Pyodide never
 * settles `loadPyodide`.
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

/** Report to the page that this worker is useless now. */
function died(what: string, error: unknown): void {
  endFor({ tag: "fatal", reason: `${what} ended by a fatal error, ${String(error)}` });
}

/** The part of Pyodide that its types leave out. */
interface WithFatal {
  _api: { on_fatal?: (error: unknown) => void };
}

/**
 * The build of onnxruntime-web that a device needs, "auto" as `choose_device` in Python chooses. Null where no device is expected
 * and the adapter is software.
 */
async function preparedBuild(device: Device | null): Promise<Build | null> {
  if (device === "wasm" || device === "webgpu") return device === "wasm" ? "cpu" : "webgpu";
  const adapter = await requestAdapter();
  if (!adapter) return "cpu";
  if (!summarize(adapter).software) return "webgpu";
  return device === "auto" ? "cpu" : null;
}

/** The library for phonemes, which is fetched for the first text that is spoken. */
async function phonemes(assets: Assets): Promise<typeof import("./phonemes")> {
  const url = assetUrl(assets, "phonemes.js");
  try {
    return (await import(url)) as typeof import("./phonemes");
  } catch (error) {
    throw new EngineError("ModelFileError", `${await loadFailure(url)}; ${String(error)}`);
  }
}

type Boot = Extract<ToWorker, { tag: "boot" }>;

async function boot(given: Boot): Promise<Readiness> {
  const { assets, interrupt, snapshot, expected, verifyAfter, trace, bytes, crossOrigin } = given;
  if (crossOrigin) useCrossOrigin(crossOriginFiles() ?? (crossOrigin.page ? pageFiles : null));
  if (trace) tracer.begin();
  if (bytes || SHARED) {
    fetchedBytes.begin(emit);
    countAssets(assets, fetchedBytes);
  }
  tracer.add("load", "start the worker", 0);
  onFatalError((error) => died("onnxruntime-web", error));
  emit({ kind: "status", text: "starting Python" });
  const host = {
    ...makeHost(assets),
    emit: (event: string) => reportEvent(JSON.parse(event) as CapstanEvent),
    readLine,
    mountFile,
    openGpu: () => openGpu(assets),
    readyMade: async (name: string, size: number, dtype: string) =>
      readyMade(assets, await knownFiles(assets), name, size, dtype),
    phonemize: async (text: string, language: string) => (await phonemes(assets)).phonemize(text, language),
    spent: spend,
  };
  const begun = performance.now();
  const build = preparedBuild(expected?.device ?? null).catch(() => null);
  const starting = startPython(assets, host, snapshot, build);
  // Both take long, and nearly every request to Python needs them.
  void build.then((known) => {
    if (known) void (known === "cpu" ? warmUpOrt(assets, known) : warmUpBeside(assets, bytes));
  });
  (expected ? prepare(assets, expected, reportEvent) : requestAdapter()).catch(() => undefined);
  const { pyodide, from, vendored, refused } = await starting;
  tracer.add("load", "start Python", begun, performance.now(), { from });
  const started = performance.now();
  fileSystem = pyodide.FS;
  (pyodide as unknown as WithFatal)._api.on_fatal = (error) => died("Python", error);
  if (interrupt) pyodide.setInterruptBuffer((signal = new Uint8Array(interrupt)));
  pyodide.setStdout(forward("stdout"));
  pyodide.setStderr(forward("stderr"));
  (pyodide.pyimport("capstan._js.start") as Start).begin(refused, JSON.stringify(vendored));
  const page = pyodide.pyimport("capstan.page.request_handler") as Page;
  page.look_after_weights(verifyAfter);
  if (trace) page.begin_trace();
  tracer.add("load", "import capstan", started);
  handler = page.handle;
  cancel = page.cancel;
  return { ready_ms: performance.now(), python: from };
}

/** Python's start, begun for the first page. */
let booting: Promise<Readiness> | null = null;

/** Why a page that shares a worker is better off with its own, null if it is not. */
async function unsuited(device: Device): Promise<string | null> {
  if (device === "wasm") return null;
  const adapter = await requestAdapter().catch(() => null);
  if (!adapter) return "this browser gives a SharedWorker no WebGPU";
  if (device === "webgpu" || !summarize(adapter).software) return null;
  return "the GPU is a software adapter, so that the model is computed by the CPU, which has no threads in a SharedWorker";
}

/** Take a page on: start Python if it is the first. */
async function join(tab: Tab, given: Boot): Promise<void> {
  const { life, shared } = given;
  if (shared) {
    const reason = await unsuited(shared.device);
    if (reason !== null) {
      tab.post({ tag: "unsuited", reason });
      return endUnused();
    }
    tab.left = awaitEnd(shared.tab, () => leave(tab));
  }
  tabs.add(tab);
  if (life) void holdLife(life).then(() => tab.post({ tag: "alive" }));
  try {
    tab.post({ tag: "booted", id: 0, ...(await (booting ??= bootOrFail(given))) });
  } catch (error) {
    tab.post({ tag: "reply", id: 0, reply: failure(error) });
  }
}

function bootOrFail(given: Boot): Promise<Readiness> {
  const unhandled = unhandledRejection();
  return Promise.race([boot(given), unhandled.promise]).finally(unhandled.stop);
}

/** A page has gone: nothing of it is answered or kept, and the last one ends the worker. */
function leave(tab: Tab): void {
  if (!tabs.remove(tab)) return;
  if (tabs.answering && tabs.current?.tab === tab) cancel!(number);
  void serve();
  void endUnused();
}

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

/** Answer requests, one after the other; `cancel` does not wait for them. */
async function serve(): Promise<void> {
  while (!tabs.answering && spent === null) {
    const asked = tabs.begin();
    if (!asked) return;
    await answer(asked);
  }
}

async function answer({ tab, id, request, attached }: Asked): Promise<void> {
  number = Math.max(id, number + 1);
  // A signal that came too late for the request before is not meant for this one.
  if (signal) signal[0] = 0;
  const reply = await replyOf(number, tab ? tab.owned(request) : request, attached ?? undefined);
  tabs.end();
  if (!reply) return;
  tab?.post({ tag: "reply", id, reply });
  if (SHARED && request.kind === "load" && reply.ok) loaded = { request: JSON.stringify(request), reply };
  if (spent !== null) endFor({ tag: "spent", reason: spent });
  if (request?.kind !== "models" && request?.kind !== "memory" && request?.kind !== "plan" && request?.kind !== "trace")
    dropUnused();
}

/** Python's reply; null if Python ended, or has no memory left. Any other error of Python's own is a reply as well. */
async function replyOf(id: number, request: Request, attached?: Attached): Promise<Reply | null> {
  let asked: string;
  try {
    asked = await prepared(request);
  } catch (error) {
    return failure(error);
  }
  try {
    return JSON.parse(
      await (CAN_WAIT ? handler!.callPromising(asked, id, attached) : handler!(asked, id, attached)),
    ) as Reply;
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

/** Stop a request at its next wait; one that was not begun is answered at once. */
function stop(tab: Tab, id: number): void {
  const { current } = tabs;
  if (tabs.takeBack(tab, id)) {
    const error = { type: "KeyboardInterrupt", message: "stopped by the user", traceback: "" };
    tab.post({ tag: "reply", id, reply: { ok: false, error } });
  } else if (tabs.answering && current?.tab === tab && current.id === id) cancel!(number);
}

/** The messages of a page, or of another worker that this one helps. */
function listen(to: MessagePort): void {
  let tab: Tab;
  to.onmessage = ({ data }: MessageEvent<ToWorker>) => {
    if (data.tag === "boot") {
      tab = new Tab((message) => to.postMessage(message), data.shared?.tab ?? null, data.bytes);
      void join(tab, data);
    } else if (data.tag === "input") {
      if (tabs.current?.tab === tab) giveLine(data.line);
    } else if (data.tag === "cross-origin") {
      pageFiles.take(data);
    } else if (data.tag !== "request") {
      help(data);
    } else if (data.request?.kind === "cancel") {
      if (data.stops !== null) stop(tab, data.stops);
      tab.post({ tag: "reply", id: data.id, reply: { ok: true, result: null } });
    } else if (data.request?.kind === "load" && JSON.stringify(data.request) === loaded?.request) {
      if (ready) tab.post({ tag: "event", id: data.id, event: ready });
      tab.post({ tag: "reply", id: data.id, reply: loaded.reply });
    } else {
      tab.waiting.push({ tab, id: data.id, request: data.request, attached: data.attached });
      void serve();
    }
  };
}

if (SHARED) {
  void holdLife(self.name);
  const scope = self as unknown as { onconnect: (event: MessageEvent) => void };
  scope.onconnect = ({ ports: [port] }) => listen(port!);
  // A page hears of such an error by itself where the worker is its own.
  self.addEventListener("error", ({ message }) => endFor({ tag: "fatal", reason: message }));
} else listen(self as unknown as MessagePort);
