// A transcriber as a transcription model of the AI SDK.

import type {
  JSONObject,
  SharedV4Warning,
  TranscriptionModelV2,
  TranscriptionModelV3,
  TranscriptionModelV4,
  TranscriptionModelV4CallOptions,
} from "@ai-sdk/provider";
import { CapstanError, type Transcriber, type TranscribeOptions } from "capstan-webgpu";
import { type CapstanModelOptions, requireVersion, warning } from "./ai_versions";

type Asr = Pick<Transcriber, "transcribe">;
type Options = CapstanModelOptions;

/**
 * `transcribe({ model: capstanTranscription(asr), audio })`: a model that Capstan.loadTranscriber loaded, by the AI SDK's
 * transcription model specification. `providerOptions: { capstan: { language, task, timestamps } }` are the options of
 * `asr.transcribe`; segments have their times unless `timestamps` is false.
 */
export function capstanTranscription(asr: Asr, options: Options & { specification: "v2" }): TranscriptionModelV2;
export function capstanTranscription(asr: Asr, options: Options & { specification: "v3" }): TranscriptionModelV3;
export function capstanTranscription(asr: Asr, options?: Options & { specification?: "v4" }): TranscriptionModelV4;
export function capstanTranscription(
  asr: Asr,
  { modelId = "local", specification = "v4" }: Options = {},
): TranscriptionModelV2 | TranscriptionModelV3 | TranscriptionModelV4 {
  requireVersion(specification);
  if (typeof asr?.transcribe !== "function")
    throw new CapstanError({
      type: "OptionError",
      message: "the model is not one that Capstan.loadTranscriber gave; give what its promise resolves to",
    });
  const model: TranscriptionModelV4 = {
    specificationVersion: "v4",
    provider: "capstan",
    modelId,
    async doGenerate(options) {
      const { abortSignal } = options;
      abortSignal?.throwIfAborted();
      const { given, warnings } = readOptions(options);
      const asked = abortSignal ? { ...given, signal: abortSignal } : given;
      const found = await asr.transcribe(new Blob([bytesOf(options.audio)]), asked).result;
      if (found.aborted) abortSignal?.throwIfAborted();
      const segments = found.segments.map(({ text, start, end }) => ({ text, startSecond: start!, endSecond: end! }));
      const { text, language, duration: durationInSeconds } = found;
      return { text, segments, language, durationInSeconds, warnings, response: { timestamp: new Date(), modelId } };
    },
  };
  if (specification === "v4") return model;
  return {
    ...model,
    specificationVersion: specification,
    async doGenerate(options: TranscriptionModelV4CallOptions) {
      const found = await model.doGenerate(options);
      return { ...found, warnings: found.warnings.map((each) => (specification === "v2" ? warning(each) : each)) };
    },
  } as unknown as TranscriptionModelV2 | TranscriptionModelV3;
}

function readOptions({ providerOptions, timestampGranularities }: TranscriptionModelV4CallOptions): {
  given: TranscribeOptions;
  warnings: SharedV4Warning[];
} {
  const warnings: SharedV4Warning[] = [];
  if (timestampGranularities?.includes("word"))
    warnings.push({ type: "unsupported", feature: "timestamps of words", details: "segments have theirs" });
  const { language, task, timestamps = true, ...others } = (providerOptions?.["capstan"] ?? {}) as JSONObject;
  if (Object.keys(others).length)
    warnings.push({
      type: "unsupported",
      feature: `providerOptions.capstan: ${Object.keys(others).join(", ")}`,
      details: "there are language, task and timestamps",
    });
  // `transcribe` checks their types.
  return { given: { language, task, timestamps } as TranscribeOptions, warnings };
}

function bytesOf(audio: Uint8Array | string): Uint8Array<ArrayBuffer> {
  if (typeof audio !== "string") return audio as Uint8Array<ArrayBuffer>;
  return Uint8Array.from(atob(audio), (letter) => letter.charCodeAt(0));
}
