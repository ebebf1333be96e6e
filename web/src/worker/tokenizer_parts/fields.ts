// How parts of a tokenizer.json are read: a part has a type, and each type the fields that its table lists. A type or a
// field that no table lists is refused by name, so that nothing in a file is passed over.

import { EngineError } from "../../wire/errors";

/** Makes a value of a field; `at` is its place in the file. */
export type Reader<T> = (value: unknown, at: string) => T;

type Readers = Record<string, Reader<unknown>>;
type Given<F extends Readers> = { [Name in keyof F]: ReturnType<F[Name]> };

/** A type of parts: the readers of its fields, and the part with these fields. */
export interface Kind<T> {
  readonly fields: Readers;
  readonly make: (given: Record<string, unknown>, at: string) => T;
}

export type Kinds<T> = Readonly<Record<string, Kind<T>>>;

export function kind<F extends Readers, T>(fields: F, make: (given: Given<F>, at: string) => T): Kind<T> {
  return { fields, make: make as Kind<T>["make"] };
}

/** The error for a part that is in no table. */
export function unknownPart(at: string, reason: string): EngineError {
  return new EngineError(
    "UnsupportedModelError",
    `tokenizer.json: ${at}: ${reason}; take a model with another tokenizer, or encode the text elsewhere and give ids`,
  );
}

/** The part that a value of the file describes. */
export function readPart<T>(kinds: Kinds<T>, value: unknown, at: string): T {
  const described = object(value, at);
  const name = text(described["type"], `${at}.type`);
  if (!Object.hasOwn(kinds, name))
    throw unknownPart(at, `type is ${shown(name)}, and the page knows ${Object.keys(kinds).join(", ")}`);
  return readFields(kinds[name]!, described, at);
}

/** The part of a given type. */
export function readFields<T>({ fields, make }: Kind<T>, described: Record<string, unknown>, at: string): T {
  for (const field of Object.keys(described)) {
    if (field !== "type" && !Object.hasOwn(fields, field))
      throw unknownPart(at, `${shown(field)} is no field that the page knows of this type`);
  }
  const given: Record<string, unknown> = {};
  for (const [field, read] of Object.entries(fields)) given[field] = read(described[field], `${at}.${field}`);
  return make(given, at);
}

export const object: Reader<Record<string, unknown>> = (value, at) => {
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw wrong(value, at, "an object");
  return value as Record<string, unknown>;
};

export const text: Reader<string> = (value, at) => {
  if (typeof value !== "string") throw wrong(value, at, "a string");
  return value;
};

export const character: Reader<string> = (value, at) => {
  if (typeof value !== "string" || [...value].length !== 1) throw wrong(value, at, "one character");
  return value;
};

export const flag: Reader<boolean> = (value, at) => {
  if (typeof value !== "boolean") throw wrong(value, at, "true or false");
  return value;
};

export const count: Reader<number> = (value, at) => {
  if (!Number.isSafeInteger(value) || (value as number) < 0) throw wrong(value, at, "an integer from 0 on");
  return value as number;
};

export const list: Reader<unknown[]> = (value, at) => {
  if (!Array.isArray(value)) throw wrong(value, at, "a list");
  return value;
};

/** A list with a reader for its items. */
export const listOf =
  <T>(item: Reader<T>): Reader<T[]> =>
  (value, at) =>
    list(value, at).map((each, place) => item(each, `${at}[${place}]`));

/** One of some names. */
export const oneOf =
  <const Name extends string>(...names: Name[]): Reader<Name> =>
  (value, at) => {
    if (!names.includes(value as Name)) throw wrong(value, at, names.join(", "));
    return value as Name;
  };

/** A field that may be missing, and is then `otherwise`. */
export const optional =
  <T, D>(read: Reader<T>, otherwise: D): Reader<T | D> =>
  (value, at) =>
    value === undefined ? otherwise : read(value, at);

/** A field that may be null or missing. */
export const nullable =
  <T>(read: Reader<T>): Reader<T | null> =>
  (value, at) =>
    value === undefined || value === null ? null : read(value, at);

/** A field that changes no ids and no text, such as those about offsets. */
export const withoutEffect: Reader<undefined> = () => undefined;

export function wrong(value: unknown, at: string, expected: string): EngineError {
  return broken(`${at} is ${shown(value)}; expected ${expected}`);
}

/** The error for a file that contradicts itself. */
export function broken(reason: string): EngineError {
  return new EngineError("ConfigError", `tokenizer.json: ${reason}; copy the model's own file again`);
}

export function shown(value: unknown): string {
  const written = JSON.stringify(value) ?? "missing";
  return written.length > 80 ? `${written.slice(0, 80)}...` : written;
}
