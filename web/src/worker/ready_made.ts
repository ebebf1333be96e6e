// The results of reading the header of a GGUF file, which a site has ready-made for files that it knows
// (buildtools/ready_made.py): Python compares the header's digest before it takes them.

import { type Assets, assetUrl } from "../wire/assets";

/** An entry of python.json about a file. */
export interface KnownFile {
  name: string;
  size: number;
  /** The bytes of its header, and their SHA-256. */
  header: number;
  sha256: string;
  /** The names of the results, gzipped, by dtype. */
  results: Record<string, string>;
}

/** See capstan.host.ready_results.ReadyMade; the text is null if it did not come whole. */
interface ReadyMade {
  header: number;
  sha256: string;
  text: string | null;
}

/** Requested results, by their names among the assets. */
const asked = new Map<string, Promise<string | null>>();

/** The results that the site has for a file of this name and size and a dtype; null if it has none. */
export async function readyMade(
  assets: Assets,
  known: readonly KnownFile[],
  name: string,
  size: number,
  dtype: string,
): Promise<ReadyMade | null> {
  const file = known.find((each) => each.name === name && each.size === size);
  const result = file?.results[dtype];
  if (!file || !result) return null;
  let text = asked.get(result);
  if (!text) asked.set(result, (text = unpacked(assetUrl(assets, result))));
  return { header: file.header, sha256: file.sha256, text: await text };
}

/** Let go of the requested results. */
export function dropReadyMade(): void {
  asked.clear();
}

/** The text of a gzipped file, null if it does not come whole. */
async function unpacked(url: string): Promise<string | null> {
  try {
    const { ok, body } = await fetch(url);
    if (!ok || !body) return null;
    const plain = body.pipeThrough(new DecompressionStream("gzip") as ReadableWritablePair<Uint8Array, Uint8Array>);
    return await new Response(plain).text();
  } catch {
    return null;
  }
}
