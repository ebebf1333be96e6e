// Finds the package's files: worker.js, python.json and the contents of ort/, pyodide/ and wheels/.

/**
 * A folder, and the addresses of files and folders that are elsewhere, by their names in it ("ort/ort.webgpu.min.mjs",
 * "ort/"). Without a folder there are those alone.
 */
export interface Assets {
  base: string | null;
  places: Record<string, string>;
}

/** A file's address, null if it has none. */
export function findAsset({ base, places }: Assets, name: string): string | null {
  if (places[name] !== undefined) return places[name];
  const folder = name.slice(0, name.indexOf("/") + 1);
  const place = places[folder];
  if (folder && place !== undefined) return new URL(name.slice(folder.length), place).href;
  return base === null ? null : new URL(name, base).href;
}

/** The address of a file that every page has whose worker is ours. */
export function assetUrl(assets: Assets, name: string): string {
  const url = findAsset(assets, name);
  if (url === null) throw new Error(`${name} has no address`);
  return url;
}

/** From now on take these folders from elsewhere; addresses are relative to the page or worker. */
export function placeAssets({ places }: Assets, folders: Record<string, string | undefined>): void {
  for (const [folder, url] of Object.entries(folders))
    if (url !== undefined) places[folder] = new URL(url.replace(/\/?$/, "/"), here()).href;
}

/** Addresses in a worker that was started from a blob have no folder to begin in; they begin at the page's origin. */
export function here(): string {
  return location.protocol === "blob:" ? `${location.origin}/` : location.href;
}

/**
 * Start worker.js as a module. A browser starts workers of the page's own origin only: from another one it is imported by
 * a worker that the page makes itself.
 */
export function startWorker(assets: Assets): Worker {
  const url = assetUrl(assets, "worker.js");
  if (new URL(url).origin === globalThis.origin) return new Worker(url, { type: "module" });
  const source = new Blob([`import ${JSON.stringify(url)};`], { type: "text/javascript" });
  return new Worker(URL.createObjectURL(source), { type: "module" });
}

/** Milliseconds for a server to say why a script was not loaded. */
const ANSWER_MS = 10000;

/**
 * The reason why a script was not loaded. A browser does not report it, so the server's answer to another request is
 * used.
 */
export async function loadFailure(url: string): Promise<string> {
  const because = (reason: string): string => `${url} cannot be loaded (${reason})`;
  if (globalThis.origin === "null")
    return because(
      "this page has an opaque origin, as a sandboxed iframe, whose workers a browser refuses: add allow-same-origin to " +
        "the iframe's sandbox",
    );
  let response: Response;
  try {
    response = await fetch(url, { signal: AbortSignal.timeout(ANSWER_MS) });
  } catch (error) {
    return because(`${String(error)}: is it there, and does its server allow this page by CORS headers?`);
  }
  if (!response.ok) return because(`HTTP ${response.status}`);
  const type = response.headers.get("Content-Type") ?? "";
  if (/html/i.test(type))
    return because("the server answers with an HTML page, as for addresses that it does not know");
  if (!/(java|ecma)script/i.test(type)) return because(`the server calls it ${type || "nothing"}, not text/javascript`);
  if (globalThis.crossOriginIsolated && !response.headers.get("Cross-Origin-Embedder-Policy"))
    return because(
      "this page is cross-origin isolated, so that its server has to send this file, too, with " +
        "Cross-Origin-Embedder-Policy: require-corp",
    );
  const { origin } = new URL(url);
  const needed =
    origin === globalThis.origin
      ? "see the console, and the page's Content-Security-Policy"
      : `a page's Content-Security-Policy has to allow worker-src blob: ${origin} and script-src ${origin} ` +
        "'wasm-unsafe-eval'; see the console";
  return because(`it is there, but the browser refused it: ${needed}`);
}
