// The tokenizer, as the object that PageBackend in py_src/capstan/_js/tokenizer.py calls.

import { Tokenizer } from "@huggingface/tokenizers";

/** Arguments and results are strings, numbers and typed arrays only, so that nothing needs a proxy across to Python. */
export interface PageTokenizer {
  /** Token ids of a text; `addSpecial` lets the post-processor add bos and eos. */
  encode(text: string, addSpecial: boolean): Int32Array;
  /** Text of token ids, given as a JSON array; ids without a token are left out, special ones too if `skipSpecial`. */
  decode(ids: string, skipSpecial: boolean): string;
}

/** Build a tokenizer from the contents of tokenizer.json and tokenizer_config.json; throws if it has parts unknown here. */
export function makeTokenizer(tokenizerJson: string, tokenizerConfigJson: string): PageTokenizer {
  const tokenizer = new Tokenizer(JSON.parse(tokenizerJson) as object, JSON.parse(tokenizerConfigJson) as object);
  return {
    encode(text, addSpecial) {
      if (text === "" && !addSpecial) return new Int32Array(0);
      return Int32Array.from(tokenizer.encode(text, { add_special_tokens: addSpecial }).ids);
    },
    decode(ids, skipSpecial) {
      const known = (JSON.parse(ids) as number[]).filter((id) => tokenizer.id_to_token(id) !== undefined);
      if (known.length === 0) return "";
      return tokenizer.decode(known, { skip_special_tokens: skipSpecial, clean_up_tokenization_spaces: false });
    },
  };
}
