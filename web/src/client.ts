// The page's handle on the worker: start it, ask it, close it.

import { CapstanError, EngineError } from "./errors";
import type { CapstanEvent, FromWorker, HubRepository, Readiness, Reply, Request, ToWorker } from "./protocol";

export type {
  CapstanEvent,
  ChatRequest,
  ExecRequest,
  GenerateRequest,
  Guidance,
  HubRepository,
  Message,
  ModelFolder,
  ModelsRequest,
  ModelsResult,
  Readiness,
  RemoteError,
  Reply,
  Request,
  StoredFile,
} from "./protocol";

/** Milliseconds after `cancel` until a script that never waits is interrupted as by Ctrl-C. */
const INTERRUPT_AFTER_MS = 500;
/** A signal to Pyodide is lost now and then, so it is sent again this often until the request ends. */
const INTERRUPT_EVERY_MS = 100;
const SIGINT = 2;

export interface StartOptions {
  /** URL of the folder that holds worker.js, python.json, ort/, pyodide/ and wheels/; default: where this module is. */
  base?: string;
  /** Whether Python may start from its memory snapshot (default), which is faster. */
  snapshot?: boolean;
  /**
   * The model that will be asked for first, a folder's URL or a hub's repository, and for which device ("auto" unless
   * given): its small files are fetched and the GPU is opened while Python starts. The graph of a repository is among
   * them if `dtype` names it.
   */
  expected?: { model: string | HubRepository; dtype?: string; device?: "webgpu" | "wasm" | "auto" };
  /** Called for each event of the start (id 0) and of every request, with the request's id. */
  onEvent?: (event: CapstanEvent, id: number) => void;
  /** Gives a script the next line of its input, with its line break, null at the end; without it there is no input. */
  onInput?: () => Promise<string | null>;
  /** Ends the start: the worker is terminated and the promise rejects with the signal's reason. */
  signal?: AbortSignal;
}

/** A folder's address as the worker knows it. */
function addressOf(model: string | HubRepository): string | HubRepository {
  return typeof model === "string" ? new URL(model.replace(/\/?$/, "/"), location.href).href : model;
}

interface Pending {
  /** A script may never wait, and is then interrupted; everything else is stopped at its next await. */
  script: boolean;
  onEvent?: ((event: CapstanEvent, id: number) => void) | undefined;
  resolve: (reply: Reply) => void;
  reject: (error: Error) => void;
}

/** One worker with Python and onnxruntime-web in it. Requests are answered one after the other. */
export class Client {
  private readonly pending = new Map<number, Pending>();
  private nextId = 1;
  private failure: Error | null = null;
  private ready: Readiness | null = null;

  private constructor(
    private readonly worker: Worker,
    private readonly interrupt: Uint8Array | null,
    private readonly onEvent: (event: CapstanEvent, id: number) => void,
    private readonly onInput: () => Promise<string | null>,
  ) {}

  /** How Python came up, and when. */
  get readiness(): Readiness {
    return this.ready!;
  }

  /** Start a worker and boot Python in it. Rejects with the reason if a file is missing or the boot fails. */
  static async start(options: StartOptions = {}): Promise<Client> {
    const { signal } = options;
    signal?.throwIfAborted();
    const base = new URL(options.base ?? ".", options.base ? location.href : import.meta.url).href;
    const worker = new Worker(new URL("worker.js", base), { type: "module" });
    // It is missing without cross-origin isolation, and in some browsers with it.
    const shared = typeof SharedArrayBuffer === "undefined" ? null : new SharedArrayBuffer(1);
    const { onEvent = () => {}, onInput = async () => null } = options;
    const client = new Client(worker, shared && new Uint8Array(shared), onEvent, onInput);
    worker.onmessage = (message: MessageEvent<FromWorker>) => client.receive(message.data);
    worker.onerror = (event) => {
      const reason = event.message || `${new URL("worker.js", base).href} cannot be loaded`;
      client.fail(new EngineError("DeviceUnavailableError", `the worker failed: ${reason}`));
    };
    const booted = new Promise<Reply>((resolve, reject) => client.pending.set(0, { script: false, resolve, reject }));
    const { snapshot = true, expected: wanted } = options;
    const expected = wanted
      ? { model: addressOf(wanted.model), dtype: wanted.dtype ?? null, device: wanted.device ?? "auto" }
      : null;
    const stop = (): void => client.fail(signal!.reason as Error);
    signal?.addEventListener("abort", stop, { once: true });
    client.post({ tag: "boot", base, interrupt: shared, snapshot, expected });
    try {
      const reply = await booted;
      if (!reply.ok) throw new CapstanError(reply.error, 0);
      client.ready = reply.result as Readiness;
    } catch (error) {
      worker.terminate();
      throw error;
    } finally {
      signal?.removeEventListener("abort", stop);
    }
    return client;
  }

  /** Send a request and wait for its reply; `cancel` is answered at once. `onEvent` is called for its own events. */
  request(request: Request, onEvent?: (event: CapstanEvent, id: number) => void): Promise<Reply> {
    if (this.failure) return Promise.reject(this.failure);
    const id = this.nextId++;
    const script = request.kind === "exec";
    const reply = new Promise<Reply>((resolve, reject) => this.pending.set(id, { script, onEvent, resolve, reject }));
    this.post({ tag: "request", id, request });
    if (request.kind === "cancel") {
      const first = Math.min(...this.pending.keys());
      if (this.pending.get(first)?.script) this.interruptUntilEnd(first);
    }
    return reply;
  }

  /** End the worker; requests under way are rejected. */
  close(): void {
    this.worker.terminate();
    this.fail(new EngineError("ClosedError", "the Capstan worker was closed; start a new one"));
  }

  private post(message: ToWorker): void {
    this.worker.postMessage(message);
  }

  private receive(message: FromWorker): void {
    if (message.tag === "event") {
      this.pending.get(message.id)?.onEvent?.(message.event, message.id);
      return this.onEvent(message.event, message.id);
    }
    if (message.tag === "input") {
      this.onInput().then(
        (line) => this.post({ tag: "input", line }),
        () => this.post({ tag: "input", line: null }),
      );
      return;
    }
    const pending = this.pending.get(message.id);
    this.pending.delete(message.id);
    if (message.tag === "booted") pending?.resolve({ ok: true, result: message });
    else pending?.resolve(message.reply);
  }

  private fail(error: Error): void {
    this.failure = error;
    for (const pending of this.pending.values()) pending.reject(error);
    this.pending.clear();
  }

  /** Interrupt Python until a script has ended, should it not end by itself; the requests after it are left alone. */
  private interruptUntilEnd(id: number): void {
    const signal = this.interrupt;
    if (!signal) return;
    const send = (): void => {
      if (!this.pending.has(id)) {
        signal[0] = 0;
        return;
      }
      signal[0] = SIGINT;
      setTimeout(send, INTERRUPT_EVERY_MS);
    };
    setTimeout(send, INTERRUPT_AFTER_MS);
  }
}
