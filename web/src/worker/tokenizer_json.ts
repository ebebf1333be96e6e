// The tokenizer, as the object that PageBackend in py_src/capstan/_js/page_tokens.py calls. It does what Rust's tokenizers
// does with the same tokenizer.json, whose parts tokenizer_parts/ has.

import { type AddedToken, addedToken, Finder, type Section } from "./tokenizer_parts/added_tokens";
import { decoder } from "./tokenizer_parts/decoders";
import type { Model } from "./tokenizer_parts/byte_pair";
import { listOf, nullable, object, type Reader, unknownPart } from "./tokenizer_parts/fields";
import { model } from "./tokenizer_parts/models";
import { losesBeginning, type Normalizer, normalizer } from "./tokenizer_parts/normalizers";
import { type PostProcessor, postProcessor } from "./tokenizer_parts/post_processors";
import { type Piece, preTokenizer } from "./tokenizer_parts/pre_tokenizers";

/** Arguments and results are strings, numbers and typed arrays only, so that nothing needs a proxy across to Python. */
export interface PageTokenizer {
  /** Token ids of a text; `addSpecial` lets the post-processor add bos and eos. */
  encode(text: string, addSpecial: boolean): Int32Array;
  /** Text of token ids, given as a JSON array; ids without a token are left out, special ones too if `skipSpecial`. */
  decode(ids: string, skipSpecial: boolean): string;
}

/** Build a tokenizer from the contents of tokenizer.json; throws if it has parts unknown here. */
export function makeTokenizer(tokenizerJson: string): PageTokenizer {
  const content = object(JSON.parse(tokenizerJson), "tokenizer.json");
  const read = <T>(name: string, reader: Reader<T>): T => reader(content[name], name);
  requireKnownBeginnings(content);
  const added = read("added_tokens", nullable(listOf(addedToken))) ?? [];
  const finalModel = read("model", model);
  const normalize = read("normalizer", nullable(normalizer)) ?? ((text) => text);
  const encode = encoder(
    added,
    normalize,
    read("pre_tokenizer", nullable(preTokenizer)) ?? ((pieces) => [...pieces]),
    finalModel,
  );
  const process: PostProcessor = read("post_processor", nullable(postProcessor)) ?? ((ids) => [...ids]);
  const decode = read("decoder", nullable(decoder)) ?? ((tokens) => [tokens.join(" ")]);
  const tokens = tokensById(finalModel, added, normalize);
  const special = new Set(added.filter(({ special }) => special).map(({ content }) => content));
  return {
    encode: (text, addSpecial) => Int32Array.from(addSpecial ? process(encode(text)) : encode(text)),
    decode: (ids, skipSpecial) => {
      const known = (JSON.parse(ids) as number[]).map((id) => tokens[id]).filter((token) => token !== undefined);
      return decode(skipSpecial ? known.filter((token) => !special.has(token)) : known).join("");
    },
  };
}

/** A Metaspace that prepends to the first piece asks where that stood in the given text, which parts before it change. */
function requireKnownBeginnings(content: Record<string, unknown>): void {
  const parts = partsOf(content["pre_tokenizer"], "pretokenizers");
  const last = parts
    .map(({ type, prepend_scheme }) => type === "Metaspace" && prepend_scheme === "first")
    .lastIndexOf(true);
  if (last < 1) return;
  const normalizes = partsOf(content["normalizer"], "normalizers").length > 0;
  if (normalizes || parts.slice(0, last).some(addsToText)) {
    const other = normalizes ? "a normalizer" : "a part that adds to the text";
    throw unknownPart("pre_tokenizer", `Metaspace with the scheme first behind another part does not go with ${other}`);
  }
}

function addsToText({ type, prepend_scheme }: Record<string, unknown>): boolean {
  return type === "ByteLevel" || (type === "Metaspace" && prepend_scheme !== "never");
}

/** The parts of a sequence in order, or the part alone. */
function partsOf(value: unknown, inner: string): Record<string, unknown>[] {
  if (typeof value !== "object" || value === null) return [];
  const part = value as Record<string, unknown>;
  const within = part[inner];
  return Array.isArray(within) ? within.flatMap((each) => partsOf(each, inner)) : [part];
}

function encoder(
  added: readonly AddedToken[],
  normalize: Normalizer,
  cut: (pieces: readonly Piece[]) => Piece[],
  { encode }: Model,
): (text: string) => number[] {
  const given = added.filter(({ normalized }) => !normalized).map((token) => [token.content, token] as const);
  const made = added.filter(({ normalized }) => normalized).map((token) => [normalize(token.content), token] as const);
  const [inGiven, inMade] = [new Finder(given), new Finder(made)];
  /** A section that was cut out of the text is looked into by `step`. */
  const within = (sections: readonly Section[], step: (text: string, first: boolean) => Section[]): Section[] =>
    sections.flatMap((section) => ("id" in section ? [section] : step(section.text, section.first)));

  return (text) => {
    const normalized = within(inGiven.sections(text), (text, first) => {
      const begins = first && !losesBeginning(normalize, text);
      return inMade.sections(normalize(text)).map((section) => {
        return "id" in section ? section : { text: section.text, first: begins && section.first };
      });
    });
    const ids: number[] = [];
    for (const section of normalized) {
      if ("id" in section) ids.push(section.id);
      else for (const piece of cut([section])) for (const id of encode(piece.text)) ids.push(id);
    }
    return ids;
  };
}

/** The token of each id: an added one, as a text would have it, before one of the vocabulary. */
function tokensById({ ids }: Model, added: readonly AddedToken[], normalize: Normalizer): (string | undefined)[] {
  const tokens: (string | undefined)[] = [];
  for (const [token, id] of ids) tokens[id] = token;
  for (const { content, id, normalized } of added)
    if (content !== "") tokens[id] = normalized ? normalize(content) : content;
  return tokens;
}
