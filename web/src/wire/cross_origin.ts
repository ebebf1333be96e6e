// Cross-Origin Storage (https://wicg.github.io/cross-origin-storage/), which keeps files for all sites by their SHA-256:
// of this page or worker, or of the page that a worker asks.

import { EngineError } from "./errors";
import { using } from "./in_use";

/** The used part of that API; a SHA-256 is in hexadecimal digits. */
export interface CrossOriginFiles {
  /** The file with this SHA-256; null if there is none that this site may read. */
  find(sha256: string): Promise<Blob | null>;
  /** Keep a file, which all sites may read, or with `siteOnly` those of this page's own site. */
  keep(sha256: string, file: Blob, siteOnly: boolean): Promise<void>;
}

/** A worker's question to its page; `keep` is null for a file that is wanted. */
export interface CrossOriginAsked {
  id: number;
  sha256: string;
  keep: { file: Blob; siteOnly: boolean } | null;
}

export interface CrossOriginAnswer {
  id: number;
  found: Blob | null;
  /** The reason for a failure; null without one. */
  failure: string | null;
}

type Open = (
  hash: { algorithm: "SHA-256"; value: string },
  options?: { create?: boolean; origins?: "*" | string[] },
) => Promise<FileSystemFileHandle>;

/** That of this page or worker; null if the browser has none. Older browser extensions call `getFileHandle` `requestFileHandle`. */
export function crossOriginFiles(): CrossOriginFiles | null {
  const manager = (navigator as { crossOriginStorage?: { getFileHandle?: Open; requestFileHandle?: Open } })
    .crossOriginStorage;
  const method = manager?.getFileHandle ?? manager?.requestFileHandle;
  if (!method) return null;
  const open: Open = (...given) => method.apply(manager, given);
  const hash = (value: string) => ({ algorithm: "SHA-256", value }) as const;
  return {
    find: async (sha256) => {
      try {
        return await using(await open(hash(sha256)), (handle) => handle.getFile());
      } catch (error) {
        if ((error as Error | null)?.name === "NotFoundError") return null;
        throw error;
      }
    },
    keep: async (sha256, file, siteOnly) => {
      const handle = await open(hash(sha256), { create: true, ...(siteOnly ? {} : { origins: "*" }) });
      const stream = await using(handle, (handle) => handle.createWritable());
      await using(stream, (stream) => stream.write(file));
      await using(stream, (stream) => stream.close());
    },
  };
}

/** A page's answer to its worker. */
export async function answerWorker({ id, sha256, keep }: CrossOriginAsked): Promise<CrossOriginAnswer> {
  try {
    const files = crossOriginFiles();
    if (!files) throw new Error("this page has no navigator.crossOriginStorage");
    if (keep) await files.keep(sha256, keep.file, keep.siteOnly);
    return { id, found: keep ? null : await files.find(sha256), failure: null };
  } catch (error) {
    return { id, found: null, failure: String(error) };
  }
}

/** That of a worker's page, which `ask` sends questions; `take` hears its answers. */
export class PageFiles implements CrossOriginFiles {
  private readonly waiting = new Map<number, (answer: CrossOriginAnswer) => void>();
  private next = 1;

  constructor(private readonly ask: (asked: CrossOriginAsked) => void) {}

  find(sha256: string): Promise<Blob | null> {
    return this.asked(sha256, null);
  }

  async keep(sha256: string, file: Blob, siteOnly: boolean): Promise<void> {
    await this.asked(sha256, { file, siteOnly });
  }

  take(answer: CrossOriginAnswer): void {
    this.waiting.get(answer.id)?.(answer);
    this.waiting.delete(answer.id);
  }

  private asked(sha256: string, keep: CrossOriginAsked["keep"]): Promise<Blob | null> {
    const id = this.next++;
    return new Promise((resolve, reject) => {
      this.waiting.set(id, ({ found, failure }) =>
        failure === null ? resolve(found) : reject(new EngineError("StorageError", failure)),
      );
      this.ask({ id, sha256, keep });
    });
  }
}
