// The interface of a place for stored weights; see capstan.host.storage.Backing. open_backing.ts finds this browser's.

import { EngineError } from "../errors";
import type { WeightUpload } from "../gpu/weights";
import type { Chunk } from "./chunk";
import type { Memory } from "./memory";

/** A stored file, open. */
export interface DataFile {
  readonly exclusive: boolean;
  read(chunk: Chunk, start: number, length: number): Promise<number>;
  write(chunk: Chunk, start: number, length: number): Promise<void>;
  /** WeightUpload.pour from here; 0 where the file cannot be read at once or `sink` is memory. */
  pour(sink: Sink, start: number, length: number, shard: number, told: (done: number) => void): Promise<number>;
  close(): void;
}

/** A target of stored bytes. */
export type Sink = WeightUpload | Memory;

export interface Backing {
  readonly kind: "opfs" | "cache";
  /** As JSON. */
  names(): Promise<string>;
  readText(name: string): Promise<string | null>;
  writeText(name: string, text: string): Promise<void>;
  appendText(name: string, text: string): Promise<void>;
  remove(name: string): Promise<void>;
  open(name: string, size: number, shardSize: number, write: boolean): Promise<DataFile>;
}

/** The bytes that the browser still lets this origin store; null if it does not tell. */
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

function reason(error: unknown): string {
  if (error instanceof DOMException) {
    if (error.name === "QuotaExceededError") return "the browser's storage for this origin is full";
    if (error.name === "NoModificationAllowedError") return "another tab has it open";
    if (error.name === "NotFoundError") return "it is gone";
  }
  return String(error);
}
