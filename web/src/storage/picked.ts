// Model folders that the user picked, under names that look like URLs: "picked:NAME/".

import { EngineError } from "../errors";
import type { HubRepository, ModelFolder } from "../protocol";
import { repositoryListing } from "./hub";
import { hex, sha256 } from "./sha256";

/** A folder handle, or the files of one (those of an `<input type="file" webkitdirectory>`). */
export type PickedFolder = Exclude<ModelFolder, string | HubRepository>;

const SCHEME = "picked:";
const folders = new Map<string, PickedFolder>();

/** A name for a picked folder; the same one for the same folder, or for files of the same names, sizes and times. */
export async function adopt(folder: PickedFolder): Promise<string> {
  if (Array.isArray(folder)) {
    for (const file of folder) if (!(file instanceof File)) throw notAFolder(file);
    const listed = folder.map((file) => `${pathOf(file)} ${file.size} ${file.lastModified}`).sort();
    const digest = await sha256(new TextEncoder().encode(listed.join("\n")));
    const name = `${SCHEME}${folder.length}-files-${hex(digest.subarray(0, 8))}/`;
    folders.set(name, folder);
    return name;
  }
  if (!(folder instanceof FileSystemDirectoryHandle)) throw notAFolder(folder);
  for (const [name, known] of folders) {
    if (!Array.isArray(known) && (await known.isSameEntry(folder))) return name;
  }
  const taken = (name: string): boolean => folders.has(name);
  let name = `${SCHEME}${encodeURIComponent(folder.name)}/`;
  for (let i = 2; taken(name); i++) name = `${SCHEME}${encodeURIComponent(folder.name)}-${i}/`;
  folders.set(name, folder);
  return name;
}

/** The file a URL of a picked folder names; null if it has none, undefined for any other URL. */
export async function pickedFile(url: string): Promise<File | null | undefined> {
  if (!url.startsWith(SCHEME)) return undefined;
  const end = url.indexOf("/") + 1;
  const folder = folders.get(url.slice(0, end));
  const path = decodeURIComponent(url.slice(end));
  if (!folder) return null;
  if (Array.isArray(folder)) return folder.find((file) => pathOf(file) === path) ?? null;
  try {
    const parts = path.split("/");
    let place = folder;
    for (const part of parts.slice(0, -1)) place = await place.getDirectoryHandle(part);
    return await (await place.getFileHandle(parts[parts.length - 1]!)).getFile();
  } catch {
    return null;
  }
}

/** The paths of the files of a picked folder or a hub's repository, as a JSON array; null for any other folder. */
export async function listing(folder: string): Promise<string | null> {
  const found = folders.get(folder);
  if (!found) {
    const names = repositoryListing(folder);
    return names && JSON.stringify(names);
  }
  return JSON.stringify(Array.isArray(found) ? found.map(pathOf) : await filesBelow(found, ""));
}

async function filesBelow(folder: FileSystemDirectoryHandle, path: string): Promise<string[]> {
  const names: string[] = [];
  for await (const [name, entry] of folder) {
    if (entry instanceof FileSystemDirectoryHandle) names.push(...(await filesBelow(entry, `${path}${name}/`)));
    else names.push(path + name);
  }
  return names;
}

function notAFolder(given: unknown): EngineError {
  return new EngineError(
    "OptionError",
    `a model's path is ${String(given)}, but must be a URL, a FileSystemDirectoryHandle or an array of File objects`,
  );
}

/** A file's path below the folder that was picked. */
function pathOf(file: File): string {
  const path = file.webkitRelativePath;
  return path ? path.slice(path.indexOf("/") + 1) : file.name;
}
