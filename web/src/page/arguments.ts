// Reads the arguments that a page gives to the JavaScript API, and copies requests for the worker. Whatever fails while a
// value is read, such as a getter that throws, is an OptionError.

import { CapstanError, refused, told } from "../wire/errors";
import { fields, type Kinds, object, read, shown } from "./kinds";
import type { Request } from "../wire/protocol";

/** Read a page's arguments by `read`; whatever it throws is their fault. */
export function reading<T>(what: string, read: () => T): T {
  try {
    return read();
  } catch (error) {
    if (error instanceof CapstanError) throw error;
    throw refused(`${what} cannot be read (${told(error)}); give plain values, lists and objects`);
  }
}

/** A request as it crosses to the worker: its JSON, and picked folders unchanged. Throws OptionError. */
export function copiedRequest(request: Request): Request {
  return reading("the request", () => {
    if (typeof request !== "object" || request === null) throw refused("a request is an object with a kind");
    const folders: { model?: unknown; models?: Record<string, unknown> } = {};
    const { model, models, ...rest } = request as Partial<Request> & typeof folders;
    if ("model" in request) folders.model = pickedFolder(model);
    if (models !== undefined)
      folders.models = Object.fromEntries(Object.entries(models ?? {}).map(([name, one]) => [name, pickedFolder(one)]));
    return { ...copied(rest), ...folders } as Request;
  });
}

/** The deepest nesting of a request: a browser cannot clone much deeper values. */
const MOST_DEPTH = 500;

/** A value's JSON as a value; a worker may not get others. Throws OptionError for one that is nested too deep. */
function copied<T>(value: T): T {
  const made = JSON.parse(JSON.stringify(value) ?? "null") as T;
  let level: unknown[] = [made];
  for (let depth = 0; level.length > 0; depth++) {
    if (depth > MOST_DEPTH)
      throw refused(`a value is nested more than ${MOST_DEPTH} deep, and none deeper crosses to a worker`);
    level = level.flatMap((each) => (typeof each === "object" && each !== null ? Object.values(each) : []));
  }
  return made;
}

/** A folder, files or a file that was picked, as it is; of anything else its JSON. */
export function pickedFolder(model: unknown): unknown {
  if (isA("FileSystemDirectoryHandle", model) || isA("File", model)) return model;
  if (Array.isArray(model) && model.every((file) => isA("File", file))) return [...(model as File[])];
  return copied(model);
}

/** Whether a value is of a class of the browser's, that of another window too. */
function isA(name: string, value: unknown): boolean {
  return Object.prototype.toString.call(value) === `[object ${name}]`;
}

/**
 * A page's options, each read once by its kind; one that is null or undefined is left out, unless null means something.
 * Throws OptionError for a name that is none of theirs, which must not be left out silently, and for another kind of value.
 */
export function readOptions<T extends object>(what: string, given: T, kinds: Kinds): T {
  return reading(what, () => {
    if (!object.is(given)) throw refused(`${what} must be an object, not ${shown(given)}`);
    return read("", given, fields(kinds)) as T;
  });
}
