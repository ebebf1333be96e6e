// Pre-tokenizers of a tokenizer.json, by type: how they cut a text into the pieces that the model sees, as Rust's
// tokenizers does it. Nearly all are a pattern and a way to split by it.

import { bytesAsCharacters } from "./byte_characters";
import {
  broken,
  character,
  count,
  flag,
  kind,
  type Kinds,
  list,
  oneOf,
  optional,
  readPart,
  unknownPart,
  withoutEffect,
} from "./fields";
import { SPACE } from "./normalizers";
import { type Behavior, behavior, expression, literal, type Pattern, pattern, split } from "./patterns";

export interface Piece {
  readonly text: string;
  /** Whether it begins where the whole text does, before any token that was cut out. */
  readonly first: boolean;
}

export type PreTokenizer = (pieces: readonly Piece[]) => Piece[];

const PUNCTUATION = "[\\p{P}!-/:-@\\[-`{-~]";
const GPT2 = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
const WORD = "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}]";
const SCHEMES = ["always", "first", "never"] as const;

/** Cuts every piece by a pattern. */
function by(find: Pattern, behavior: Behavior, invert = false): PreTokenizer {
  return (pieces) =>
    pieces.flatMap(({ text, first }) =>
      split(text, find, behavior, invert).map(([begin, end]) => ({
        text: text.slice(begin, end),
        first: first && begin === 0,
      })),
    );
}

/** The matches of a regular expression of JavaScript's. */
function native(source: string): Pattern {
  const regex = new RegExp(source, "gu");
  return (text) => Array.from(text.matchAll(regex), ({ index, 0: found }) => [index, index + found.length] as const);
}

function each(change: (piece: Piece) => string): PreTokenizer {
  return (pieces) => pieces.map((piece) => ({ text: change(piece), first: piece.first }));
}

function all(steps: readonly PreTokenizer[]): PreTokenizer {
  return (pieces) => steps.reduce((made, step) => step(made), [...pieces]);
}

export const PRE_TOKENIZERS: Kinds<PreTokenizer> = {
  BertPreTokenizer: kind({}, () => all([by(native(SPACE), "Removed"), by(native(PUNCTUATION), "Isolated")])),
  ByteLevel: kind({ add_prefix_space: flag, trim_offsets: withoutEffect, use_regex: optional(flag, true) }, (given) =>
    all([
      each(({ text }) => (given.add_prefix_space && !text.startsWith(" ") ? ` ${text}` : text)),
      ...(given.use_regex ? [by(expression(GPT2), "Isolated")] : []),
      each(({ text }) => bytesAsCharacters(text)),
    ]),
  ),
  CharDelimiterSplit: kind({ delimiter: character }, (given) => by(literal(given.delimiter), "Removed")),
  Digits: kind({ individual_digits: flag }, (given) =>
    by(native("\\p{N}"), given.individual_digits ? "Isolated" : "Contiguous"),
  ),
  FixedLength: kind({ length: optional(count, 5) }, ({ length }, at) => {
    if (length === 0) throw unknownPart(at, "length is 0, by which no text can be cut");
    return by(native(`[\\s\\S]{1,${Math.min(length, 2 ** 31 - 1)}}`), "Isolated");
  }),
  Metaspace: kind(
    {
      replacement: character,
      prepend_scheme: optional(oneOf(...SCHEMES), "always"),
      split: optional(flag, true),
      add_prefix_space: optional(flag, true),
      str_rep: withoutEffect,
    },
    (given, at) => {
      const { replacement, prepend_scheme } = given;
      requireOneScheme(given, at);
      const escape = each(({ text, first }) => {
        const escaped = text.replaceAll(" ", () => replacement);
        const prepends = prepend_scheme === "always" || (prepend_scheme === "first" && first);
        return prepends && !escaped.startsWith(replacement) ? replacement + escaped : escaped;
      });
      return given.split ? all([escape, by(literal(replacement), "MergedWithNext")]) : escape;
    },
  ),
  Punctuation: kind({ behavior: optional<Behavior, Behavior>(behavior, "Isolated") }, (given) =>
    by(native(PUNCTUATION), given.behavior),
  ),
  Sequence: kind({ pretokenizers: list }, ({ pretokenizers }, at) =>
    all(pretokenizers.map((each, place) => preTokenizer(each, `${at}.pretokenizers[${place}]`))),
  ),
  Split: kind({ pattern, behavior, invert: flag }, (given) => by(given.pattern, given.behavior, given.invert)),
  Whitespace: kind({}, () => by(native(`${WORD}+|(?:(?!${WORD})\\P{White_Space})+`), "Removed", true)),
  WhitespaceSplit: kind({}, () => by(native(SPACE), "Removed")),
};

/** Older files say by `add_prefix_space` whether anything is prepended. */
export function requireOneScheme(given: { add_prefix_space: boolean; prepend_scheme: string }, at: string): void {
  if (!given.add_prefix_space && given.prepend_scheme !== "never")
    throw broken(`${at}.add_prefix_space is false, and prepend_scheme ${given.prepend_scheme}`);
}

export function preTokenizer(value: unknown, at: string): PreTokenizer {
  return readPart(PRE_TOKENIZERS, value, at);
}
