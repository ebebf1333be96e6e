/**
 * `capstan-webgpu/ai`: a loaded model for Vercel's AI SDK (npm `ai`), over `llm.chat.completions`.
 *
 * @module ai
 */

import type {
  LanguageModelV2,
  LanguageModelV3,
  LanguageModelV4,
  LanguageModelV4CallOptions,
  LanguageModelV4Content,
  LanguageModelV4FinishReason,
  LanguageModelV4Message,
  LanguageModelV4StreamPart,
  LanguageModelV4Usage,
  SharedV4Warning,
} from "@ai-sdk/provider";
import {
  type Capstan,
  CapstanError,
  type CompletionChunk,
  type CompletionMessage,
  type CompletionParams,
  type CompletionTool,
  type CompletionUsage,
  type ContentPart,
  type FinishReason,
  type Picture,
} from "capstan-webgpu";
import { asV2, asV3, type CapstanModelOptions, requireVersion } from "./ai_versions";
import { oneLine, told } from "../wire/errors";

export type { CapstanModelOptions } from "./ai_versions";
export { capstanTranscription } from "./ai_transcription";

type Llm = Pick<Capstan, "chat">;

/**
 * `streamText({ model: capstanModel(llm), ... })`: a model that Capstan.load loaded, by the AI SDK's language model
 * specification, of a version that suits `ai`. An option that the model does not support becomes a warning of the call; files
 * in messages are pictures, and others are refused with OptionError. A call whose signal aborts rejects with its reason, as the SDK expects.
 */
export function capstanModel(llm: Llm, options: CapstanModelOptions & { specification: "v2" }): LanguageModelV2;
export function capstanModel(llm: Llm, options: CapstanModelOptions & { specification: "v3" }): LanguageModelV3;
export function capstanModel(llm: Llm, options?: CapstanModelOptions & { specification?: "v4" }): LanguageModelV4;
export function capstanModel(
  llm: Llm,
  { modelId = "local", specification = "v4" }: CapstanModelOptions = {},
): LanguageModelV2 | LanguageModelV3 | LanguageModelV4 {
  requireVersion(specification);
  const versions = { v2: asV2, v3: asV3, v4: (model: LanguageModelV4) => model };
  if (typeof llm?.chat?.completions?.create !== "function")
    throw optionError("the model is not one that Capstan.load gave; give what its promise resolves to");
  return versions[specification](latest(llm, modelId));
}

function latest(llm: Llm, modelId: string): LanguageModelV4 {
  async function* chunksOf(
    options: LanguageModelV4CallOptions,
    params: CompletionParams,
  ): AsyncGenerator<CompletionChunk> {
    const { abortSignal: signal } = options;
    signal?.throwIfAborted();
    const stream = { include_usage: true };
    const asked = { ...params, model: modelId, stream: true as const, stream_options: stream };
    yield* await llm.chat.completions.create(asked, signal ? { signal } : {});
    signal?.throwIfAborted();
  }
  return {
    specificationVersion: "v4",
    provider: "capstan",
    modelId,
    supportedUrls: {},
    async doGenerate(options) {
      const { params, warnings } = paramsOf(options);
      const content: LanguageModelV4Content[] = [];
      let text = "";
      let reasoning = "";
      let end: Extract<LanguageModelV4StreamPart, { type: "finish" }> | undefined;
      for await (const part of partsOf(chunksOf(options, params), false)) {
        if (part.type === "text-delta") text += part.delta;
        else if (part.type === "reasoning-delta") reasoning += part.delta;
        else if (part.type === "tool-call") content.push(part);
        else if (part.type === "finish") end = part;
      }
      if (text) content.unshift({ type: "text", text });
      if (reasoning) content.unshift({ type: "reasoning", text: reasoning });
      const { finishReason, usage } = end!;
      return { content, finishReason, usage, warnings, request: { body: params }, response: { modelId } };
    },
    async doStream(options) {
      const { params, warnings } = paramsOf(options);
      const parts = partsOf(chunksOf(options, params), options.includeRawChunks === true);
      const stream = new ReadableStream<LanguageModelV4StreamPart>({
        start: (controller) => controller.enqueue({ type: "stream-start", warnings }),
        async pull(controller) {
          try {
            const { done, value } = await parts.next();
            if (done) controller.close();
            else controller.enqueue(value);
          } catch (error) {
            controller.error(error);
          }
        },
        cancel: async () => void (await parts.return(undefined)),
      });
      return { stream, request: { body: params } };
    },
  };
}

/** Turns OpenAI's chunks into the SDK's parts. */
async function* partsOf(
  chunks: AsyncGenerator<CompletionChunk>,
  raw: boolean,
): AsyncGenerator<LanguageModelV4StreamPart, void, undefined> {
  let named = false;
  let open: "text" | "reasoning" | null = null;
  let reason: FinishReason | null = null;
  let usage: CompletionUsage | null = null;
  for await (const chunk of chunks) {
    if (raw) yield { type: "raw", rawValue: chunk };
    if (!named)
      yield {
        type: "response-metadata",
        id: chunk.id,
        timestamp: new Date(chunk.created * 1000),
        modelId: chunk.model,
      };
    named = true;
    usage = chunk.usage ?? usage;
    const [choice] = chunk.choices;
    if (!choice) continue;
    reason = choice.finish_reason ?? reason;
    const { content: text, reasoning_content: reasoning } = choice.delta;
    const delta = reasoning ?? text;
    if (delta) {
      const kind = reasoning ? "reasoning" : "text";
      if (open && open !== kind) yield { type: `${open}-end`, id: open };
      if (open !== kind) yield { type: `${kind}-start`, id: kind };
      open = kind;
      yield { type: `${kind}-delta`, id: kind, delta };
    }
    for (const { id, function: called } of choice.delta.tool_calls ?? []) {
      const { name: toolName, arguments: input } = called;
      yield { type: "tool-input-start", id, toolName };
      yield { type: "tool-input-delta", id, delta: input };
      yield { type: "tool-input-end", id };
      yield { type: "tool-call", toolCallId: id, toolName, input };
    }
  }
  if (open) yield { type: `${open}-end`, id: open };
  yield { type: "finish", finishReason: finishReason(reason), usage: usageOf(usage) };
}

function finishReason(raw: FinishReason | null): LanguageModelV4FinishReason {
  return { unified: raw === "tool_calls" ? "tool-calls" : (raw ?? "other"), raw: raw ?? undefined };
}

function usageOf(usage: CompletionUsage | null): LanguageModelV4Usage {
  const { prompt_tokens: total, completion_tokens: made } = usage ?? {};
  const cacheRead = usage?.prompt_tokens_details.cached_tokens;
  const noCache = total === undefined ? undefined : total - (cacheRead ?? 0);
  return {
    inputTokens: { total, noCache, cacheRead, cacheWrite: undefined },
    outputTokens: { total: made, text: made, reasoning: undefined },
  };
}

interface Asked {
  params: CompletionParams;
  warnings: SharedV4Warning[];
}

/**
 * A call of the SDK with OpenAI's parameters, and what of it is left out. Values that the SDK's types do not have are passed
 * on, for `completions.create` to refuse.
 */
function paramsOf(options: LanguageModelV4CallOptions): Asked {
  try {
    return translated(options);
  } catch (error) {
    if (error instanceof CapstanError) throw error;
    throw optionError(`the call cannot be read (${told(error)}); give it in the SDK's form`);
  }
}

function translated(options: LanguageModelV4CallOptions): Asked {
  const warnings: SharedV4Warning[] = [];
  const unsupported = (feature: string, details: string): void =>
    void warnings.push({ type: "unsupported", feature, details });
  const params: CompletionParams = { messages: options.prompt.flatMap(messagesOf) };
  const given: Partial<CompletionParams> = {
    temperature: options.temperature ?? null,
    top_p: options.topP ?? null,
    top_k: options.topK ?? null,
    seed: options.seed ?? null,
    stop: options.stopSequences ?? null,
    max_completion_tokens: options.maxOutputTokens ?? null,
    frequency_penalty: options.frequencyPenalty ?? null,
    presence_penalty: options.presencePenalty ?? null,
  };
  for (const [name, value] of Object.entries(given)) if (value !== null) Object.assign(params, { [name]: value });
  const tools: CompletionTool[] = [];
  for (const tool of options.tools ?? []) {
    if (tool.type === "provider") {
      unsupported(`tool ${tool.id}`, "a model in a page has no tools of its own; define functions");
      continue;
    }
    const { type, name, description, inputSchema } = tool;
    const parameters = inputSchema as Record<string, unknown>;
    tools.push({ type, function: { name, ...(description ? { description } : {}), parameters } });
  }
  const choice = options.toolChoice ?? { type: "auto" };
  if (tools.length) params.tools = tools;
  if (tools.length || choice.type !== "auto")
    params.tool_choice =
      choice.type === "tool" ? { type: "function", function: { name: choice.toolName } } : choice.type;
  const format = options.responseFormat;
  if (format && format.type !== "json") params.response_format = format;
  else if (format) {
    const { schema, name = "response" } = format;
    params.response_format = schema
      ? { type: "json_schema", json_schema: { name, schema: schema as Record<string, unknown> } }
      : { type: "json_object" };
    if (tools.length && params.tool_choice === "auto")
      unsupported("tools with a JSON response", "the output is held to its schema, so that no tool is called");
  }
  if (options.reasoning !== undefined && options.reasoning !== "provider-default")
    unsupported("reasoning", "set providerOptions.capstan.thinking or reasoningEffort, if the chat template knows it");
  const { thinking, reasoningEffort, chatTemplateKwargs, ...others } = options.providerOptions?.["capstan"] ?? {};
  // Completions check their types.
  if (reasoningEffort != null) params.reasoning_effort = reasoningEffort as string;
  if (chatTemplateKwargs != null || thinking != null) {
    const variables = chatTemplateKwargs as Record<string, unknown> | undefined;
    params.chat_template_kwargs = { ...variables, ...(thinking == null ? {} : { enable_thinking: thinking }) };
  }
  if (Object.keys(others).length)
    unsupported(
      `providerOptions.capstan: ${Object.keys(others).join(", ")}`,
      "there are thinking, reasoningEffort and chatTemplateKwargs",
    );
  return { params, warnings };
}

function messagesOf(message: LanguageModelV4Message): CompletionMessage[] {
  if (message.role === "system") return [{ role: "system", content: message.content }];
  const parts: ContentPart[] = [];
  const calls: NonNullable<CompletionMessage["tool_calls"]>[number][] = [];
  const results: CompletionMessage[] = [];
  for (const part of message.content) {
    if (part.type === "text") parts.push({ type: "text", text: part.text });
    else if (part.type === "file") parts.push(pictureOf(part));
    // Templates leave out what was thought in earlier turns, and who allowed a call is for the page to know.
    else if (part.type === "reasoning" || part.type === "tool-approval-response") continue;
    else if (part.type === "tool-call")
      calls.push({
        id: part.toolCallId,
        type: "function",
        function: { name: part.toolName, arguments: JSON.stringify(part.input ?? {}) },
      });
    else if (part.type === "tool-result")
      results.push({ role: "tool", tool_call_id: part.toolCallId, name: part.toolName, content: textOf(part.output) });
    else throw refused(part.type);
  }
  if (message.role === "tool") return results;
  return [{ role: message.role, content: parts, ...(calls.length ? { tool_calls: calls } : {}) }, ...results];
}

/** A file of a message; before specification 4 its data had no object around them. */
function pictureOf({ data, mediaType }: { data: unknown; mediaType: string }): ContentPart {
  const inObject = typeof data === "object" && data !== null && "type" in data;
  const { type, url, data: bytes } = (inObject ? data : { type: "data", data }) as Record<string, unknown>;
  const content = url ?? bytes;
  if (content === undefined) throw refused(`file, ${String(type)}`);
  const base64 = typeof content === "string" && !content.startsWith("data:");
  return { type: "file", mediaType, data: (base64 ? `data:${mediaType};base64,${content}` : content) as Picture };
}

type Output = Extract<
  Extract<LanguageModelV4Message, { role: "tool" }>["content"][number],
  { type: "tool-result" }
>["output"];

/** A tool's output as text. */
function textOf(output: Output): string {
  if (output.type === "text" || output.type === "error-text") return output.value;
  if (output.type === "json" || output.type === "error-json") return JSON.stringify(output.value);
  if (output.type === "execution-denied") return output.reason ?? "the user denied this call";
  if (output.type !== "content") throw refused((output as { type: unknown }).type);
  return output.value
    .map((part) => {
      if (part.type !== "text") throw refused(part.type);
      return part.text;
    })
    .join("");
}

function refused(type: unknown): CapstanError {
  return optionError(
    `a part of a message is of type ${JSON.stringify(type)}; a model reads texts, and pictures if it sees: leave it out`,
  );
}

function optionError(message: string): CapstanError {
  return new CapstanError({ type: "OptionError", message: oneLine(message) });
}
