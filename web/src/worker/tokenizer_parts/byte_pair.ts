// Byte pair encoding: a word's characters, of which the pair that was learnt first is merged until none is left.

import { broken } from "./fields";

export interface Model {
  readonly ids: ReadonlyMap<string, number>;
  readonly encode: (piece: string) => readonly number[];
}

interface Given {
  readonly ids: ReadonlyMap<string, number>;
  readonly merges: readonly (readonly [string, string])[];
  readonly unknown: string | null;
  /** The beginning of tokens within a word, and the end of tokens that end one. */
  readonly prefix: string;
  readonly suffix: string;
  readonly fusesUnknown: boolean;
  readonly byteFallback: boolean;
  /** Whether a word that is a token is not merged from its characters. */
  readonly ignoresMerges: boolean;
}

/** Words that are kept with their ids, and the length of the longest. */
const MOST_KEPT = 10_000;
const LONGEST_KEPT = 256;

const encoder = new TextEncoder();

export function bytePair(given: Given): Model {
  const { ids } = given;
  const merges = new Merges(given);
  const kept = new Map<string, readonly number[]>();
  const encode = (word: string): readonly number[] => {
    const whole = given.ignoresMerges ? ids.get(word) : undefined;
    if (whole !== undefined) return [whole];
    let found = kept.get(word);
    if (found === undefined) {
      found = merges.merged(symbols(given, word));
      if (kept.size >= MOST_KEPT) kept.clear();
      if (word.length <= LONGEST_KEPT) kept.set(word, found);
    }
    return found;
  };
  return { ids, encode };
}

/** The ids of a word's characters; one without an id becomes its bytes, the unknown token, or nothing. */
function symbols(given: Given, word: string): number[] {
  const found: number[] = [];
  const characters = [...word];
  let unknown: number | null = null;
  characters.forEach((character, place) => {
    const begun = place > 0 ? given.prefix + character : character;
    const symbol = place === characters.length - 1 ? begun + given.suffix : begun;
    const id = given.ids.get(symbol);
    if (id !== undefined) {
      if (unknown !== null) found.push(unknown);
      unknown = null;
      found.push(id);
      return;
    }
    const bytes = given.byteFallback ? byteIds(given.ids, symbol) : null;
    if (bytes !== null) {
      found.push(...bytes);
    } else if (given.unknown !== null) {
      if (unknown !== null && !given.fusesUnknown) found.push(unknown);
      unknown = given.ids.get(given.unknown) ?? null;
      if (unknown === null) throw new Error(`model.unk_token is ${given.unknown}, and the vocabulary lacks it`);
    }
  });
  if (unknown !== null) found.push(unknown);
  return found;
}

/** The ids of <0x..> for each byte of a text; null if one is missing. */
export function byteIds(ids: ReadonlyMap<string, number>, text: string): number[] | null {
  const found: number[] = [];
  for (const byte of encoder.encode(text)) {
    const id = ids.get(`<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`);
    if (id === undefined) return null;
    found.push(id);
  }
  return found;
}

class Merges {
  /** The rank of a pair of ids, which are one number here. */
  private readonly ranks = new Map<number, number>();
  /** The id that a pair becomes, by its rank. */
  private readonly made: number[] = [];
  private readonly base: number;

  constructor({ ids, merges, prefix }: Given) {
    let largest = 0;
    for (const id of ids.values()) largest = Math.max(largest, id);
    this.base = largest + 1;
    if (this.base > 2 ** 26) throw broken(`model.vocab has the id ${largest}; the largest possible is ${2 ** 26 - 1}`);
    for (const [left, right] of merges) {
      const [a, b] = [ids.get(left), ids.get(right)];
      const made = ids.get(left + right.slice(prefix.length));
      if (a === undefined || b === undefined || made === undefined)
        throw broken(`model.merges has ${left} and ${right}, and the vocabulary lacks one of them or what they make`);
      this.ranks.set(a * this.base + b, this.made.length);
      this.made.push(made);
    }
  }

  /** The ids that are left of `symbols` when no pair can be merged any more. */
  merged(symbols: number[]): number[] {
    const last = symbols.length - 1;
    const before = Int32Array.from(symbols, (_, place) => place - 1);
    const behind = Int32Array.from(symbols, (_, place) => (place < last ? place + 1 : -1));
    const waiting = new Waiting(symbols.length);
    const ask = (place: number) => {
      const next = place < 0 ? -1 : behind[place]!;
      const rank = next < 0 ? undefined : this.ranks.get(symbols[place]! * this.base + symbols[next]!);
      if (rank !== undefined) waiting.push(rank, place);
    };
    for (let place = 0; place < last; place++) ask(place);
    for (let first = waiting.pop(); first !== null; first = waiting.pop()) {
      const [rank, place] = first;
      const next = behind[place]!;
      // It may have been merged into another one since then, or be beside another one now.
      if (symbols[place]! < 0 || next < 0) continue;
      const now = this.ranks.get(symbols[place]! * this.base + symbols[next]!);
      if (now === undefined || this.made[now] !== this.made[rank]) continue;
      symbols[place] = this.made[rank]!;
      symbols[next] = -1;
      const far = behind[next]!;
      behind[place] = far;
      if (far >= 0) before[far] = place;
      ask(before[place]!);
      ask(place);
    }
    return symbols.filter((id) => id >= 0);
  }
}

/** A heap of places, the lowest rank first and the leftmost place of one rank. */
class Waiting {
  private readonly keys: number[] = [];

  constructor(private readonly places: number) {}

  push(rank: number, place: number): void {
    const { keys } = this;
    const key = rank * this.places + place;
    let at = keys.length;
    keys.push(key);
    while (at > 0) {
      const parent = (at - 1) >> 1;
      if (keys[parent]! <= key) break;
      keys[at] = keys[parent]!;
      at = parent;
    }
    keys[at] = key;
  }

  pop(): [rank: number, place: number] | null {
    const { keys, places } = this;
    if (keys.length === 0) return null;
    const first = keys[0]!;
    const key = keys.pop()!;
    if (keys.length > 0) {
      let at = 0;
      for (let child = 1; child < keys.length; child = 2 * at + 1) {
        if (child + 1 < keys.length && keys[child + 1]! < keys[child]!) child += 1;
        if (keys[child]! >= key) break;
        keys[at] = keys[child]!;
        at = child;
      }
      keys[at] = key;
    }
    return [Math.floor(first / places), first % places];
  }
}
