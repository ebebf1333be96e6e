// Answers calls on web/src/worker/tokenizer_json.ts's tokenizer, one JSON line each way, for tests/page_tokenizer.py.

import { createInterface } from "node:readline";
import { makeTokenizer } from "../../web/src/worker/tokenizer_json.ts";

const tokenizers = [];

const calls = {
  make: (tokenizer) => tokenizers.push(makeTokenizer(tokenizer)) - 1,
  encode: (index, text, addSpecial) => Array.from(tokenizers[index].encode(text, addSpecial)),
  decode: (index, ids, skipSpecial) => tokenizers[index].decode(ids, skipSpecial),
};

for await (const line of createInterface({ input: process.stdin })) {
  const [name, ...args] = JSON.parse(line);
  let answer;
  try {
    answer = { result: calls[name](...args) };
  } catch (error) {
    answer = { error: error.message, code: error.code };
  }
  process.stdout.write(JSON.stringify(answer) + "\n");
}
