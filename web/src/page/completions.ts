// `llm.chat.completions.create`: a chat with the parameters and the results of OpenAI's chat completions.

import { refused } from "../wire/errors";
import {
  anything,
  either,
  fields,
  flag,
  type Kinds,
  listOf,
  number,
  object,
  oneOf,
  plain,
  signal,
  text,
  typed,
} from "./kinds";
import { answers, type ChatOptions, stops, topLogprobs } from "./options";
import { reading, readOptions } from "./arguments";
import { SEARCH_PARAMS, type SearchParams } from "../wire/search_options";
import type { AnswerPart, ContentPart, Message, ToolCall } from "../wire/protocol";
import type { LikelyToken, Run, RunChoice, RunResult, TokenLogprob } from "./run";

/** A message as OpenAI's clients write it. Content parts are texts and, for a model that sees, pictures; `arguments` of a tool call are JSON. */
export interface CompletionMessage {
  role: string;
  content?: string | readonly (ContentPart | { type: string })[] | null;
  tool_calls?: readonly { id: string; type: string; function?: { name: string; arguments: string } }[];
  tool_call_id?: string;
  name?: string;
}

/** A function that the model may call. */
export interface CompletionTool {
  type: "function";
  function: { name: string; description?: string; parameters?: Record<string, unknown> };
}

type ToolChoice = "none" | "auto" | "required" | { type: "function"; function: { name: string } };

/** The supported parameters of OpenAI's API; all others are refused. null counts as left out. */
export interface CompletionParams extends SearchParams {
  messages: readonly CompletionMessage[];
  /** Named in the result; the model that was loaded answers. */
  model?: string;
  stream?: boolean | null;
  /** With `include_usage` a last chunk has the usage. */
  stream_options?: { include_usage?: boolean } | null;
  stop?: string | string[] | null;
  max_tokens?: number | null;
  max_completion_tokens?: number | null;
  /** By token ids. */
  logit_bias?: Record<string, number> | null;
  /** So many answers, up to 32, sampled side by side as rows of one batch. */
  n?: number | null;
  /** Tell each token's log probability; each token then waits for its logits. */
  logprobs?: boolean | null;
  /** With `logprobs`: so many of the most probable tokens besides each token, 0 to 20. */
  top_logprobs?: number | null;
  /** A variable of chat templates that know it, such as gpt-oss'. */
  reasoning_effort?: string | null;
  /** Not OpenAI's: variables of the chat template; `enable_thinking` is the option `thinking`. */
  chat_template_kwargs?: Record<string, unknown> | null;
  /** With false the first call of an answer counts; others stay in its text. */
  parallel_tool_calls?: boolean;
  /** These tell OpenAI's servers who asks and what to keep. They change nothing here, which a warning says once. */
  user?: string | null;
  store?: boolean | null;
  metadata?: Record<string, string> | null;
  service_tier?: string | null;
  safety_identifier?: string | null;
  prompt_cache_key?: string | null;
  /** Functions; custom tools are refused. */
  tools?: readonly (CompletionTool | { type: "custom"; custom: unknown })[];
  /** Allowed and custom tools are refused. */
  tool_choice?: ToolChoice | { type: "allowed_tools"; allowed_tools: unknown } | { type: "custom"; custom: unknown };
  response_format?:
    | { type: "text" }
    | { type: "json_object" }
    | { type: "json_schema"; json_schema: { name: string; schema?: Record<string, unknown>; strict?: boolean | null } };
}

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

/** The fields of pictures are read with those of other chats. */
const parts = listOf(
  "parts",
  typed(
    {
      text: [{ text }, ["text"]],
      image_url: [{ image_url: anything }, ["image_url"]],
      image: [{ image: anything }, ["image"]],
      file: [{ data: anything, mediaType: text, filename: text }, ["data", "mediaType"]],
    },
    "no model hears in a chat, and Capstan.loadTranscriber turns speech into text",
  ),
);
const called = fields({ name: text, arguments: text }, { needed: ["name", "arguments"], others: plain });
const call = fields(
  { id: text, type: oneOf("function"), function: called },
  { needed: ["type", "function"], others: plain },
);
/** Templates know other fields. */
const messageKind = fields(
  { role: text, content: either(text, parts), tool_calls: listOf("calls", call), tool_call_id: text, name: text },
  { needed: ["role"], others: plain },
);
/** `return` and `response` are the template's fields of a result. */
const described: Kinds = { description: text, parameters: object, strict: flag, return: object, response: object };
const tool = typed(
  { function: [{ function: fields({ name: text, ...described }, { needed: ["name"] }) }, ["function"]] },
  "only functions are called",
);
const chosen = fields({ name: text }, { needed: ["name"] });
const schema = fields({ name: text, description: text, schema: object, strict: flag });
type Searching = typeof SEARCH_PARAMS;
/** The search's parameters and their options. */
const SEARCH = Object.entries(SEARCH_PARAMS) as [keyof Searching, Searching[keyof Searching]][];
/** The kinds of CompletionParams. */
const PARAMETERS: Kinds = {
  messages: listOf("messages", messageKind),
  ...{ model: text, stream: flag, stream_options: fields({ include_usage: flag }) },
  ...Object.fromEntries(SEARCH.map(([name]) => [name, number])),
  ...{ stop: stops, max_tokens: number, max_completion_tokens: number, logit_bias: fields({}, { others: number }) },
  ...{ n: answers, logprobs: flag, top_logprobs: topLogprobs },
  chat_template_kwargs: fields({ enable_thinking: flag }, { others: plain }),
  reasoning_effort: text,
  tools: listOf("tools", tool),
  tool_choice: either(
    oneOf("none", "auto", "required"),
    typed({ function: [{ function: chosen }, ["function"]] }, "only functions are called"),
  ),
  parallel_tool_calls: flag,
  response_format: typed({ text: [{}], json_object: [{}], json_schema: [{ json_schema: schema }, ["json_schema"]] }),
  ...{ user: text, store: flag, metadata: object, service_tier: text, safety_identifier: text, prompt_cache_key: text },
};
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

/** A message as chat templates take it; `place` is its name in messages of errors. */
function message({ role, content, tool_calls: calls, ...rest }: CompletionMessage, place: string): Message {
  const others = [calls?.length || null, ...Object.values(rest)];
  if (content === undefined && !(role === "assistant" && others.some((value) => value !== null)))
    throw refused(`${place}.content: missing; only an assistant's message with tool_calls may have none`);
  const parts = (typeof content === "string" ? [{ type: "text", text: content }] : (content ?? [])) as ContentPart[];
  // Some templates take texts alone.
  const texts = parts.flatMap((part) => (part.type === "text" ? [part.text] : []));
  return {
    // Templates know the older name.
    role: role === "developer" ? "system" : role,
    content: texts.length === parts.length ? texts.join("") : parts,
    ...(calls ? { tool_calls: calls.map(templateCall) } : {}),
    ...rest,
  };
}

/** Templates write the arguments as JSON themselves. */
function templateCall({ function: called, ...rest }: NonNullable<CompletionMessage["tool_calls"]>[number]): unknown {
  const { name, arguments: json, ...others } = called!;
  const given = parsed(json);
  if (typeof given !== "object" || given === null || Array.isArray(given))
    throw refused(`messages: the arguments of the call of ${name} are no JSON object: ${json.slice(0, 80)}`);
  return { ...rest, function: { name, arguments: given, ...others } };
}

function parsed(json: string): unknown {
  try {
    return JSON.parse(json);
  } catch {
    return undefined;
  }
}

interface Tools {
  tools: readonly CompletionTool[];
  choice: ToolChoice;
}

function toolsOf({ tools = [], tool_choice: choice = "auto" }: CompletionParams): Tools {
  return { tools: tools as readonly CompletionTool[], choice: choice as ToolChoice };
}

/** Whether the model may make calls, or has to make one. */
function callsOf({ tools, choice }: Tools): "none" | "auto" | "required" {
  if (typeof choice === "object" && !tools.some((tool) => tool.function.name === choice.function.name))
    throw refused(`tool_choice: ${JSON.stringify(choice.function.name)} is none of the tools`);
  if (!tools.length && choice === "required") throw refused('tool_choice is "required", but there are no tools');
  if (!tools.length || choice === "none") return "none";
  return choice === "auto" ? "auto" : "required";
}

function chatOptions(params: CompletionParams, { tools, choice }: Tools, signal: AbortSignal): ChatOptions {
  const calls = callsOf({ tools, choice });
  const { response_format: format } = params;
  const options: ChatOptions = { signal };
  if (params.n != null) options.n = params.n;
  if (params.logprobs) options.logprobs = true;
  if (params.top_logprobs != null) options.topLogprobs = params.top_logprobs;
  const { enable_thinking: thinking, ...variables } = params.chat_template_kwargs ?? {};
  // Options are checked where they are read.
  if (thinking != null) options.thinking = thinking as boolean;
  if (params.reasoning_effort != null) {
    if ("reasoning_effort" in variables)
      throw refused("reasoning_effort stands in chat_template_kwargs, too; give it once");
    variables["reasoning_effort"] = params.reasoning_effort;
  }
  if (Object.keys(variables).length) options.chatTemplateKwargs = variables;
  for (const [name, option] of SEARCH) if (params[name] != null) options[option] = params[name];
  if (params.stop != null) options.stop = params.stop;
  const most = params.max_completion_tokens ?? params.max_tokens;
  if (most != null) options.maxTokens = most;
  if (params.logit_bias != null) options.search = { logit_bias: params.logit_bias };
  if (calls !== "none") options.tools = [...tools];
  if (calls !== "none" && params.parallel_tool_calls === false) options.parallelToolCalls = false;
  if (calls === "required") {
    if (format && format.type !== "text")
      throw refused("response_format: a tool call is asked for; give one of the two");
    options.toolChoice = typeof choice === "object" ? { name: choice.function.name } : "required";
  } else if (format?.type === "json_object") options.jsonSchema = { type: "object" };
  else if (format?.type === "json_schema") options.jsonSchema = format.json_schema.schema ?? {};
  return options;
}

function finishReason({ finishReason: reason, toolCalls: calls }: RunChoice): FinishReason {
  if (calls.length) return "tool_calls";
  return reason === "length" || reason === "max_new_tokens" ? "length" : "stop";
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
