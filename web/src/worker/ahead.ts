// Begins with the GPU, and with the files and weights of the first request's model, before Python asks for them.

import type { Assets } from "../wire/assets";
import { GpuEngine } from "./engine";
import { requestAdapter, summarize } from "../wire/adapter";
import { loadBytes } from "./load_bytes";
import type { CapstanEvent, Expected } from "../wire/protocol";
import { openAhead } from "./storage/opfs";
import { knownFiles } from "./python";
import { dropReadyMade, readyMade } from "./ready_made";
import { dropPrefetched, prefetch } from "./storage/prefetch";
import { dropExpected } from "./storage/source";
import { expectWeights, FOLDER } from "./storage/weights_ahead";

/** A GPU that was opened ahead. */
let gpuAhead: Promise<GpuEngine> | null = null;

export function openGpu(assets: Assets): Promise<GpuEngine> {
  const opened = gpuAhead ?? GpuEngine.open(assets);
  gpuAhead = null;
  return opened;
}

/** Begin with what the first request needs and Python does not. */
export async function prepare(
  assets: Assets,
  { model, dtype, device }: Expected,
  tell: (event: CapstanEvent) => void,
): Promise<void> {
  // Whoever asks for the model hears of a failure.
  const plans = prefetch(model, dtype)
    .then(async (files) => {
      const found = await Promise.all(files.map(async (url) => ({ url, ...(await expectWeights(url)) })));
      if (files.length) loadBytes.knowModel();
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
  const opening = (gpuAhead = GpuEngine.open(assets));
  // Whoever asks for it hears of a failure.
  const engine = (aheadOn = await opening.catch(() => null));
  for (const { url, plan } of await plans) {
    if (!plan || firstUseOver) continue;
    const told = (done: number): void => tell({ kind: "progress", what: nameOf(url), done, total: plan.load.end });
    engine?.uploadAhead(plan, () => openAhead(FOLDER, plan.data, plan.load.end), told);
  }
}

/** A file's name, by its address. */
function nameOf(url: string): string {
  return decodeURIComponent(url.slice(url.lastIndexOf("/") + 1));
}

/** Ask for what the site has ready-made for a file. */
async function expectReadyMade(assets: Assets, name: string, size: number | null, dtype: string): Promise<void> {
  if (size === null || firstUseOver) return;
  // Whoever asks for it hears of a failure.
  const known = await knownFiles(assets).catch(() => []);
  await readyMade(assets, known, name, size, dtype);
}

/** The engine on which weights are uploaded before they are requested. */
let aheadOn: GpuEngine | null = null;
/** Whether a request that can use a model has ended. */
let firstUseOver = false;

/** Drop work that was started ahead and that no request took. */
export function dropAhead(): void {
  firstUseOver = true;
  dropPrefetched();
  dropExpected();
  dropReadyMade();
  loadBytes.end();
  void aheadOn?.dropAhead();
}
