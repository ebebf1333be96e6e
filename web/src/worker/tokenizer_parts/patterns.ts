// Patterns of a tokenizer.json, and the ways to split a text by one, as Rust's tokenizers has them.

import { SplitPreTokenizer } from "@huggingface/tokenizers";
import { object, oneOf, type Reader, text, unknownPart, wrong } from "./fields";
import { spelledOut } from "./oniguruma";

/** The matches of a pattern in a text, in order: where each begins and ends, in UTF-16. */
export type Pattern = (text: string) => Range[];
export type Range = readonly [begin: number, end: number];

export const BEHAVIORS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"] as const;
export type Behavior = (typeof BEHAVIORS)[number];
export const behavior = oneOf(...BEHAVIORS);

/** `{"String": ...}` or `{"Regex": ...}`. */
export const pattern: Reader<Pattern> = (value, at) => {
  const given = Object.entries(object(value, at));
  const [name, content] = given[0] ?? [];
  if (given.length !== 1 || (name !== "String" && name !== "Regex")) throw wrong(value, at, "String or Regex");
  return name === "String" ? literal(text(content, `${at}.String`)) : expression(text(content, `${at}.Regex`), at);
};

/** Finds a string; an empty one stands between all characters. */
export function literal(wanted: string): Pattern {
  if (wanted === "") return expression("");
  return (given) => {
    const found: Range[] = [];
    for (let at = given.indexOf(wanted); at >= 0; at = given.indexOf(wanted, at + wanted.length))
      found.push([at, at + wanted.length]);
    return found;
  };
}

/** The pattern of a regular expression of Oniguruma's, in whose syntax a tokenizer.json is written. */
export function expression(source: string, at = "pattern"): Pattern {
  let regex: RegExp;
  try {
    const Regex = spelledOut(source);
    regex = new SplitPreTokenizer({ type: "Split", pattern: { Regex }, behavior: "Isolated", invert: false }).pattern!;
  } catch (error) {
    throw unknownPart(at, (error as Error).message);
  }
  return (given) => {
    const found: Range[] = [];
    if (given === "") return found;
    let last = -1;
    for (const match of given.matchAll(regex)) {
      const end = match.index + match[0].length;
      // Oniguruma finds nothing empty where a match ended.
      if (match[0] !== "" || match.index !== last) found.push([match.index, end]);
      last = end;
    }
    return found;
  };
}

/** The parts of a text that `behavior` makes of a pattern's matches; with `invert` of what is between them. */
export function split(given: string, find: Pattern, behavior: Behavior, invert = false): Range[] {
  const marked: (readonly [begin: number, end: number, match: boolean])[] = [];
  let last = 0;
  for (const [begin, end] of find(given)) {
    if (begin > last) marked.push([last, begin, invert]);
    marked.push([begin, end, !invert]);
    last = end;
  }
  if (last < given.length) marked.push([last, given.length, invert]);
  if (behavior === "Removed" || behavior === "Isolated")
    return marked
      .filter(([begin, end, match]) => begin < end && !(match && behavior === "Removed"))
      .map(([begin, end]) => [begin, end] as const);

  const joined: [begin: number, end: number][] = [];
  const backwards = behavior === "MergedWithNext";
  let before = false;
  for (const [begin, end, match] of backwards ? marked.reverse() : marked) {
    const beside = joined.at(-1);
    const joins = behavior === "Contiguous" ? match === before : match && !before;
    if (beside && joins) beside[backwards ? 0 : 1] = backwards ? begin : end;
    else joined.push([begin, end]);
    before = match;
  }
  return (backwards ? joined.reverse() : joined).filter(([begin, end]) => begin < end);
}

/** A text with the matches of a pattern replaced. */
export function replaced(given: string, matches: readonly Range[], content: string): string {
  let made = "";
  let last = 0;
  for (const [begin, end] of matches) {
    made += given.slice(last, begin) + content;
    last = end;
  }
  return made + given.slice(last);
}
