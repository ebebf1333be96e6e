// The worker of this page: started with it, replaced where it failed, ended where a download is to stop.

import { type CapstanEvent, Client, type RemoteError, type Request, type StartOptions } from "capstan-webgpu";

/** An error that Python sent as its answer. */
export class RequestError extends Error {
  constructor(readonly remote: RemoteError) {
    super(remote.message);
  }
}

export class Engine {
  private worker: Promise<Client> | null = null;
  private starts = 0;
  /** The model that the worker has loaded, by its caller's key. */
  private loaded: { key: string; result: unknown } | null = null;
  /** The last script that defined something in the worker. */
  private defined: string | null = null;

  constructor(
    /** Called for each event of the worker's first start, and where stored weights are found damaged. */
    private readonly onStart: (event: CapstanEvent) => void,
    private readonly expected: () => StartOptions["expected"],
  ) {}

  /** The worker; one that failed is replaced by a new one. */
  start(): Promise<Client> {
    if (!this.worker) {
      const expected = this.expected();
      // Later ones take place behind what is to be read of the run that ended the worker before.
      let telling = this.starts++ === 0;
      const onEvent = (event: CapstanEvent, id: number): void => {
        if (event.kind === "restarted") this.loaded = this.defined = null;
        if ((id === 0 && telling) || event.kind === "damaged") this.onStart(event);
      };
      this.worker = Client.start({ onEvent, ...(expected ? { expected } : {}) }).then(
        (client) => {
          telling = false;
          return client;
        },
        (error: unknown) => {
          this.forget();
          throw error;
        },
      );
    }
    return this.worker;
  }

  /** The result of a request; throws RequestError, or the error of `Client.request`. */
  async ask<T>(request: Request, onEvent?: (event: CapstanEvent) => void): Promise<T> {
    const client = await this.start();
    const reply = await client.request(request, onEvent);
    if (!reply.ok) throw new RequestError(reply.error);
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
  async define(source: string, filename: string): Promise<void> {
    if (this.defined === source) return;
    this.defined = null;
    let printed = "";
    const request: Request = { kind: "exec", source, filename, argv: [], models: {}, files: {} };
    const { status } = await this.ask<{ status: number }>(request, (event) => {
      if (event.kind === "stderr") printed += event.text;
    });
    if (status !== 0) {
      const lines = printed.trim().split("\n");
      const message = lines.at(-1) || `it ended with status ${status}`;
      throw new RequestError({ type: "ProcessorError", message, traceback: printed });
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
