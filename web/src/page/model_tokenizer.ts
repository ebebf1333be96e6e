// `llm.tokenizer`: the tokenizer of a loaded model.

import { ids, read, text } from "./kinds";
import { messageList, requested } from "./options";
import { takePictures } from "./pictures";
import { refused } from "../wire/errors";
import { TEMPLATE_KINDS, type TemplateOptions } from "./run_options";
import { reading, readOptions } from "./arguments";
import type {
  Message,
  ModelRequest,
  TemplateOptions as Asked,
  TokenizerRequest,
  TokenizerResult,
} from "../wire/protocol";

type Given = Omit<TokenizerRequest, "kind" | "action" | keyof ModelRequest>;
type Ask = (action: TokenizerRequest["action"], given: Given) => Promise<TokenizerResult>;

/** Text to token ids and back, in the model's worker, after the runs that were requested before. */
export class Tokenizer {
  constructor(private readonly ask: Ask) {}

  /** The token ids of a text; no special tokens are added. */
  async encode(given: string): Promise<number[]> {
    return (await this.ask("encode", { text: read("the text", given, text) as string })).ids!;
  }

  /** The text of token ids, without special tokens. */
  async decode(given: readonly number[]): Promise<string> {
    return (await this.ask("decode", { ids: reading("ids", () => read("ids", given, ids) as number[]) })).text;
  }

  /** The number of tokens of a text, or of the prompt that messages make. */
  async count(given: string | readonly Message[], options: TemplateOptions = {}): Promise<number> {
    if (typeof given === "string") return (await this.encode(given)).length;
    const { ids: found, pictures } = await this.rendered(given, options);
    if (pictures.length)
      throw refused("the messages have pictures, whose tokens are known in an answer only: leave them out");
    return found!.length;
  }

  /** The prompt that messages make by the model's chat template. Rejects with ConfigError if it has none. */
  async template(messages: readonly Message[], options: TemplateOptions = {}): Promise<string> {
    return (await this.rendered(messages, options)).text;
  }

  private async rendered(
    messages: readonly Message[],
    given: TemplateOptions,
  ): Promise<TokenizerResult & { pictures: readonly unknown[] }> {
    const options = readOptions("the options", given, TEMPLATE_KINDS);
    const listed = reading("messages", () => read("messages", messages, messageList) as Message[]);
    const { messages: bare, pictures } = reading("messages", () => takePictures(listed));
    return {
      ...(await this.ask("template", { messages: bare, ...requested<Asked>(options, TEMPLATE_KINDS) })),
      pictures,
    };
  }
}
