// `llm.tokenizer`: the tokenizer of a loaded model.

import { refused } from "./errors";
import { type OptionTypes, reading, readOptions, shown } from "./page_request";
import type { Message, TokenizerRequest, TokenizerResult } from "./protocol";

export interface TemplateOptions {
  /** The tools that the model may call, as in ChatOptions. */
  tools?: readonly object[];
  thinking?: boolean;
}

const TEMPLATE_TYPES: OptionTypes = { tools: "object", thinking: "boolean" };

type Given = Pick<TokenizerRequest, "text" | "ids" | "messages" | "tools" | "thinking">;
type Ask = (action: TokenizerRequest["action"], given: Given) => Promise<TokenizerResult>;

/** Text to token ids and back, in the model's worker, after the runs that were asked for before. */
export class Tokenizer {
  constructor(private readonly ask: Ask) {}

  /** The token ids of a text; no special tokens are added. */
  async encode(text: string): Promise<number[]> {
    return (await this.ask("encode", { text: requireText(text) })).ids!;
  }

  /** The text of token ids, without special tokens. */
  async decode(ids: readonly number[]): Promise<string> {
    if (!Array.isArray(ids) && !ArrayBuffer.isView(ids))
      throw refused(`ids is ${shown(ids)}; it must be a list of token ids`);
    return (await this.ask("decode", { ids: [...ids] })).text;
  }

  /** The number of tokens of a text, or of the prompt that messages make. */
  async count(given: string | readonly Message[], options: TemplateOptions = {}): Promise<number> {
    if (typeof given === "string") return (await this.encode(given)).length;
    return (await this.rendered(given, options)).ids!.length;
  }

  /** The prompt that messages make by the model's chat template. Rejects with ConfigError if it has none. */
  async template(messages: readonly Message[], options: TemplateOptions = {}): Promise<string> {
    return (await this.rendered(messages, options)).text;
  }

  private async rendered(messages: readonly Message[], given: TemplateOptions): Promise<TokenizerResult> {
    if (!Array.isArray(messages))
      throw refused(`messages is ${shown(messages)}; it must be a list of objects with role and content`);
    const { tools, thinking } = readOptions("the options", given, TEMPLATE_TYPES);
    const listed = reading("messages and tools", () => ({ messages: [...messages], tools: tools ? [...tools] : null }));
    return this.ask("template", { ...listed, ...(thinking === undefined ? {} : { thinking }) });
  }
}

function requireText(text: string): string {
  if (typeof text !== "string") throw refused(`the text is ${shown(text)}; it must be a string`);
  return text;
}
