// SentencePiece's precompiled map of characters: a trie of UTF-8 prefixes, and what takes their place.

import { wrong } from "./fields";

/** Grapheme clusters with as many bytes or more are looked up character by character. */
const LONG = 6;

/** Parts of texts that are kept with what takes their place. */
const MOST_KNOWN = 10_000;

/** The normalizer of a map in base64. */
export function charsmap(written: string, at: string): (text: string) => string {
  let bytes: Uint8Array;
  try {
    bytes = Uint8Array.from(atob(written), (character) => character.charCodeAt(0));
  } catch {
    throw wrong(written, `${at}.precompiled_charsmap`, "a map of characters in base64");
  }
  const size = bytes.length < 4 ? -1 : new DataView(bytes.buffer).getUint32(0, true);
  if (size < 4 || size % 4 !== 0 || 4 + size > bytes.length)
    throw wrong(written, `${at}.precompiled_charsmap`, "the size of a trie, a trie, and texts");
  const trie = new Uint32Array(bytes.slice(4, 4 + size).buffer);
  const texts = bytes.subarray(4 + size);
  const [encoder, decoder] = [new TextEncoder(), new TextDecoder("utf-8", { ignoreBOM: true })];
  const graphemes = new Intl.Segmenter("en", { granularity: "grapheme" });
  const known = new Map<string, string | null>();

  /** The text in place of the shortest prefix that the trie has; null if it has none. */
  const look = (key: Uint8Array): string | null => {
    let node = next(0, trie[0]!);
    for (const byte of key) {
      node ^= byte;
      const unit = trie[node];
      if (byte === 0 || unit === undefined || (unit & 0x800000ff) !== byte) return null;
      node = next(node, unit);
      if ((unit >>> 8) & 1) {
        const begin = (trie[node] ?? 0) & 0x7fffffff;
        const end = texts.indexOf(0, begin);
        return decoder.decode(texts.subarray(begin, end < 0 ? texts.length : end));
      }
    }
    return null;
  };

  const replacement = (part: string): string | null => {
    let found = known.get(part);
    if (found === undefined) {
      const key = encoder.encode(part);
      found = key.length < LONG ? look(key) : null;
      if (known.size >= MOST_KNOWN) known.clear();
      known.set(part, found);
    }
    return found;
  };

  return (text) => {
    let made = "";
    for (const { segment } of graphemes.segment(text)) {
      const whole = replacement(segment);
      if (whole !== null) made += whole;
      else for (const character of segment) made += replacement(character) ?? character;
    }
    return made;
  };
}

/** The node that follows a unit of the trie. */
function next(node: number, unit: number): number {
  return node ^ ((unit >>> 10) << ((unit & 0x200) >>> 6));
}
