// `llm.chat.completions.create`: a chat with the parameters and the results of OpenAI's chat completions.

import { refused } from "../wire/errors";
import { signal } from "./kinds";
import type { ChatOptions } from "./options";
import { reading, readOptions } from "./arguments";
import { chatOptions, type CompletionParams, message, PARAMETERS, toolsOf } from "./completion_params";
import type { AnswerPart, Message, ToolCall } from "../wire/protocol";
import type { LikelyToken, Run, RunChoice, RunResult, TokenLogprob } from "./run";

export type FinishReason = "stop" | "length" | "tool_calls";

export interface CompletionUsage {
  prompt_tokens: number;
  completion_tokens: number;
  total_tokens: number;
  /** Tokens of the prompt that an earlier run had computed. */
  prompt_tokens_details: { cached_tokens: number };
}

/** A token, its log probability and its bytes in UTF-8, null for a part of a character. */
export interface CompletionToken {
  token: string;
  logprob: number;
  bytes: number[] | null;
}

/** The tokens of the answer, its reasoning included. */
export interface CompletionLogprobs {
  content: (CompletionToken & { top_logprobs: CompletionToken[] })[];
  refusal: null;
}

export interface Completion {
  id: string;
  object: "chat.completion";
  created: number;
  model: string;
  choices: {
    index: number;
    /** `reasoning_content`, as other servers of OpenAI's API name it, is what the model reasoned before its answer. */
    message: {
      role: "assistant";
      content: string | null;
      refusal: null;
      reasoning_content?: string;
      tool_calls?: ToolCall[];
    };
    logprobs: CompletionLogprobs | null;
    finish_reason: FinishReason;
  }[];
  usage: CompletionUsage;
}

export interface CompletionChunk {
  id: string;
  object: "chat.completion.chunk";
  created: number;
  model: string;
  choices: {
    index: number;
    delta: {
      role?: "assistant";
      content?: string;
      reasoning_content?: string;
      tool_calls?: (ToolCall & { index: number })[];
    };
    /** The tokens that came since the last chunk. */
    logprobs?: CompletionLogprobs | null;
    finish_reason: FinishReason | null;
  }[];
  usage?: CompletionUsage | null;
}

/** Chunks as they come; leaving the loop, or `controller.abort()`, ends the run. */
export interface CompletionStream extends AsyncIterable<CompletionChunk> {
  controller: AbortController;
}

export interface CompletionOptions {
  /** Ends the run: the completion has what was generated until then, and the finish reason "stop". */
  signal?: AbortSignal;
}

/** Parameters that change nothing here. */
const OF_SERVERS = ["user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key"] as const;

type Chat = (messages: readonly Message[], options: ChatOptions) => Run;

export class Completions {
  private warned = false;

  constructor(private readonly chat: Chat) {}

  create(params: CompletionParams & { stream: true }, options?: CompletionOptions): Promise<CompletionStream>;
  create(params: CompletionParams & { stream?: false | null }, options?: CompletionOptions): Promise<Completion>;
  async create(asked: CompletionParams, given: CompletionOptions = {}): Promise<Completion | CompletionStream> {
    const params = readOptions("the parameters", asked, PARAMETERS);
    const { signal: ending } = readOptions("the options", given, { signal });
    const controller = new AbortController();
    if (ending?.aborted) controller.abort();
    ending?.addEventListener("abort", () => controller.abort(), { once: true });
    const { messages, options, usage } = reading("the parameters", () => {
      if (params.messages === undefined) throw refused("messages: missing; give a list of messages");
      if (params.stream_options && !params.stream)
        throw refused("stream_options is of a stream, but stream is not true: leave it out, or set stream to true");
      const given = toolsOf(params);
      return {
        messages: params.messages.map((each, place) => message(each, `messages[${place}]`)),
        options: chatOptions(params, given, controller.signal),
        usage: params.stream_options?.include_usage === true,
      };
    });
    this.warn(params);
    const run = this.chat(messages, options);
    const head = {
      id: `chatcmpl-${crypto.randomUUID()}`,
      created: Math.floor(Date.now() / 1000),
      model: params.model ?? "",
    };
    if (!params.stream) return completion(head, await run.result);
    const told = { usage, logprobs: params.logprobs === true };
    return { controller, [Symbol.asyncIterator]: () => chunks(head, run, told) };
  }

  private warn(params: CompletionParams): void {
    const idle = OF_SERVERS.filter((name) => params[name] != null);
    if (!idle.length || this.warned) return;
    this.warned = true;
    console.warn(`chat.completions: ${idle.join(", ")} tell OpenAI's servers something and change nothing here`);
  }
}

function finishReason({ finishReason: reason, toolCalls: calls }: RunChoice): FinishReason {
  if (calls.length) return "tool_calls";
  return reason === "length" ? "length" : "stop";
}

function usageOf({ promptTokens, choices, keptTokens }: RunResult): CompletionUsage {
  const prompt_tokens = promptTokens ?? 0;
  const completion_tokens = choices.reduce((sum, { tokenIds }) => sum + tokenIds.length, 0);
  const prompt_tokens_details = { cached_tokens: keptTokens ?? 0 };
  return { prompt_tokens, completion_tokens, total_tokens: prompt_tokens + completion_tokens, prompt_tokens_details };
}

type Head = Pick<Completion, "id" | "created" | "model">;

function logprobsOf(tokens: readonly TokenLogprob[] | null): CompletionLogprobs | null {
  if (!tokens) return null;
  const told = ({ token, logprob, bytes }: LikelyToken): CompletionToken => ({ token, logprob, bytes });
  const content = tokens.map((each) => ({ ...told(each), top_logprobs: each.topLogprobs.map(told) }));
  return { content, refusal: null };
}

function completion(head: Head, result: RunResult): Completion {
  const choices = result.choices.map((choice, index) => ({ index, ...completed(choice) }));
  return { ...head, object: "chat.completion", choices, usage: usageOf(result) };
}

function completed(choice: RunChoice): Omit<Completion["choices"][number], "index"> {
  const { answer: content, toolCalls: calls } = choice;
  const message = {
    role: "assistant" as const,
    content: calls.length && !content.trim() ? null : content,
    refusal: null,
    ...(choice.reasoning ? { reasoning_content: choice.reasoning } : {}),
    ...(calls.length ? { tool_calls: calls } : {}),
  };
  return { message, logprobs: logprobsOf(choice.logprobs), finish_reason: finishReason(choice) };
}

type Delta = CompletionChunk["choices"][number]["delta"];

/** Makes the chunks of one answer. */
class Chunks {
  private likely = 0;
  private calls = 0;

  constructor(
    private readonly head: Head,
    private readonly run: Run,
    private readonly index: number,
    private readonly asked: { usage: boolean; logprobs: boolean },
  ) {}

  chunk(delta: Delta, finish_reason: FinishReason | null = null): CompletionChunk {
    const { usage, logprobs } = this.asked;
    const tokens = logprobs ? logprobsOf(this.run.logprobs(this.index).slice(this.likely)) : null;
    this.likely += tokens?.content.length ?? 0;
    return {
      ...this.head,
      object: "chat.completion.chunk",
      choices: [{ index: this.index, delta, ...(logprobs ? { logprobs: tokens } : {}), finish_reason }],
      ...(usage ? { usage: null } : {}),
    };
  }

  of({ kind, text, call }: AnswerPart): CompletionChunk {
    if (call) return this.chunk({ tool_calls: [{ index: this.calls++, ...call }] });
    return kind === "reasoning" ? this.chunk({ reasoning_content: text }) : this.chunk({ content: text });
  }

  end(choice: RunChoice): CompletionChunk {
    return this.chunk({}, finishReason(choice));
  }
}

async function* chunks(
  head: Head,
  run: Run,
  asked: { usage: boolean; logprobs: boolean },
): AsyncGenerator<CompletionChunk> {
  const makers = Array.from({ length: run.count }, (_, index) => new Chunks(head, run, index, asked));
  for (const maker of makers) yield maker.chunk({ role: "assistant", content: "" });
  for await (const { choice, ...part } of run.split()) yield makers[choice]!.of(part);
  const result = await run.result;
  for (const [index, maker] of makers.entries()) yield maker.end(result.choices[index]!);
  if (asked.usage) yield { ...head, object: "chat.completion.chunk", choices: [], usage: usageOf(result) };
}
