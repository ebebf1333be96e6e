// Begins with the GPU, and with the files and weights of the first request's model, before Python asks for them: with a
// download, or an upload of stored weights by the plan of the last one (gpu/early_upload.ts).

import type { Assets } from "../wire/assets";
import { GpuEngine } from "./engine";
import type { UploadPlan } from "./gpu/early_upload";
import { requestAdapter, summarize } from "../wire/adapter";
import { fetchedBytes } from "./fetched_bytes";
import type { CapstanEvent, Expected } from "../wire/protocol";
import { hex, sha256 } from "../wire/sha256";
import { findCrossOrigin, forgetCrossOrigin } from "./storage/cross_origin";
import { openEarly } from "./storage/opfs";
import { knownFiles } from "./python";
import { dropReadyMade, readyMade } from "./ready_made";
import { dropPrefetched, prefetch } from "./storage/prefetch";
import { openBacking } from "./storage/open_backing";
import { dropExpected, expectSource, isExpected, type SourceIdentity } from "./storage/source";

/** As capstan.weights.store.FOLDER, and the endings of names in capstan.weights.records. */
const WEIGHTS = "capstan-weights";
const [JOURNAL, SOURCE, UPLOAD] = [".journal.jsonl", ".source.json", ".upload.json"];
/** The bytes of one request, like capstan.weights.weight_file.REQUEST_BYTES. */
const REQUEST_BYTES = 48 << 20;

/** A GPU that was opened before Python requested one. */
let earlyGpu: Promise<GpuEngine> | null = null;

export function openGpu(assets: Assets): Promise<GpuEngine> {
  const opened = earlyGpu ?? GpuEngine.open(assets);
  earlyGpu = null;
  return opened;
}

/** Begin with what the first request needs and Python does not. */
export async function prepare(
  assets: Assets,
  { model, dtype, device }: Expected,
  tell: (event: CapstanEvent) => void,
): Promise<void> {
  // The model's caller gets a failure.
  const plans = prefetch(model, dtype)
    .then(async (files) => {
      const found = await Promise.all(files.map(async (url) => ({ url, ...(await expectWeights(url)) })));
      if (files.length) fetchedBytes.knowModel();
      return found;
    })
    .catch(() => []);
  if (device === "wasm") return;
  const adapter = await requestAdapter();
  const summary = adapter && summarize(adapter);
  if (!summary || (device === "auto" && summary.software)) return;
  const half = dtype ?? (summary.features.includes("shader-f16") ? "fp16" : "fp32");
  // A file with a plan was loaded before, and what is ready-made of it is noted.
  void plans.then((found) =>
    found.forEach(({ url, size, plan }) => void (plan ?? expectReadyMade(assets, nameOf(url), size, half))),
  );
  const opening = (earlyGpu = GpuEngine.open(assets));
  // Its caller gets a failure.
  const engine = (uploadsOn = await opening.catch(() => null));
  for (const { url, plan } of await plans) {
    if (!plan || firstUseOver) continue;
    const told = (done: number): void => tell({ kind: "progress", what: nameOf(url), done, total: plan.load.end });
    engine?.uploadEarly(plan, () => openEarly(WEIGHTS, plan.data, plan.load.end), told);
  }
}

/** A file's name, by its address. */
function nameOf(url: string): string {
  return decodeURIComponent(url.slice(url.lastIndexOf("/") + 1));
}

/** Ask for what the site has ready-made for a file. */
async function expectReadyMade(assets: Assets, name: string, size: number | null, dtype: string): Promise<void> {
  if (size === null || firstUseOver) return;
  // Its caller gets a failure.
  const known = await knownFiles(assets).catch(() => []);
  await readyMade(assets, known, name, size, dtype);
}

/** The engine on which weights are uploaded before they are requested. */
let uploadsOn: GpuEngine | null = null;
/** Whether a request that can use a model has ended. */
let firstUseOver = false;

/** Drop work that was started before and that no request took. */
export function dropUnused(): void {
  firstUseOver = true;
  dropPrefetched();
  dropExpected();
  dropReadyMade();
  forgetCrossOrigin();
  fetchedBytes.end();
  void uploadsOn?.dropEarly();
}

/** How a data file was uploaded the last time, null if unknown; then its size, if its server reported it. */
interface ExpectedWeights {
  plan: UploadPlan | null;
  size: number | null;
}

/** Ask for a data file's identity, and for its first bytes unless some are stored. */
async function expectWeights(url: string): Promise<ExpectedWeights> {
  const opened = expectSource(url);
  const backing = await openBacking(WEIGHTS);
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
  if (!isStored && (await journal()) === null && !(await isElsewhere(url)) && isExpected(url))
    source.expect(0, size === null || size <= REQUEST_BYTES ? null : REQUEST_BYTES, REQUEST_BYTES);
  return { plan: null, size };
}

/** Whether another site may have stored a data file. */
async function isElsewhere(url: string): Promise<boolean> {
  // Python asks again, and reports a failure.
  return (await findCrossOrigin(url).catch(() => null)) !== null;
}

/** As capstan.host.storage_interface.short_hash. */
async function key(text: string): Promise<string> {
  return hex(await sha256(new TextEncoder().encode(text))).slice(0, 32);
}

/** The plan in an UploadNote of capstan.weights.records; null if it is damaged; Python reports that. */
async function parsed(text: string): Promise<UploadPlan | null> {
  try {
    const { plan, seal } = JSON.parse(text) as { plan: string; seal: string };
    return hex(await sha256(new TextEncoder().encode(plan))) === seal ? (JSON.parse(plan) as UploadPlan) : null;
  } catch {
    return null;
  }
}
