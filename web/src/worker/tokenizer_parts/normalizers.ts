// Normalizers of a tokenizer.json, by type: what they do to a text before it is split, as Rust's tokenizers does it.

import { charsmap } from "./charsmap";
import { type Kinds, flag, kind, list, nullable, readPart, text, unknownPart } from "./fields";
import { bytesAsCharacters } from "./byte_characters";
import { pattern, replaced } from "./patterns";

export interface Normalizer {
  (text: string): string;
  /** Whether its result begins after the text's first character, if that character alone does not decide it. */
  readonly losesBeginning?: (text: string) => boolean;
}

/** Whether what a normalizer makes of a text begins after the text's first character. */
export function losesBeginning(normalize: Normalizer, text: string): boolean {
  if (text === "") return false;
  return normalize.losesBeginning?.(text) ?? normalize(String.fromCodePoint(text.codePointAt(0)!)) === "";
}

export const SPACE = "\\p{White_Space}";
const LEADING = new RegExp(`^${SPACE}+`, "u");
const TRAILING = new RegExp(`(?<!${SPACE})${SPACE}+$`, "u");

const CHINESE =
  /[\u4E00-\u9FFF\u3400-\u4DBF\uF900-\uFAFF\u{20000}-\u{2A6DF}\u{2A700}-\u{2B73F}\u{2B740}-\u{2B81F}\u{2B920}-\u{2CEAF}\u{2F800}-\u{2FA1F}]/gu;

/** Each character alone: as a word, JavaScript makes another letter of the last Σ of one. */
export function lowercase(given: string): string {
  return given.replaceAll("Σ", "σ").toLowerCase();
}

function cleanedText(given: string): string {
  return given.replace(/[\0\uFFFD]|(?![\t\n\r])[\p{Cc}\p{Cf}\p{Co}]/gu, "").replace(new RegExp(SPACE, "gu"), " ");
}

export const NORMALIZERS: Kinds<Normalizer> = {
  BertNormalizer: kind(
    { clean_text: flag, handle_chinese_chars: flag, strip_accents: nullable(flag), lowercase: flag },
    (given) => (text) => {
      if (given.clean_text) text = cleanedText(text);
      if (given.handle_chinese_chars) text = text.replace(CHINESE, " $& ");
      if (given.strip_accents ?? given.lowercase) text = text.normalize("NFD").replace(/\p{Mn}/gu, "");
      return given.lowercase ? lowercase(text) : text;
    },
  ),
  ByteLevel: kind({}, () => bytesAsCharacters),
  Lowercase: kind({}, () => lowercase),
  NFC: kind({}, () => (text) => text.normalize("NFC")),
  NFD: kind({}, () => (text) => text.normalize("NFD")),
  NFKC: kind({}, () => (text) => text.normalize("NFKC")),
  NFKD: kind({}, () => (text) => text.normalize("NFKD")),
  Nmt: kind(
    {},
    () => (text) =>
      text
        .replace(/[\x01-\x08\x0B\x0E-\x1F\x7F\x8F\x9F]/g, "")
        .replace(/[\t\n\f\r\u1680\u200B-\u200F\u2028\u2029\u2581\uFEFF\uFFFD]/g, " "),
  ),
  Precompiled: kind({ precompiled_charsmap: text }, (given, at) =>
    // Rust's gives the place of a character that it takes away to the next one.
    Object.assign(charsmap(given.precompiled_charsmap, at), { losesBeginning: () => false }),
  ),
  Prepend: kind({ prepend: text }, (given) => (text) => (text === "" ? text : given.prepend + text)),
  Replace: kind({ pattern, content: text }, (given, at) => {
    const normalize = (text: string): string => {
      const found = given.pattern(text);
      // Rust's loses its place in a text where it puts something between two characters.
      if (found.some(([begin, end]) => begin === end)) throw unknownPart(`${at}.pattern`, "it also matches nothing");
      return replaced(text, found, given.content);
    };
    // Its content has the place of the last character that it replaces.
    const losesBeginning = (text: string): boolean => {
      const [begin, end] = given.pattern(text)[0] ?? [1, 1];
      return begin === 0 && (given.content === "" || [...text.slice(0, end)].length > 1);
    };
    return Object.assign(normalize, { losesBeginning });
  }),
  Sequence: kind({ normalizers: list }, ({ normalizers }, at) => {
    const all = normalizers.map((each, place) => normalizer(each, `${at}.normalizers[${place}]`));
    const normalize = (text: string): string => all.reduce((made, each) => each(made), text);
    const loses = (text: string): boolean => {
      for (const each of all) {
        if (losesBeginning(each, text)) return true;
        text = each(text);
      }
      return false;
    };
    return Object.assign(normalize, { losesBeginning: loses });
  }),
  Strip: kind({ strip_left: flag, strip_right: flag }, (given) => {
    const normalize = (text: string): string => {
      if (given.strip_left) text = text.replace(LEADING, "");
      return given.strip_right ? text.replace(TRAILING, "") : text;
    };
    return Object.assign(normalize, { losesBeginning: (text: string) => given.strip_left && LEADING.test(text) });
  }),
  StripAccents: kind({}, () => (text) => text.replace(/\p{M}/gu, "")),
};

export function normalizer(value: unknown, at: string): Normalizer {
  return readPart(NORMALIZERS, value, at);
}
