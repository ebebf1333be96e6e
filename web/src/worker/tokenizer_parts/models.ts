// Models of a tokenizer.json, by type: the token ids of a piece of text, as Rust's tokenizers finds them.

import { bytePair, type Model } from "./byte_pair";
import { count, flag, kind, type Kinds, list, nullable, object, optional, type Reader } from "./fields";
import { readFields, readPart, text, wrong } from "./fields";
import { unigram } from "./unigram";

const vocabulary: Reader<Map<string, number>> = (value, at) => {
  const ids = new Map(Object.entries(object(value, at) as Record<string, number>));
  for (const [token, id] of ids) if (!Number.isSafeInteger(id) || id < 0) throw wrong(id, `${at}.${token}`, "an id");
  return ids;
};

/** Pairs of a token and its score. */
const scores: Reader<[string, number][]> = (value, at) => {
  const all = list(value, at);
  const wrongOne = all.findIndex(
    (each) => !Array.isArray(each) || typeof each[0] !== "string" || typeof each[1] !== "number",
  );
  if (wrongOne >= 0) throw wrong(all[wrongOne], `${at}[${wrongOne}]`, "a token and its score");
  return all as [string, number][];
};

/** Pairs of tokens: lists of two, or strings with a space between them. */
const pairs: Reader<[string, string][]> = (value, at) => {
  const all = list(value, at).map((each) => (typeof each === "string" ? each.split(" ") : each));
  const wrongOne = all.findIndex(
    (each) => !Array.isArray(each) || each.length !== 2 || typeof each[0] !== "string" || typeof each[1] !== "string",
  );
  if (wrongOne >= 0) throw wrong(all[wrongOne], `${at}[${wrongOne}]`, "two tokens");
  return all as [string, string][];
};

/** The word piece model: the longest known beginning, again and again; a word that is not all known is unknown. */
function wordPiece(ids: Map<string, number>, unknown: string, prefix: string, mostCharacters: number): Model {
  let longest = 0;
  for (const token of ids.keys()) longest = Math.max(longest, token.length);
  const encode = (piece: string): number[] => {
    const characters = [...piece];
    if (characters.length > mostCharacters) return [unknownId(ids, unknown)];
    const found: number[] = [];
    for (let start = 0; start < characters.length;) {
      let end = Math.min(characters.length, start + longest);
      let id: number | undefined;
      for (; end > start && id === undefined; end--)
        id = ids.get((start > 0 ? prefix : "") + characters.slice(start, end).join(""));
      if (id === undefined) return [unknownId(ids, unknown)];
      found.push(id);
      start = end + 1;
    }
    return found;
  };
  return { ids, encode };
}

function unknownId(ids: ReadonlyMap<string, number>, unknown: string): number {
  const id = ids.get(unknown);
  if (id === undefined) throw new Error(`model.unk_token is ${unknown}, and the vocabulary lacks it`);
  return id;
}

export const MODELS: Kinds<Model> = {
  BPE: kind(
    {
      vocab: vocabulary,
      merges: pairs,
      dropout: nullable(noDropout),
      unk_token: nullable(text),
      continuing_subword_prefix: nullable(text),
      end_of_word_suffix: nullable(text),
      fuse_unk: optional(flag, false),
      byte_fallback: optional(flag, false),
      ignore_merges: optional(flag, false),
    },
    (given) =>
      bytePair({
        ids: given.vocab,
        merges: given.merges,
        unknown: given.unk_token,
        prefix: given.continuing_subword_prefix ?? "",
        suffix: given.end_of_word_suffix ?? "",
        fusesUnknown: given.fuse_unk,
        byteFallback: given.byte_fallback,
        ignoresMerges: given.ignore_merges,
      }),
  ),
  Unigram: kind({ vocab: scores, unk_id: nullable(count), byte_fallback: optional(flag, false) }, (given) =>
    unigram(given.vocab, given.unk_id, given.byte_fallback),
  ),
  WordLevel: kind({ vocab: vocabulary, unk_token: text }, ({ vocab, unk_token }) => ({
    ids: vocab,
    encode: (piece) => [vocab.get(piece) ?? unknownId(vocab, unk_token)],
  })),
  WordPiece: kind(
    { vocab: vocabulary, unk_token: text, continuing_subword_prefix: text, max_input_chars_per_word: count },
    (given) => wordPiece(given.vocab, given.unk_token, given.continuing_subword_prefix, given.max_input_chars_per_word),
  ),
};

function noDropout(value: unknown, at: string): null {
  if (value !== 0) throw wrong(value, at, "0 or null, since each text has one list of ids");
  return null;
}

/** The model of a file; the oldest ones leave its type out. */
export function model(value: unknown, at: string): Model {
  const described = object(value, at);
  if (described["type"] !== undefined) return readPart(MODELS, described, at);
  if ("merges" in described) return readFields(MODELS["BPE"]!, described, at);
  if (Array.isArray(described["vocab"])) return readFields(MODELS["Unigram"]!, described, at);
  return readFields(MODELS["max_input_chars_per_word" in described ? "WordPiece" : "WordLevel"]!, described, at);
}
