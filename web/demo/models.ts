// Which model: one that the site offers, one that is known to fit, a folder's address, a folder of this machine, or a hub's
// repository.

import type { GenerateRequest, KnownModel, ModelFacts, StartOptions } from "capstan-webgpu";
import { bytes, element, say } from "./elements";
import { knownModels } from "../src/page/known_models";
import { requestAdapter, summarize } from "../src/wire/adapter";
import { modelAddress } from "../src/wire/model_address";
import { FormError, type Picking, showPicking, text } from "./settings";

type Folder = GenerateRequest["model"];
type Picked = Exclude<Folder, string | { repository: string }>;

/** A model of models/index.json. */
interface Offered {
  /** The name of its file or folder. */
  name: string;
  url: string;
  /** Its name, size and licence, if its files tell them. */
  facts?: ModelFacts | null;
  /** Its graph and weights, and whether it has a chat template, where the site tells. */
  bytes?: number | null;
  chat?: boolean;
  /** The dtypes of its graphs for Transformers.js, where the site has that and the model is in its layout. */
  transformers_js?: string[];
}

/** The model that the form names. */
export interface Chosen {
  folder: Folder;
  /** Its name; that of its file or folder until a better one is known. */
  name: string;
  /** The name, and its parameters, size and licence as far as they are known. */
  title: string;
  /** The same for the same model. */
  key: string;
  /** Whether it has a chat template, as far as is known before it is loaded. */
  chat: boolean | null;
  /** How its tokens are picked where nobody says; null as long as that is unknown. */
  picking: Picking | null;
  /** As in models/index.json. */
  transformersJs?: string[];
}

const BUNDLED: Offered = { name: "bundled", url: "models/bundled/", chat: false };

const select = element("model", HTMLSelectElement);
const files = element("files", HTMLInputElement);
const gguf = element("gguf", HTMLInputElement);
const offered = new Map<string, Offered>();
const picked = new Map<string, { folder: Picked; name: string }>();
/** The facts that loads told, by the keys of Chosen. */
const learned = new Map<string, ModelFacts>();
/** Models of the Hugging Face hub by their ids. */
const known = new Map<string, KnownModel>(knownModels().map((model) => [model.id, model]));
/** The features that this machine lacks for some of them. */
const lacks = new Map<string, string>();
const HUB = "https://huggingface.co";
/** Parameters in float32 for which onnxruntime-web's heap has room, like capstan.device.wasm.wasm_model.HEAP_BYTES. */
const MOST_ON_CPU = 800e6;

/** Fill the list with what the site offers; the page opens with the first. */
export async function findModels(): Promise<void> {
  let found = [BUNDLED];
  try {
    const response = await fetch("./models/index.json");
    if (response.ok) found = offeredOf(await response.json()) ?? found;
  } catch {
    // A site without a list has the bundled model only.
  }
  const options = found.map((model) => {
    const address = new URL(model.url, document.baseURI).href;
    offered.set(address, model);
    const size = sizeOf(model);
    const option = new Option(`${model.facts?.name ?? model.name}${size && `, ${size}`}`, address);
    option.dataset["name"] = model.name;
    return option;
  });
  select.replaceChildren(...options, knownGroup(new Set(found.map(({ name }) => name))));
  void showLacks();
}

/** The models of a site's list, null if it is none. Entries and facts of another form are left out: a site's is its own. */
function offeredOf(list: unknown): Offered[] | null {
  if (!Array.isArray(list)) return null;
  return list.filter(isOffered).map(({ facts, ...model }) => ({ ...model, facts: isFacts(facts) ? facts : null }));
}

function isOffered(model: unknown): model is Offered {
  const { name, url, bytes: size, transformers_js: dtypes } = fieldsOf(model);
  if (typeof name !== "string" || typeof url !== "string" || !URL.canParse(url, document.baseURI)) return false;
  return (
    ["number", "undefined"].includes(typeof (size ?? undefined)) && (dtypes === undefined || Array.isArray(dtypes))
  );
}

function isFacts(facts: unknown): facts is ModelFacts {
  const { name, title, parameters, search } = fieldsOf(facts);
  if (typeof name !== "string" || typeof title !== "string" || !search) return false;
  return [parameters ?? 0, ...Object.values(search)].every((value) => ["number", "boolean"].includes(typeof value));
}

function fieldsOf(value: unknown): Record<string, unknown> {
  return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : {};
}

/** The known models but for those that the site has by these names. */
function knownGroup(served: Set<string>): HTMLOptGroupElement {
  const group = document.createElement("optgroup");
  group.label = "Downloaded from the Hugging Face hub when it runs";
  for (const model of known.values()) {
    if (served.has(nameOf(model.id).replace(/\.gguf$/i, ""))) continue;
    const size = model.bytes ? `, ${bytes(model.bytes)}` : "";
    const option = new Option(`${model.name}${size}`, model.id);
    option.dataset["name"] = model.id;
    group.append(option);
  }
  return group;
}

/** The file of an id, or the repository's name. */
function nameOf(id: string): string {
  return id.split(/[/:]/).at(-1)!;
}

/** Mark the known models that this machine cannot run. */
async function showLacks(): Promise<void> {
  const adapter = await requestAdapter().catch(() => null);
  const gpu = adapter !== null && !summarize(adapter).software;
  for (const option of select.options) {
    const model = known.get(option.value);
    if (!model) continue;
    const needs = !gpu && model.parameters > MOST_ON_CPU ? "needs a GPU" : "";
    const half = adapter && model.needsF16 && !adapter.features.has("shader-f16") ? "needs f16" : "";
    const lack = needs || half;
    if (!lack) continue;
    option.text += `, ${lack}`;
    lacks.set(model.id, lack);
  }
}

function knownTitle({ name, dtype, bytes: size, parameters, licence }: KnownModel): string {
  const count = `${(parameters / 1e6).toFixed(0)} M parameters`;
  return [name, ...(dtype ? [dtype] : []), count, ...(size ? [bytes(size)] : []), licence].join(", ");
}

function knownNote(model: KnownModel): string {
  const { contextLength, tried } = model;
  const most = `${contextLength.toLocaleString("en")} tokens at most`;
  const run = tried ? "This very file was run." : "Files like it were run.";
  return `${knownTitle(model)}, ${most}. From ${HUB}, when it runs. ${run}`;
}

function sizeOf(model: Offered | undefined): string {
  return model?.bytes ? bytes(model.bytes) : "";
}

/** Whether the chosen model is known to be too large for the CPU of a page. */
export function needsGpu(): boolean {
  if (text("repository") || text("folder")) return false;
  return (parametersOf(select.value) ?? 0) > MOST_ON_CPU;
}

function parametersOf(key: string): number | null {
  return (learned.get(key) ?? known.get(key) ?? offered.get(key)?.facts)?.parameters ?? null;
}

/** A model of the list. */
export interface Listed {
  model: Chosen;
  /** The facts that are known before it is loaded. */
  about: string;
  /** Null for a model of which that is not known. */
  parameters: number | null;
  /** The features that this machine lacks for it, in words; empty if none is known. */
  lack: string;
}

/** The models of the list, those of the site first. */
export function listedModels(): Listed[] {
  return [...select.options].map(({ value }) => {
    const model = modelOf(value);
    const parameters = parametersOf(value);
    return { model, about: noteOf(model), parameters, lack: lacks.get(value) ?? "" };
  });
}

/** Choose a model of the list. */
export function choose({ key }: Chosen): void {
  select.value = key;
  for (const other of ["repository", "folder"]) element(other, HTMLInputElement).value = "";
  select.dispatchEvent(new Event("change", { bubbles: true }));
}

/** The model that the form names; throws FormError if it names none. Python checks ids and addresses of hubs. */
export function chosenModel(): Chosen {
  const repository = text("repository");
  if (repository) {
    const hub = { repository, hub: text("hub"), revision: text("revision") || null, token: text("token") || null };
    return unknown(hub, repository, JSON.stringify(hub));
  }
  const address = text("folder");
  if (address) {
    const url = modelUrl(address);
    const [path] = url.split(/[?#]/, 1) as [string];
    const name = path.replace(/\/$/, "").split("/").at(-1) || url;
    return unknown(url, name, url);
  }
  const { value } = select;
  if (!value) throw new FormError("model", "this site offers no model; start it with build.py serve --model DIR");
  return modelOf(value);
}

/** The key of the model that the form names; null if it names none. */
export function chosenKey(): string | null {
  try {
    return chosenModel().key;
  } catch (error) {
    if (error instanceof FormError) return null;
    throw error;
  }
}

/** A model by the facts that its load told. */
function withLearned(chosen: Chosen): Chosen {
  const facts = learned.get(chosen.key);
  return facts ? { ...chosen, name: facts.name, title: facts.title, picking: facts.search } : chosen;
}

/** A model of which nothing is known before its first load. */
function unknown(folder: Folder, name: string, key: string): Chosen {
  return withLearned({ folder, name, title: name, key, chat: null, picking: null });
}

/** Call a model from now on as its load told. */
export function learn({ key }: Chosen, facts: ModelFacts): void {
  learned.set(key, facts);
  showChosen();
}

function modelOf(value: string): Chosen {
  const mine = picked.get(value);
  if (mine) return unknown(mine.folder, mine.name, value);
  if (known.has(value)) {
    const hub = { repository: value, hub: HUB, revision: null, token: null };
    const model = known.get(value)!;
    const { name, search } = model;
    return withLearned({ folder: hub, name, title: knownTitle(model), key: value, chat: null, picking: search });
  }
  const { name, facts, chat = null, transformers_js: transformersJs = [] } = offered.get(value)!;
  const called = { name: facts?.name ?? name, title: facts?.title ?? name, picking: facts?.search ?? null };
  return withLearned({ folder: value, ...called, key: value, chat, transformersJs });
}

function modelUrl(given: string): string {
  let url: URL;
  try {
    url = new URL(modelAddress(given), document.baseURI);
  } catch {
    throw new FormError("folder", `the address is ${JSON.stringify(given)}; it must be a URL`);
  }
  if (!["http:", "https:"].includes(url.protocol)) {
    const what = `the address is ${JSON.stringify(given)}, which a page cannot read`;
    throw new FormError("folder", `${what}; give one that begins with https://, or open the folder`);
  }
  return url.href;
}

/** The model with which the worker may begin while Python starts: never one on another server. */
export function expectedModel(): StartOptions["expected"] {
  const device = text("device") as "webgpu" | "wasm" | "auto";
  try {
    const { folder } = chosenModel();
    if (typeof folder !== "string" || new URL(folder).origin !== location.origin) return undefined;
    return { model: folder, device, ...(text("dtype") ? { dtype: text("dtype") } : {}) };
  } catch {
    return undefined; // The run says what is wrong.
  }
}

/** Say which model is chosen, at the top of the page and below the list, and how its tokens are picked. */
export function showChosen(): void {
  let name = "no model";
  let note = "";
  let picking: Chosen["picking"] = null;
  try {
    const chosen = chosenModel();
    ({ name, picking } = chosen);
    note = text("repository") || text("folder") ? `Not used: the model is ${name}.` : noteOf(chosen);
  } catch (error) {
    if (!(error instanceof FormError)) throw error;
  }
  say("chosen", name);
  say("model-note", note);
  showPicking(picking);
}

function noteOf({ key, name, title, chat }: Chosen): string {
  if (known.has(key)) return knownNote(known.get(key)!);
  const about = title === name ? sizeOf(offered.get(key)) : title;
  const template = chat ? "Answers by its chat template." : "Continues a text; it has no chat template.";
  const how = picked.has(key) ? "On this machine." : chat === null ? "" : template;
  return [about && `${about}.`, how].filter(Boolean).join(" ");
}

// Folders of this machine.

/** A file of a model, if it comes without its folder. */
const OF_MODEL = /\.(gguf|onnx|onnx[._]data(_\d+)?|data)$|^genai_config\.json$/i;

function take(folder: Picked, name: string): void {
  const key = `picked-${picked.size + 1}`;
  picked.set(key, { folder, name });
  // Without a name for the page's address, since nobody else has the folder.
  select.append(new Option(`${name} (this machine)`, key));
  choose(unknown(folder, name, key));
}

async function pick(): Promise<void> {
  const open = (window as { showDirectoryPicker?: () => Promise<FileSystemDirectoryHandle> }).showDirectoryPicker;
  try {
    if (open) {
      const folder = await open.call(window);
      return take(folder, folder.name);
    }
  } catch (error) {
    if ((error as Error).name === "AbortError") return;
    // It is refused, as in another site's frame: a list of files is not.
  }
  files.click();
}

/** A dropped entry's files, by their paths below it. */
async function filesOf(entry: FileSystemEntry, path: string): Promise<File[]> {
  if (entry.isFile) {
    const file = await new Promise<File>((resolve, reject) => (entry as FileSystemFileEntry).file(resolve, reject));
    return [new File([file], path, { type: file.type, lastModified: file.lastModified })];
  }
  const reader = (entry as FileSystemDirectoryEntry).createReader();
  const found: File[] = [];
  for (;;) {
    // A reader gives some at a time, and none at the end.
    const some = await new Promise<FileSystemEntry[]>((resolve, reject) => reader.readEntries(resolve, reject));
    if (some.length === 0) return found;
    for (const below of some) found.push(...(await filesOf(below, path ? `${path}/${below.name}` : below.name)));
  }
}

async function drop(items: DataTransferItemList, attach: (files: File[]) => void): Promise<void> {
  const given = [...items].filter(({ kind }) => kind === "file");
  // Dropped items exist only until the event ends.
  const entries = given.map((item) => item.webkitGetAsEntry() ?? item.getAsFile());
  const [first] = entries;
  if (!first) return;
  const found = entries.map((entry) => {
    if (!entry || entry instanceof File) return entry ? [entry] : [];
    return filesOf(entry, entry.isFile ? entry.name : "");
  });
  const alone = entries.every((entry) => entry instanceof File || (entry && entry.isFile));
  const one = entries.length === 1 || (!(first instanceof File) && first.isDirectory);
  const name = one ? first.name : `${entries.length} files`;
  try {
    const files = (await Promise.all(found)).flat();
    if (alone && !files.some((file) => OF_MODEL.test(file.name))) attach(files);
    else take(files, name);
  } catch (error) {
    say("model-note", `${name} cannot be read: ${(error as Error).message}`);
  }
}

/** A name for picked files: their number, or the name of one alone. */
function namesOf(given: readonly File[]): string {
  return given.length === 1 ? given[0]!.name : `${given.length} files`;
}

/** Take folders and files of models that are picked or dropped; other dropped files go to `attach`. */
export function watchPicking(attach: (files: File[]) => void): void {
  files.webkitdirectory = true;
  for (const input of [files, gguf])
    input.addEventListener("change", () => {
      const given = [...(input.files ?? [])];
      if (given.length) take(given, given[0]!.webkitRelativePath.split("/")[0] || namesOf(given));
      input.value = "";
    });
  element("pick-file", HTMLButtonElement).addEventListener("click", () => gguf.click());
  element("pick", HTMLButtonElement).addEventListener("click", () => void pick());
  const over = (on: boolean): void => void document.body.classList.toggle("dropping", on);
  document.addEventListener("dragover", (event) => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    over(true);
  });
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) over(false);
  });
  document.addEventListener("drop", (event) => {
    over(false);
    if (!event.dataTransfer?.types.includes("Files")) return;
    // The conversation has taken them.
    if (event.defaultPrevented) return;
    event.preventDefault();
    void drop(event.dataTransfer.items, attach);
  });
}
