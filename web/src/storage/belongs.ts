// Finds the model that a stored file belongs to, by the address of its download.

import type { ModelFolder } from "../protocol";
import { isGguf } from "./gguf";

/** The address of a file of a hub's repository: the hub, the repository, the file. */
export const OF_HUB = /^(https?:\/\/[^/]+)\/([^/]+\/[^/]+)\/resolve\/[^/]+\/(.+)$/;

/** Whether a file belongs to a model; none does to one of picked files. */
export function belongs(source: string, folder: ModelFolder): boolean {
  if (typeof folder === "string") return isGguf(folder) ? source === folder : source.startsWith(folder);
  if (!("repository" in folder)) return false;
  const [, hub, name, file] = OF_HUB.exec(source) ?? [];
  const [wanted, part] = folder.repository.split(":");
  return hub === folder.hub.replace(/\/$/, "") && name === wanted && (part === undefined || part === file);
}
