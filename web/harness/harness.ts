// The headless page that build.py and the tests drive: `window.capstan` passes requests on to the worker.

import { Client, type CapstanEvent, type Readiness, type Reply, type Request } from "capstan-webgpu";

interface Harness {
  /** Settles when the worker has booted, or could not. */
  ready: Promise<Readiness>;
  request(request: Request): Promise<Reply>;
  /** How often the worker was replaced. */
  restarts(): Promise<number>;
  close(): Promise<void>;
}

declare global {
  interface Window {
    capstan: Harness;
    /** Defined by the driver before this page loads; receives every event. */
    capstanEvent?: (event: CapstanEvent) => void;
    /** Likewise; gives a script the next line of its input, null at the end. */
    capstanInput?: () => Promise<string | null>;
  }
}

/** `?python=plain` starts Python without its memory snapshot, `?verify=MS` is Client.start's verifyAfter, `?trace` its trace. */
const given = new URLSearchParams(location.search);
const snapshot = given.get("python") !== "plain";
const verify = given.get("verify");
const started = Client.start({
  snapshot,
  trace: given.has("trace"),
  ...(verify === null ? {} : { verifyAfter: Number(verify) }),
  onEvent: (event) => window.capstanEvent?.(event),
  onInput: async () => (await window.capstanInput?.()) ?? null,
});

window.capstan = {
  ready: started.then((capstan) => capstan.readiness),
  request: async (request) => (await started).request(request),
  restarts: async () => (await started).restarts,
  close: async () => (await started).close(),
};
// The driver of the page awaits `ready` and gets the reason; without this it would count as unhandled as well.
window.capstan.ready.catch(() => undefined);
