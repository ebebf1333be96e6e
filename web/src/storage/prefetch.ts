// The small files of a model folder, asked for before Python is there to ask.

import type { HubRepository } from "../protocol";
import { expectRepository, inRepository, keptFile } from "./hub";
import { isPage } from "./network";
import { absolute, fetched } from "./source";

/** Files of every model folder. */
const FILES = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"];
/** Larger graphs have their weights inside, and are read in pieces. */
const LARGEST_GRAPH = 1 << 20;

const ahead = new Map<string, Promise<Response>>();

/**
 * Fetch the small files of a folder, whose address ends in a slash, or of a hub's repository; each serves the first read
 * of it. Which they are its configuration says; of a repository the graph is fetched if the dtype is known.
 */
export async function prefetch(model: string | HubRepository, dtype: string | null): Promise<void> {
  const folder = typeof model === "string" ? model : await expectRepository(model);
  for (const name of FILES) void ask(folder + name);
  const config = await ask(`${folder}genai_config.json`);
  if (config?.ok && !isPage(config)) {
    const told = (await config.clone().json()) as { model?: { decoder?: { filename?: unknown } } };
    const graph = told.model?.decoder?.filename;
    if (typeof graph === "string") void ask(folder + graph);
  } else if (!config || config.ok || config.status === 404) {
    for (const name of ["config.json", "generation_config.json"]) void ask(folder + name);
    if (dtype !== null) await askForGraph(folder + onnxFile(dtype));
  }
}

/** As capstan.repository.onnx_file. */
function onnxFile(dtype: string): string {
  const suffix = dtype === "fp32" ? "" : dtype === "q8" ? "_quantized" : `_${dtype}`;
  return `onnx/model${suffix}.onnx`;
}

async function askForGraph(url: string): Promise<void> {
  const response = await ask(url);
  if (!response || Number(response.headers.get("Content-Length")) <= LARGEST_GRAPH) return;
  ahead.delete(absolute(url));
  await response.body?.cancel();
}

/** A file's response, kept for who reads it; undefined if its repository lacks it, it was kept, or there is none. */
async function ask(url: string): Promise<Response | undefined> {
  if (inRepository(url) === false || (await keptFile(url))) return undefined;
  const response = fetched(url);
  ahead.set(absolute(url), response);
  // Whoever reads it hears of a failure.
  return response.catch(() => undefined);
}

/** Whether a file that was asked for ahead, and that nobody has read yet, is there; undefined for any other. */
export async function askedAhead(url: string): Promise<boolean | undefined> {
  return (await ahead.get(absolute(url))?.catch(() => undefined))?.ok;
}

/** A file's response, the one that was asked for ahead if nobody took that yet. */
export function fetchedOnce(url: string): Promise<Response> {
  const name = absolute(url);
  const response = ahead.get(name) ?? fetched(url);
  ahead.delete(name);
  return response;
}
