// The page's handle on the worker: start it, ask it, close it, and start another where it died.

import { defaultAssets } from "capstan-assets";
import type { Assets } from "../wire/assets";
import { asCapstanError, CapstanError, EngineError } from "../wire/errors";
import { awaitEnd, lifeName } from "../wire/life";
import { copiedRequest, readOptions } from "./arguments";
import { interruptUntil } from "./interrupt";
import type {
  Attached,
  CapstanEvent,
  Device,
  Expected,
  FromWorker,
  Readiness,
  Reply,
  Request,
  ToWorker,
} from "../wire/protocol";
import { expectedModel, START_KINDS, type StartOptions } from "./start_options";
import { answerWorker, crossOriginFiles } from "../wire/cross_origin";
import { type Link, ownWorker, sharedWorker, unshareable } from "../wire/worker_link";

export type { StartOptions } from "./start_options";
export type {
  Alternative,
  AlternativesRequest,
  BurstTimes,
  CapstanEvent,
  ChatRequest,
  ExecRequest,
  GenerateRequest,
  Guidance,
  HubRepository,
  LoadRequest,
  LoadResult,
  MemoryResult,
  Message,
  ModelFacts,
  ModelFolder,
  ModelsRequest,
  ModelsResult,
  OperationsResult,
  PlanRequest,
  PlanResult,
  Readiness,
  RemoteError,
  Reply,
  Request,
  ScoredSequence,
  ScoredTokens,
  ScoreRequest,
  ScoreResult,
  StoredFile,
  Trace,
  TraceEvent,
} from "../wire/protocol";

/** Milliseconds after `cancel` until a worker that does not end the request is ended itself. */
const CANCEL_DEADLINE_MS = 10_000;
/** Milliseconds without a request until stored weights are compared with their digests. */
const VERIFY_AFTER_MS = 5_000;

type Boot = Extract<ToWorker, { tag: "boot" }>;
/** The options of each worker of a client. */
type Lasting = Pick<Boot, "snapshot" | "verifyAfter" | "crossOrigin">;

interface Pending {
  request: Request;
  /** The request that this one cancels. */
  stops: number | null;
  attached: Attached | null;
  /** Whether it was sent, so that what was attached is no longer here. */
  sent: boolean;
  onEvent: ((event: CapstanEvent, id: number) => void) | undefined;
  resolve: (reply: Reply) => void;
  reject: (error: Error) => void;
}

/**
 * Python and onnxruntime-web in a worker. Requests are answered one after the other.
 *
 * A worker that dies, or in which Python or onnxruntime-web ends by a fatal error, is replaced: requests under way are
 * rejected with a WorkerLostError, an event reports it, and later ones are answered by the new worker. Stored weights
 * are still there; what Python had in memory is not.
 */
export class Client {
  private readonly pending = new Map<number, Pending>();
  private failure: Error | null = null;
  private ready: Readiness | null = null;
  private link: Link | null = null;
  private interrupt: Uint8Array | null = null;
  private endWaiting: () => void = () => {};
  private booted: { resolve: (ready: Readiness) => void; reject: (error: Error) => void } | null = null;
  private replaced = 0;
  private note: string | null = null;
  /** The pages of a shared worker notify one another when it is stuck. */
  private readonly others: BroadcastChannel | null = null;

  private constructor(
    private readonly assets: Assets,
    private readonly cancelDeadline: number,
    private readonly lasting: Lasting,
    private tracing: boolean,
    private readonly onEvent: (event: CapstanEvent, id: number) => void,
    private readonly onInput: () => Promise<string | null>,
    private shared: { name: string; device: Device } | null,
    /** The number of the next request, of this client and of those beside it. */
    private readonly numbers = { next: 1 },
  ) {
    if (!shared || typeof BroadcastChannel === "undefined") return;
    this.others = new BroadcastChannel(shared.name);
    this.others.onmessage = ({ data }: MessageEvent<string>) => {
      // A joining page notices it.
      if (!this.shared || this.booted) return;
      this.unshare(data);
      this.lost(data);
    };
  }

  /** The way Python started, and the time, in the present worker or in the last one that started it. */
  get readiness(): Readiness {
    return this.ready!;
  }

  /** How often the worker was replaced. */
  get restarts(): number {
    return this.replaced;
  }

  /** Whether the worker is shared with other pages; if it was to be and is not, `note` has the reason. */
  get sharing(): { shared: boolean; note: string | null } {
    return { shared: this.shared !== null, note: this.note };
  }

  /** Start a worker and boot Python in it. Rejects with the reason if a file is missing or the boot fails. */
  static async start(given: StartOptions = {}): Promise<Client> {
    const options = readOptions("the options", given, START_KINDS);
    const { signal } = options;
    signal?.throwIfAborted();
    const assets = options.base ? { base: new URL(options.base, location.href).href, places: {} } : defaultAssets();
    const { onEvent = () => {}, onInput = async () => null } = options;
    const { snapshot = true, cancelDeadline = CANCEL_DEADLINE_MS, verifyAfter = VERIFY_AFTER_MS } = options;
    const crossOrigin = options.crossOriginStorage ? { page: crossOriginFiles() !== null } : null;
    const lasting = { snapshot, verifyAfter, crossOrigin };
    const { expected: wanted, trace = false, bytes = false, shared } = options;
    const expected = wanted ? expectedModel(wanted) : null;
    const sharing = shared ? { name: shared.name, device: shared.device ?? "auto" } : null;
    const client = new Client(assets, cancelDeadline, lasting, trace, onEvent, onInput, sharing);
    const stop = (): void => client.fail(signal!.reason as Error);
    signal?.addEventListener("abort", stop, { once: true });
    try {
      await client.boot(expected, bytes);
    } finally {
      signal?.removeEventListener("abort", stop);
    }
    return client;
  }

  /** Start another client with these options and a worker of this page's own; the numbers of requests are of both. */
  async beside(): Promise<Client> {
    if (this.failure) throw this.failure;
    const { assets, cancelDeadline, lasting, onEvent, onInput, numbers } = this;
    const client = new Client(assets, cancelDeadline, lasting, false, onEvent, onInput, null, numbers);
    await client.boot(null);
    return client;
  }

  /**
   * Send a request and wait for its reply; `cancel` is answered at once. `onEvent` is called for its own events. The
   * arrays in `attached` are transferred: they are empty afterwards.
   */
  request(
    given: Request,
    onEvent?: (event: CapstanEvent, id: number) => void,
    attached: Attached | null = null,
  ): Promise<Reply> {
    if (this.failure) return Promise.reject(this.failure);
    const id = this.numbers.next++;
    let request: Request;
    try {
      request = copiedRequest(given);
    } catch (error) {
      const { code, message } = asCapstanError(error);
      return Promise.resolve({ ok: false, error: { type: code, message, traceback: "" } });
    }
    if (request.kind === "trace") this.tracing = request.action === "start";
    const stops = request.kind === "cancel" ? this.running() : null;
    const reply = new Promise<Reply>((resolve, reject) =>
      this.pending.set(id, { request, stops, attached, sent: false, onEvent, resolve, reject }),
    );
    // While a worker boots they are kept.
    if (!this.booted) this.send(id);
    if (stops !== null) this.insist(stops);
    return reply;
  }

  /** End the worker; requests under way are rejected. */
  close(): void {
    this.fail(new EngineError("ClosedError", "the Capstan worker was closed; start a new one"));
  }

  /** Start a worker, and send it the requests that wait. */
  private async boot(expected: Expected | null, bytes = false): Promise<void> {
    const { assets, lasting, tracing: trace } = this;
    const booted = new Promise<Readiness>((resolve, reject) => (this.booted = { resolve, reject }));
    const refused = this.shared && unshareable(assets);
    if (refused) this.unshare(refused);
    const about = { tag: "boot", assets, ...lasting, expected, trace, bytes } as const;
    // In Chromium, a worker whose page is frozen during a fetch may never continue.
    const again = (): void => {
      if (this.shared) return;
      this.onEvent({ kind: "status", text: "starting Python again, since the page was frozen meanwhile" }, 0);
      this.endWorker();
      this.connect(about);
    };
    // A worker has no document.
    globalThis.document?.addEventListener("resume", again);
    this.connect(about);
    try {
      this.ready = await booted;
    } catch (error) {
      this.fail(error as Error);
      throw error;
    } finally {
      globalThis.document?.removeEventListener("resume", again);
    }
    this.booted = null;
    for (const id of this.pending.keys()) this.send(id);
  }

  private send(id: number): void {
    const pending = this.pending.get(id)!;
    const { request, stops, attached } = pending;
    if (attached && pending.sent) {
      this.pending.delete(id);
      const what = Array.isArray(attached) ? "pictures" : "sound";
      pending.reject(new EngineError("WorkerLostError", `the worker that had the ${what} was replaced; ask again`));
      return;
    }
    pending.sent = true;
    const arrays = Array.isArray(attached) ? attached.map(({ bytes }) => bytes) : attached ? [attached] : [];
    this.post({ tag: "request", id, request, stops, attached }, [...new Set(arrays.map(({ buffer }) => buffer))]);
  }

  private connect(about: Omit<Boot, "interrupt" | "life" | "shared">): void {
    const shared = this.shared && { ...this.shared, tab: lifeName()! };
    // It is missing without cross-origin isolation, and in some browsers with it; it is never shared with all pages.
    const signal = shared || typeof SharedArrayBuffer === "undefined" ? null : new SharedArrayBuffer(1);
    this.interrupt = signal && new Uint8Array(signal);
    const life = lifeName();
    let joined = false;
    const takeOwn = (reason: string): void => {
      this.unshare(reason);
      this.connect(about);
    };
    const failed = (reason: string): void => {
      if (this.link !== link) return;
      if (shared && !joined) takeOwn(reason);
      else this.lost(reason);
    };
    const heard = (data: FromWorker): void => {
      if (this.link !== link) return;
      joined = data.tag !== "unsuited";
      if (data.tag === "alive") this.endWaiting = awaitEnd(life!, () => failed("the browser ended it"));
      else if (data.tag === "unsuited") takeOwn(data.reason);
      else if (data.tag === "fatal" || (data.tag === "spent" && this.booted)) failed(data.reason);
      // Requests that wait were not begun: the new worker answers them.
      else if (data.tag === "spent") this.replace(data.reason);
      else this.receive(data);
    };
    const link = shared
      ? sharedWorker(about.assets, shared.name, shared.tab, this.cancelDeadline, { heard, failed })
      : ownWorker(about.assets, { heard, failed });
    this.link = link;
    this.post({ ...about, interrupt: signal, life, shared: shared && { tab: shared.tab, device: shared.device } });
  }

  private post(message: ToWorker, transfer: Transferable[] = []): void {
    this.link!.post(message, transfer);
  }

  /** Share no worker from now on. */
  private unshare(reason: string): void {
    this.endWorker();
    this.others?.close();
    this.shared = null;
    this.note = reason;
    this.onEvent({ kind: "unshared", reason }, 0);
  }

  private receive(message: FromWorker): void {
    if (message.tag === "event") {
      this.pending.get(message.id)?.onEvent?.(message.event, message.id);
      this.onEvent(message.event, message.id);
    } else if (message.tag === "input") {
      const { link } = this;
      const answer = (line: string | null): void => link!.post({ tag: "input", line });
      this.onInput().then(answer, () => answer(null));
    } else if (message.tag === "cross-origin") {
      const { link } = this;
      void answerWorker(message).then((answer) => link!.post({ tag: "cross-origin", ...answer }));
    } else if (message.tag === "booted") {
      this.booted?.resolve(message);
    } else if (message.tag === "reply" && message.id === 0) {
      const { reply } = message;
      if (!reply.ok) this.booted?.reject(new CapstanError(reply.error, 0));
    } else if (message.tag === "reply") {
      const pending = this.pending.get(message.id);
      this.pending.delete(message.id);
      pending?.resolve(message.reply);
    }
  }

  /** The worker is of no use any more. */
  private lost(reason: string): void {
    if (this.booted) {
      this.booted.reject(new EngineError("StartError", `the worker failed: ${reason}`));
      return;
    }
    const message = `the worker died: ${reason}; another one is started, ask again`;
    this.rejectAll(new EngineError("WorkerLostError", message));
    this.replace(reason);
  }

  /** Start another worker. If it does not come up, all requests fail from then on. */
  private replace(reason: string): void {
    this.endWorker();
    this.replaced++;
    this.onEvent({ kind: "restarted", reason }, 0);
    // Requests hear of a failure.
    this.boot(null).catch(() => undefined);
  }

  private endWorker(): void {
    this.endWaiting();
    this.endWaiting = () => {};
    this.link?.end();
    this.link = null;
  }

  private fail(error: Error): void {
    this.failure = error;
    this.endWorker();
    this.others?.close();
    this.booted?.reject(error);
    this.rejectAll(error);
  }

  private rejectAll(error: Error): void {
    const all = [...this.pending.values()];
    this.pending.clear();
    for (const { reject } of all) reject(error);
  }

  /** The request that the worker is at: the first that is not a cancel. */
  private running(): number | null {
    for (const [id, { request }] of this.pending) if (request.kind !== "cancel") return id;
    return null;
  }

  /** See that a request which was cancelled ends. */
  private insist(id: number): void {
    if (this.pending.get(id)?.request.kind === "exec" && this.interrupt)
      interruptUntil(() => !this.pending.has(id), this.interrupt);
    // A longer one is none to a browser's timer.
    if (this.cancelDeadline > 0x7fffffff) return;
    setTimeout(() => {
      const stuck = this.pending.get(id);
      if (!stuck || this.failure) return;
      const reason = `a cancelled request did not end within ${this.cancelDeadline} ms`;
      this.pending.delete(id);
      for (const [other, { request, resolve }] of this.pending) {
        if (request.kind !== "cancel") continue;
        this.pending.delete(other);
        resolve({ ok: true, result: null });
      }
      if (this.shared) {
        // A page cannot end it.
        this.others?.postMessage(reason);
        this.unshare(reason);
      }
      this.replace(reason);
      const message = `stopped by the user; ${reason}, so that its worker was ended and another one is started`;
      stuck.resolve({ ok: false, error: { type: "KeyboardInterrupt", message, traceback: "" } });
      // Requests after it were not begun: the new worker answers them.
    }, this.cancelDeadline);
  }
}
