// `llm.score`: how probable a given text is to the model, token by token.

import { type Kinds, number, read, text } from "./kinds";
import { scoreRequest, type ModelOptions } from "./options";
import { reading, readOptions } from "./arguments";
import type { ModelFolder, ScoreRequest, ScoreResult } from "../wire/protocol";

export interface ScoreOptions {
  /**
   * The text before, which is not scored; spaces at its end count as the text's. Without it the text is after the token
   * with which the model's texts begin.
   */
  context?: string;
  /** Tokens of text and context together; as `maxLength` of the load unless given, else 4096 or the model's context. */
  maxLength?: number;
}

/** A token of a text that was scored. */
export interface ScoredToken {
  id: number;
  /** The part of the text that it adds. */
  text: string;
  /** The natural logarithm of its probability by the logits as the model gave them. */
  logprob: number;
  /** Whether it was the most probable token there. */
  greedy: boolean;
}

/** The probability of a text. */
export interface Scored {
  tokens: ScoredToken[];
  /** The sum over the tokens. */
  logprob: number;
  /** Whether all tokens were the most probable ones. */
  greedy: boolean;
}

const KINDS: Kinds = { context: text, maxLength: number };

/** The request that scores a text. Throws OptionError. */
export function scoring(model: ModelFolder, options: ModelOptions, scored: string, given: ScoreOptions): ScoreRequest {
  const { context, maxLength = options.maxLength } = readOptions("the options", given, KINDS);
  const said = read("the text", scored, text) as string;
  return reading("the options", () => scoreRequest(model, options, said, context ?? null, maxLength ?? null));
}

/** The answer to such a request. */
export function scoredText({ sequences }: ScoreResult): Scored {
  const [{ token_ids, log_probabilities, greedy, texts = [] }] = sequences as [ScoreResult["sequences"][number]];
  const tokens = token_ids.map((id, at) => ({
    id,
    text: texts[at]!,
    logprob: log_probabilities[at]!,
    greedy: greedy[at]!,
  }));
  return {
    tokens,
    logprob: log_probabilities.reduce((sum, each) => sum + each, 0),
    greedy: greedy.every(Boolean),
  };
}
