// Counts the bytes that come while the worker starts and loads a model: of Python, onnxruntime-web and the wheels, and of
// weights. Responses are counted on a copy, so that what the browser keeps of compiled WebAssembly goes on with theirs.

import { type Assets, here } from "../wire/assets";
import type { CapstanEvent } from "../wire/protocol";

export type BytesEvent = Extract<CapstanEvent, { kind: "bytes" }>;

/** Events come at most so often, in milliseconds. */
const EVERY_MS = 100;

interface File {
  /** Bytes that came, as they are once they are unpacked. */
  done: number;
  /** Its size then, and as the server sends it; null while unknown. */
  size: number | null;
  sent: number | null;
}

export class FetchedBytes {
  private readonly files = new Map<string, File>();
  private tell: ((event: BytesEvent) => void) | null = null;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private told = 0;
  private runtime = false;
  private model = false;

  /** Count from now on, and report until `end`. */
  begin(tell: (event: BytesEvent) => void): void {
    this.tell = tell;
  }

  /** The files of the runtime are those, by their addresses, with their sizes. */
  expectRuntime(sizes: Record<string, number>): void {
    for (const [url, size] of Object.entries(sizes)) this.file(url).size = size;
    this.runtime = true;
    this.changed();
  }

  /** All files of the model's weights are known. */
  knowModel(): void {
    this.model = true;
    this.changed();
  }

  /** The size of a file that will come. */
  expect(url: string, size: number): void {
    this.file(url).size ??= size;
    this.changed();
  }

  /** More bytes of a file arrived; some may arrive again. */
  add(url: string, count: number): void {
    const file = this.file(url);
    this.reach(file, file.done + count);
  }

  /** A file is there up to an offset. */
  reached(url: string, done: number): void {
    this.reach(this.file(url), done);
  }

  /** The same by the file's name alone, with its size. */
  reachedOf(name: string, done: number, size: number): void {
    const url = [...this.files.keys()].find((url) => nameOf(url) === name) ?? name;
    this.file(url).size ??= size || null;
    if (size) this.model = true;
    this.reach(this.file(url), done);
  }

  /** A file is there: a module that was imported. */
  whole(url: string): void {
    const file = this.file(url);
    this.reach(file, file.size ?? 0);
  }

  /** The size of a file as its server sends it, which is its own unless it is `packed`. */
  sentAs(url: string, sent: number, packed: boolean): void {
    const file = this.file(url);
    file.sent = sent;
    if (!packed) file.size ??= sent;
  }

  /** The load has ended: what comes later is counted for the next one. */
  end(): void {
    this.files.clear();
    this.model = false;
    clearTimeout(this.timer);
    this.timer = undefined;
  }

  private file(url: string): File {
    let file = this.files.get(url);
    if (!file) this.files.set(url, (file = { done: 0, size: null, sent: null }));
    return file;
  }

  private reach(file: File, done: number): void {
    const most = Math.min(done, file.size ?? Infinity);
    if (most <= file.done) return;
    file.done = most;
    this.changed();
  }

  private changed(): void {
    if (!this.tell || !this.runtime || this.timer !== undefined) return;
    const wait = this.told + EVERY_MS - performance.now();
    if (wait <= 0) this.send();
    else this.timer = setTimeout(() => this.send(), wait);
  }

  private send(): void {
    this.timer = undefined;
    this.told = performance.now();
    let [done, total] = [0, 0];
    for (const file of this.files.values()) {
      const sent = file.sent ?? file.size ?? file.done;
      done += file.size ? (file.done / file.size) * sent : Math.min(file.done, sent);
      total += sent;
    }
    this.tell!({ kind: "bytes", done: Math.round(done), total, whole: this.runtime && this.model });
  }
}

/** Those of this worker. */
export const fetchedBytes = new FetchedBytes();

function nameOf(url: string): string {
  return decodeURIComponent(url.split(/[?#]/, 1)[0]!.split("/").at(-1)!);
}

/** Hears of the bytes of an address. */
export type Counted = Pick<FetchedBytes, "reached" | "sentAs">;

/** Count what comes of the package's own files, also where onnxruntime-web and Pyodide fetch them. */
export function countAssets({ base, places }: Assets, bytes: Counted): void {
  const own = [...(base === null ? [] : [base]), ...Object.values(places)];
  const plain = self.fetch;
  self.fetch = async (...given: Parameters<typeof fetch>) => {
    const response = await plain(...given);
    const [asked] = given;
    const { href } = new URL(asked instanceof Request ? asked.url : asked, here());
    if (response.ok && own.some((place) => href.startsWith(place))) void count(href, response, bytes);
    return response;
  };
}

async function count(url: string, response: Response, bytes: Counted): Promise<void> {
  const length = Number(response.headers.get("Content-Length"));
  if (length) bytes.sentAs(url, length, (response.headers.get("Content-Encoding") ?? "identity") !== "identity");
  const reader = response.clone().body?.getReader();
  try {
    let done = 0;
    for (let part = await reader?.read(); part?.value; part = await reader!.read())
      bytes.reached(url, (done += part.value.length));
  } catch {
    // The reader of the response itself gets the failure.
  }
}
