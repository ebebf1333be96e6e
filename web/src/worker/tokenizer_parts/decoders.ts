// Decoders of a tokenizer.json, by type: how tokens become a text, as Rust's tokenizers does it.

import { appendBytes, textOfBytes } from "./byte_characters";
import {
  character,
  count,
  flag,
  kind,
  type Kinds,
  list,
  oneOf,
  optional,
  readPart,
  text,
  withoutEffect,
} from "./fields";
import { pattern, replaced } from "./patterns";
import { requireOneScheme } from "./pre_tokenizers";

/** Tokens to the parts of a text. */
export type Decoder = (tokens: readonly string[]) => string[];

const CLEANED = [
  [" .", "."],
  [" ?", "?"],
  [" !", "!"],
  [" ,", ","],
  [" ' ", "'"],
  [" n't", "n't"],
  [" 'm", "'m"],
  [" do not", " don't"],
  [" 's", "'s"],
  [" 've", "'ve"],
  [" 're", "'re"],
] as const;

function cleaned(text: string): string {
  return CLEANED.reduce((made, [from, to]) => made.replaceAll(from, to), text);
}

/** A decoder that changes each token by itself. */
function each(change: (token: string, place: number, last: boolean) => string): Decoder {
  return (tokens) => tokens.map((token, place) => change(token, place, place === tokens.length - 1));
}

/** The byte of a token such as <0x0A>; null for other tokens. */
function byteOf(token: string): number | null {
  const digits = /^<0x([0-9a-fA-F]{2}|\+[0-9a-fA-F])>$/.exec(token)?.[1];
  return digits === undefined ? null : Number.parseInt(digits, 16);
}

function textsOfBytes(tokens: readonly string[]): string[] {
  const made: string[] = [];
  let bytes: number[] = [];
  const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
  const flush = () => {
    if (bytes.length === 0) return;
    try {
      made.push(strict.decode(Uint8Array.from(bytes)));
    } catch {
      made.push("\uFFFD".repeat(bytes.length));
    }
    bytes = [];
  };
  for (const token of tokens) {
    const byte = byteOf(token);
    if (byte !== null) bytes.push(byte);
    else {
      flush();
      made.push(token);
    }
  }
  flush();
  return made;
}

function stripped(token: string, content: string, start: number, stop: number): string {
  const characters = [...token];
  let begin = 0;
  while (begin < Math.min(start, characters.length) && characters[begin] === content) begin += 1;
  let end = characters.length;
  const least = Math.max(begin, characters.length - stop);
  while (end > least && characters[end - 1] === content) end -= 1;
  return characters.slice(begin, end).join("");
}

export const DECODERS: Kinds<Decoder> = {
  BPEDecoder: kind({ suffix: text }, ({ suffix }) =>
    each((token, _, last) => {
      // No suffix stands around each character.
      const parts = suffix === "" ? ["", ...token, ""] : token.split(suffix);
      return parts.join(last ? "" : " ");
    }),
  ),
  ByteFallback: kind({}, () => textsOfBytes),
  ByteLevel: kind(
    { add_prefix_space: withoutEffect, trim_offsets: withoutEffect, use_regex: withoutEffect },
    () => (tokens) => {
      const bytes: number[] = [];
      for (const token of tokens) appendBytes(bytes, token);
      return [textOfBytes(bytes)];
    },
  ),
  CTC: kind({ pad_token: text, word_delimiter_token: text, cleanup: flag }, (given) => (tokens) => {
    const distinct = tokens.filter((token, place) => place === 0 || token !== tokens[place - 1]);
    const kept = distinct.map((token) => (given.pad_token ? token.replaceAll(given.pad_token, "") : token));
    const made = given.cleanup ? kept.map((token) => cleaned(token).replaceAll(given.word_delimiter_token, " ")) : kept;
    return made.filter((token) => token !== "");
  }),
  Fuse: kind({}, () => (tokens) => [tokens.join("")]),
  Metaspace: kind(
    {
      replacement: character,
      prepend_scheme: optional(oneOf("always", "first", "never"), "always"),
      split: withoutEffect,
      add_prefix_space: optional(flag, true),
      str_rep: withoutEffect,
    },
    (given, at) => {
      requireOneScheme(given, at);
      return each((token, place) =>
        token.replaceAll(given.replacement, place === 0 && given.prepend_scheme !== "never" ? "" : " "),
      );
    },
  ),
  Replace: kind({ pattern, content: text }, (given) =>
    each((token) => replaced(token, given.pattern(token), given.content)),
  ),
  Sequence: kind({ decoders: list }, ({ decoders }, at) => {
    const all = decoders.map((each, place) => decoder(each, `${at}.decoders[${place}]`));
    return (tokens) => all.reduce<string[]>((made, decode) => decode(made), [...tokens]);
  }),
  Strip: kind({ content: character, start: count, stop: count }, (given) =>
    each((token) => stripped(token, given.content, given.start, given.stop)),
  ),
  WordPiece: kind({ prefix: text, cleanup: flag }, (given) =>
    each((token, place) => {
      const begins = token.startsWith(given.prefix);
      const made = place === 0 ? token : begins ? token.slice(given.prefix.length) : ` ${token}`;
      return given.cleanup ? cleaned(made) : made;
    }),
  ),
};

export function decoder(value: unknown, at: string): Decoder {
  return readPart(DECODERS, value, at);
}
