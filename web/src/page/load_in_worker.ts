// Starts a worker and loads a model in it: what `Capstan.load` and `Capstan.loadEmbedder` share.

import { Client, type StartOptions } from "./client";
import { asCapstanError, CapstanError } from "../wire/errors";
import { SERVE_FOLDER } from "../wire/load_failure";
import { callable, flag, type Kinds, milliseconds, signal, text } from "./kinds";
import { LoadMeter, type LoadProgress } from "./progress";
import type { Attached, CapstanEvent, Request } from "../wire/protocol";

export interface WorkerOptions {
  onProgress?: (progress: LoadProgress) => void;
  /** Called for each event of the start (id 0) and of every request. */
  onEvent?: (event: CapstanEvent, requestId: number) => void;
  /** Ends the load: the worker ends, and the promise rejects with the signal's reason. */
  signal?: AbortSignal;
  /** The folder with worker.js, python.json, ort/, pyodide/ and wheels/; default: the folder of this module. */
  assetsUrl?: string;
  /** Whether Python may start from its memory snapshot (default), which is faster. */
  snapshot?: boolean;
  /** Milliseconds without a request until stored weights are compared with their digests, 5 seconds unless given. See Client.start. */
  verifyAfter?: number;
  /**
   * Whether the weights of a hub's models are looked for in the browser's Cross-Origin Storage, which keeps files for all
   * sites, and stored there after a download; false unless given. Without that storage they are downloaded.
   */
  crossOriginStorage?: boolean;
}

export const WORKER_KINDS: Kinds = {
  ...{ onProgress: callable, onEvent: callable, signal, assetsUrl: text, snapshot: flag, verifyAfter: milliseconds },
  crossOriginStorage: flag,
};

/** The options of Client.start for a page's options. */
export function startOptions({
  assetsUrl,
  snapshot,
  verifyAfter,
  crossOriginStorage,
  signal,
}: WorkerOptions): StartOptions {
  return {
    ...(assetsUrl === undefined ? {} : { base: assetsUrl.replace(/\/?$/, "/") }),
    ...(snapshot === undefined ? {} : { snapshot }),
    ...(verifyAfter === undefined ? {} : { verifyAfter }),
    ...(crossOriginStorage === undefined ? {} : { crossOriginStorage }),
    ...(signal ? { signal } : {}),
  };
}

/**
 * Start a worker and send it a request that loads a model. Rejects with a CapstanError, or with the signal's reason; the
 * worker has ended then. `heard` is called for each event, as long as the worker lives.
 */
export async function loadInWorker(
  given: WorkerOptions,
  more: StartOptions,
  request: () => Request,
  heard?: (event: CapstanEvent) => void,
): Promise<{ client: Client; about: unknown }> {
  const { signal, onEvent, onProgress } = given;
  // A caller that aborts at once, like React's StrictMode, has started no worker.
  await Promise.resolve();
  signal?.throwIfAborted();
  let loaded = false;
  const meter = new LoadMeter();
  let client: Client;
  try {
    client = await Client.start({
      ...startOptions(given),
      ...more,
      bytes: onProgress !== undefined,
      onEvent: (event, id) => {
        heard?.(event);
        onEvent?.(event, id);
        if (!onProgress || loaded) return;
        const progress = meter.take(event);
        if (progress) onProgress(progress);
      },
    });
  } catch (error) {
    signal?.throwIfAborted();
    throw startFailure(error);
  }
  const stop = (): void => client.close();
  signal?.addEventListener("abort", stop, { once: true });
  try {
    const about = await ask(client, request());
    signal?.throwIfAborted();
    loaded = true;
    onProgress?.(meter.ended());
    return { client, about };
  } catch (error) {
    client.close();
    signal?.throwIfAborted();
    throw asCapstanError(error);
  } finally {
    signal?.removeEventListener("abort", stop);
  }
}

/** Send a request and wait for its result; throws a CapstanError that names the request. */
export async function ask(
  client: Client,
  request: Request,
  onEvent?: (event: CapstanEvent, id: number) => void,
  attached: Attached | null = null,
): Promise<unknown> {
  let number: number | null = null;
  const heard = (event: CapstanEvent, id: number): void => {
    number = id;
    onEvent?.(event, id);
  };
  const reply = await client.request(request, heard, attached);
  if (!reply.ok) throw new CapstanError(reply.error, number);
  return reply.result;
}

/** The base of this page's relative addresses. */
export function pageAddress(): string {
  return globalThis.document?.baseURI ?? location.href;
}

/** The reason why the worker did not start, with the remedy. */
function startFailure(error: unknown): CapstanError {
  const known = asCapstanError(error, 0);
  const { code, message, traceback } = known;
  if (code === "OptionError" || code === "StartError" || code === "ClosedError") return known;
  return new CapstanError({ type: "StartError", message: `${message}; ${SERVE_FOLDER}`, traceback }, 0);
}
