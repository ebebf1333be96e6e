// Files of model folders, hubs and scripts, read whole: from the server, a hub, what the user picked or what is kept.

import { EngineError } from "../errors";
import { hubRefusal, inRepository, keepFile, keptFile } from "./hub";
import { pickedFile } from "./picked";
import { askedAhead, fetchedOnce } from "./prefetch";
import { fetched } from "./source";

/** A whole file, read while Python waits: an import cannot be suspended. */
export function readNow(url: string): Uint8Array {
  const request = new XMLHttpRequest();
  request.open("GET", url, false);
  request.responseType = "arraybuffer";
  try {
    request.send();
  } catch (error) {
    throw new EngineError("ModelFileError", `${url} cannot be read: ${String(error)}`);
  }
  if (request.status !== 200) throw new EngineError("ModelFileError", `${url} cannot be read (HTTP ${request.status})`);
  return new Uint8Array(request.response as ArrayBuffer);
}

/** A whole file, null where the server or the picked folder has none. */
export async function fetchOptional(url: string): Promise<Uint8Array | null> {
  const file = await pickedFile(url);
  if (file !== undefined) return file && new Uint8Array(await file.arrayBuffer());
  if (inRepository(url) === false) return null;
  const kept = await keptFile(url);
  if (kept) return kept;
  const response = await fetchedOnce(url);
  const { status } = response;
  if (status === 404 || status === 410 || (status === 403 && inRepository(url) === null)) return null;
  if (!isPage(response)) return whole(url, readable(url, response));
  const found = await whole(url, response);
  return PAGE_BEGINS.test(new TextDecoder().decode(found.subarray(0, 100))) ? null : found;
}

const PAGE_BEGINS = /^\s*<(!doctype\s+html|html)/i;

/** Whether a response may be the page with which some hosts answer for every address that they do not know. */
function isPage(response: Response): boolean {
  return response.ok && /^text\/html\b/i.test(response.headers.get("Content-Type") ?? "");
}

/** Whether a URL, or a name in a picked folder, names a file. */
export async function fileExists(url: string): Promise<boolean> {
  const file = await pickedFile(url);
  if (file !== undefined) return file !== null;
  const listed = inRepository(url);
  if (listed !== null) return listed;
  if (await askedAhead(url)) return true;
  const response = await fetched(url, "ModelFileError", { method: "HEAD" });
  if (response.status === 404 || isPage(response)) return false;
  if (!response.ok) throw unreadable(url, response);
  return true;
}

/** A response's body, kept if it is a hub's; its breaking off as an error that names the file. */
async function whole(
  url: string,
  response: Response,
  progress: ((done: number, total: number) => void) | null = null,
): Promise<Uint8Array> {
  let content: Uint8Array<ArrayBuffer>;
  try {
    content = progress ? await told(response, progress) : new Uint8Array(await response.arrayBuffer());
  } catch (error) {
    throw new EngineError(
      "ModelFileError",
      `${url} broke off while it was read: ${String(error)}; load the model again`,
    );
  }
  await keepFile(url, content);
  return content;
}

export async function fetchBytes(
  url: string,
  progress: ((done: number, total: number) => void) | null,
): Promise<Uint8Array> {
  const file = await pickedFile(url);
  if (file) return new Uint8Array(await file.arrayBuffer());
  if (file === null)
    throw new EngineError("ModelFileError", `${url} is not in the picked folder; pick the model's own`);
  return (await keptFile(url)) ?? whole(url, readable(url, await fetchedOnce(url)), progress);
}

/** A response's body, with its progress told. */
async function told(
  response: Response,
  progress: (done: number, total: number) => void,
): Promise<Uint8Array<ArrayBuffer>> {
  const total = Number(response.headers.get("Content-Length") ?? 0);
  const parts: Uint8Array[] = [];
  let done = 0;
  const reader = response.body!.getReader();
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    parts.push(part.value);
    done += part.value.length;
    progress(done, total);
  }
  const joined = new Uint8Array(done);
  let at = 0;
  for (const part of parts) {
    joined.set(part, at);
    at += part.length;
  }
  return joined;
}

function readable(url: string, response: Response): Response {
  if (isPage(response))
    throw new EngineError(
      "ModelFileError",
      `${url}: the server answers with an HTML page, as for addresses that it does not know; check the model folder`,
    );
  if (response.ok && response.body) return response;
  throw unreadable(url, response);
}

function unreadable(url: string, response: Response): EngineError {
  const why = hubRefusal(url, response);
  if (why) return new EngineError("ModelFileError", `${url}: ${why}`);
  return new EngineError("ModelFileError", `${url} cannot be read (HTTP ${response.status}); check the model folder`);
}
