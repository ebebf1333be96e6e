// A model of the AI SDK's specification 4 for its versions before: `ai` 6 has specification 3, `ai` 5 has 2.

import type {
  LanguageModelV2,
  LanguageModelV2CallOptions,
  LanguageModelV2CallWarning,
  LanguageModelV2FinishReason,
  LanguageModelV2StreamPart,
  LanguageModelV2Usage,
  LanguageModelV3,
  LanguageModelV4,
  LanguageModelV4CallOptions,
  LanguageModelV4FinishReason,
  LanguageModelV4StreamPart,
  LanguageModelV4Usage,
  SharedV4Warning,
} from "@ai-sdk/provider";
import { CapstanError } from "capstan-webgpu";

export interface CapstanModelOptions {
  /** The model's name in the AI SDK's results and telemetry. */
  modelId?: string;
  /** The version of the SDK's specification: "v4" (unless given) for `ai` 7, "v3" for 6, "v2" for 5. */
  specification?: "v2" | "v3" | "v4";
}

/** Throw an OptionError for another version. */
export function requireVersion(specification: unknown): void {
  if (["v2", "v3", "v4"].includes(specification as string)) return;
  const message = `specification is ${JSON.stringify(specification)}; it must be "v4" (ai 7), "v3" (ai 6) or "v2" (ai 5)`;
  throw new CapstanError({ type: "OptionError", message });
}

/** Specification 3 differs in parts that the model neither takes nor gives. */
export function asV3(model: LanguageModelV4): LanguageModelV3 {
  return { ...model, specificationVersion: "v3" } as unknown as LanguageModelV3;
}

/** Specification 2 has other names for what a call took, why it ended, and what was left out. */
export function asV2(model: LanguageModelV4): LanguageModelV2 {
  const { provider, modelId, supportedUrls } = model;
  return {
    ...{ specificationVersion: "v2", provider, modelId, supportedUrls },
    async doGenerate(options) {
      const { finishReason, usage, warnings, ...rest } = await model.doGenerate(callOfV2(options));
      const told = { finishReason: reason(finishReason), usage: used(usage), warnings: warnings.map(warning) };
      return { ...rest, ...told } as unknown as Awaited<ReturnType<LanguageModelV2["doGenerate"]>>;
    },
    async doStream(options) {
      const { stream, ...rest } = await model.doStream(callOfV2(options));
      const older = new TransformStream<LanguageModelV4StreamPart, LanguageModelV2StreamPart>({
        transform: (part, controller) => controller.enqueue(partOfV2(part)),
      });
      return { ...rest, stream: stream.pipeThrough(older) } as Awaited<ReturnType<LanguageModelV2["doStream"]>>;
    },
  };
}

function callOfV2({ tools, ...rest }: LanguageModelV2CallOptions): LanguageModelV4CallOptions {
  const named = tools?.map((tool) => (tool.type === "provider-defined" ? { ...tool, type: "provider" } : tool));
  return { ...rest, ...(named ? { tools: named } : {}) } as unknown as LanguageModelV4CallOptions;
}

function partOfV2(part: LanguageModelV4StreamPart): LanguageModelV2StreamPart {
  if (part.type === "stream-start") return { ...part, warnings: part.warnings.map(warning) };
  if (part.type !== "finish") return part as LanguageModelV2StreamPart;
  const { finishReason, usage, type } = part;
  return { type, finishReason: reason(finishReason), usage: used(usage) };
}

function reason({ unified }: LanguageModelV4FinishReason): LanguageModelV2FinishReason {
  return unified === "interrupted" ? "other" : unified;
}

function used({
  inputTokens: { total: inputTokens, cacheRead },
  outputTokens,
}: LanguageModelV4Usage): LanguageModelV2Usage {
  const made = outputTokens.total;
  const totalTokens = inputTokens === undefined || made === undefined ? undefined : inputTokens + made;
  return { inputTokens, outputTokens: made, totalTokens, cachedInputTokens: cacheRead };
}

export function warning(given: SharedV4Warning): LanguageModelV2CallWarning {
  const message = given.type === "other" || given.type === "deprecated" ? given.message : told(given);
  return { type: "other", message };
}

function told({ feature, details }: { feature: string; details?: string }): string {
  return details ? `${feature}: ${details}` : feature;
}
