// The models that this origin keeps, and whether another one fits: a worker of its own is asked, and closed.

import { Client } from "./client";
import { type Kinds, signal, text } from "./kinds";
import { knownModels, type KnownModel } from "./known_models";
import { ask, pageAddress, startOptions } from "./load_in_worker";
import { FIT_KINDS as FITTING, type ModelFitOptions } from "./model_options";
import {
  DRAFT_KIND,
  draftFolder,
  HUGGING_FACE,
  modelFolder,
  type ModelOptions,
  PLACE_KINDS,
  requested,
} from "./options";
import { reading, readOptions } from "./arguments";
import type {
  FitOptions as Asked,
  ModelFolder,
  ModelsRequest,
  ModelsResult,
  PlanResult,
  Request,
  StoredFile,
} from "../wire/protocol";
import { isGguf } from "../wire/model_address";
import { belongs, OF_HUB, placeOf } from "./model_of_file";

/** A model of which this origin keeps weights. */
export interface StoredModel {
  /** As `Capstan.load` takes it: OWNER/NAME, or OWNER/NAME:FILE.gguf, of the Hugging Face hub, else an address. */
  model: string;
  /** Bytes of its weights, and how many of them are stored: fewer if a download was interrupted. */
  bytes: number;
  storedBytes: number;
  /** Parts that `verify` found damaged; the next load fetches them again. */
  damaged: number;
}

/** The place of a model and of the worker. */
export interface StoredOptions extends Pick<ModelOptions, "hub"> {
  /** As in LoadOptions. */
  assetsUrl?: string;
  signal?: AbortSignal;
}

type FitPlace = Pick<ModelOptions, "revision" | "token" | "draftModel">;
export interface FitOptions extends StoredOptions, ModelFitOptions, FitPlace {}

/** Whether a model fits a machine; `bytes` is an estimate unless `exact`. */
export interface Fit {
  fits: boolean;
  /** The value, the limit and the remedy; empty if it fits. */
  reason: string;
  /** Why the browser may end the page all the same, with the remedy; empty if nothing speaks for that. */
  tight: string;
  device: string;
  /** Memory of the device for the weights and a conversation of `maxLength` tokens. */
  bytes: number;
  exact: boolean;
  /** The part of `bytes` for the draft model and its conversation; 0 without one. */
  draftBytes: number;
  maxLength: number;
  contextLength: number;
  /** The longest conversation that would fit; null if no length fits. */
  largestMaxLength: number | null;
  /** Weights larger than a binding of the GPU adapter: the number of their parts, or 0 and why they stay whole. */
  split: PlanResult["split"];
}

/** See Capstan.models. */
export interface Models {
  /** The models that are known to fit, as a new list; `Capstan.load(id, { dtype })` loads one from the Hugging Face hub. */
  (): KnownModel[];
  /** The models that this origin keeps; a file that several of them have counts with each. */
  list(options?: StoredOptions): Promise<StoredModel[]>;
  /** The stored bytes of a model, or of all ("*"). A model is named exactly as `list` names it. */
  size(model?: string, options?: StoredOptions): Promise<number>;
  /**
   * Remove a model, or without arguments, or with "*", all; resolves to the bytes that were freed. Rejects with StorageError
   * while a page reads it, and with OptionError for undefined and for a folder of several models.
   */
  delete(model?: string, options?: StoredOptions): Promise<number>;
  /** Compare a model, or all, with the digests of its storing; resolves to what `list` then returns. */
  verify(model?: string, options?: StoredOptions): Promise<StoredModel[]>;
}

const STORED_KINDS: Kinds = { hub: PLACE_KINDS.hub, assetsUrl: text, signal };
const FIT_KINDS: Kinds = { ...STORED_KINDS, ...PLACE_KINDS, ...FITTING, draftModel: DRAFT_KIND };
/** Stands for all models: no model's name is that. */
const ALL = "*";
export const models: Models = Object.assign(knownModels, {
  list: async (options: StoredOptions = {}) => modelsOf((await stored("list", ALL, options)).files),
  async size(model: string = ALL, options: StoredOptions = {}) {
    const { files } = await stored("list", model, options);
    return files.reduce((sum, { stored_bytes }) => sum + stored_bytes, 0);
  },
  // An undefined variable does not ask for all.
  async delete(...given: [model?: string, options?: StoredOptions]) {
    const [model, options = {}] = given;
    return (await stored("evict", given.length ? model! : ALL, options)).freed;
  },
  verify: async (model: string = ALL, options: StoredOptions = {}) =>
    modelsOf((await stored("verify", model, options)).files),
});

/** See Capstan.fits. */
export async function fits(model: ModelFolder, given: FitOptions = {}): Promise<Fit> {
  const options = readOptions("the options", given, FIT_KINDS);
  const folder = reading("the model", () => modelFolder(model, options, pageAddress()));
  const draft = options.draftModel === undefined ? {} : { draft_model: draftFolder(options, pageAddress()) };
  const asking = { kind: "plan", model: folder, ...draft, ...requested<Asked>(options, FITTING) } as const;
  const plan = await asked(options, (ask) => ask<PlanResult>(asking));
  const { max_length: maxLength, context_length: contextLength, largest_max_length: largestMaxLength } = plan;
  const { fits, reason, tight, device: found, bytes, exact, draft_bytes: draftBytes, split } = plan;
  return {
    fits,
    reason,
    tight,
    device: found,
    bytes,
    exact,
    draftBytes,
    maxLength,
    contextLength,
    largestMaxLength,
    split,
  };
}

/** The stored files of a model, or of all, after `action`. */
async function stored(action: ModelsRequest["action"], model: string, given: StoredOptions): Promise<ModelsResult> {
  const options = readOptions("the options", given, STORED_KINDS);
  const folder = model === ALL ? null : reading("the model", () => modelFolder(model, options, pageAddress()));
  return asked(options, async (ask) => {
    const about = (action: ModelsRequest["action"], which: string | null): Promise<ModelsResult> =>
      ask<ModelsResult>({ kind: "models", action, which });
    if (folder === null) return about(action, null);
    let freed = 0;
    for (const which of action === "list" ? [] : await placesOf(folder, about))
      freed += (await about(action, which)).freed;
    const { store, files } = await about("list", null);
    return { store, files: files.filter(({ sources }) => sources.some((source) => belongs(source, folder))), freed };
  });
}

/** A model's name in the store: a folder's or a repository's address, or the addresses of a repository's one file. */
async function placesOf(
  folder: ModelFolder,
  about: (action: "list", which: null) => Promise<ModelsResult>,
): Promise<string[]> {
  if (typeof folder === "string") return [folder];
  if (!("repository" in folder)) return [];
  const [name, file] = folder.repository.split(":");
  const whole = `${folder.hub.replace(/\/$/, "")}/${name}`;
  if (file === undefined) return [whole];
  const { files } = await about("list", null);
  return files.flatMap(({ sources }) => sources).filter((source) => belongs(source, folder));
}

/** A source's model: see StoredModel. */
function modelOf(source: string): string {
  const [, hub, name, file = ""] = OF_HUB.exec(source) ?? [];
  if (hub === HUGGING_FACE) return isGguf(file) ? `${name}:${placeOf(file)}` : name!;
  return placeOf(source);
}

function modelsOf(files: readonly StoredFile[]): StoredModel[] {
  const found = new Map<string, StoredModel>();
  for (const { sources, content, size, stored_bytes, suspect } of files) {
    for (const model of new Set(sources.length ? sources.map(modelOf) : [content ?? ""])) {
      const before = found.get(model) ?? { model, bytes: 0, storedBytes: 0, damaged: 0 };
      found.set(model, {
        model,
        bytes: before.bytes + size,
        storedBytes: before.storedBytes + stored_bytes,
        damaged: before.damaged + suspect.length,
      });
    }
  }
  return [...found.values()];
}

type Ask = <T>(request: Request) => Promise<T>;

/** How long a worker waits for the next question: most pages ask several one after another. */
const WAITING_MS = 2000;

/** A worker that answers questions. */
interface Answering {
  readonly options: string;
  readonly client: Promise<Client>;
  questions: number;
  end?: ReturnType<typeof setTimeout>;
}
let answering: Answering | null = null;

/** The answer of a worker, of the one before if that still waits and was started in the same way. */
async function asked<T>(given: StoredOptions, question: (ask: Ask) => Promise<T>): Promise<T> {
  const start = startOptions(given);
  // A caller that may give up has a worker of its own to end.
  const options = given.signal ? "" : JSON.stringify(start);
  const used: Answering =
    options && answering?.options === options ? answering : { options, client: Client.start(start), questions: 0 };
  if (options) answering = used;
  clearTimeout(used.end);
  used.questions++;
  try {
    const client = await used.client;
    return await question(async <R>(request: Request) => (await ask(client, request)) as R);
  } catch (error) {
    if (answering === used) answering = null;
    throw error;
  } finally {
    if (!--used.questions) {
      if (answering === used) used.end = setTimeout(end, WAITING_MS, used);
      else end(used);
    }
  }
}

function end(used: Answering): void {
  if (answering === used) answering = null;
  used.client.then(
    (client) => client.close(),
    () => undefined,
  );
}
