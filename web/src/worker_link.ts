// A page's link to its worker: one of its own, or one that the pages of an origin share.

import { type Assets, assetUrl, loadFailure, startWorker } from "./assets";
import { holdLife, isHeld, lifeName, whileAlone } from "./life";
import type { FromWorker, ToWorker } from "./protocol";

export interface Link {
  post(message: ToWorker): void;
  /** End the worker, or leave it to the other pages. */
  end(): void;
}

/** Hears the messages of a worker, and why it does not work. */
export interface Listener {
  heard(message: FromWorker): void;
  failed(reason: string): void;
}

/** The lock of whoever joins a shared worker, or of that worker as it ends: nobody joins one that ends. */
export function doorName(name: string): string {
  return `${name} door`;
}

export function ownWorker(assets: Assets, { heard, failed }: Listener): Link {
  const worker = startWorker(assets);
  worker.onmessage = ({ data }: MessageEvent<FromWorker>) => heard(data);
  worker.onerror = (event) => {
    if (event.message) failed(event.message);
    else void loadFailure(assetUrl(assets, "worker.js")).then(failed);
  };
  return { post: (message) => worker.postMessage(message), end: () => worker.terminate() };
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
  /** Ends the wait for the first answer of the worker. */
  let settle = (): void => {};
  const settled = new Promise<void>((resolve) => (settle = resolve));
  const waiting: ToWorker[] = [];
  const join = async (): Promise<void> => {
    ({ end: leave } = await holdLife(tab));
    if (ended) return leave();
    await whileAlone(doorName(name), async () => {
      if (ended) return;
      const worker = new SharedWorker(assetUrl(assets, "worker.js"), { type: "module", name });
      worker.onerror = () => failed("the SharedWorker did not start");
      port = worker.port;
      port.onmessage = ({ data }: MessageEvent<FromWorker>) => {
        settle();
        if (!ended) heard(data);
      };
      for (const message of waiting.splice(0)) port.postMessage(message);
      await answered();
    });
  };
  const answered = async (): Promise<void> => {
    const timer = setInterval(
      async () => {
        // One that is being started holds no lock yet.
        if ((await isHeld(name)) && !ended) failed(`the shared worker did not answer within ${patience} ms`);
      },
      Math.min(patience, 0x7fffffff),
    );
    await settled;
    clearInterval(timer);
  };
  void join().catch((error: unknown) => failed(String(error)));
  return {
    post: (message) => void (port ? port.postMessage(message) : waiting.push(message)),
    end: () => {
      ended = true;
      // The worker hears of it by the lock.
      leave();
      settle();
      port?.close();
    },
  };
}
