// Loads a model that has a worker of its own: an encoder, a speech model or a voice.

import { reading, readOptions } from "./arguments";
import type { Client } from "./client";
import type { Kinds } from "./kinds";
import { loadInWorker, pageAddress, WORKER_KINDS, type WorkerOptions } from "./load_in_worker";
import { EMBEDDER_KINDS, type ModelEmbedderOptions } from "./model_options";
import { modelFolder, type ModelOptions, PLACE_KINDS, requested } from "./options";
import type { EmbedderOptions as Asked, ModelFolder, Request } from "../wire/protocol";

export interface OneModelOptions
  extends WorkerOptions, Pick<ModelOptions, "hub" | "revision" | "token">, ModelEmbedderOptions {}

/** The fields of each request that loads such a model. */
type Fields = Asked & { model: ModelFolder };

const KINDS: Kinds = { ...WORKER_KINDS, ...PLACE_KINDS, ...EMBEDDER_KINDS };

/** Load a model by the request that `request` makes; `more` are the kinds of further options. Rejects as `Capstan.load`. */
export async function loadOneModel<Given extends OneModelOptions>(
  model: ModelFolder,
  given: Given,
  more: Kinds,
  request: (fields: Fields, options: Given) => Request,
): Promise<{ client: Client; about: unknown; options: Given }> {
  const options = readOptions("the options", given, { ...KINDS, ...more });
  options.signal?.throwIfAborted();
  const folder = reading("the model", () => modelFolder(model, options, pageAddress()));
  const asked = request({ model: folder, ...requested<Asked>(options, EMBEDDER_KINDS) }, options);
  return { ...(await loadInWorker(options, {}, () => asked)), options };
}
