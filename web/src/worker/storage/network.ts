// Requests for files: each has a stall timeout, and each failure says whether it may be tried again (Python does that, see
// capstan.retrying). Messages show an address without its query and credentials, which may be secrets.

import { here } from "../../wire/assets";
import { EngineError } from "../../wire/errors";
import { unreached } from "../../wire/load_failure";
import { isGguf } from "../../wire/model_address";
import { ByteReader, type Chunk } from "./chunk";
import { stallTimeout } from "./whole";

/** Answers after which the same request may succeed. */
const TRANSIENT = [408, 425, 429, 500, 502, 503, 504];

/** Files of models, of whatever kind, that are taken for their folder. */
const MODEL_FILE = /\.(onnx|onnx_data\w*|data|json|gguf|safetensors)$/i;

/** The file by which a model folder is known. */
const CONFIGURATION = /\/(genai_config|config)\.json$/;

/** An address as messages show it. */
export function shown(url: string): string {
  try {
    const parsed = new URL(url, here());
    if (!parsed.search && !parsed.hash && !parsed.username && !parsed.password) return url;
    parsed.search = parsed.hash = parsed.username = parsed.password = "";
    return parsed.href;
  } catch {
    return url.split(/[?#]/)[0]!;
  }
}

/** The text of an error, without an address that it may contain. */
function told(error: unknown, url: string): string {
  return String(error).replaceAll(url, shown(url));
}

/**
 * The result of `work`, or a BrokenDownloadError if it takes longer than the stall timeout; `abandon` ends it then. The
 * time is measured in two halves: one that is over because this thread was busy is followed by one in which it is not.
 */
export async function withinStall<T>(work: Promise<T>, waited: string, abandon: () => void): Promise<T> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const stallMs = stallTimeout();
  const stalled = new Promise<never>((_, reject) => {
    timer = setTimeout(() => {
      timer = setTimeout(() => {
        reject(new EngineError("BrokenDownloadError", `${waited} for ${stallMs / 1000} s`));
        abandon();
      }, stallMs / 2);
    }, stallMs / 2);
  });
  try {
    return await Promise.race([work, stalled]);
  } finally {
    clearTimeout(timer);
  }
}

/** A response, whatever its status; a BrokenDownloadError if there is none, which begins with `what` failed. */
export async function request(
  url: string,
  init: RequestInit,
  what = `${shown(url)} cannot be fetched`,
): Promise<Response> {
  const abort = new AbortController();
  // A worker that was started from a blob resolves no relative address itself.
  const answered = fetch(new URL(url, here()).href, { ...init, signal: abort.signal });
  try {
    return await withinStall(answered, "the server has not answered", () => abort.abort());
  } catch (error) {
    // A browser extension's own files, and an app's, come without a status: what is not there fails.
    if (!(error instanceof EngineError) && !/^(https?|blob|data):$/.test(new URL(url, here()).protocol))
      return new Response(null, { status: 404 });
    const { why, remedy } =
      error instanceof EngineError
        ? { why: error.message, remedy: "check the address and the network" }
        : await unreached(url, told(error, url));
    throw new EngineError("BrokenDownloadError", `${what} (${why}); ${remedy}`);
  }
}

/** The error of an answer after which the request may be tried again; null for any other answer. */
export function transient(response: Response, url: string): EngineError | null {
  if (!TRANSIENT.includes(response.status)) return null;
  const message = `${shown(url)}: the server answered HTTP ${response.status}; try again later`;
  return new EngineError("BrokenDownloadError", message, retryAfter(response));
}

/** The seconds for which a server wants no requests; undefined if it names none. */
function retryAfter(response: Response): number | undefined {
  const value = response.headers.get("Retry-After")?.trim();
  if (!value) return undefined;
  const seconds = /^\d{1,9}$/.test(value) ? Number(value) : (Date.parse(value) - Date.now()) / 1000;
  return Number.isFinite(seconds) ? Math.max(0, seconds) : undefined;
}

/** Have no more of a response sent; one that has broken off already rejects that with its own error. */
export function discardBody(response: Response): void {
  response.body?.cancel().catch(() => undefined);
}

/** Whether a response may be the page with which some hosts answer for every address that they do not know. */
export function isPage(response: Response): boolean {
  return response.ok && /^text\/html\b/i.test(response.headers.get("Content-Type") ?? "");
}

/**
 * The remedy if the server has no file of this address: other addresses that may have been given in place of its
 * folder.
 */
export function checkFolder(url: string): string {
  const { origin, pathname } = new URL(url, here());
  const folders = pathname.split("/").slice(1, -1);
  const [owner, name, page] = folders;
  if (folders.length === 2 ? origin !== location.origin : page === "tree" || page === "blob") {
    const below =
      page && isGguf(pathname)
        ? `:${pathname
            .split("/")
            .slice(5)
            .map((part) => decodeURIComponent(part))
            .join("/")}`
        : "";
    const [id, hub] = [`${owner}/${name}${below}`, origin].map((text) => JSON.stringify(text));
    return `check the model's address, or for a repository of a hub give ${id} as the model and ${hub} as the hub`;
  }
  const last = folders.at(-1) ?? "";
  if (MODEL_FILE.test(last)) return `${last} is a file: give the folder that it is in`;
  if (isGguf(pathname)) return "check the file's address";
  return CONFIGURATION.test(pathname)
    ? "check the model's address: a folder with genai_config.json or config.json, or a GGUF file"
    : "check that the whole model folder is there";
}

/** The remedy for an answer that refuses a file; `otherwise` unless it asks for a login. */
export function refusalRemedy({ status }: Response, otherwise: string): string {
  return status === 401 || status === 403
    ? "sign in to its server, or have it give the model's files without a login"
    : otherwise;
}

/** The error of such a page in place of a file. */
export function pageError(url: string, remedy = checkFolder(url)): EngineError {
  return new EngineError(
    "ModelFileError",
    `${shown(url)}: the server answers with an HTML page, as for addresses that it does not know; ${remedy}`,
  );
}

/** A response's body; every failure, a stall among them, is a BrokenDownloadError. */
export class Body extends ByteReader {
  override read(chunk: Chunk, filled: number, length: number): Promise<number> {
    return this.guarded(super.read(chunk, filled, length));
  }

  override next(): Promise<Uint8Array | null> {
    return this.guarded(super.next());
  }

  protected override within<T>(piece: Promise<T>): Promise<T> {
    return this.guarded(piece);
  }

  private async guarded<T>(read: Promise<T>): Promise<T> {
    try {
      return await withinStall(read, "no byte came", () => this.cancel());
    } catch (error) {
      const why = error instanceof EngineError ? error.message : String(error);
      throw new EngineError("BrokenDownloadError", `the connection broke off: ${why}`);
    }
  }
}
