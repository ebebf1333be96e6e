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
