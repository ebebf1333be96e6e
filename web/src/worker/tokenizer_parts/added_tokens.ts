// Tokens that are found in a text before anything else is done with it, and those that are looked for in what the
// normalizer made of the rest.

import { count, flag, kind, type Reader, readFields, object, text } from "./fields";

export interface AddedToken {
  readonly id: number;
  readonly content: string;
  /** Whether it is found between characters that make no word with it only. */
  readonly single_word: boolean;
  /** Whether white space on its left and right goes with it. */
  readonly lstrip: boolean;
  readonly rstrip: boolean;
  readonly normalized: boolean;
  readonly special: boolean;
}

const FIELDS = {
  id: count,
  content: text,
  single_word: flag,
  lstrip: flag,
  rstrip: flag,
  normalized: flag,
  special: flag,
};

export const addedToken: Reader<AddedToken> = (value, at) =>
  readFields(
    kind(FIELDS, (given) => given),
    object(value, at),
    at,
  );

/** A part of a text: a token's id, or text, and whether it is the beginning of the whole. */
export type Section = { readonly id: number } | { readonly text: string; readonly first: boolean };

const WORD = /[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}]/u;
const SPACES_BEFORE = /(?<!\p{White_Space})\p{White_Space}+$/u;
const SPACES_AFTER = /\p{White_Space}*/uy;

type Node = Map<number, Node> & { token?: AddedToken };

/** Finds tokens in texts: the leftmost one, and the longest of those that begin there. */
export class Finder {
  private readonly root: Node = new Map();

  constructor(tokens: Iterable<readonly [content: string, token: AddedToken]>) {
    for (const [content, token] of tokens) {
      let node = this.root;
      for (let at = 0; at < content.length; at++) {
        const code = content.charCodeAt(at);
        let next = node.get(code);
        if (next === undefined) node.set(code, (next = new Map()));
        node = next;
      }
      if (content !== "") node.token ??= token;
    }
  }

  sections(text: string): Section[] {
    const found: Section[] = [];
    let done = 0;
    const upTo = (end: number) => {
      if (done < end) found.push({ text: text.slice(done, end), first: done === 0 });
    };
    for (let at = 0; at < text.length;) {
      const [token, length] = this.longest(text, at);
      if (token === undefined) {
        at += 1;
        continue;
      }
      let [start, stop] = [at, at + length];
      at = stop;
      if (token.single_word && (endsWithWord(text, start) || beginsWithWord(text, stop))) continue;
      if (token.lstrip) {
        const spaces = SPACES_BEFORE.exec(text.slice(done, start))?.[0].length ?? 0;
        start = Math.max(done, start - spaces);
      }
      if (token.rstrip) {
        SPACES_AFTER.lastIndex = stop;
        stop += SPACES_AFTER.exec(text)![0].length;
      }
      upTo(start);
      found.push({ id: token.id });
      done = stop;
    }
    upTo(text.length);
    return found;
  }

  private longest(text: string, start: number): [token: AddedToken | undefined, length: number] {
    let node: Node | undefined = this.root;
    let token: AddedToken | undefined;
    let length = 0;
    for (let at = start; at < text.length; at++) {
      node = node.get(text.charCodeAt(at));
      if (node === undefined) break;
      if (node.token !== undefined) [token, length] = [node.token, at + 1 - start];
    }
    return [token, length];
  }
}

function beginsWithWord(text: string, at: number): boolean {
  return at < text.length && WORD.test(String.fromCodePoint(text.codePointAt(at)!));
}

function endsWithWord(text: string, at: number): boolean {
  if (at === 0) return false;
  const pair = at > 1 ? text.codePointAt(at - 2)! : 0;
  return WORD.test(String.fromCodePoint(pair > 0xffff ? pair : text.charCodeAt(at - 1)));
}
