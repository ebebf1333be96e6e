// SentencePiece's unigram model: the cut of a text whose tokens have the largest sum of scores.

import { byteIds, type Model } from "./byte_pair";
import { broken } from "./fields";

/** An unknown character has the least score of all tokens, and so much less. */
const UNKNOWN_PENALTY = 10;

export function unigram(scored: [string, number][], unknown: number | null, byteFallback: boolean): Model {
  const ids = new Map(scored.map(([token], id) => [token, id]));
  if (unknown !== null && unknown >= scored.length)
    throw broken(`model.unk_id is ${unknown}, and the vocabulary has ${scored.length} tokens`);
  const unknownScore = scored.reduce((least, [, score]) => Math.min(least, score), Infinity) - UNKNOWN_PENALTY;
  const beginnings = new Beginnings([...ids.keys()]);

  const requireUnknown = (): number => {
    if (unknown === null) throw new Error("the text has a character without a token, and model.unk_id is missing");
    return unknown;
  };

  /** The pieces of the best cut; unknown characters beside each other are one. */
  const pieces = (text: string): string[] => {
    const score = new Float64Array(text.length + 1);
    const from = new Int32Array(text.length + 1).fill(-1);
    const taken = new Int32Array(text.length + 1);
    const offer = (start: number, end: number, id: number, own: number) => {
      const sum = own + score[start]!;
      if (from[end]! >= 0 && sum <= score[end]!) return;
      score[end] = sum;
      from[end] = start;
      taken[end] = id;
    };
    for (let start = 0; start < text.length;) {
      const width = text.codePointAt(start)! > 0xffff ? 2 : 1;
      let single = false;
      for (const token of beginnings.of(text, start)) {
        const id = ids.get(token)!;
        offer(start, start + token.length, id, scored[id]![1]);
        single ||= token.length === width;
      }
      if (!single) offer(start, start + width, unknown ?? -1, unknownScore);
      start += width;
    }
    const found: string[] = [];
    for (let end = text.length; end > 0;) {
      let start = from[end]!;
      const id = taken[end]!;
      if (id < 0) requireUnknown();
      if (id === unknown) while (start > 0 && taken[start] === unknown) start = from[start]!;
      found.push(text.slice(start, end));
      end = start;
    }
    return found.reverse();
  };

  const encode = (text: string): number[] =>
    pieces(text).flatMap(
      (piece) => ids.get(piece) ?? (byteFallback ? byteIds(ids, piece) : null) ?? [requireUnknown()],
    );
  return { ids, encode };
}

/** The tokens that a text has at a place, found in a sorted list of all. */
class Beginnings {
  constructor(private readonly tokens: string[]) {
    // In the order of their UTF-16, as `<` compares.
    tokens.sort();
  }

  *of(text: string, start: number): Generator<string> {
    const { tokens } = this;
    let [low, high] = [0, tokens.length];
    for (let length = 0; start + length < text.length; length++) {
      const code = text.charCodeAt(start + length);
      low = this.first(low, high, length, code);
      high = this.first(low, high, length, code + 1);
      if (low === high) return;
      if (tokens[low]!.length === length + 1) yield tokens[low]!;
    }
  }

  /** The first of the tokens from `low` to `high`, alike up to `length`, that goes on with `code` or more. */
  private first(low: number, high: number, length: number, code: number): number {
    while (low < high) {
      const middle = (low + high) >> 1;
      const token = this.tokens[middle]!;
      if (token.length <= length || token.charCodeAt(length) < code) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}
