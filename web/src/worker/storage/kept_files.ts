// Small files and answers in the Cache API, each with its SHA-256: bytes that are not those that were kept are none.

import { Body } from "./network";
import { hex, sha256 } from "../../wire/sha256";
import { readWhole } from "./whole";

/** Larger files are not small: weights have a store of their own. */
export const LARGEST_KEPT = 64 << 20;
const DIGEST = "SHA-256";

/** Keep a file, or with null that there is none. If that fails, it is requested again the next time. */
export async function keep(
  cache: string,
  address: string,
  content: Uint8Array<ArrayBuffer> | null,
  told: Record<string, string> = {},
): Promise<void> {
  const bytes = content ?? new Uint8Array();
  if (bytes.length > LARGEST_KEPT) return;
  try {
    const headers = { ...told, "Content-Length": String(bytes.length), [DIGEST]: hex(await sha256(bytes)) };
    const response = new Response(bytes, { status: content === null ? 404 : 200, headers });
    await (await caches.open(cache)).put(address, response);
  } catch {
    // There is no Cache API, or it is full.
  }
}

/** The entry of an address, unread; null if there is none with a digest, or nothing can be kept here. */
export async function entry(cache: string, address: string): Promise<Response | null> {
  try {
    const found = await (await caches.open(cache)).match(address, { ignoreVary: true });
    return found?.headers.has(DIGEST) ? found : null;
  } catch {
    return null;
  }
}

/** The entry of an address, with its status and headers; one whose bytes are not those that were kept is dropped: null. */
export async function kept(cache: string, address: string): Promise<Response | null> {
  const found = await entry(cache, address);
  if (!found) return null;
  const { status, headers } = found;
  // A browser may give an entry without bytes no body.
  const body = new Body(found.body ?? new Blob().stream());
  const content = await readWhole(address, body, { most: LARGEST_KEPT, sha256: headers.get(DIGEST) }).catch(() => null);
  if (content) return new Response(content, { status, headers });
  damaged.push(address);
  await (await caches.open(cache)).delete(address, { ignoreVary: true }).catch(() => false);
  return null;
}

/** Addresses of dropped entries that were not reported yet. */
const damaged: string[] = [];

/** The addresses of the entries that were dropped since the last call, as JSON. */
export function takeDamaged(): string {
  return JSON.stringify(damaged.splice(0));
}
