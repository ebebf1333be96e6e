// Reads a whole file, counted as it arrives: its decoded bytes against the most that is read of such a file and against
// its listed size. Reading ends at the first byte too many, before anything is made of the file.

import { EngineError } from "../../wire/errors";
import type { ByteReader } from "./chunk";
import { hex, sha256 } from "../../wire/sha256";

/** A file's size and SHA-256 from a list; null if it is not listed. */
export interface Listed {
  size: number | null;
  sha256: string | null;
}

/** The bytes of the largest file: 1 TiB, of which the digests of its shards alone would take megabytes. */
const LARGEST_FILE = 2 ** 40;

/** A file's size as its server reports it. Throws ModelFileError if it is not a size. */
export function reportedSize(name: string, size: unknown): number {
  if (Number.isInteger(size) && Number(size) >= 0 && Number(size) <= LARGEST_FILE) return Number(size);
  const told = JSON.stringify(size).slice(0, 40);
  throw new EngineError(
    "ModelFileError",
    `${name}: its server reports a size of ${told}, which must be a whole number of bytes up to ${LARGEST_FILE}; ` +
      "check the address, or take another server",
  );
}

export interface Limits extends Partial<Listed> {
  /** The most bytes that are read. */
  most: number;
  /** The bytes that the server announces, which may be compressed ones. */
  announced?: number | null;
  progress?: ((done: number) => void) | null;
}

/** Once a file has taken this number of stall timeouts, its bytes must have arrived at SLOWEST a second or more. */
const STALLS = 10;
const SLOWEST = 10_000;

let stallMs = 30_000;

/** Give a request up when no byte of it has come for so long. */
export function setStallTimeout(seconds: number): void {
  stallMs = seconds * 1000;
}

export function stallTimeout(): number {
  return stallMs;
}

/** All that a reader gives. A file that breaks its limits is a ModelFileError, a read that fails a BrokenDownloadError. */
export async function readWhole(name: string, reader: ByteReader, limits: Limits): Promise<Uint8Array<ArrayBuffer>> {
  try {
    const { size = null, sha256: listed = null } = limits;
    const content = joined(await counted(name, reader, limits));
    const found = content.length;
    if (size !== null && found < size) throw otherFile(name, `${found} bytes came, but ${size} are listed`);
    const digest = listed === null ? null : hex(await sha256(content));
    if (digest !== listed) throw otherFile(name, `${found} bytes came with SHA-256 ${digest}, but ${listed} is listed`);
    return content;
  } catch (error) {
    reader.cancel();
    throw error;
  }
}

async function counted(name: string, reader: ByteReader, limits: Limits): Promise<Uint8Array[]> {
  const { most, size = null, announced = null, progress = null } = limits;
  const told = size ?? announced;
  if (told !== null && told > most) throw tooLarge(name, `${told} bytes`, most);
  const parts: Uint8Array[] = [];
  // A page that was frozen waited longer than it would have: no wait counts more than the stall timeout.
  for (let done = 0, waited = 0; ;) {
    const begun = performance.now();
    const part = await next(name, reader);
    waited += Math.min(performance.now() - begun, stallMs);
    if (!part) return parts;
    done += part.length;
    if (size !== null && done > size) throw otherFile(name, `more than the ${size} bytes came that are listed`);
    if (done > most) throw tooLarge(name, `more than ${most} bytes`, most);
    if (waited > STALLS * stallMs && done * 1000 < waited * SLOWEST) throw tooSlow(name, done, waited / 1000);
    parts.push(part);
    progress?.(done);
  }
}

async function next(name: string, reader: ByteReader): Promise<Uint8Array | null> {
  try {
    return await reader.next();
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    throw new EngineError("BrokenDownloadError", `${name} broke off while it was read: ${why}`);
  }
}

function joined(parts: Uint8Array[]): Uint8Array<ArrayBuffer> {
  const all = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

function otherFile(name: string, what: string): EngineError {
  return new EngineError(
    "ModelFileError",
    `${name}: ${what}; nothing of it is kept: load the model again, and if it stays so take another revision`,
  );
}

function tooLarge(name: string, what: string, most: number): EngineError {
  return new EngineError(
    "ModelFileError",
    `${name}: ${what}, and at most ${most} are read of such a file; check that it is the model's own, or take a smaller model`,
  );
}

function tooSlow(name: string, done: number, seconds: number): EngineError {
  return new EngineError(
    "ModelFileError",
    `${name}: ${done} bytes came in ${seconds.toFixed(1)} s, and after ${STALLS} times stall_timeout ${SLOWEST} bytes a ` +
      "second must have come; load the model again over a faster connection, or with a longer stall_timeout",
  );
}
