// The reason why a file did not arrive, with the remedy: a browser reports to the console alone.

import { here } from "./assets";

/** The refusals of a Content-Security-Policy in this page or worker, the latest one last. */
const refusals: { directive: string; blocked: string; policy: string }[] = [];
const MOST_REFUSALS = 20;
let watching = false;

/** Note from now on what a Content-Security-Policy refuses. */
export function watchPolicy(): void {
  if (watching || typeof globalThis.addEventListener !== "function") return;
  watching = true;
  globalThis.addEventListener("securitypolicyviolation", (event: Event) => {
    const { effectiveDirective, blockedURI, originalPolicy } = event as SecurityPolicyViolationEvent;
    refusals.push({ directive: effectiveDirective, blocked: blockedURI, policy: originalPolicy });
    if (refusals.length > MOST_REFUSALS) refusals.shift();
  });
}

/** The policy that holds here, as messages name it. */
function policyName(): string {
  const own = globalThis.document === undefined && location.protocol !== "blob:";
  return own ? `the Content-Security-Policy sent with ${location.pathname}` : "the page's Content-Security-Policy";
}

/** A source in a policy: an origin, or 'self' for the one of this page. */
function sourceOf(origin: string): string {
  return origin === location.origin ? "'self'" : origin;
}

/** The directive by which a policy refused an address, with the remedy; null if none refused it. */
function refusalOf(url: URL): { directive: string; remedy: string } | null {
  const found = refusals.findLast(({ blocked }) => blocked !== "" && url.href.startsWith(blocked));
  if (!found) return null;
  const { directive, policy } = found;
  const { origin } = url;
  const redirected = origin !== location.origin && policy.includes(origin);
  const missing = redirected ? `the origin to which ${origin} redirects` : sourceOf(origin);
  return { directive, remedy: `add ${missing} to its ${directive}` };
}

/** Milliseconds for a server to answer another request. */
const ANSWER_MS = 10000;
/** Milliseconds after a refusal in which the event for it arrives. */
const EVENT_MS = 20;

/** The reason why a request got no response, with the remedy; `error` is the one of `fetch`. */
export async function unreached(address: string, error: unknown): Promise<{ why: string; remedy: string }> {
  const url = new URL(address, here());
  await new Promise((resolve) => setTimeout(resolve, EVENT_MS));
  const refusal = refusalOf(url);
  if (refusal) return { why: `${policyName()} forbids it`, remedy: refusal.remedy };
  if ((globalThis.navigator as Navigator | undefined)?.onLine === false)
    return { why: "this device is offline", remedy: "connect it to a network, and load again" };
  const own = location.origin;
  if (own.startsWith("https:") && url.protocol === "http:" && !/^(localhost|127\.|\[::1\])/.test(url.hostname))
    return { why: "a page of https: cannot read an address of http:", remedy: "serve the files over https:" };
  if (url.origin === own)
    return {
      why: String(error),
      remedy: "check that the server of this page runs, and that no browser extension blocks the request",
    };
  if (await answers(url))
    return {
      why: `its server answers, but does not allow pages of ${own}`,
      remedy: `have it send Access-Control-Allow-Origin (CORS), or serve the files from ${own}`,
    };
  // An isolated page gets no answer without CORS either.
  const isolated = globalThis.crossOriginIsolated === true;
  return isolated
    ? { why: String(error), remedy: "check the address, the network, and that its server allows this page (CORS)" }
    : { why: `no server answers at ${url.origin}`, remedy: "check the address and the network" };
}

/** Whether a server answers, even if it does not let pages read the answer. */
function answers(url: URL): Promise<boolean> {
  const init: RequestInit = { method: "HEAD", mode: "no-cors", credentials: "omit", cache: "no-store" };
  return fetch(url, { ...init, signal: AbortSignal.timeout(ANSWER_MS) }).then(
    () => true,
    () => false,
  );
}

/** The remedy where a file of the package is missing. */
export const SERVE_FOLDER =
  "serve the whole folder capstan/ of the package (npx capstan-webgpu copy DIRECTORY) and give its address as assetsUrl";

/**
 * The reason why a script was not loaded, with the remedy. A browser does not report it, so the server's answer to another
 * request is used. `missing` is the remedy if the server has no such script.
 */
export async function loadFailure(url: string, missing = ""): Promise<string> {
  const because = (reason: string, remedy: string): string =>
    `${url} cannot be loaded (${reason})${remedy && `; ${remedy}`}`;
  if (globalThis.origin === "null")
    return because(
      "this page has an opaque origin, as a sandboxed iframe, whose workers a browser refuses",
      "add allow-same-origin to the iframe's sandbox",
    );
  const refusal = refusalOf(new URL(url, here()));
  if (refusal && refusal.directive !== "connect-src") return because(`${policyName()} forbids it`, refusal.remedy);
  let response: Response;
  try {
    response = await fetch(url, { signal: AbortSignal.timeout(ANSWER_MS) });
  } catch (error) {
    const { why, remedy } = await unreached(url, error);
    return because(why, remedy);
  }
  if (!response.ok) return because(`HTTP ${response.status}`, missing);
  const type = response.headers.get("Content-Type") ?? "";
  if (/html/i.test(type))
    return because("the server answers with an HTML page, as for addresses that it does not know", missing);
  if (!/(java|ecma)script/i.test(type))
    return because(`the server calls it ${type || "nothing"}`, "have it send text/javascript as the Content-Type");
  if (globalThis.crossOriginIsolated && !response.headers.get("Cross-Origin-Embedder-Policy"))
    return because(
      "this page is cross-origin isolated",
      "have the server send this file, too, with Cross-Origin-Embedder-Policy: require-corp",
    );
  const { origin } = new URL(url);
  const needed =
    origin === globalThis.origin
      ? "see the console, and the page's Content-Security-Policy"
      : `a page's Content-Security-Policy has to allow worker-src blob: ${origin} and script-src ${origin} ` +
        "'wasm-unsafe-eval'; see the console";
  return because("it is there, but the browser refused it", needed);
}

/** The smallest module of WebAssembly. */
const EMPTY_MODULE = Uint8Array.of(0, 97, 115, 109, 1, 0, 0, 0);

/** The reason why WebAssembly does not run here, with the remedy; null if it runs. */
export function wasmFailure(): string | null {
  if (typeof WebAssembly === "undefined")
    return "this browser has no WebAssembly; use another browser, or leave its lockdown mode";
  try {
    new WebAssembly.Module(EMPTY_MODULE);
    return null;
  } catch {
    return `${policyName()} forbids WebAssembly; add 'wasm-unsafe-eval' to its script-src`;
  }
}
