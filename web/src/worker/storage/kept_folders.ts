// The small files of model folders on a server, kept with the weights: where the server cannot be reached, they are taken
// to be what they were at the last load. Those of a hub's repositories never change (hub.ts).

import { entry, keep, kept } from "./kept_files";
import { absolute } from "./source";

const KEPT = "capstan-folders";

const folders = new Set<string>();

/** Keep the small files of a folder, whose address ends in a slash, from now on. */
export function keepFolder(folder: string): void {
  folders.add(absolute(folder));
}

function isKept(url: string): boolean {
  const name = absolute(url);
  return [...folders].some((folder) => name.startsWith(folder));
}

/**
 * Keep what the server answered: a file's content, null if it has none. An entry that is kept already is left alone if
 * the server says that it is the same.
 */
export async function noteAnswer(
  url: string,
  answer: Response,
  content: Uint8Array<ArrayBuffer> | null,
): Promise<void> {
  if (!isKept(url)) return;
  const validator = answer.headers.get("ETag") ?? answer.headers.get("Last-Modified");
  const last = await entry(KEPT, absolute(url));
  if (last && (content === null ? last.status === 404 : last.headers.get("ETag") === validator && validator)) return;
  await keep(KEPT, absolute(url), content, validator === null ? {} : { ETag: validator });
}

/** The server's last answer for a file; null if it is not kept. */
export async function lastAnswer(url: string): Promise<Response | null> {
  return isKept(url) ? kept(KEPT, absolute(url)) : null;
}

/** Whether a file is a model folder's: other models may be in folders below that. */
function within(folder: string, address: string): boolean {
  return address.startsWith(folder) && /^(onnx\/|1_Pooling\/)?[^/]*$/.test(address.slice(folder.length));
}

/** Forget what is kept of the folders that have, or are, one of these addresses (a JSON array); null is all. */
export async function forgetFolders(addresses?: string | null): Promise<void> {
  try {
    if (!addresses) {
      await caches.delete(KEPT);
      return;
    }
    const places = (JSON.parse(addresses) as string[]).flatMap((name) => [
      absolute(name.replace(/\/?$/, "/")),
      absolute(name.slice(0, name.lastIndexOf("/") + 1)),
    ]);
    const cache = await caches.open(KEPT);
    for (const request of await cache.keys())
      if (places.some((place) => within(place, request.url))) await cache.delete(request);
  } catch {
    // There is no Cache API.
  }
}
