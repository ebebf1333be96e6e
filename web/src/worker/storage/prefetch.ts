// Requests the files of the first request's model before Python is ready: the small files of its folder, and the
// weights (before_python.ts). `dropPrefetched` gives up the files that were not taken.

import type { HubRepository } from "../../wire/protocol";
import { isGguf } from "../../wire/model_address";
import { expectRepository, inRepository, isKept, keptFile } from "./hub";
import { Body, discardBody, isPage } from "./network";
import { absolute, fetched } from "./source";
import { readWhole } from "./whole";

/** Files of every model folder. */
const FILES = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"];
/** Larger graphs of repositories have their weights inside, and are read in pieces. */
const LARGEST_GRAPH = 1 << 20;

const requested = new Map<string, Promise<Response>>();

/**
 * Fetch the small files of a folder, whose address ends in a slash, or of a hub's repository; each serves the first read
 * of it. Which they are its configuration says; of a repository the graph is fetched if the dtype is known. A GGUF file
 * has none beside it.
 *
 * Returns the addresses of the data files that the graph names, none where that is not known yet. A GGUF file is its own.
 */
export async function prefetch(model: string | HubRepository, dtype: string | null): Promise<string[]> {
  if (typeof model === "string" && isGguf(model)) return [absolute(model)];
  const folder = typeof model === "string" ? model : await expectRepository(model);
  if (typeof model !== "string" && isGguf(model.repository)) {
    const file = addressIn(folder, model.repository.slice(model.repository.indexOf(":") + 1));
    return inRepository(file) ? [file] : [];
  }
  for (const name of FILES) void ask(folder + name);
  const config = await ask(`${folder}genai_config.json`, true);
  if (config?.ok && !isPage(config)) {
    const text = await smallContent(config);
    if (!text) return [];
    const told = JSON.parse(new TextDecoder().decode(text)) as { model?: { decoder?: { filename?: unknown } } };
    const graph = told.model?.decoder?.filename;
    return typeof graph === "string" ? dataFiles(folder + graph, await ask(folder + graph, true)) : [];
  }
  if (config && !config.ok && config.status !== 404) return [];
  for (const name of ["config.json", "generation_config.json"]) void ask(folder + name);
  if (dtype === null) return [];
  const url = folder + onnxFile(dtype);
  return dataFiles(url, await askForGraph(url));
}

/** Drop the fetched responses that were not read. */
export function dropPrefetched(): void {
  for (const response of requested.values()) void response.then(discardBody, () => undefined);
  requested.clear();
}

/** As capstan.repository.onnx_file. */
function onnxFile(dtype: string): string {
  const suffix = dtype === "fp32" ? "" : dtype === "q8" ? "_quantized" : `_${dtype}`;
  return `onnx/model${suffix}.onnx`;
}

async function askForGraph(url: string): Promise<Response | undefined> {
  const response = await ask(url, true);
  if (!response || isSmall(response)) return response;
  requested.delete(absolute(url));
  discardBody(response);
  return undefined;
}

function isSmall(response: Response): boolean {
  return Number(response.headers.get("Content-Length")) <= LARGEST_GRAPH;
}

/** The content of a copied response; null if that is not small. */
async function smallContent(response: Response): Promise<Uint8Array | null> {
  if (!isSmall(response) || !response.body) return null;
  return readWhole(response.url, new Body(response.body), { most: LARGEST_GRAPH }).catch(() => null);
}

/** An entry "location" of a tensor's external_data, with the length of its value; in the file's bytes. */
const LOCATION = /\n\x08location\x12([\x01-\x7f])/g;

/** The addresses of the data files that a graph names. */
async function dataFiles(url: string, graph: Response | undefined): Promise<string[]> {
  const bytes = graph?.ok && !isPage(graph) ? await smallContent(graph) : null;
  if (!bytes) return [];
  // One character for each byte; the replaced ones cannot occur in a match.
  const text = new TextDecoder("latin1").decode(bytes);
  const found = new Set<string>();
  for (const match of text.matchAll(LOCATION)) {
    const start = match.index + match[0].length;
    found.add(new TextDecoder().decode(bytes.subarray(start, start + match[1]!.charCodeAt(0))));
  }
  const folder = absolute(url.slice(0, url.lastIndexOf("/") + 1));
  const addresses = [...found].sort().map((name) => addressIn(folder, name));
  // A name that leads out of the folder is refused once the graph is read.
  return addresses.filter((address) => address.startsWith(folder));
}

/** The address of a file by its path in a folder. */
function addressIn(folder: string, path: string): string {
  return absolute(folder + encodeURI(path).replace(/[?#]/g, encodeURIComponent));
}

/**
 * A file's response, which is kept for its reader; with `copied` a copy of it, if it is small. Undefined if its
 * repository lacks it or there is no response.
 */
async function ask(url: string, copied = false): Promise<Response | undefined> {
  if (inRepository(url) === false) return undefined;
  if (await isKept(url)) return copied ? ((await keptFile(url)) ?? undefined) : undefined;
  const response = fetched(url);
  requested.set(absolute(url), response);
  // It is copied before anybody can begin to read it. Its reader gets a failure.
  return response.then(
    (found) => (copied && found.ok && isSmall(found) ? found.clone() : found),
    () => undefined,
  );
}

/** Whether a file exists that was requested ahead and not read yet; undefined for any other. */
export async function requestedAhead(url: string): Promise<boolean | undefined> {
  return (await requested.get(absolute(url))?.catch(() => undefined))?.ok;
}

/** A file's response: the one that was requested ahead, if it was not taken yet. */
export function fetchedOnce(url: string): Promise<Response> {
  const name = absolute(url);
  const response = requested.get(name) ?? fetched(url);
  requested.delete(name);
  return response;
}
