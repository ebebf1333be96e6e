// A page's link to its worker: one of its own, or one that the pages of an origin share.

import { type Assets, assetUrl, startWorker } from "./assets";
import { holdLife, isHeld, lifeName, whileAlone } from "./life";
import { loadFailure, SERVE_FOLDER, watchPolicy } from "./load_failure";
import type { FromWorker, ToWorker } from "./protocol";

export interface Link {
  /** Send a message; the page no longer has what is transferred. */
  post(message: ToWorker, transfer?: Transferable[]): void;
  /** End the worker, or leave it to the other pages. */
  end(): void;
}

/** Hears the messages of a worker, and why it does not work. */
export interface Listener {
  heard(message: FromWorker): void;
  failed(reason: string): void;
}

/** Milliseconds without an answer after which a page that joins a worker looks whether there is one. */
const AGAIN_MS = 1000;

/** Milliseconds without a message after which a worker's script is taken to be incomplete or another one. */
const SILENT_MS = 10_000;

/** The lock of a page that joins a shared worker, or of that worker as it ends: no page joins one that ends. */
export function doorName(name: string): string {
  return `${name} door`;
}

export function ownWorker(assets: Assets, { heard, failed }: Listener): Link {
  watchPolicy();
  const worker = startWorker(assets);
  const url = assetUrl(assets, "worker.js");
  const { settle, settled } = first();
  worker.onmessage = ({ data }: MessageEvent<FromWorker>) => {
    settle();
    heard(data);
  };
  worker.onerror = (event) => {
    settle();
    if (event.message) failed(`${event.message}; ${SERVE_FOLDER}`);
    else void loadFailure(url, SERVE_FOLDER).then(failed);
  };
  void refuseSilent(url, settled, failed);
  return {
    post: (message, transfer = []) => worker.postMessage(message, transfer),
    end: () => {
      settle();
      worker.terminate();
    },
  };
}

/** A promise for the first answer of a worker, and what settles it. */
function first(): { settle: () => void; settled: Promise<true> } {
  let settle = (): void => {};
  const settled = new Promise<true>((resolve) => (settle = () => resolve(true)));
  return { settle, settled };
}

/** Report a worker as failed that has loaded its script and says nothing. */
async function refuseSilent(url: string, settled: Promise<true>, failed: Listener["failed"]): Promise<void> {
  if (await within(SILENT_MS, settled)) return;
  // On a slow network the script takes as long here.
  await fetch(url).then(
    (response) => response.arrayBuffer(),
    () => null,
  );
  if (await within(SILENT_MS, settled)) return;
  failed(`${url} can be loaded and its worker says nothing: the file is not whole, or another one; ${SERVE_FOLDER}`);
}

/** The reason why this page can share no worker; null if there is none. */
export function unshareable(assets: Assets): string | null {
  if (typeof SharedWorker === "undefined") return "this browser has no SharedWorker";
  if (lifeName() === null) return "this page has no Web Locks, as on an insecure origin";
  const { origin } = new URL(assetUrl(assets, "worker.js"));
  if (origin === globalThis.origin) return null;
  return `worker.js is of ${origin}, and browsers share workers of a page's own origin only`;
}

/**
 * Join the worker of this name, which is started if there is none; `tab` is a name for this page's lock. `failed` hears of one that does not start, or that does
 * not answer for `patience` milliseconds though it lives.
 */
export function sharedWorker(
  assets: Assets,
  name: string,
  tab: string,
  patience: number,
  { heard, failed }: Listener,
): Link {
  let port: MessagePort | null = null;
  let ended = false;
  let leave = (): void => {};
  const { settle, settled } = first();
  const unanswered: ToWorker[] = [];
  const connect = (): void => {
    port?.close();
    const worker = new SharedWorker(assetUrl(assets, "worker.js"), { type: "module", name });
    worker.onerror = () => failed("the SharedWorker did not start");
    port = worker.port;
    port.onmessage = ({ data }: MessageEvent<FromWorker>) => {
      settle();
      if (!ended) heard(data);
    };
    for (const message of unanswered) port.postMessage(message);
  };
  const join = async (): Promise<void> => {
    ({ end: leave } = await holdLife(tab));
    if (ended) return leave();
    const step = Math.min(patience, AGAIN_MS);
    await whileAlone(doorName(name), async () => {
      if (ended) return;
      connect();
      void refuseSilent(assetUrl(assets, "worker.js"), settled, failed);
      for (let waited = step; !(await within(step, settled)); waited += step) {
        // Chromium may connect a page to a worker that has just closed itself. One that starts holds no lock yet, either.
        if (!(await isHeld(name))) connect();
        else if (waited >= patience) failed(`the shared worker did not answer within ${patience} ms`);
      }
    });
  };
  void join().catch((error: unknown) => failed(String(error)));
  return {
    post: (message, transfer = []) => {
      // The page sends nothing else before the first answer.
      if (message.tag === "boot") unanswered.push(message);
      port?.postMessage(message, transfer);
    },
    end: () => {
      ended = true;
      // The worker hears of it by the lock.
      leave();
      settle();
      port?.close();
    },
  };
}

/** Whether a promise settles within this number of milliseconds. */
function within(milliseconds: number, settled: Promise<boolean>): Promise<boolean> {
  return Promise.race([settled, new Promise<false>((resolve) => setTimeout(resolve, milliseconds, false))]);
}
