// Post-processors of a tokenizer.json, by type: the special tokens that they put around the ids of a text.

import { count, kind, type Kinds, list, listOf, object, type Reader, readPart, text, unknownPart } from "./fields";
import { broken, withoutEffect, wrong } from "./fields";

export type PostProcessor = (ids: readonly number[]) => number[];

/** A token and its id. */
const tokenWithId: Reader<number> = (value, at) => {
  const [token, id] = list(value, at);
  text(token, `${at}[0]`);
  return count(id, `${at}[1]`);
};

/** The name of a special token of a template, or null for the text's ids. */
const templatePiece: Reader<string | null> = (value, at) => {
  const [[type, content] = ["", null]] = Object.entries(object(value, at));
  const id = text(object(content, `${at}.${type}`)["id"], `${at}.${type}.id`);
  if (type === "SpecialToken") return id;
  if (type !== "Sequence" || id !== "A") throw wrong(value, at, "a special token, or the sequence A");
  return null;
};

const specialTokens: Reader<Map<string, number[]>> = (value, at) =>
  new Map(
    Object.entries(object(value, at)).map(([name, described]) => {
      const ids = object(described, `${at}.${name}`)["ids"];
      return [name, listOf(count)(ids, `${at}.${name}.ids`)];
    }),
  );

export const POST_PROCESSORS: Kinds<PostProcessor> = {
  BertProcessing: kind({ sep: tokenWithId, cls: tokenWithId }, (given) => (ids) => [given.cls, ...ids, given.sep]),
  ByteLevel: kind(
    { add_prefix_space: withoutEffect, trim_offsets: withoutEffect, use_regex: withoutEffect },
    () => (ids) => [...ids],
  ),
  RobertaProcessing: kind(
    { sep: tokenWithId, cls: tokenWithId, trim_offsets: withoutEffect, add_prefix_space: withoutEffect },
    (given) => (ids) => [given.cls, ...ids, given.sep],
  ),
  Sequence: kind({ processors: list }, ({ processors }, at) => {
    const all = processors.map((each, place) => postProcessor(each, `${at}.processors[${place}]`));
    // Rust's gives what one has put around a text to the next one in pieces, each of which is then a text.
    const adding = processors.filter((each) => (each as { type: string }).type !== "ByteLevel");
    if (adding.length > 1)
      throw unknownPart(at, "the page knows sequences in which one part puts tokens around a text");
    return (ids) => all.reduce<number[]>((made, process) => process(made), [...ids]);
  }),
  TemplateProcessing: kind(
    { single: listOf(templatePiece), pair: withoutEffect, special_tokens: specialTokens },
    ({ single, special_tokens }, at) => {
      const place = single.indexOf(null);
      if (place < 0 || place !== single.lastIndexOf(null))
        throw unknownPart(`${at}.single`, "the page knows templates that have the text once");
      const all = single.map((name) => {
        const ids = name === null ? [] : special_tokens.get(name);
        if (ids === undefined) throw broken(`${at}.special_tokens lacks ${name}`);
        return ids;
      });
      const [before, after] = [all.slice(0, place).flat(), all.slice(place).flat()];
      return (ids) => [...before, ...ids, ...after];
    },
  ),
};

export function postProcessor(value: unknown, at: string): PostProcessor {
  return readPart(POST_PROCESSORS, value, at);
}
