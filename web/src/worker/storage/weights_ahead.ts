// Starts with the weights of the next model before Python is ready: begins a download, or finds the upload plan of
// stored weights, which the GPU can begin (gpu/upload_ahead.ts).

import type { UploadPlan } from "../gpu/upload_ahead";
import { openBacking } from "./open_backing";
import { hex, sha256 } from "../../wire/sha256";
import { expectSource, isExpected, type SourceIdentity } from "./source";

/** As capstan.weights.store.FOLDER, and the endings of names in capstan.weights.records. */
export const FOLDER = "capstan-weights";
const [JOURNAL, SOURCE, UPLOAD] = [".journal.jsonl", ".source.json", ".upload.json"];
/** The bytes of one request, like capstan.weights.weight_file.REQUEST_BYTES. */
const REQUEST_BYTES = 48 << 20;

/** How a data file was uploaded the last time, null if that is not known; then its size, if its server told that. */
interface ExpectedWeights {
  plan: UploadPlan | null;
  size: number | null;
}

/** Ask for a data file's identity, and for its first bytes unless some are stored. */
export async function expectWeights(url: string): Promise<ExpectedWeights> {
  const opened = expectSource(url);
  const backing = await openBacking(FOLDER);
  const read = async (name: string): Promise<string | null> => (backing ? backing.readText(name) : null);
  const name = await key(url);
  const noted = await read(name + UPLOAD);
  if (noted !== null) return { plan: await parsed(noted), size: null };
  const isStored = (await read(name + SOURCE)) !== null;
  const source = await opened;
  const { size, validator } = JSON.parse(source.identity()) as SourceIdentity;
  const journal = async (): Promise<string | null> =>
    size !== null && validator !== null ? read((await key(`${url}\n${validator}\n${size}`)) + JOURNAL) : null;
  // The header of a GGUF file is read of these bytes.
  if (!isStored && (await journal()) === null && isExpected(url))
    source.expect(0, size === null || size <= REQUEST_BYTES ? null : REQUEST_BYTES, REQUEST_BYTES);
  return { plan: null, size };
}

/** As capstan.host.storage.short_hash. */
async function key(text: string): Promise<string> {
  return hex(await sha256(new TextEncoder().encode(text))).slice(0, 32);
}

/** The plan in an UploadNote of capstan.weights.records; null if it is damaged, which Python tells. */
async function parsed(text: string): Promise<UploadPlan | null> {
  try {
    const { plan, seal } = JSON.parse(text) as { plan: string; seal: string };
    return hex(await sha256(new TextEncoder().encode(plan))) === seal ? (JSON.parse(plan) as UploadPlan) : null;
  } catch {
    return null;
  }
}
