// The page's tokenizer as a function of the page, for test_tokenizer_parts.py.

import { makeTokenizer } from "../../web/src/worker/tokenizer_json";

/** The ids of texts, and the texts of rows of ids. */
function tokenize(json: string, texts: string[], rows: number[][]): [ids: number[][], texts: string[]] {
  const tokenizer = makeTokenizer(json);
  const ids = texts.map((text) => Array.from(tokenizer.encode(text, true)));
  return [ids, rows.map((row) => tokenizer.decode(JSON.stringify(row), true))];
}

Object.assign(globalThis, { tokenize });
