// A hub's files in Cross-Origin Storage, where another site may have put them. Python compares a file with its digest
// before it takes bytes of it (capstan._js.page_storage), and has files kept there after their download.

import { EngineError } from "../../wire/errors";
import type { CrossOriginFiles } from "../../wire/cross_origin";
import type { Backing } from "./backing";
import { ByteReader, Chunk } from "./chunk";
import { authorization, listed } from "./hub";
import { withinStall } from "./network";

/** Bytes that are hashed at a time. */
const PIECE = 4 << 20;

interface Found {
  file: Blob;
  /** Whether its bytes have the digest; null until they were compared. */
  sound: boolean | null;
}

let files: CrossOriginFiles | null = null;
let wanted = false;
/** Files that were found, by SHA-256, until the end of the request. */
const found = new Map<string, Promise<Found | null>>();
let taken = 0;

/** Look for files in this storage from now on; null where the browser has none. */
export function useCrossOrigin(given: CrossOriginFiles | null): void {
  [files, wanted] = [given, true];
}

/** Bytes of weights that were taken from there since the worker's start. */
export function crossOriginBytes(): number {
  return taken;
}

/** Look for the files again when they are wanted again. */
export function forgetCrossOrigin(): void {
  found.clear();
}

/** A hub's file, if it is there; null for other files, and unless pages want that. Throws StorageError. */
export async function findCrossOrigin(url: string): Promise<CrossOriginSource | null> {
  const { sha256, size } = listed(url);
  if (!wanted || sha256 === null) return null;
  if (!files) throw failure("this browser has no navigator.crossOriginStorage");
  const looked = found.get(sha256) ?? look(files, sha256, size);
  found.set(sha256, looked);
  const known = await looked;
  return known && known.sound !== false ? new CrossOriginSource(url, known) : null;
}

async function look(from: CrossOriginFiles, sha256: string, size: number | null): Promise<Found | null> {
  try {
    const file = await withinStall(from.find(sha256), "it has not answered", () => undefined);
    if (!file) return null;
    if (size !== null && file.size !== size) throw new Error(`it has ${file.size} bytes, and the hub lists ${size}`);
    return { file, sound: null };
  } catch (error) {
    throw failure(error);
  }
}

/** Have a stored file kept there for other sites; one that was read with a token for this site alone. Throws StorageError. */
export async function keepCrossOrigin(url: string, backing: Backing, name: string): Promise<void> {
  const { sha256 } = listed(url);
  if (!files || sha256 === null) return;
  const siteOnly = Object.keys(authorization(url)).length > 0;
  try {
    await files.keep(sha256, await backing.blob(name), siteOnly);
  } catch (error) {
    throw failure(error);
  }
}

function failure(error: unknown): EngineError {
  return new EngineError("StorageError", error instanceof EngineError ? error.message : String(error));
}

/** Reads a file of that storage like HttpSource. A failure is a BrokenDownloadError. */
export class CrossOriginSource {
  position: number | null = null;
  end: number | null = null;
  private reader: ByteReader | null = null;

  constructor(
    private readonly name: string,
    private readonly about: Found,
  ) {}

  /** Whether its bytes have the digest; null until `judge` is called. */
  get sound(): boolean | null {
    return this.about.sound;
  }

  judge(sound: boolean): void {
    this.about.sound = sound;
  }

  /** Give all bytes in pieces. Throws StorageError. */
  async pieces(take: (piece: Uint8Array) => void): Promise<void> {
    const reader = this.from(0, this.about.file.size);
    const chunk = new Chunk(PIECE);
    try {
      for (let length; (length = await reader.fill(chunk, PIECE));) take(chunk.view(length));
    } catch (error) {
      throw failure(error);
    }
  }

  seek(start: number, end?: number | null): void {
    this.close();
    this.reader = this.from(start, end ?? this.about.file.size);
    this.position = start;
    this.end = end ?? null;
  }

  async read(chunk: Chunk, length: number): Promise<number> {
    const count = await this.fill(this.reader!, chunk, length);
    this.position! += count;
    taken += count;
    return count;
  }

  readAt(chunk: Chunk, start: number, length: number): Promise<number> {
    return this.fill(this.from(start, start + length), chunk, length);
  }

  /** A file answers at once. */
  expect(): void {}

  close(): void {
    this.reader?.cancel();
    this.reader = this.position = null;
  }

  private from(start: number, end: number): ByteReader {
    return new ByteReader(this.about.file.slice(start, end).stream());
  }

  private async fill(reader: ByteReader, chunk: Chunk, length: number): Promise<number> {
    try {
      return await reader.fill(chunk, length);
    } catch (error) {
      throw new EngineError("BrokenDownloadError", `${this.name} cannot be read there any more (${String(error)})`);
    }
  }
}
