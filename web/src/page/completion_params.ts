// The parameters of OpenAI's chat completions: their types, their checks, and the chat options.

import { refused } from "../wire/errors";
import { anything, either, fields, flag, type Kinds, listOf, number, object, oneOf, plain, text, typed } from "./kinds";
import { answers, type ChatOptions, stops, topLogprobs } from "./options";
import { SEARCH_PARAMS, type SearchParams } from "../wire/search_options";
import type { ContentPart, Message } from "../wire/protocol";

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
  /** The number of answers, up to 32, sampled side by side as rows of one batch. */
  n?: number | null;
  /** Give each token's log probability; each token then waits for its logits. */
  logprobs?: boolean | null;
  /** With `logprobs`: the number of most probable tokens besides each token, 0 to 20. */
  top_logprobs?: number | null;
  /** A variable of chat templates that know it, such as gpt-oss'. */
  reasoning_effort?: string | null;
  /** Not OpenAI's: variables of the chat template; `enable_thinking` is the option `thinking`. */
  chat_template_kwargs?: Record<string, unknown> | null;
  /** Not OpenAI's: whether the answer continues the last message, which is the assistant's. */
  continue_final_message?: boolean | null;
  /** With false the first call of an answer counts; others stay in its text. */
  parallel_tool_calls?: boolean;
  /**
   * These identify the caller to OpenAI's servers and control what they keep. They have no effect here; a warning says
   * so once.
   */
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
export const PARAMETERS: Kinds = {
  messages: listOf("messages", messageKind),
  ...{ model: text, stream: flag, stream_options: fields({ include_usage: flag }) },
  ...Object.fromEntries(SEARCH.map(([name]) => [name, number])),
  ...{ stop: stops, max_tokens: number, max_completion_tokens: number, logit_bias: fields({}, { others: number }) },
  ...{ n: answers, logprobs: flag, top_logprobs: topLogprobs },
  chat_template_kwargs: fields({ enable_thinking: flag }, { others: plain }),
  continue_final_message: flag,
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
/** A message as chat templates take it; `place` is its name in messages of errors. */
export function message({ role, content, tool_calls: calls, ...rest }: CompletionMessage, place: string): Message {
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

export function toolsOf({ tools = [], tool_choice: choice = "auto" }: CompletionParams): Tools {
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

export function chatOptions(params: CompletionParams, { tools, choice }: Tools, signal: AbortSignal): ChatOptions {
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
  if (params.continue_final_message) options.continueFinalMessage = true;
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
      throw refused("response_format: a tool call is requested; give one of the two");
    options.toolChoice = typeof choice === "object" ? { name: choice.function.name } : "required";
  } else if (format?.type === "json_object") options.jsonSchema = { type: "object" };
  else if (format?.type === "json_schema") options.jsonSchema = format.json_schema.schema ?? {};
  return options;
}
