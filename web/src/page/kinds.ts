// The kinds of values that a page may give to the JavaScript API. A table has one for each option or field. A kind reads
// a value, each part of it once, or throws OptionError with its place, the value and what is right.

import { refused } from "../wire/errors";

export interface Kind {
  /** The kind in the words of messages. */
  readonly words: string;
  /** Whether a value is of the kind, apart from what is inside it. */
  readonly is: (value: unknown) => boolean;
  /** Reads the parts of a value of the kind; without it the value is kept whole. */
  readonly inside?: (place: string, value: never) => unknown;
}

/** The kinds of options or fields by their names. */
export type Kinds = Readonly<Record<string, Kind>>;

/** Characters of a text: more than any model reads, and few enough for the worker's memory. */
const MOST_CHARACTERS = 1 << 26;
/** Items of a list: more than any model reads. An array may be longer without having that many elements. */
const MOST_ITEMS = 1 << 24;

/** The value as `kind` reads it; `place` is its name in messages. */
export function read(place: string, value: unknown, { words, is, inside }: Kind): unknown {
  if (!is(value)) throw refused(`${place} is ${shown(value)}; it must be ${words}`);
  return inside ? inside(place, value as never) : value;
}

/** A value of any kind as a message has it, at most a line of it. */
export function shown(value: unknown): string {
  try {
    const text = typeof value === "string" || Array.isArray(value) || isRecord(value) ? json(value) : String(value);
    return text.length > 80 ? `${text.slice(0, 80)}...` : text;
  } catch {
    return `of type ${typeof value}`;
  }
}

/** The beginning of a value's JSON: an array may have a billion places. */
function json(value: unknown): string {
  if (typeof value === "string") return JSON.stringify(value.slice(0, 100));
  return JSON.stringify(Array.isArray(value) ? value.slice(0, 100) : value) ?? String(value);
}

/** Whether a value is an object with fields, of whatever window: no array, Map, Date ... */
function isRecord(value: unknown): value is Record<string, unknown> {
  return Object.prototype.toString.call(value) === "[object Object]";
}

export const anything: Kind = { words: "anything", is: () => true };
export const flag: Kind = { words: "a boolean", is: (value) => typeof value === "boolean" };
export const callable: Kind = { words: "a function", is: (value) => typeof value === "function" };
/** An object whose fields are checked elsewhere. */
export const object: Kind = { words: "an object", is: isRecord };
/** Milliseconds, which may be infinite. */
export const milliseconds: Kind = { words: "milliseconds from 0", is: (value) => isNumber(value) && value >= 0 };
export const millisecondsAboveZero: Kind = {
  words: "milliseconds above 0",
  is: (value) => isNumber(value) && value > 0,
};
/** Python has the limits of such a number. */
export const number: Kind = { words: "a finite number", is: Number.isFinite };

function isNumber(value: unknown): value is number {
  return typeof value === "number";
}

export const text: Kind = {
  words: "a string",
  is: (value) => typeof value === "string",
  inside(place, value: string) {
    if (value.length <= MOST_CHARACTERS) return value;
    throw refused(`${place} has ${value.length} characters; it may have ${MOST_CHARACTERS}`);
  },
};

/** A value that JSON can hold, apart from its parts: others would become null there, or vanish. */
export const plain: Kind = {
  words: "a value that JSON has",
  is: (value) => Number.isFinite(value) || ["string", "boolean", "object"].includes(typeof value),
};

/** The signal of an AbortController, of whatever window. */
export const signal: Kind = {
  words: "the signal of an AbortController",
  is(value) {
    const { aborted, addEventListener } = (value ?? {}) as Partial<AbortSignal>;
    return typeof aborted === "boolean" && typeof addEventListener === "function";
  },
};

/** A whole number within limits. */
export function whole(least: number, most: number): Kind {
  const is = (value: unknown): boolean => Number.isInteger(value) && least <= Number(value) && Number(value) <= most;
  return { words: `a whole number from ${least} to ${most}`, is };
}

/** One of several texts. */
export function oneOf(...texts: readonly string[]): Kind {
  return { words: listed(texts.map((each) => JSON.stringify(each))), is: (value) => texts.includes(value as string) };
}

/** A value of one of several kinds. */
export function either(...kinds: readonly Kind[]): Kind {
  const fitting = (value: unknown): Kind | undefined => kinds.find(({ is }) => is(value));
  return {
    words: listed(kinds.map(({ words }) => words)),
    is: (value) => fitting(value) !== undefined,
    inside: (place, value: unknown) => read(place, value, fitting(value)!),
  };
}

/** A kind, or null where that means something. */
export function orNull(kind: Kind): Kind {
  return either(kind, { words: "null", is: (value) => value === null });
}

/** A list with items of a kind, which messages call `words`. */
export function listOf(words: string, item: Kind): Kind {
  return {
    words: `a list of ${words}`,
    is: Array.isArray,
    inside(place, value: readonly unknown[]) {
      requireItems(place, value.length);
      return Array.from(value, (each, at) => read(`${place}[${at}]`, each, item));
    },
  };
}

/** Token ids in an array of any type; Python looks at each of them. */
export const ids: Kind = {
  words: "a list of token ids",
  is: (value) => Array.isArray(value) || (ArrayBuffer.isView(value) && "length" in value),
  inside(place, value: ArrayLike<unknown>) {
    requireItems(place, value.length);
    return Array.from(value);
  },
};

function requireItems(place: string, count: number): void {
  if (count > MOST_ITEMS) throw refused(`${place} has ${count} items; it may have ${MOST_ITEMS}`);
}

interface FieldsOptions {
  /** Those that must be there. */
  needed?: readonly string[];
  /** The kind of all other fields; without it there may be none. */
  others?: Kind;
}

/**
 * An object with these fields. One that is null or undefined is left out, unless null means something. An unknown name
 * is refused: it must not be left out silently.
 */
export function fields(kinds: Kinds, { needed = [], others }: FieldsOptions = {}): Kind {
  const names = Object.keys(kinds);
  return {
    words: needed.length ? `an object with ${needed.join(" and ")}` : "an object",
    is: isRecord,
    inside(place, value: Readonly<Record<string, unknown>>) {
      const within = place && `${place}.`;
      const more = Object.keys(value).filter((name) => !names.includes(name));
      if (more.length && !others)
        throw refused(`${more.map((name) => within + name).join(", ")}: no such option; there are ${names.join(", ")}`);
      const found: [string, unknown][] = [];
      for (const name of [...names, ...more]) {
        const kind = Object.hasOwn(kinds, name) ? kinds[name]! : others!;
        const given = value[name];
        if (given == null && !(given === null && kind.is(null))) continue;
        found.push([name, read(within + name, given, kind)]);
      }
      const missing = needed.filter((name) => !found.some(([there]) => there === name));
      if (missing.length) throw refused(`${missing.map((name) => within + name).join(" and ")}: missing`);
      return Object.fromEntries(found);
    },
  };
}

/** An object whose `type` decides about its other fields. `remedy` ends the message about an unknown type. */
export function typed(types: Readonly<Record<string, [kinds: Kinds, needed?: readonly string[]]>>, remedy = ""): Kind {
  const type: Kind = oneOf(...Object.keys(types));
  const behind = remedy && `: ${remedy}`;
  return {
    words: `an object of type ${type.words}${behind}`,
    is: isRecord,
    inside(place, value: Readonly<Record<string, unknown>>) {
      const name = read(`${place}.type`, value["type"], { ...type, words: type.words + behind }) as string;
      const [kinds, needed = []] = types[name]!;
      return read(place, value, fields({ type: oneOf(name), ...kinds }, { needed: ["type", ...needed] }));
    },
  };
}

function listed(words: readonly string[]): string {
  return words.length > 1 ? `${words.slice(0, -1).join(", ")} or ${words.at(-1)}` : words.join();
}
