// The small files of a model folder, read whole: over the network, from what was kept of them, or from what the user picked.

import { EngineError } from "../../wire/errors";
import { ByteReader } from "./chunk";
import { lastAnswer, noteAnswer } from "./kept_folders";
import { hubRefusal, inRepository, keepFile, keptFile, listed } from "./hub";
import { Body, checkFolder, discardBody, isPage, pageError, refusalRemedy, shown, transient } from "./network";
import { pickedFile } from "./picked";
import { requestedAhead, fetchedOnce } from "./prefetch";
import { fetched } from "./source";
import { readWhole } from "./whole";

type Progress = (done: number, total: number) => void;
/** Hears why a server could not be reached, where what it answered the last time is taken in its place. */
type Unreached = (reason: string) => void;

const PAGE_BEGINS = /^\s*<(!doctype\s+html|html)/i;

/** A whole file of at most this number of bytes. `remedy` is for an answer without it; null if it is a model's file. */
export async function fetchBytes(
  url: string,
  most: number,
  progress: Progress | null,
  unreached: Unreached,
  remedy: string | null,
): Promise<Uint8Array> {
  const file = await pickedFile(url);
  if (file) return picked(url, file, most);
  if (file === null)
    throw new EngineError("ModelFileError", `${url} is not in the picked folder; pick the model's own`);
  const kept = await keptFile(url);
  if (kept) return bytesOf(kept);
  return whole(url, most, readable(url, await answered(url, unreached), remedy ?? checkFolder(url)), progress);
}

/** A whole file of at most this number of bytes, null if the server or the picked folder has none. */
export async function fetchOptional(url: string, most: number, unreached: Unreached): Promise<Uint8Array | null> {
  const file = await pickedFile(url);
  if (file !== undefined) return file && picked(url, file, most);
  if (inRepository(url) === false) return null;
  const kept = await keptFile(url);
  if (kept) return bytesOf(kept);
  const response = await answered(url, unreached);
  if (isAbsent(url, response)) {
    discardBody(response);
    void noteAnswer(url, response, null);
    return null;
  }
  if (!isPage(response)) return whole(url, most, readable(url, response));
  const found = await whole(url, most, response);
  return PAGE_BEGINS.test(new TextDecoder().decode(found.subarray(0, 100))) ? null : found;
}

async function bytesOf(response: Response): Promise<Uint8Array> {
  return new Uint8Array(await response.arrayBuffer());
}

/** A picked file, which a browser refuses if it was changed since. */
async function picked(url: string, file: File, most: number): Promise<Uint8Array> {
  try {
    return await readWhole(url, new ByteReader(file.stream()), { most, size: file.size });
  } catch (error) {
    if (!(error instanceof EngineError) || error.code !== "BrokenDownloadError") throw error;
    throw new EngineError("WeightsChangedError", `${error.message}; pick the folder again`);
  }
}

/** A file's response: the server's, or where there is none, the one of the last time. */
async function answered(url: string, unreached: Unreached): Promise<Response> {
  try {
    return await fetchedOnce(url);
  } catch (error) {
    const last = await lastAnswer(url);
    if (!last) throw error;
    unreached(error instanceof Error ? error.message : String(error));
    return last;
  }
}

/** Whether a URL, or a name in a picked folder, names a file. */
export async function fileExists(url: string, unreached: Unreached): Promise<boolean> {
  const file = await pickedFile(url);
  if (file !== undefined) return file !== null;
  const listed = inRepository(url);
  if (listed !== null) return listed;
  if (await requestedAhead(url)) return true;
  let response: Response;
  try {
    response = await fetched(url, { method: "HEAD" });
  } catch (error) {
    const last = await lastAnswer(url);
    if (!last) throw error;
    unreached(error instanceof Error ? error.message : String(error));
    return last.ok;
  }
  if (isAbsent(url, response) || isPage(response)) return false;
  if (!response.ok) throw unreadable(url, response);
  return true;
}

/** A whole file, read while Python waits: an import cannot be suspended. */
export function readNow(url: string): Uint8Array {
  const request = new XMLHttpRequest();
  request.open("GET", url, false);
  request.responseType = "arraybuffer";
  try {
    request.send();
  } catch (error) {
    throw new EngineError("ModelFileError", `${shown(url)} cannot be read: ${String(error)}`);
  }
  if (request.status !== 200)
    throw new EngineError("ModelFileError", `${shown(url)} cannot be read (HTTP ${request.status})`);
  return new Uint8Array(request.response as ArrayBuffer);
}

/** Whether the server says that it has no such file. A hub's 403 is about access instead. */
function isAbsent(url: string, { status }: Response): boolean {
  return status === 404 || status === 410 || (status === 403 && inRepository(url) === null);
}

/** A response's body, as the hub lists it, and kept if it is a hub's. */
async function whole(
  url: string,
  most: number,
  response: Response,
  progress: Progress | null = null,
): Promise<Uint8Array> {
  const announced = Number(response.headers.get("Content-Length") ?? 0);
  const content = await readWhole(shown(url), new Body(response.body!), {
    ...listed(url),
    most,
    announced: announced || null,
    progress: progress && ((done) => progress(done, announced)),
  });
  await keepFile(url, content);
  void noteAnswer(url, response, content);
  return content;
}

function readable(url: string, response: Response, remedy = checkFolder(url)): Response {
  if (isPage(response)) throw pageError(url, remedy);
  if (response.ok && response.body) return response;
  throw unreadable(url, response, remedy);
}

function unreadable(url: string, response: Response, remedy = checkFolder(url)): EngineError {
  discardBody(response);
  const passing = transient(response, url);
  if (passing) return passing;
  const why = hubRefusal(url, response);
  const what = why ? `: ${why}` : ` cannot be read (HTTP ${response.status}); ${refusalRemedy(response, remedy)}`;
  return new EngineError("ModelFileError", shown(url) + what);
}
