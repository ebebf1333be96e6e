// The service worker of a published site (build.py dist): a second visit needs no network. It keeps the files of one version
// of the site; models are kept by Capstan itself. A new version is fetched whole, and takes the place of the old one once no
// page uses that any more.

/** Set where it is built: what tells this version of the site from others, and the site's files, relative to it. */
declare const VERSION: string;
declare const FILES: string[];
/** Python's memory snapshot, without gzip and with; python.ts asks for the first one where the server sends it as brotli. */
declare const SNAPSHOTS: [unpacked: string, gzipped: string];

/** The part of ServiceWorkerGlobalScope that is used here; TypeScript has it in a library of its own. */
interface Scope {
  registration: { scope: string };
  addEventListener(kind: "install" | "activate", listen: (event: LifeEvent) => void): void;
  addEventListener(kind: "fetch", listen: (event: FetchEvent) => void): void;
}
interface LifeEvent {
  waitUntil(work: Promise<unknown>): void;
}
interface FetchEvent {
  request: Request;
  respondWith(response: Promise<Response>): void;
}

const scope = self as unknown as Scope;
const base = scope.registration.scope;
/** Other sites of the origin have caches of their own. */
const PREFIX = `capstan-site ${base} `;
const NAME = PREFIX + VERSION;
const files = new Set([...FILES, ...SNAPSHOTS].map((file) => new URL(file, base).href));

/** A file as the server has it now. */
function current(file: string): Request {
  return new Request(new URL(file, base), { cache: "no-cache" });
}

/** Keep all files, and one form of the snapshot. */
async function install(): Promise<void> {
  const cache = await caches.open(NAME);
  await cache.addAll(FILES.map(current));
  const [unpacked, gzipped] = SNAPSHOTS;
  const index = await cache.match(new URL("capstan/python.json", base));
  if (index?.headers.get("Content-Encoding") === "br") {
    const response = await fetch(current(unpacked));
    if (response.ok && response.headers.get("Content-Encoding") === "br") return cache.put(response.url, response);
    void response.body?.cancel();
  }
  await cache.add(current(gzipped));
}

async function removeOthers(): Promise<void> {
  for (const name of await caches.keys()) if (name.startsWith(PREFIX) && name !== NAME) await caches.delete(name);
}

/** The address of a file by that of a request: a folder is its page, and what follows a "?" is for the page to read. */
function fileOf(request: Request): string {
  const url = new URL(request.url);
  url.search = url.hash = "";
  return url.href.endsWith("/") ? `${url.href}index.html` : url.href;
}

async function kept(request: Request): Promise<Response> {
  const found = await (await caches.open(NAME)).match(fileOf(request), { ignoreVary: true });
  return found ?? fetch(request);
}

scope.addEventListener("install", (event) => event.waitUntil(install()));
scope.addEventListener("activate", (event) => event.waitUntil(removeOthers()));
scope.addEventListener("fetch", (event) => {
  const { request } = event;
  if (request.method === "GET" && !request.headers.has("Range") && files.has(fileOf(request)))
    event.respondWith(kept(request));
});
