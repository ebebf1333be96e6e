// The sentences of a text, of one that comes in parts as soon as each is whole.

/** A text, or its parts as they come, such as an answer. */
export type SpokenText = string | AsyncIterable<string>;

/** The places between sentences; py_src/capstan/speech/phonemes.py has the same. */
const BETWEEN =
  /(?:(?<=[.!?…])|(?<=[.!?…]["'”’)\]]))(?<!\b(?:Mr|Mrs|Ms|Dr|St|e\.g|i\.e)\.)(?<!(?:^|\n)\d\.)\s+|(?<=[。！？])|\n+/u;

export async function* sentences(text: SpokenText): AsyncGenerator<string, void, undefined> {
  let rest = "";
  for await (const part of typeof text === "string" ? [text] : text) {
    const whole = (rest + part).split(BETWEEN);
    rest = whole.pop()!;
    for (const sentence of whole) if (sentence.trim()) yield sentence;
  }
  if (rest.trim()) yield rest;
}
