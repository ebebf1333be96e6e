// Reads of a few bytes at many places of a file: rows of tables that stay on disk.

import { EngineError } from "../../wire/errors";
import type { DataFile } from "./backing";
import { Chunk } from "./chunk";
import type { BlobSource } from "./source";

/** The bytes of parts, one after another; `places` is a JSON array of [offset, length]. */
export async function readParts(file: DataFile | BlobSource, places: string): Promise<Uint8Array> {
  const parts = JSON.parse(places) as [start: number, length: number][];
  const found = new Uint8Array(parts.reduce((sum, [, length]) => sum + length, 0));
  const direct = "direct" in file ? file.direct : null;
  const chunk = new Chunk(direct ? 0 : Math.max(0, ...parts.map(([, length]) => length)));
  let at = 0;
  for (const [start, length] of parts) {
    const into = found.subarray(at, at + length);
    let count: number;
    if (direct) {
      count = await direct(into, start);
    } else {
      count = await ("readAt" in file ? file.readAt(chunk, start, length) : file.read(chunk, start, length));
      into.set(chunk.view(count));
    }
    if (count < length) {
      throw new EngineError(
        "StorageError",
        `${nameOf(file)}: ${count} of the ${length} bytes from byte ${start} on can be read; load the model again`,
      );
    }
    at += length;
  }
  return found;
}

function nameOf(file: DataFile | BlobSource): string {
  return "identity" in file ? (JSON.parse(file.identity()) as { name: string }).name : file.name;
}
