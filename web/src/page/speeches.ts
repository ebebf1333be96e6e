// OpenAI's `audio.speech.create`: a sound with the parameters and the result of its API.

import { readOptions } from "./arguments";
import { refused } from "../wire/errors";
import { type Kinds, number, oneOf, text } from "./kinds";

/** Samples a second. */
export const SAMPLE_RATE = 24_000;

/** The supported parameters; all others are refused. null counts as left out. */
export interface SpeechParams {
  input: string;
  /** The model that was loaded speaks. */
  model?: string;
  /** The name of a voice of the model. */
  voice?: string | null;
  /** "pcm" has 16 bits a sample without a header, as OpenAI's; "wav" unless given. */
  response_format?: "wav" | "pcm" | null;
  speed?: number | null;
}

export interface Speeches {
  /** A response with the sound, as OpenAI's client has it. */
  create(params: SpeechParams): Promise<Response>;
}

const PARAMETERS: Kinds = {
  ...{ input: text, model: text, voice: text, response_format: oneOf("wav", "pcm"), speed: number },
};

export function speeches(
  speak: (text: string, options: { voice?: string; speed?: number }) => AsyncIterable<Float32Array>,
): Speeches {
  const create = async (given: SpeechParams): Promise<Response> => {
    const { input, voice, response_format: format, speed } = readOptions("the parameters", given, PARAMETERS);
    if (input === undefined) throw refused("input is missing; give the text to speak");
    const parts: BlobPart[] = [];
    let size = 0;
    for await (const samples of speak(input, {
      ...(voice == null ? {} : { voice }),
      ...(speed == null ? {} : { speed }),
    })) {
      const whole = Int16Array.from(samples, (sample) => Math.round(32767 * Math.max(-1, Math.min(1, sample))));
      parts.push(whole);
      size += whole.byteLength;
    }
    const wave = format !== "pcm";
    if (wave) parts.unshift(header(size));
    return new Response(new Blob(parts), { headers: { "Content-Type": wave ? "audio/wav" : "audio/pcm" } });
  };
  return { create };
}

/** The header of a WAV file of one channel, 16 bits, with this number of bytes of samples. */
function header(size: number): Uint8Array<ArrayBuffer> {
  const bytes = new Uint8Array(44);
  const view = new DataView(bytes.buffer);
  bytes.set(new TextEncoder().encode("RIFF....WAVEfmt ....................data"));
  const words = [
    [4, 36 + size],
    [16, 16],
    [24, SAMPLE_RATE],
    [28, 2 * SAMPLE_RATE],
    [40, size],
  ];
  for (const [at, word] of words) view.setUint32(at!, word!, true);
  for (const [at, half] of [
    [20, 1],
    [22, 1],
    [32, 2],
    [34, 16],
  ])
    view.setUint16(at!, half!, true);
  return bytes;
}
