// OpenAI's `audio.transcriptions.create`: a transcription with the parameters and the results of its API.

import { refused } from "../wire/errors";
import { flag, type Kinds, listOf, number, oneOf, text } from "./kinds";
import { readOptions } from "./arguments";
import { type Sound, sound } from "./sound_samples";
import type { TranscribeOptions, TranscriptionRun } from "./transcription_run";

/** The supported parameters; all others are refused. null counts as left out. */
export interface TranscriptionParams {
  file: Sound;
  /** The model that was loaded hears. */
  model?: string;
  language?: string | null;
  /** "verbose_json" and "vtt" have the times of segments. */
  response_format?: "json" | "text" | "verbose_json" | "vtt" | null;
  timestamp_granularities?: readonly "segment"[] | null;
  /** Search is greedy: 0. */
  temperature?: number | null;
  stream?: boolean | null;
}

/** The response formats "json" and "verbose_json"; the fields after `text` are of the latter. */
export interface TranscriptionResponse {
  text: string;
  task?: "transcribe" | "translate";
  language?: string;
  duration?: number;
  segments?: { id: number; start: number; end: number; text: string }[];
}

export type TranscriptionStreamEvent =
  { type: "transcript.text.delta"; delta: string } | { type: "transcript.text.done"; text: string };

export interface Transcriptions {
  /** A text for the formats "text" and "vtt"; events with `stream`. */
  create(params: TranscriptionParams & { stream: true }): Promise<AsyncIterable<TranscriptionStreamEvent>>;
  create(params: TranscriptionParams & { response_format: "text" | "vtt" }): Promise<string>;
  create(params: TranscriptionParams): Promise<TranscriptionResponse>;
}

const PARAMETERS: Kinds = {
  ...{
    file: sound,
    model: text,
    language: text,
    response_format: oneOf("json", "text", "verbose_json", "vtt"),
    timestamp_granularities: listOf("granularities", oneOf("segment")),
    temperature: number,
    stream: flag,
  },
};

export function transcriptions(
  task: "transcribe" | "translate",
  transcribe: (sound: Sound, options: TranscribeOptions) => TranscriptionRun,
): Transcriptions {
  const create = async (given: TranscriptionParams): Promise<unknown> => {
    const params = readOptions("the parameters", given, PARAMETERS);
    const { file, language, response_format: format = "json", temperature, stream } = params;
    if (!file) throw refused("file is missing; give a File, a Blob or samples");
    if (temperature) throw refused(`temperature is ${temperature}; search is greedy, which is 0`);
    const stamped = format === "verbose_json" || format === "vtt";
    if (stream && stamped) throw refused(`stream and response_format ${format} were both given; give one of them`);
    const run = transcribe(file, { task, timestamps: stamped, ...(language == null ? {} : { language }) });
    if (stream) return deltas(run);
    const found = await run.result;
    if (format === "text" || format === "vtt") return format === "vtt" ? found.vtt : `${found.text}\n`;
    if (!stamped) return { text: found.text };
    const segments = found.segments.map((segment, id) => ({ id, ...segment }));
    return { task, language: found.language, duration: found.duration, text: found.text, segments };
  };
  return { create } as Transcriptions;
}

async function* deltas(run: TranscriptionRun): AsyncGenerator<TranscriptionStreamEvent, void, undefined> {
  for await (const { text: delta } of run) yield { type: "transcript.text.delta", delta };
  yield { type: "transcript.text.done", text: (await run.result).text };
}
