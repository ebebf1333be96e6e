// Hashes shards in a worker of its own: Chromium computes crypto.subtle.digest in the thread that calls it.

import { type Assets, startWorker } from "../../wire/assets";
import { EngineError } from "../../wire/errors";
import type { ToWorker } from "../../wire/protocol";
import type { Chunk } from "./chunk";
import { hex, sha256 } from "../../wire/sha256";

interface Asked {
  buffer: ArrayBuffer;
  length: number;
}
interface Answer {
  buffer: ArrayBuffer;
  digest: string;
}

/** That worker. Until it has started, and where it does not start, this thread hashes. */
export class Hashing {
  /** Shards that were hashed in the worker. */
  beside = 0;
  private readonly shards: MessagePort;
  private readonly helper: Worker | null = null;
  private started = false;
  private readonly waiting: { chunk: Chunk; resolve: (digest: string) => void; reject: (error: Error) => void }[] = [];

  constructor(assets: Assets) {
    const { port1, port2 } = new MessageChannel();
    this.shards = port1;
    port1.onmessage = ({ data }: MessageEvent<Answer | null>) => (data ? this.answered(data) : (this.started = true));
    try {
      this.helper = startWorker(assets);
      this.helper.onerror = () => this.failed("it failed");
      this.helper.postMessage({ tag: "hash", shards: port2 } satisfies ToWorker, [port2]);
    } catch {
      // This thread hashes.
    }
  }

  /** SHA-256 of a chunk's first bytes, as hex; the chunk is not used until then. */
  sha256(chunk: Chunk, length: number): Promise<string> {
    if (!this.started) return chunk.sha256(length);
    return new Promise((resolve, reject) => {
      const { buffer } = chunk.view(length);
      this.shards.postMessage({ buffer, length } satisfies Asked, [buffer]);
      this.waiting.push({ chunk, resolve, reject });
    });
  }

  close(): void {
    this.shards.close();
    this.helper?.terminate();
    this.failed("it was ended");
  }

  private answered({ buffer, digest }: Answer): void {
    const { chunk, resolve } = this.waiting.shift()!;
    chunk.giveBack(buffer);
    this.beside++;
    resolve(digest);
  }

  private failed(why: string): void {
    this.started = false;
    for (const { reject } of this.waiting.splice(0))
      reject(new EngineError("BrokenDownloadError", `a shard was not hashed in its worker: ${why}; load again`));
  }
}

/** In that worker: answer with the digest of each shard; null says that the worker has started. */
export function hashShards(shards: MessagePort): void {
  shards.onmessage = async ({ data: { buffer, length } }: MessageEvent<Asked>) => {
    const digest = hex(await sha256(new Uint8Array(buffer, 0, length)));
    shards.postMessage({ buffer, digest } satisfies Answer, [buffer]);
  };
  shards.postMessage(null);
}
