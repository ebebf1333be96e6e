// Files in the origin's private file system. Readers share a file; a writer has it alone.

import { EngineError } from "../../wire/errors";
import { type Backing, type DataFile, reason, type Refused, storing } from "./backing";
import { ByteReader, type Chunk, type ReadAt } from "./chunk";
import { using } from "../../wire/in_use";

/** FileSystemSyncAccessHandle, which TypeScript knows in its library for workers only. */
interface SyncAccess {
  getSize(): number;
  read(into: Uint8Array, options: { at: number }): number;
  write(bytes: Uint8Array, options: { at: number }): number;
  truncate(size: number): void;
  flush(): void;
  close(): void;
}

type SyncOpen = (options: { mode: "read-only" | "readwrite" }) => Promise<SyncAccess>;

/** A SharedWorker opens no file synchronously: it has streams, whose contents are there once they are closed. */
const STREAMS = "SharedWorkerGlobalScope" in globalThis && "createWritable" in FileSystemFileHandle.prototype;

/** How often a text is looked up: what another tab appends makes the file that was looked up before unreadable. */
const READS = 10;

/** How often, and after which pauses, a file is removed: another tab opens it for a moment to verify a shard. */
const REMOVALS = 40;
const PAUSE_MS = 50;

function openSync(handle: FileSystemFileHandle, mode: "read-only" | "readwrite"): Promise<SyncAccess> {
  return using(handle as unknown as FileSystemFileHandle & { createSyncAccessHandle: SyncOpen }, (file) =>
    file.createSyncAccessHandle({ mode }),
  );
}

function fileOf(handle: FileSystemFileHandle): Promise<File> {
  return using(handle, (file) => file.getFile());
}

/** A stream over the file's current contents; no other caller writes it meanwhile. */
function openStream(handle: FileSystemFileHandle, keepExistingData: boolean): Promise<FileSystemWritableFileStream> {
  const options = { keepExistingData, mode: "exclusive" };
  return using(handle, (file) => file.createWritable(options));
}

/** Write and flush; a disk without room takes less than it is given. */
function writeAll(access: SyncAccess, bytes: Uint8Array, at: number): void {
  for (let done = 0; done < bytes.length;) {
    const written = access.write(bytes.subarray(done), { at: at + done });
    if (written === 0) throw new DOMException("nothing was written", "QuotaExceededError");
    done += written;
  }
  access.flush();
}

/** An access that several readers of this worker share: some browsers give one at a time. */
class SharedAccess {
  private users = 0;

  constructor(
    private readonly access: SyncAccess,
    private readonly ended: () => void,
  ) {}

  /** One more reader, who closes it at its end. */
  reader(): ReadAccess {
    this.users++;
    let open = true;
    return {
      read: (into, options) => {
        if (!open) throw new DOMException("it was closed", "InvalidStateError");
        return this.access.read(into, options);
      },
      close: () => {
        if (!open) return;
        open = false;
        if (--this.users > 0) return;
        this.access.close();
        this.ended();
      },
    };
  }
}

type ReadAccess = Pick<SyncAccess, "read" | "close">;

/** Files that are read before a caller wants them, by folder and name; `first` is the reader ahead. */
const readEarly = new Map<string, { shared: SharedAccess; first: ReadAccess }>();

/** Open a stored file of this size for reading ahead; null if it does not exist or is being written. */
export async function openEarly(folder: string, name: string, size: number): Promise<DataFile | null> {
  try {
    const place = await using(await navigator.storage.getDirectory(), (root) => root.getDirectoryHandle(folder));
    const access = await openSync(await using(place, (folder) => folder.getFileHandle(name)), "read-only");
    const path = `${folder}/${name}`;
    const shared = new SharedAccess(access, () => readEarly.delete(path));
    const first = shared.reader();
    if (access.getSize() === size) {
      readEarly.set(path, { shared, first });
      return new LockedFile(name, first);
    }
    first.close();
    return null;
  } catch {
    return null;
  }
}

export class OpfsBacking implements Backing {
  readonly kind = "opfs";

  private constructor(private readonly name: string) {}

  /** Null where there is no private file system, or none with synchronous access outside of a SharedWorker. `refused` hears why it is refused. */
  static async find(name: string, refused: Refused): Promise<OpfsBacking | null> {
    const storage = (globalThis.navigator as Navigator | undefined)?.storage as StorageManager | undefined;
    if (!storage?.getDirectory) return null;
    if (!STREAMS && !("createSyncAccessHandle" in FileSystemFileHandle.prototype)) return null;
    try {
      const backing = new OpfsBacking(name);
      await backing.folder();
      return backing;
    } catch (error) {
      refused(reason(error));
      return null;
    }
  }

  names(): Promise<string> {
    return storing(this.name, async () => {
      const names: string[] = [];
      await using(await this.folder(), async (folder) => {
        for await (const name of folder.keys()) names.push(name);
      });
      return JSON.stringify(names);
    });
  }

  /** An empty one is none: a page that was closed while it wrote its first text leaves that. */
  async readText(name: string): Promise<string | null> {
    return (await this.whole(name, (file) => file.text())) || null;
  }

  async readBytes(name: string): Promise<Uint8Array | null> {
    const found = await this.whole(name, (file) => file.arrayBuffer());
    return found && new Uint8Array(found);
  }

  /** A file as `take` reads it whole; null if there is none. */
  private whole<T>(name: string, take: (file: File) => Promise<T>): Promise<T | null> {
    return storing(name, async () => {
      for (let left = READS; ; left--) {
        try {
          return await take(await fileOf(await this.handle(name)));
        } catch (error) {
          if (!(error instanceof DOMException)) throw error;
          if (error.name === "NotFoundError") return null;
          if (error.name !== "NotReadableError" || left === 1) throw error;
        }
      }
    });
  }

  writeText(name: string, text: string): Promise<void> {
    return this.replace(name, text);
  }

  writeBytes(name: string, bytes: Uint8Array<ArrayBuffer>): Promise<void> {
    return this.replace(name, bytes);
  }

  /** `createWritable` replaces the file as a whole, when it is closed. */
  private replace(name: string, content: string | Uint8Array<ArrayBuffer>): Promise<void> {
    return this.making(name, async (handle) => {
      if ("createWritable" in handle) {
        const writable = await using(handle, (file) => file.createWritable());
        await using(writable, (stream) => stream.write(content));
        await using(writable, (stream) => stream.close());
        return;
      }
      // A record that is torn here reads as none: it holds its own hash.
      await this.rewrite(handle, content, false);
    });
  }

  /** Without the streams of `createWritable`, whose memory is given back late. */
  appendText(name: string, text: string): Promise<void> {
    return this.making(name, (handle) => this.rewrite(handle, text, true));
  }

  remove(name: string): Promise<void> {
    return storing(name, async () => {
      this.endReading(name);
      for (let left = REMOVALS; ; left--) {
        try {
          await using(await this.folder(), (folder) => folder.removeEntry(name));
          return;
        } catch (error) {
          if (!(error instanceof DOMException)) throw error;
          if (error.name === "NotFoundError") return;
          if (error.name !== "NoModificationAllowedError" || left === 1) throw error;
          await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
        }
      }
    });
  }

  blob(name: string): Promise<Blob> {
    return storing(name, async () => fileOf(await this.handle(name)));
  }

  open(name: string, size: number, _shardSize: number, write: boolean): Promise<DataFile> {
    if (write) {
      return this.making(name, async (handle) => {
        this.endReading(name);
        if (STREAMS) return StreamedFile.open(name, handle, size);
        const access = await openSync(handle, "readwrite");
        if (access.getSize() > size) access.truncate(size);
        return new LockedFile(name, access);
      });
    }
    return storing(name, async () => {
      const handle = await this.handle(name);
      const { size: found } = await fileOf(handle);
      if (found !== size) throw new EngineError("StorageError", `${name}: ${found} bytes are left of ${size}`);
      try {
        const early = readEarly.get(`${this.name}/${name}`);
        if (early) return new LockedFile(name, early.shared.reader());
        if (STREAMS) return new SharedFile(name, await fileOf(handle));
        return new LockedFile(name, await openSync(handle, "read-only"));
      } catch (error) {
        // Another tab is repairing it, or this browser knows exclusive handles only.
        if (error instanceof DOMException && error.name === "NoModificationAllowedError") {
          return new SharedFile(name, await fileOf(handle));
        }
        throw error;
      }
    });
  }

  /** Looked up each time: the browser may evict an origin's files at any moment. */
  private async folder(): Promise<FileSystemDirectoryHandle> {
    return using(await navigator.storage.getDirectory(), (root) =>
      root.getDirectoryHandle(this.name, { create: true }),
    );
  }

  /** Do something with a file, which is made if it is not there. If that fails, no empty file is left. */
  private making<T>(name: string, action: (handle: FileSystemFileHandle) => Promise<T>): Promise<T> {
    return storing(name, async () => {
      const handle = await this.handle(name, true);
      try {
        return await action(handle);
      } catch (error) {
        await this.dropEmpty(name, handle).catch(() => undefined);
        throw error;
      }
    });
  }

  private async dropEmpty(name: string, handle: FileSystemFileHandle): Promise<void> {
    const { size } = await fileOf(handle);
    // It cannot be removed while another tab writes it.
    if (size === 0) await using(await this.folder(), (folder) => folder.removeEntry(name));
  }

  /** A reader that reads a file ahead must release it. */
  private endReading(name: string): void {
    readEarly.get(`${this.name}/${name}`)?.first.close();
  }

  private async rewrite(
    handle: FileSystemFileHandle,
    data: string | Uint8Array<ArrayBuffer>,
    append: boolean,
  ): Promise<void> {
    if (STREAMS) {
      const { size } = await fileOf(handle);
      const stream = await openStream(handle, append);
      await using(stream, (stream) => stream.write({ type: "write", position: append ? size : 0, data }));
      await using(stream, (stream) => stream.close());
      return;
    }
    const access = await openSync(handle, "readwrite");
    try {
      if (!append) access.truncate(0);
      writeAll(access, typeof data === "string" ? new TextEncoder().encode(data) : data, access.getSize());
    } finally {
      access.close();
    }
  }

  private async handle(name: string, create = false): Promise<FileSystemFileHandle> {
    return using(await this.folder(), (folder) => folder.getFileHandle(name, { create }));
  }
}

/** Open with a lock: no other caller writes it meanwhile. */
class LockedFile implements DataFile {
  readonly exclusive = true;

  constructor(
    readonly name: string,
    private readonly access: ReadAccess & Partial<SyncAccess>,
  ) {}

  readonly direct: ReadAt = (into, at) => {
    try {
      return this.access.read(into, { at });
    } catch {
      // `read` says why.
      return 0;
    }
  };

  read(chunk: Chunk, start: number, length: number): Promise<number> {
    return storing(this.name, () => this.access.read(chunk.view(length), { at: start }));
  }

  write(chunk: Chunk, start: number, length: number): Promise<void> {
    return storing(this.name, () => {
      const { access } = this;
      if (!access.write || !access.flush) throw openForReading(this.name);
      for (let done = 0; done < length;) {
        const written = access.write(chunk.view(length - done, done), { at: start + done });
        if (written === 0) throw new DOMException("nothing was written", "QuotaExceededError");
        done += written;
      }
    });
  }

  flush(): Promise<void> {
    return storing(this.name, () => this.access.flush?.());
  }

  close(): void {
    this.access.close();
  }
}

/** Written by a stream: what it holds is lost if the worker ends before `flush` or `close`. */
class StreamedFile implements DataFile {
  readonly exclusive = true;
  readonly direct = null;

  private constructor(
    readonly name: string,
    private readonly handle: FileSystemFileHandle,
    private stream: FileSystemWritableFileStream | null,
  ) {}

  static async open(name: string, handle: FileSystemFileHandle, size: number): Promise<StreamedFile> {
    const stream = await openStream(handle, true);
    if ((await fileOf(handle)).size > size) await using(stream, (stream) => stream.truncate(size));
    return new StreamedFile(name, handle, stream);
  }

  /** It reads the file as it was when it was opened, or flushed. */
  read(chunk: Chunk, start: number, length: number): Promise<number> {
    return storing(this.name, async () =>
      new SharedFile(this.name, await fileOf(this.handle)).read(chunk, start, length),
    );
  }

  write(chunk: Chunk, start: number, length: number): Promise<void> {
    return storing(this.name, async () => {
      const stream = (this.stream ??= await openStream(this.handle, true));
      const data = chunk.view(length);
      await using(stream, (stream) => stream.write({ type: "write", position: start, data }));
    });
  }

  flush(): Promise<void> {
    return storing(this.name, async () => {
      const { stream } = this;
      this.stream = null;
      if (stream) await using(stream, (stream) => stream.close());
    });
  }

  close(): void {
    // No caller waits for writes that were not flushed.
    this.stream?.close().catch(() => undefined);
    this.stream = null;
  }
}

function openForReading(name: string): EngineError {
  return new EngineError("StorageError", `${name}: it was opened for reading`);
}

/** Read through slices, without a lock. */
class SharedFile implements DataFile {
  readonly exclusive = false;
  readonly direct = null;

  constructor(
    readonly name: string,
    private readonly file: File,
  ) {}

  read(chunk: Chunk, start: number, length: number): Promise<number> {
    return storing(this.name, () =>
      new ByteReader(this.file.slice(start, start + length).stream()).fill(chunk, length),
    );
  }

  write(): Promise<void> {
    return Promise.reject(openForReading(this.name));
  }

  async flush(): Promise<void> {
    // Nothing was written.
  }

  close(): void {
    // A slice holds nothing.
  }
}
