// Finds the model that a stored file belongs to, by the address of its download: as `names_of` in
// py_src/capstan/weights/store.py.

import type { ModelFolder } from "../wire/protocol";
import { isGguf } from "../wire/model_address";

/** The address of a file of a hub's repository: the hub, the repository, the file. */
export const OF_HUB = /^(https?:\/\/.+?)\/([^/]+\/[^/]+)\/resolve\/[^/]+\/(.+)$/;
/** The number of a shard of a GGUF model in its name. */
const SHARD = /-\d{5}(-of-\d{5}\.gguf)$/i;
/** The end of the address of a graph or data file in Transformers.js' layout. */
const IN_ONNX = /(?<=\/)onnx\/[^/]+\.onnx(_data(_\d+)?)?$/;

/** The address of a stored file's model: that of a GGUF file, of which there may be several, or of a folder. */
export function placeOf(source: string): string {
  if (isGguf(source)) return source.replace(SHARD, "-00001$1");
  return IN_ONNX.test(source) ? source.replace(IN_ONNX, "") : source.slice(0, source.lastIndexOf("/") + 1);
}

/** Whether a file belongs to a model; none does to one of picked files. */
export function belongs(source: string, folder: ModelFolder): boolean {
  const [, hub, name, file] = OF_HUB.exec(source) ?? [];
  if (typeof folder === "string") return placeOf(source) === folder || (hub && `${hub}/${name}/`) === folder;
  if (!("repository" in folder)) return false;
  const [wanted, part] = folder.repository.split(":");
  const mine = hub === folder.hub.replace(/\/$/, "") && name === wanted;
  return mine && (part === undefined || placeOf(file!) === placeOf(part));
}
