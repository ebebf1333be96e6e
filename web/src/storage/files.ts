// The small files of a model folder, read whole: over the network, from what was kept of them, or from what the user picked.

import { EngineError } from "../errors";
import { lastAnswer, noteAnswer } from "./folders";
import { hubRefusal, inRepository, keepFile, keptFile } from "./hub";
import { Body, checkFolder, discardBody, isPage, pageError, shown, transient } from "./network";
import { pickedFile } from "./picked";
import { askedAhead, fetchedOnce } from "./prefetch";
import { fetched } from "./source";

type Progress = (done: number, total: number) => void;
/** Hears why a server could not be reached, where what it answered the last time is taken in its place. */
type Unreached = (reason: string) => void;

const PAGE_BEGINS = /^\s*<(!doctype\s+html|html)/i;

/** A whole file. */
export async function fetchBytes(url: string, progress: Progress | null, unreached: Unreached): Promise<Uint8Array> {
  const file = await pickedFile(url);
  if (file) return new Uint8Array(await file.arrayBuffer());
  if (file === null)
    throw new EngineError("ModelFileError", `${url} is not in the picked folder; pick the model's own`);
  return (await keptFile(url)) ?? whole(url, readable(url, await answered(url, unreached)), progress);
}

/** A whole file, null where the server or the picked folder has none. */
export async function fetchOptional(url: string, unreached: Unreached): Promise<Uint8Array | null> {
  const file = await pickedFile(url);
  if (file !== undefined) return file && new Uint8Array(await file.arrayBuffer());
  if (inRepository(url) === false) return null;
  const kept = await keptFile(url);
  if (kept) return kept;
  const response = await answered(url, unreached);
  if (isAbsent(url, response)) {
    discardBody(response);
    void noteAnswer(url, response, null);
    return null;
  }
  if (!isPage(response)) return whole(url, readable(url, response));
  const found = await whole(url, response);
  return PAGE_BEGINS.test(new TextDecoder().decode(found.subarray(0, 100))) ? null : found;
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
  if (await askedAhead(url)) return true;
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

/** A response's body, kept if it is a hub's; its breaking off as an error that names the file. */
async function whole(url: string, response: Response, progress: Progress | null = null): Promise<Uint8Array> {
  const total = Number(response.headers.get("Content-Length") ?? 0);
  let content: Uint8Array<ArrayBuffer>;
  try {
    content = await new Body(response.body!).whole(progress && ((done) => progress(done, total)));
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    throw new EngineError("BrokenDownloadError", `${shown(url)} broke off while it was read: ${why}`);
  }
  await keepFile(url, content);
  void noteAnswer(url, response, content);
  return content;
}

function readable(url: string, response: Response): Response {
  if (isPage(response)) throw pageError(url);
  if (response.ok && response.body) return response;
  throw unreadable(url, response);
}

function unreadable(url: string, response: Response): EngineError {
  discardBody(response);
  const passing = transient(response, url);
  if (passing) return passing;
  const why = hubRefusal(url, response);
  const what = why ? `: ${why}` : ` cannot be read (HTTP ${response.status}); ${checkFolder(url)}`;
  return new EngineError("ModelFileError", shown(url) + what);
}
