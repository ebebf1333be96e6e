// Which pages share a worker: those of one origin that load the same model with the same options.

import { version } from "../../../package.json";
import { refused } from "../wire/errors";
import type { WorkerOptions } from "./load_in_worker";
import { MODEL_KINDS, type ModelOptions } from "./options";
import type { ModelFolder } from "../wire/protocol";
import { hex, sha256 } from "../wire/sha256";

type Options = ModelOptions & WorkerOptions & { shared?: boolean; trace?: boolean };

/** The name of the worker that has this model with these options; null for a worker of the page's own. */
export async function sharedName(model: ModelFolder, options: Options): Promise<string | null> {
  if (!options.shared) return null;
  if (typeof model !== "string" && !("repository" in model))
    throw refused(
      "shared is true, but what was picked is this page's alone; give the model's address, or leave shared out",
    );
  if (options.trace)
    throw refused("shared is true, and trace is of a worker's whole start; leave one out, or call llm.trace.start()");
  const names = [...Object.keys(MODEL_KINDS), "snapshot", "verifyAfter", "crossOriginStorage"].sort();
  const given = names.map((name) => [name, options[name as keyof Options] ?? null]);
  // A page of another release must not join: they would not understand each other.
  const text = JSON.stringify([version, model, given]);
  // A token may be among the options, and names of workers are shown.
  return `capstan ${hex(await sha256(new TextEncoder().encode(text)))}`;
}
