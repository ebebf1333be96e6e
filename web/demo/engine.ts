// The worker of this page: started with it, replaced where it failed, ended where a download is to stop.

import { CapstanError, type CapstanEvent, Client, type Reply, type Request, type StartOptions } from "capstan-webgpu";
import type { PictureData } from "../src/wire/protocol";
import { startFailure } from "./failure";

export class Engine {
  private worker: Promise<Client> | null = null;
  private starts = 0;
  /** The model that the worker has loaded, by its caller's key. */
  private loaded: { key: string; result: unknown } | null = null;
  /** The last script that defined something in the worker. */
  private defined: string | null = null;

  constructor(
    /** Called for each event of the worker's first start, and for those between requests. */
    private readonly onStart: (event: CapstanEvent) => void,
    private readonly expected: () => StartOptions["expected"],
  ) {}

  /** The worker; one that failed is replaced by a new one. A signal ends the waiting, not the start. */
  start(signal?: AbortSignal): Promise<Client> {
    if (!this.worker) {
      const expected = this.expected();
      // Later ones take place after what is to be read of the run that ended the worker before.
      let telling = this.starts++ === 0;
      const onEvent = (event: CapstanEvent, id: number): void => {
        if (event.kind === "restarted") this.loaded = this.defined = null;
        if ((id === 0 && telling) || ["damaged", "kept"].includes(event.kind)) this.onStart(event);
      };
      this.worker = Client.start({ onEvent, bytes: true, ...(expected ? { expected } : {}) }).then(
        (client) => {
          telling = false;
          return client;
        },
        (error: unknown) => {
          this.forget();
          throw startFailure(error);
        },
      );
    }
    return until(this.worker, signal);
  }

  /** The result of a request; throws CapstanError. Once the signal aborts it throws that, and tells no event. */
  async ask<T>(
    request: Request,
    onEvent?: (event: CapstanEvent) => void,
    signal?: AbortSignal,
    pictures: readonly PictureData[] = [],
  ): Promise<T> {
    const starting = this.start(signal);
    const started = this.worker;
    const client = await starting;
    let reply: Reply;
    try {
      reply = await until(
        client.request(request, (event) => signal?.aborted || onEvent?.(event), pictures.length ? [...pictures] : null),
        signal,
      );
    } catch (error) {
      const { code, message } = error as { code?: string; message: string };
      // The client starts another worker where one died.
      if (signal?.aborted) throw error;
      if (code === "WorkerLostError") throw new CapstanError({ type: code, message });
      if (this.worker === started) this.forget();
      throw startFailure(error);
    }
    if (!reply.ok) throw new CapstanError(reply.error);
    return reply.result as T;
  }

  /** The result of a load for a key: `ask` is called once as long as no other model is loaded. */
  async load<T>(key: string, ask: () => Promise<T>): Promise<T> {
    if (this.loaded?.key === key) return this.loaded.result as T;
    this.loaded = null;
    const result = await ask();
    this.loaded = { key, result };
    return result;
  }

  /** Another model, or the same in another way, was loaded by a request of its own. */
  forgetLoaded(): void {
    this.loaded = null;
  }

  /** Run a script that defines something for later requests, unless it was the last one that ran. */
  async define(source: string, filename: string, signal: AbortSignal): Promise<void> {
    if (this.defined === source) return;
    this.defined = null;
    let printed = "";
    const request: Request = { kind: "exec", source, filename, argv: [], models: {}, files: {} };
    const told = (event: CapstanEvent): void => {
      if (event.kind === "stderr") printed += event.text;
    };
    const { status } = await this.ask<{ status: number }>(request, told, signal);
    if (status !== 0) {
      const lines = printed.trim().split("\n");
      const message = lines.at(-1) || `it ended with status ${status}`;
      throw new CapstanError({ type: "ProcessorError", message, traceback: printed });
    }
    this.defined = source;
  }

  /** Stop the request that is running. */
  cancel(): void {
    // Before the worker has booted there is nothing to cancel.
    void this.worker?.then((client) => client.request({ kind: "cancel" })).catch(() => undefined);
  }

  /** End the worker, and with it a download that is under way; the next download resumes from the stored part. */
  end(): void {
    const ended = this.worker;
    this.forget();
    void ended?.then((client) => client.close()).catch(() => undefined);
  }

  /** The next request starts another worker. */
  forget(): void {
    this.worker = null;
    this.loaded = this.defined = null;
  }
}

/** The same promise, but it rejects with the signal's reason once the signal aborts. */
function until<T>(promise: Promise<T>, signal?: AbortSignal): Promise<T> {
  if (!signal) return promise;
  return new Promise((resolve, reject) => {
    if (signal.aborted) reject(signal.reason as Error);
    signal.addEventListener("abort", () => reject(signal.reason as Error), { once: true });
    promise.then(resolve, reject);
  });
}
