// Model folders that the user picked, under names that look like URLs: "picked:NAME/".

import { EngineError } from "../../wire/errors";
import type { HubRepository, ModelFolder } from "../../wire/protocol";
import { isGguf } from "../../wire/model_address";
import { repositoryListing } from "./hub";
import { using } from "../../wire/in_use";
import { hex, sha256 } from "../../wire/sha256";

/** A folder handle, or the files of one (those of an `<input type="file" webkitdirectory>`). */
type PickedFiles = FileSystemDirectoryHandle | File[];

const SCHEME = "picked:";
const folders = new Map<string, PickedFiles>();

/**
 * A name for a picked folder; the same one for the same folder, or for files of the same names, sizes and times. A file
 * alone is a folder of one.
 */
export async function adopt(given: Exclude<ModelFolder, string | HubRepository>): Promise<string> {
  const folder: PickedFiles = given instanceof File ? [given] : given;
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
    for (const part of parts.slice(0, -1)) place = await using(place, (from) => from.getDirectoryHandle(part));
    const found = await using(place, (from) => from.getFileHandle(parts[parts.length - 1]!));
    return await using(found, (handle) => handle.getFile());
  } catch {
    return null;
  }
}

/**
 * The sizes of the files of a picked folder or a hub's repository by their paths, as JSON, null where that is not known;
 * null for any other folder.
 */
export async function listing(folder: string): Promise<string | null> {
  const found = folders.get(folder);
  if (!found) {
    const sizes = repositoryListing(folder);
    return sizes && JSON.stringify(sizes);
  }
  const sizes = Array.isArray(found) ? found.map((file) => [pathOf(file), file.size]) : await filesBelow(found, "");
  return JSON.stringify(Object.fromEntries(sizes));
}

async function filesBelow(folder: FileSystemDirectoryHandle, path: string): Promise<[string, number | null][]> {
  const found: [string, number | null][] = [];
  for await (const [name, entry] of folder) {
    if (entry instanceof FileSystemDirectoryHandle) found.push(...(await filesBelow(entry, `${path}${name}/`)));
    else found.push([path + name, isGguf(name) ? (await using(entry, (file) => file.getFile())).size : null]);
  }
  return found;
}

function notAFolder(given: unknown): EngineError {
  const text = String(given);
  const shown = text === String({}) ? JSON.stringify(given).slice(0, 100) : text;
  return new EngineError(
    "OptionError",
    `a model's path is ${shown}, but must be a URL, a FileSystemDirectoryHandle, a File or an array of them`,
  );
}

/** A file's path below the folder that was picked. */
function pathOf(file: File): string {
  const path = file.webkitRelativePath;
  return path ? path.slice(path.indexOf("/") + 1) : file.name;
}
