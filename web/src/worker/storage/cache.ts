// The Cache API as a place for weights, where there is no private file system: one entry for each shard.

import { EngineError } from "../../wire/errors";
import { type Backing, type DataFile, storing } from "./backing";
import { ByteReader, type Chunk } from "./chunk";

export class CacheBacking implements Backing {
  readonly kind = "cache";

  private constructor(
    private readonly cache: Cache,
    private readonly name: string,
  ) {}

  /** Null where there is no Cache API: in a page that is not a secure context, or in a private window. */
  static async find(name: string): Promise<CacheBacking | null> {
    try {
      return new CacheBacking(await caches.open(name), name);
    } catch {
      return null;
    }
  }

  names(): Promise<string> {
    return storing(this.name, async () => {
      const start = new URL(this.address("")).pathname.length;
      const paths = (await this.cache.keys()).map(({ url }) => new URL(url).pathname.slice(start));
      return JSON.stringify([...new Set(paths.map((path) => path.split("/")[0]))]);
    });
  }

  readText(name: string): Promise<string | null> {
    return storing(name, async () => (await this.cache.match(this.address(name)))?.text() ?? null);
  }

  writeText(name: string, text: string): Promise<void> {
    return storing(name, () => this.cache.put(this.address(name), new Response(text)));
  }

  readBytes(name: string): Promise<Uint8Array | null> {
    return storing(name, async () => {
      const found = await this.cache.match(this.address(name));
      return found ? new Uint8Array(await found.arrayBuffer()) : null;
    });
  }

  writeBytes(name: string, bytes: Uint8Array<ArrayBuffer>): Promise<void> {
    return storing(name, () => this.cache.put(this.address(name), new Response(bytes)));
  }

  async appendText(name: string, text: string): Promise<void> {
    await this.writeText(name, ((await this.readText(name)) ?? "") + text);
  }

  remove(name: string): Promise<void> {
    return storing(name, async () => {
      const own = this.address(name);
      for (const request of await this.cache.keys()) {
        if (request.url === own || request.url.startsWith(own + "/")) await this.cache.delete(request);
      }
    });
  }

  open(name: string, size: number, shardSize: number, write: boolean): Promise<DataFile> {
    return storing(name, async () => {
      const last = Math.max(0, Math.ceil(size / shardSize) - 1);
      if (!write && size > 0 && !(await this.cache.match(this.address(`${name}/${last}`)))) {
        throw new EngineError("StorageError", `${name}: the last shard is missing in the storage: load the file again`);
      }
      return new CachedFile(this.cache, name, this.address(name), shardSize);
    });
  }

  /** Its shards, one after the other. */
  blob(name: string): Promise<Blob> {
    return storing(name, async () => {
      const parts: Blob[] = [];
      const next = (): Promise<Response | undefined> => this.cache.match(this.address(`${name}/${parts.length}`));
      for (let entry; (entry = await next());) parts.push(await entry.blob());
      return new Blob(parts);
    });
  }

  /** Entries have addresses of our own origin that are never requested from a server. */
  private address(name: string): string {
    return new URL(`/${this.name}/${name}`, location.origin).href;
  }
}

/** An entry is written whole or not at all, so that no reader sees half a shard. */
class CachedFile implements DataFile {
  readonly exclusive = true;
  readonly direct = null;

  constructor(
    private readonly cache: Cache,
    readonly name: string,
    private readonly address: string,
    private readonly shardSize: number,
  ) {}

  read(chunk: Chunk, start: number, length: number): Promise<number> {
    return storing(this.name, async () => {
      const entry = await this.cache.match(this.entry(start));
      if (!entry?.body) throw new EngineError("StorageError", `${this.name}: shard ${start / this.shardSize} is gone`);
      return new ByteReader(entry.body).fill(chunk, length);
    });
  }

  write(chunk: Chunk, start: number, length: number): Promise<void> {
    return storing(this.name, () => this.cache.put(this.entry(start), new Response(chunk.view(length))));
  }

  async flush(): Promise<void> {
    // Each write is an entry of its own, which the browser stores.
  }

  close(): void {
    // Entries are not held open.
  }

  private entry(start: number): string {
    return `${this.address}/${start / this.shardSize}`;
  }
}
