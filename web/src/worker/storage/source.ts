// The source of weights: a URL, in ranges, or a file that the user picked. A source that changes while it is read is
// noticed: by If-Range and by the validators of every response, or by the browser itself.

import { here } from "../../wire/assets";
import { EngineError } from "../../wire/errors";
import { fetchedBytes } from "../fetched_bytes";
import { ByteReader, Chunk } from "./chunk";
import { authorization, hubRefusal, listedIdentity } from "./hub";
import { Body, checkFolder, discardBody, isPage, pageError, refusalRemedy, request, shown, transient } from "./network";
import { pickedFile } from "./picked";
import { reportedSize } from "./whole";

/** A source's description; see capstan.host.storage_interface.SourceIdentity. */
export interface SourceIdentity {
  name: string;
  size: number | null;
  validator: string | null;
}

const DISCARDED_BYTES = 1 << 16;

/** Sources that were opened early, by their addresses. */
const expected = new Map<string, Promise<HttpSource>>();
/** Whether the request that they were opened for has ended. */
let expectedNoMore = false;

/** Open a source that keeps its bytes, as `openSource` will be asked to; that takes this one. */
export function expectSource(url: string): Promise<HttpSource> {
  const opened = probe(url).then((identity) => new HttpSource(identity, true));
  expected.set(url, opened);
  // Its caller gets a failure.
  opened.catch(() => undefined);
  return opened;
}

/** Whether an expected source was not taken. */
export function isExpected(url: string): boolean {
  return expected.has(url);
}

/** Close the sources that were opened ahead and not used. */
export function dropExpected(): void {
  expectedNoMore = true;
  for (const url of [...expected.keys()]) forgetExpected(url);
}

function forgetExpected(url: string): void {
  const opened = expected.get(url);
  expected.delete(url);
  opened?.then(
    (source) => source.close(),
    () => undefined,
  );
}

/** A source for a URL, or for a file of a picked folder; requests only its identity from the server. */
export async function openSource(url: string, keep: boolean): Promise<HttpSource | BlobSource> {
  const file = await pickedFile(url);
  if (file === undefined) {
    const name = absolute(url);
    const opened = keep ? expected.get(name) : undefined;
    if (!opened) {
      forgetExpected(name);
      return new HttpSource(await probe(name), keep);
    }
    expected.delete(name);
    return opened;
  }
  if (file === null)
    throw new EngineError("ModelFileError", `${url} is not in the picked folder; pick the model's own`);
  return new BlobSource(url, file);
}

/** The address as every page of the origin would name it. */
export function absolute(url: string): string {
  return new URL(url, here()).href;
}

/** A source whose server cannot be reached now; it keeps its last identity. */
export function assumedSource(identity: string, keep: boolean): HttpSource {
  return new HttpSource(JSON.parse(identity) as SourceIdentity, keep);
}

async function probe(url: string): Promise<SourceIdentity> {
  const listed = listedIdentity(url);
  if (listed && listed.size !== null) return { name: url, size: listed.size, validator: listed.validator };
  let response = await fetched(url, { method: "HEAD" });
  if (!response.ok && response.status !== 404 && response.status !== 410) {
    // Some servers answer GET only.
    response = await fetched(url, { headers: { Range: "bytes=0-0" } });
    discardBody(response);
  }
  if (!response.ok) throw refused(url, response);
  if (isPage(response)) throw pageError(url);
  return { name: url, size: sizeOf(response), validator: validatorOf(response) ?? listed?.validator ?? null };
}

/** A response, whatever its status; a BrokenDownloadError if there is none. */
export function fetched(url: string, init?: RequestInit & { headers?: Record<string, string> }): Promise<Response> {
  return request(url, { ...init, headers: { ...init?.headers, ...authorization(url) } });
}

function refused(url: string, response: Response): EngineError {
  const what =
    hubRefusal(url, response) ??
    `the weights cannot be read (HTTP ${response.status}); ${refusalRemedy(response, checkFolder(url))}`;
  return transient(response, url) ?? new EngineError("ModelFileError", `${shown(url)}: ${what}`);
}

function sizeOf(response: Response): number | null {
  // A compressed response has another length.
  const encoding = response.headers.get("Content-Encoding") ?? "identity";
  if (encoding !== "identity") return null;
  const total = /\/(\d+)$/.exec(response.headers.get("Content-Range") ?? "")?.[1];
  const length = total ?? (response.status === 206 ? null : response.headers.get("Content-Length"));
  return length === null || length === undefined ? null : reportedSize(shown(response.url), Number(length));
}

/**
 * Whether a response is the requested part of the file. Compares its first byte, its last one (a server may send less)
 * and, like `open`, the file's size. Null if a server of another origin hides the part's range from pages.
 */
function isRange(
  url: string,
  response: Response,
  start: number,
  end: number | null,
  size: number | null,
): boolean | null {
  const told = response.headers.get("Content-Range");
  if (told === null) return isOtherOrigin(response.url || url) ? null : false;
  const found = /^bytes (\d+)-(\d+)\/(\d+|\*)$/.exec(told);
  if (!found || Number(found[1]) !== start) return false;
  const last = Number(found[2]);
  const most = Math.min(end ?? Infinity, size ?? Infinity, found[3] === "*" ? Infinity : Number(found[3]));
  const length = response.headers.get("Content-Length");
  const encoded = (response.headers.get("Content-Encoding") ?? "identity") !== "identity";
  return last >= start && last < most && (length === null || encoded || Number(length) === last - start + 1);
}

function isOtherOrigin(url: string): boolean {
  return new URL(url, here()).origin !== location.origin;
}

function validatorOf(response: Response): string | null {
  const etag = response.headers.get("ETag");
  const modified = response.headers.get("Last-Modified");
  return etag ? `etag ${etag}` : modified ? `modified ${modified}` : null;
}

/** A stream; `whole` if it is the whole file from there on, even if less was requested. */
interface Opened {
  reader: Body;
  whole: boolean;
}

export class HttpSource {
  readonly here = false;
  position: number | null = null;
  /** The end of the stream; null is the end of the file. */
  end: number | null = null;
  private reader: Body | null = null;
  /** The server does not let this page read which part of the file it sends: only the whole file can be trusted. */
  private untold = false;
  /** A stream that was opened before `seek` asked for it; up to `most` of its bytes come into memory. */
  private early: { start: number; end: number | null; most: number; opened: Promise<Opened> } | null = null;

  /** With `keep` the browser's HTTP cache is left alone: the bytes are kept elsewhere. */
  constructor(
    private readonly about: SourceIdentity,
    private readonly keep: boolean,
  ) {
    if (about.size !== null) fetchedBytes.expect(about.name, about.size);
  }

  identity(): string {
    return JSON.stringify(this.about);
  }

  /** Begin with the stream that `seek` will open, and have up to `most` of its bytes come into memory. */
  expect(start: number, end: number | null, most = 0): void {
    if (this.early) return;
    const opened = this.open(start, end, this.keep ? "no-store" : "default");
    this.early = { start, end, most, opened };
    opened.then(
      ({ reader }) => reader.readAhead(most),
      // The caller of seek gets a failure.
      () => undefined,
    );
  }

  /** An `end` that Python leaves out is undefined here. */
  async seek(start: number, end?: number | null): Promise<void> {
    if (this.reader && this.end === null && this.position! <= start) {
      // A server without ranges sends the whole file: what is not wanted of it is passed over.
      await this.discard(this.reader, start - this.position!);
    } else {
      const { early } = this;
      const same = early?.start === start && early.end === (end ?? null);
      if (same) this.early = null;
      this.drop();
      const opening = same ? early.opened : this.open(start, end ?? null, this.keep ? "no-store" : "default");
      const { reader, whole } = await opening;
      this.reader = reader;
      this.end = whole ? null : (end ?? null);
    }
    this.position = start;
  }

  async read(chunk: Chunk, length: number): Promise<number> {
    const found = await this.reader!.fill(chunk, length);
    this.position! += found;
    return found;
  }

  async readAt(chunk: Chunk, start: number, length: number): Promise<number> {
    if ((await this.peek(chunk, start, length)) === length) return length;
    const { reader } = await this.open(start, start + length, this.keep ? "no-store" : "reload");
    try {
      return await reader.fill(chunk, length);
    } finally {
      reader.cancel();
    }
  }

  /** Bytes of the stream that was opened early, which stay there; fewer where they do not come into memory. */
  private async peek(chunk: Chunk, start: number, length: number): Promise<number> {
    const { early } = this;
    if (!early || start < early.start || start + length > early.start + early.most) return 0;
    try {
      return await (await early.opened).reader.peek(chunk, start - early.start, length);
    } catch {
      // A request of its own says why.
      return 0;
    }
  }

  /**
   * It is not needed any more. A stream whose bytes came into memory before the first request asked for them waits for
   * the next one who opens the address in that request: the header of a GGUF file is read before its weights.
   */
  close(): void {
    const { early, about } = this;
    if (early?.most && !this.reader && !expectedNoMore && !expected.has(about.name)) {
      const next = new HttpSource(about, this.keep);
      next.early = early;
      this.early = null;
      expected.set(about.name, Promise.resolve(next));
    }
    this.drop();
  }

  private drop(): void {
    this.reader?.cancel();
    this.reader = null;
    this.position = null;
    const { early } = this;
    this.early = null;
    early?.opened.then(
      ({ reader }) => reader.cancel(),
      () => undefined,
    );
  }

  /** The bytes from `start` to `end`, or to the end of the file. */
  private async open(start: number, end: number | null, cache: RequestCache): Promise<Opened> {
    const { name: url, size } = this.about;
    const headers: Record<string, string> = {};
    if (!this.untold && (start > 0 || end !== null)) {
      headers["Range"] = `bytes=${start}-${end === null ? "" : end - 1}`;
      const condition = this.condition();
      if (condition) headers["If-Range"] = condition;
    }
    const response = await fetched(url, { headers, cache });
    try {
      if (response.status === 416) throw this.changed("it is shorter now");
      if (!response.ok || !response.body) throw refused(url, response);
      if (isPage(response)) throw pageError(url);
      this.compare(response);
      if (response.status === 206) {
        const right = isRange(url, response, start, end, size);
        if (right === null && !this.untold) {
          this.untold = true;
          discardBody(response);
          return await this.open(start, end, cache);
        }
        if (!right) throw this.otherRange(response, start, end);
      }
      const found = sizeOf(response);
      if (size !== null && found !== null && found !== size)
        throw this.changed(`it has ${found} bytes now, not ${size}`);
    } catch (error) {
      discardBody(response);
      throw error;
    }
    const reader = new Body(response.body, (count) => fetchedBytes.add(url, count));
    const whole = response.status === 200;
    if (whole) await this.discard(reader, start);
    return { reader, whole };
  }

  private otherRange(response: Response, start: number, end: number | null): EngineError {
    const asked = this.untold ? "the whole file" : `bytes ${start}-${end === null ? "" : end - 1}`;
    const told = response.headers.get("Content-Range") ?? "a part of the file without saying which (no Content-Range)";
    return new EngineError(
      "ModelFileError",
      `${shown(this.about.name)}: the server was asked for ${asked} and answered with ${told}; take one that answers ranges rightly, or none`,
    );
  }

  /** A header that makes the server send the whole file if the file has changed; only for our own origin. */
  private condition(): string | null {
    const { name, validator } = this.about;
    if (!validator || isOtherOrigin(name)) return null;
    if (validator.startsWith("modified ")) return validator.slice("modified ".length);
    return validator.startsWith('etag "') ? validator.slice("etag ".length) : null;
  }

  private compare(response: Response): void {
    const found = validatorOf(response);
    const wanted = this.about.validator;
    if (!found || !wanted || found.split(" ")[0] !== wanted.split(" ")[0]) return;
    if (found.replace("W/", "") !== wanted.replace("W/", "")) throw this.changed(`${found}, not ${wanted}`);
  }

  private changed(how: string): EngineError {
    const message = `${shown(this.about.name)} changed since the load began (${how}); load the model again`;
    return new EngineError("WeightsChangedError", message);
  }

  private async discard(reader: Body, count: number): Promise<void> {
    const chunk = new Chunk(DISCARDED_BYTES);
    for (let left = count; left > 0;) {
      const found = await reader.fill(chunk, Math.min(left, DISCARDED_BYTES));
      if (found === 0)
        throw new EngineError("BrokenDownloadError", `the server sent ${count - left} of ${count} bytes`);
      left -= found;
    }
  }
}

/** A file that the user picked. */
export class BlobSource {
  /** Whether the file is on this machine. */
  readonly here = true;
  position: number | null = null;
  end: number | null = null;
  private reader: ByteReader | null = null;

  constructor(
    private readonly name: string,
    private readonly file: File,
  ) {}

  identity(): string {
    const { size, lastModified } = this.file;
    return JSON.stringify({ name: this.name, size, validator: `modified ${lastModified}` } satisfies SourceIdentity);
  }

  seek(start: number, end?: number | null): void {
    this.close();
    this.reader = new ByteReader(this.file.slice(start, end ?? this.file.size).stream());
    this.position = start;
    this.end = end ?? null;
  }

  async read(chunk: Chunk, length: number): Promise<number> {
    const found = await this.fill(this.reader!, chunk, length);
    this.position! += found;
    return found;
  }

  /** A file answers at once. */
  expect(): void {}

  readAt(chunk: Chunk, start: number, length: number): Promise<number> {
    return this.fill(new ByteReader(this.file.slice(start, start + length).stream()), chunk, length);
  }

  close(): void {
    this.reader?.cancel();
    this.reader = null;
    this.position = null;
  }

  private async fill(reader: ByteReader, chunk: Chunk, length: number): Promise<number> {
    try {
      return await reader.fill(chunk, length);
    } catch (error) {
      const message = `${this.name} cannot be read any more (${String(error)}); pick the folder again`;
      throw new EngineError("WeightsChangedError", message);
    }
  }
}
