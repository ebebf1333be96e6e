// The interface of a place for stored weights; see capstan.host.storage_interface.Backing. open_backing.ts finds this browser's.

import { EngineError } from "../../wire/errors";
import { Chunk, type ReadAt } from "./chunk";

/** A stored file, open. */
export interface DataFile {
  readonly name: string;
  readonly exclusive: boolean;
  read(chunk: Chunk, start: number, length: number): Promise<number>;
  write(chunk: Chunk, start: number, length: number): Promise<void>;
  /** Have what was written on the disk. */
  flush(): Promise<void>;
  /** Reads without a chunk; null where the file cannot be read at once. */
  readonly direct: ReadAt | null;
  close(): void;
}

export interface Backing {
  readonly kind: "opfs" | "cache";
  /** As JSON. */
  names(): Promise<string>;
  readText(name: string): Promise<string | null>;
  writeText(name: string, text: string): Promise<void>;
  readBytes(name: string): Promise<Uint8Array | null>;
  /** A crash may truncate them. */
  writeBytes(name: string, bytes: Uint8Array<ArrayBuffer>): Promise<void>;
  /** A crash may truncate the last append. */
  appendText(name: string, text: string): Promise<void>;
  remove(name: string): Promise<void>;
  /** A stored data file as a whole. */
  blob(name: string): Promise<Blob>;
  open(name: string, size: number, shardSize: number, write: boolean): Promise<DataFile>;
}

/** The SHA-256 of a part of a stored file, as hex; null if it is cut short there. */
export async function digest(file: DataFile, start: number, length: number): Promise<string | null> {
  const chunk = new Chunk(length);
  return (await file.read(chunk, start, length)) === length ? chunk.sha256(length) : null;
}

/** Write bytes that begin a shard at `start`; returns their SHA-256 as hex. */
export async function writeShard(file: DataFile, start: number, bytes: Uint8Array<ArrayBuffer>): Promise<string> {
  const { length } = bytes;
  const chunk = new Chunk(length);
  chunk.view(length).set(bytes);
  const [digest] = await Promise.all([chunk.sha256(length), file.write(chunk, start, length)]);
  return digest;
}

/** The bytes that this origin may still store; null if the browser does not report them. */
export async function freeBytes(): Promise<number | null> {
  try {
    const { quota, usage } = await navigator.storage.estimate();
    return quota === undefined || usage === undefined ? null : Math.max(0, quota - usage);
  } catch {
    return null;
  }
}

/** Run something that touches the storage; its failure as a StorageError that names the file and the reason. */
export async function storing<T>(name: string, action: () => T | Promise<T>): Promise<T> {
  try {
    return await action();
  } catch (error) {
    if (error instanceof EngineError) throw error;
    throw new EngineError("StorageError", `${name}: ${reason(error)}`);
  }
}

/** Called with the reason when the browser refuses its private file system. */
export type Refused = (reason: string) => void;

export function reason(error: unknown): string {
  if (error instanceof DOMException) {
    if (error.name === "QuotaExceededError") return "the browser's storage for this origin is full";
    if (error.name === "NoModificationAllowedError") return "another tab has it open";
    if (error.name === "NotFoundError") return "it is gone";
  }
  return String(error);
}
